"""What a broker does by itself, from time to time, between two requests."""

import heapq
from collections.abc import Callable, Iterable
from typing import NamedTuple


class Now(NamedTuple):
    """One moment in both clocks: `monotonic` seconds for deadlines, `wall` in ms for stamps."""

    monotonic: float
    wall: int


Chore = Callable[[Now], float]
"""Does a bounded piece of work; returns the seconds after which it wants to be called again."""


class Upkeep:
    """Chores and when they are due.

    `run` does one chore at a time, so that requests are answered in between: what a chore may take
    on the reactor's thread is what a request may have to wait. It looks at memory and small files
    only; reading and flushing much is handed to the background. The reactor's thread only.
    """

    def __init__(self, chores: Iterable[Chore] = ()) -> None:
        self._due = [(float("-inf"), number, chore) for number, chore in enumerate(chores)]

    def next_deadline(self) -> float | None:
        """When to call `run` again at the latest, by the monotonic clock."""
        return self._due[0][0] if self._due else None

    def run(self, now: Now) -> None:
        """Do one chore, if one is due."""
        if self._due and self._due[0][0] <= now.monotonic:
            _, number, chore = self._due[0]
            heapq.heapreplace(self._due, (now.monotonic + chore(now), number, chore))
