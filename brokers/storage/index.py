"""The sparse offset index of a segment."""

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import chain
from operator import lt
from pathlib import Path

from folkmoot.brokers.storage.entries import EntryFile
from folkmoot.protocol.batch_header import HEADER_BYTES

_ENTRY = struct.Struct(">II")
_HIGHEST = 2**32 - 1
ENTRY_BYTES = _ENTRY.size


class OffsetIndex(EntryFile):
    """Offset → position in the `.log` beside it, for some of its batches.

    Entry: two u32, the batch's base offset relative to the segment's and its position, both strictly
    increasing. The batch at position 0 has no entry.

    `open` keeps entries only if they rise; those that point beyond the log are left out. The segment
    adds those that lack, and a reader compares the batch found at a position with the entry that led
    there: a wrong index costs time and never gives a wrong answer.
    """

    __slots__ = ("_base", "_due", "_interval_bytes", "_log_bytes")

    def __init__(self, path: Path, base_offset: int, interval_bytes: int) -> None:
        super().__init__(path, _ENTRY)
        self._base = base_offset
        self._interval_bytes = interval_bytes
        self._due = interval_bytes
        self._log_bytes = 0

    def open(self, log_bytes: int, reserve: int) -> bool:
        """Map the file with room for `reserve` entries. False if it held something not to be trusted.

        An untrusted or missing index is empty afterwards. Raises OSError.
        """
        self._log_bytes = log_bytes
        # Batches have a least size, so entries have a greatest number; more is not worth reading.
        trusted = self._open(log_bytes // HEADER_BYTES + 1, reserve)
        self._due = self.last()[1] + self._interval_bytes
        return trusted

    def _trusted(self, first: Sequence[int], second: Sequence[int]) -> int:
        rising = all(map(lt, chain((0,), first), first)) and all(
            map(lt, chain((0,), second), second)
        )
        return bisect_left(second, self._log_bytes) if rising else 0

    def offer(self, offset: int, position: int) -> bool:
        """Take the batch at `position` as an entry, if one is due there; `save` writes it."""
        if position < self._due or offset - self._base > _HIGHEST:
            return False
        self._unsaved.append(_ENTRY.pack(offset - self._base, position))
        self._due = position + self._interval_bytes
        return True

    def last(self) -> tuple[int, int]:
        """Offset and position of the last entry, or of the segment's start."""
        return self._pointed(self.count - 1)

    def entries(self) -> list[tuple[int, int]]:
        """All of them, as (offset, position)."""
        return [self._pointed(number) for number in range(self.count)]

    def stretch(self, offset: int) -> tuple[int, int, int | None]:
        """The last entry at or below `offset` (or the segment's start), and where the next one points.

        That is None behind the last entry.
        """
        number = self._rank(offset - self._base, field=0)
        last = number + 1 == self.count
        return *self._pointed(number), None if last else self._pointed(number + 1)[1]

    def at_position(self, position: int) -> tuple[int, int]:
        """The last entry at or below `position`, or the segment's start."""
        return self._pointed(self._rank(position, field=1))

    def _rank(self, value: int, field: int) -> int:
        return (
            bisect_right(range(self.count), value, key=lambda number: self._at(number)[field]) - 1
        )

    def _pointed(self, number: int) -> tuple[int, int]:
        if number < 0:
            return self._base, 0
        relative, position = self._at(number)
        return self._base + relative, position
