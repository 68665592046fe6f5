"""Every example is run, as its first lines say, on a cluster of its own."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from folkmoot.console.main import main
from folkmoot.console.options import ENVIRONMENT
from folkmoot.console.processes import EmbeddedCluster
from tests.tree import ROOT

EXAMPLES = ROOT / "examples"


def run(name: str, zookeeper: str | None, *more: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != ENVIRONMENT}
    if zookeeper is not None:
        environment[ENVIRONMENT] = zookeeper
    words = [sys.executable, "-X", "dev", str(EXAMPLES / name), *more]
    return subprocess.run(
        words, env=environment, capture_output=True, text=True, check=False, timeout=60
    )


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


def test_results_and_offsets_in_one_database_count_each_record_once(
    start_cluster: Callable[..., EmbeddedCluster], tmp_path: Path
) -> None:
    """Run twice: the second goes on where the first ended, though nothing was ever committed."""
    zookeeper = start_cluster().zookeeper
    words = ["topic", "create", "orders", "--partitions", "3", "--zookeeper", zookeeper]
    assert main(words) == 0
    for results in (60, 120):
        done = run("results_and_offsets.py", zookeeper, str(tmp_path / "results.db"))
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == f"{results} results\n"
