"""Every example is run, as its first lines say, on a cluster of its own."""

import os
import subprocess
import sys
from collections.abc import Callable

from folkmoot.console.main import main
from folkmoot.console.options import ENVIRONMENT
from folkmoot.console.processes import EmbeddedCluster
from tests.tree import ROOT

EXAMPLES = ROOT / "examples"


def run(name: str, zookeeper: str | None) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != ENVIRONMENT}
    if zookeeper is not None:
        environment[ENVIRONMENT] = zookeeper
    words = [sys.executable, "-X", "dev", str(EXAMPLES / name)]
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
