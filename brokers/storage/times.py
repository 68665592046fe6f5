"""The sparse time index of a segment."""

import os
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import chain
from operator import le, lt
from pathlib import Path
from typing import Final

from folkmoot.brokers.storage.entries import EntryFile
from folkmoot.protocol.batch_header import HEADER_BYTES, BatchHeader

_ENTRY = struct.Struct(">qq")
TIME_ENTRY_BYTES: Final = _ENTRY.size
NEVER: Final = -(2**63)


def highest_timestamp(header: BatchHeader) -> int:
    """The highest timestamp of a batch's records."""
    return header.append_time if header.uses_append_time else header.max_timestamp


def last_word(path: Path, end_offset: int) -> int | None:
    """The highest timestamp of a segment that is not written to, by the end of its time index alone.

    None if the file does not say: it is missing, short, or contradicts itself there. On any thread.
    """
    try:
        fd = os.open(path, os.O_RDONLY)
        try:
            entries = os.fstat(fd).st_size // TIME_ENTRY_BYTES
            data = os.pread(fd, 2 * TIME_ENTRY_BYTES, max(0, entries - 2) * TIME_ENTRY_BYTES)
        finally:
            os.close(fd)
    except OSError:
        return None
    last = list(_ENTRY.iter_unpack(data[: len(data) // TIME_ENTRY_BYTES * TIME_ENTRY_BYTES]))
    return last[-1][0] if last and last == sorted(last) and last[-1][1] == end_offset else None


class TimeIndex(EntryFile):
    """Time → offset, for some batches of the `.log` beside it.

    Entry: two i64, the highest timestamp of all records of the segment before an offset, and that
    offset, where a batch begins. Timestamps are the applications' and need not rise; their maximum
    so far never falls, so the index can be searched whatever they are.

    The last entry of a segment that is not written to has the segment's end for its offset, and so
    the highest timestamp of all. An index whose last entry is another one is short: the segment
    adds what lacks.

    `highest` is the maximum over all that was seen, in the entries or by `see`.
    """

    __slots__ = ("_base", "_end", "highest")

    def __init__(self, path: Path, base_offset: int) -> None:
        super().__init__(path, _ENTRY)
        self._base = base_offset
        self._end = base_offset
        self.highest = NEVER

    def open(self, log_bytes: int, end_offset: int, reserve: int) -> bool:
        """Map the file with room for `reserve` entries. False if it held something not to be trusted.

        An untrusted or missing index is empty afterwards. Raises OSError.
        """
        self._end = end_offset
        trusted = self._open(log_bytes // HEADER_BYTES + 2, reserve)
        self.highest = self._at(self.count - 1)[0] if self.count else NEVER
        self._end = self.reach()
        return trusted

    def _trusted(self, first: Sequence[int], second: Sequence[int]) -> int:
        rising = all(map(le, first, first[1:])) and all(
            map(lt, chain((self._base,), second), second)
        )
        return bisect_right(second, self._end) if rising else 0

    def see(self, timestamp: int) -> None:
        """A batch came whose highest timestamp is this."""
        if timestamp > self.highest:
            self.highest = timestamp

    def add(self, offset: int) -> None:
        """All batches before `offset`, where one begins, were seen. `save` writes the entry."""
        if offset > self._end:
            self._unsaved.append(_ENTRY.pack(self.highest, offset))
            self._end = offset

    def reach(self) -> int:
        """The offset up to which the entries tell the highest timestamp."""
        return self._at(self.count - 1)[1] if self.count else self._base

    def entries(self) -> list[tuple[int, int]]:
        """All of them, as (highest timestamp before, offset)."""
        return [self._at(number) for number in range(self.count)]

    def before(self, timestamp: int) -> int:
        """The last known offset such that no record before it is of `timestamp` or later."""
        number = bisect_left(range(self.count), timestamp, key=lambda n: self._at(n)[0]) - 1
        return self._at(number)[1] if number >= 0 else self._base
