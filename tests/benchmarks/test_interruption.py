"""A run that is ended before its time."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import children, state
from tests.tree import ROOT
from tests.waiting import eventually

BENCH = ROOT / ".bench"


@pytest.mark.slow
@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_stops_its_servers_and_removes_their_data(
    by: signal.Signals, tmp_path: Path
) -> None:
    with (tmp_path / "output").open("w") as output:
        # So many rounds that it does not end by itself before it is interrupted.
        run = subprocess.Popen(
            [sys.executable, "-m", "benchmarks", "throughput", "--smoke", "--rounds", "100"],
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        eventually(lambda: "Folkmoot send()" in (tmp_path / "output").read_text(), 120)
        eventually(lambda: len(descendants(run.pid)) >= 2, 60)  # ZooKeeper and a broker
        below = descendants(run.pid)
        data = list(BENCH.glob("work-*"))  # of this run, since one waits for the other
        run.send_signal(by)
        assert run.wait(60) == 130
    finally:
        run.kill()
        run.wait()
    assert "interrupted" in (tmp_path / "output").read_text()
    assert [each.exists() for each in data] == [False]
    eventually(lambda: not any(state(each) != "X" for each in below), 10)


def descendants(pid: int) -> list[int]:
    """The processes below one, and those below them."""
    below = children(pid)
    return [*below, *(each for child in below for each in descendants(child))]
