"""Chaos by command: many events, over several clusters and as many runs as it takes.

    python -m tests.chaos --events 1000 --seed 7 --directory DIR

`DIR/state.json` has what was done so far, all runs together; it is written after each cluster, so a
run that is cut short loses one cluster's events and the next goes on. After SIGTERM a run ends in order,
with what it has begun. What a cluster that failed left is kept in DIR, with everything that its
processes said.
"""

import argparse
import json
import signal
import sys
from pathlib import Path

from tests.chaos.results import Totals
from tests.chaos.run import run_cluster
from tests.chaos.settings import Settings


def main() -> int:
    parser = argparse.ArgumentParser(prog="make chaos")
    parser.add_argument("--events", type=int, default=300, help="how many to do in this run")
    parser.add_argument(
        "--seed", type=int, default=None, help="of the first cluster; then it counts on"
    )
    parser.add_argument("--each", type=int, default=300, help="events for each cluster")
    parser.add_argument("--directory", type=Path, default=Path(".chaos"))
    given = parser.parse_args()
    given.directory.mkdir(parents=True, exist_ok=True)
    totals = Totals(given.directory / "state.json")
    seed = totals.next_seed if given.seed is None else given.seed
    left = given.events
    ended = Ending()
    while left > 0 and not ended:
        count = min(left, given.each)
        result = run_cluster(given.directory, Settings(), seed, count, _say, is_enough=ended)
        totals.add(result)
        _say(result.table())
        if result.breaches:
            return 1
        left -= count
        seed += 1
    _say("all runs: " + json.dumps(totals.summary()))
    return 0


class Ending:
    """Whether SIGTERM has come."""

    def __init__(self) -> None:
        self._told = False
        signal.signal(signal.SIGTERM, self._hear)

    def __call__(self) -> bool:
        return self._told

    __bool__ = __call__

    def _hear(self, *_: object) -> None:
        self._told = True


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
