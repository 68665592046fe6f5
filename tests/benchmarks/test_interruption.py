"""A run that somebody ends before its time."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.interruption import interruptible, undisturbed
from tests.processes import children, state
from tests.tree import ROOT
from tests.waiting import eventually

BENCH = ROOT / ".bench"
ENDED_BY: dict[str, signal.Signals] = {
    "a terminal": signal.SIGINT,
    "kill": signal.SIGTERM,
    "a terminal that is closed": signal.SIGHUP,
}


@pytest.fixture(autouse=True)
def _no_nohup() -> Iterator[None]:
    """Whoever runs these tests may have it ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("by", ENDED_BY)
def test_each_way_of_ending_a_run_interrupts_it(by: str) -> None:
    with pytest.raises(KeyboardInterrupt), interruptible():
        signal.raise_signal(ENDED_BY[by])


def test_a_run_under_nohup_outlives_its_terminal() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with interruptible(), undisturbed():
        signal.raise_signal(signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_tidying_up_is_finished_first() -> None:
    done: list[str] = []

    def tidy_up() -> None:
        with interruptible(), undisturbed():
            signal.raise_signal(signal.SIGINT)
            done.append("everything")

    with pytest.raises(KeyboardInterrupt):
        tidy_up()
    assert done


@pytest.mark.slow
def test_an_interrupted_run_stops_its_servers_and_removes_their_data(tmp_path: Path) -> None:
    with (tmp_path / "said").open("w") as said:
        # So many rounds that it does not end by itself before it is interrupted.
        run = subprocess.Popen(
            [sys.executable, "-m", "benchmarks", "throughput", "--smoke", "--rounds", "100"],
            cwd=ROOT,
            stdout=said,
            stderr=subprocess.STDOUT,
        )
    try:
        eventually(lambda: "Folkmoot send()" in (tmp_path / "said").read_text(), 120)
        eventually(lambda: len(descendants(run.pid)) >= 2, 60)  # ZooKeeper and a broker
        below = descendants(run.pid)
        data = list(BENCH.glob("work-*"))  # of this run, since one waits for the other
        run.send_signal(signal.SIGINT)
        assert run.wait(60) == 130
    finally:
        run.kill()
        run.wait()
    assert "interrupted" in (tmp_path / "said").read_text()
    assert [each.exists() for each in data] == [False]
    eventually(lambda: not any(state(each) != "X" for each in below), 10)


def descendants(pid: int) -> list[int]:
    """The processes below one, and those below them."""
    below = children(pid)
    return [*below, *(each for child in below for each in descendants(child))]
