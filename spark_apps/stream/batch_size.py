"""How many records the next micro-batch may have, learned from how long the last ones took. Pure.

A member gives partitions up between two micro-batches, so none is to take longer than BATCH_SHARE of
the revoke timeout. The speed of the query is unknown before its first batch, so that one is small; the
next has what takes that time at the pace of the one before, or GROWTH times as much if that is unknown.

The engine does not say when a batch has ended, only when it asks for the next one. With an interval
it does that at whole multiples of it on the wall clock, so a call at a whole second may have waited:
it proves that the batch was not too long for its interval, and not how long it took.
"""

from typing import Final

FIRST: Final = 250_000
LEAST: Final = 1_000
GROWTH: Final = 10
BATCH_SHARE: Final = 1 / 3
AT_WHOLE_SECOND: Final = 0.05
"""So soon after a whole second (s) a call may be one that has waited for it."""
FULL: Final = 0.9
"""A batch that has this part of what it may have says that there was more."""


class BatchSize:
    """The limit of one query; times are those of the wall clock, in seconds."""

    def __init__(self, revoke_timeout: float, first: int | None) -> None:
        self.limit = float(first or FIRST)
        """How many records the next batch may have."""
        self._most = float("inf") if first is None else float(first)
        self._time = revoke_timeout * BATCH_SHARE
        self._running: tuple[float, int] | None = None
        self._was_measured = False

    def begin(self, now: float, records: int) -> None:
        """The engine gets a batch of this many records."""
        self._running = now, records

    def end(self, now: float) -> None:
        """The engine has come back for the next one."""
        if self._running is None:
            return
        (started_at, records), self._running = self._running, None
        took = max(now - started_at, 0.001)
        was_full = records >= self.limit * FULL
        may_have_waited = now % 1 < AT_WHOLE_SECOND
        if took > self._time and not may_have_waited:
            self._was_measured = True
            self.limit = max(LEAST, records * self._time / took)
        elif was_full and took <= self._time:
            self.limit *= self._time / took
        elif was_full and not self._was_measured:
            self.limit *= GROWTH
        self.limit = min(self.limit, self._most)
