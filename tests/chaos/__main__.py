"""Chaos by command: many events, over several clusters and as many runs as it takes.

    python -m tests.chaos --events 1000 --seed 7 --at-once 2 --directory DIR

`DIR/state.json` has what was done so far, all runs together; it is written after each cluster, so a
run that is cut short loses one cluster's events and the next goes on. After SIGTERM a run ends in order,
with what it has begun. What a cluster that failed left is kept in DIR, with everything that its
processes said.
"""

import argparse
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

from tests.chaos.results import Totals
from tests.chaos.run import run_cluster
from tests.chaos.settings import Settings
from tests.tree import ROOT


def main() -> int:
    parser = argparse.ArgumentParser(prog="make chaos")
    parser.add_argument("--events", type=int, default=300, help="how many to do in this run")
    parser.add_argument(
        "--seed", type=int, default=None, help="of the first cluster; then it counts on"
    )
    parser.add_argument("--each", type=int, default=300, help="events for each cluster")
    parser.add_argument("--at-once", type=int, default=1, help="clusters side by side")
    parser.add_argument("--directory", type=Path, default=Path(".chaos"))
    given = parser.parse_args()
    directory = given.directory.absolute()
    directory.mkdir(parents=True, exist_ok=True)
    totals = Totals(directory / "state.json")
    seeds = count(totals.next_seed if given.seed is None else given.seed)
    clusters = list(zip(seeds, shares(given.events, given.each, given.at_once), strict=False))
    if given.at_once > 1:
        failed = _side_by_side(directory, clusters, given.at_once)
    else:
        failed = _one_by_one(directory, clusters, totals)
    if not failed:
        _say("all runs: " + json.dumps(totals.summary()))
    return int(failed)


def shares(events: int, each: int, at_once: int) -> list[int]:
    """How many events each cluster is to do."""
    clusters = max(1, min(at_once, events), -(-events // each))
    return [events // clusters + (number < events % clusters) for number in range(clusters)]


def _one_by_one(directory: Path, clusters: list[tuple[int, int]], totals: Totals) -> bool:
    """Whether one has failed; it is the last then."""
    ended = Ending()
    for seed, events in clusters:
        if not ended():
            result = run_cluster(directory, Settings(), seed, events, _say, is_enough=ended)
            totals.add(result)
            _say(result.table())
            if result.breaches:
                return True
    return False


def _side_by_side(directory: Path, clusters: list[tuple[int, int]], at_once: int) -> bool:
    """Whether one has failed. Each has a process of its own."""
    running: dict[int, subprocess.Popen[bytes]] = {}

    def end_all() -> None:
        for each in tuple(running.values()):
            each.terminate()

    ended = Ending(end_all)

    def do(cluster: tuple[int, int]) -> int:
        seed, events = cluster
        if ended():
            return 0
        command = [sys.executable, "-m", "tests.chaos", "--directory", str(directory)]
        command += ["--seed", str(seed), "--events", str(events), "--each", str(events)]
        running[seed] = subprocess.Popen(command, cwd=ROOT)
        return running[seed].wait()

    with ThreadPoolExecutor(at_once) as pool:
        return any(list(pool.map(do, clusters)))


class Ending:
    """Whether SIGTERM has come; then `tell` is called, once."""

    def __init__(self, tell: Callable[[], object] = lambda: None) -> None:
        self._told = False
        self._tell = tell
        signal.signal(signal.SIGTERM, self._hear)

    def __call__(self) -> bool:
        return self._told

    def _hear(self, *_: object) -> None:
        if not self._told:
            self._told = True
            self._tell()


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
