"""The records of a partition in the application's hands, finished in any order."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import chain, pairwise


class OffsetRanges:
    """Sorted ranges of offsets, without their ends, that do not touch each other."""

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, start: int, end: int) -> None:
        first, last = bisect_left(self._ends, start), bisect_right(self._starts, end)
        if first < last:
            start, end = min(start, self._starts[first]), max(end, self._ends[last - 1])
        self._starts[first:last], self._ends[first:last] = [start], [end]

    def remove_through(self, offset: int) -> int:
        """Remove the ranges up to `offset`, and return the end of the one that has it, or `offset`."""
        count = bisect_right(self._starts, offset)
        reached = max(offset, self._ends[count - 1]) if count else offset
        del self._starts[:count], self._ends[:count]
        return reached

    def cut(self, end: int) -> None:
        count = bisect_left(self._starts, end)
        del self._starts[count:], self._ends[count:]
        if self._ends:
            self._ends[-1] = min(self._ends[-1], end)


class Unfinished:
    """The first unfinished record (`low`), and the finished ranges after it.

    Offsets without a record (compacted, or skipped) count as finished. The memory grows with the gaps between
    finished records.
    """

    __slots__ = ("_finished", "high", "low")

    def __init__(self, start: int) -> None:
        self.low = self.high = start
        """`high` is the offset after the last record in hand."""
        self._finished = OffsetRanges()

    @property
    def is_empty(self) -> bool:
        return self.low >= self.high

    def hand_out(self, offsets: Sequence[int], behind: int) -> None:
        """The application gets the records of these offsets, in order; there are no others before `behind`.
        Known ones change nothing."""
        if offsets and offsets[0] == self.high and behind - self.high == len(offsets):
            self.high = behind
            return
        new = offsets[bisect_left(offsets, self.high) :]
        for before, after in pairwise(chain((self.high - 1,), new, (behind,))):
            if before + 1 < after:
                self._finished.add(before + 1, after)
        self.high = max(self.high, behind)
        self.low = self._finished.remove_through(self.low)

    def finish(self, start: int, end: int) -> None:
        """Finish the records in hand from offset `start` to before `end`."""
        start, end = max(start, self.low), min(end, self.high)
        if start < end:
            self._finished.add(start, end)
            self.low = self._finished.remove_through(self.low)

    def cut(self, end: int) -> None:
        self.high, self.low = min(self.high, end), min(self.low, end)
        self._finished.cut(end)
