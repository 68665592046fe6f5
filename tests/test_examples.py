"""Every example is run, as its first lines say, on a cluster of its own."""

import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from folkmoot import Record, TopicPartition
from folkmoot.console.main import main
from folkmoot.console.options.cluster import ENVIRONMENT
from folkmoot.console.running.processes import EmbeddedCluster
from tests import databases
from tests.tree import ROOT

EXAMPLES = ROOT / "examples"


SLOW = re.compile(r"^Executing .* took [\d.]+ seconds\n", re.MULTILINE)
"""What asyncio says under `-X dev` wherever it had to wait for the processor."""


def run(name: str, zookeeper: str | None, *more: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != ENVIRONMENT}
    if zookeeper is not None:
        environment[ENVIRONMENT] = zookeeper
    words = [sys.executable, "-X", "dev", str(EXAMPLES / name), *more]
    done = subprocess.run(
        words, env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    done.stderr = SLOW.sub("", done.stderr)
    return done


def test_the_kitchen_in_one_event_loop_serves_every_order(
    start_cluster: Callable[..., EmbeddedCluster],
) -> None:
    zookeeper = start_cluster().zookeeper
    for topic in ("orders", "served"):
        words = ["topic", "create", topic, "--partitions", "3", "--zookeeper", zookeeper]
        assert main(words) == 0
    done = run("asyncio_orders.py", zookeeper)
    assert (done.returncode, done.stderr) == (0, "")
    *tables, summary = sorted(
        done.stdout.splitlines(), key=lambda line: not line.startswith("table")
    )
    assert [line.split(" in ")[0] for line in sorted(tables)] == [
        f"table {number}: 25 orders" for number in range(4)
    ]
    assert summary.startswith("100 dishes served, 2")
    lost = run("asyncio_orders.py", None)
    assert (lost.returncode, "FOLKMOOT_ZOOKEEPER" in lost.stdout) == (2, True)


@pytest.fixture(scope="module")
def postgresql() -> Iterator[str]:
    """The address of a PostgreSQL database."""
    if (why_not := databases.why_no_postgresql()) is not None:
        pytest.skip(why_not)
    with databases.postgresql() as address:
        yield address


@pytest.fixture(params=["SQLite", "PostgreSQL"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where results go: a file, or an address. Empty."""
    if request.param == "SQLite":
        return str(tmp_path / "results.db")
    address: str = request.getfixturevalue("postgresql")
    name = f"results_{uuid4().hex[:8]}"
    with closing(results_and_offsets().PostgreSQL(address)) as server:
        server.execute(f"CREATE DATABASE {name}")
    return f"{address.rpartition('/')[0]}/{name}"


def results_and_offsets() -> Any:
    """The example as a module."""
    return SimpleNamespace(**runpy.run_path(str(EXAMPLES / "results_and_offsets.py")))


def test_results_and_offsets_in_one_database_count_each_record_once(
    start_cluster: Callable[..., EmbeddedCluster], database: str
) -> None:
    """Run twice: the second goes on where the first ended, though nothing was ever committed."""
    zookeeper = start_cluster().zookeeper
    words = ["topic", "create", "orders", "--partitions", "3", "--zookeeper", zookeeper]
    assert main(words) == 0
    for results in (60, 120):
        done = run("results_and_offsets.py", zookeeper, database)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == f"{results} results\n"


def test_a_zombies_write_is_refused_by_the_database_at_whichever_moment_it_comes(
    database: str,
) -> None:
    """Also in the middle: it has begun to write when the new owner takes the partition."""
    results_in = results_and_offsets().results_in
    part = TopicPartition("orders", 0)
    first, second, third = (Record("orders", 0, offset, 0, None, b"x") for offset in range(3))

    def take(token: int) -> int | None:
        with closing(results_in(database)) as another:
            next_offset: int | None = another.take(part, token)
            return next_offset

    with closing(results_in(database)) as zombie, closing(results_in(database)) as owner:
        assert zombie.take(part, 5) is None
        assert zombie.write(first, 5)

        under_way = zombie._database
        under_way.execute(under_way.begin)
        mine = "UPDATE progress SET next = 2 WHERE topic = 'orders' AND part = 0 AND token = 5"
        assert under_way.execute(mine).rowcount == 1
        under_way.execute("INSERT INTO results VALUES (?)", (b"x",))
        with ThreadPoolExecutor(1) as others:
            taken = others.submit(take, 9)
            with pytest.raises(TimeoutError):
                taken.result(0.3)  # it waits for what is being written, and goes on behind it
            under_way.execute("COMMIT")
            assert taken.result(20.0) == 2

        assert not zombie.write(second, 5)
        assert zombie.take(part, 5) == 2  # an older token takes nothing
        assert not zombie.write(second, 5)
        assert owner.write(third, 9)
        assert owner.count() == 3
