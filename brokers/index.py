"""The sparse offset index of a segment."""

import mmap
import os
import struct
import sys
from array import array
from bisect import bisect_right
from itertools import chain
from operator import lt
from pathlib import Path

from folkmoot.protocol.batch import HEADER_BYTES

_ENTRY = struct.Struct(">II")
ENTRY_BYTES = _ENTRY.size


class OffsetIndex:
    """Offset → position in the `.log` beside it, for some of its batches.

    File: entries of two big-endian u32, the batch's base offset relative to the segment's and its
    position, both strictly increasing. The batch at position 0 has no entry, so an entry of zeros is
    free room. The file is pre-sized for entries to come and trimmed when it is closed.

    The file is read through a mapping and written by `pwrite`: a store into the mapping of a sparse
    file would be SIGBUS on a full disk, while a failed `pwrite` is an OSError that costs one entry.
    The kernel keeps the two views the same.

    Nothing here is trusted beyond its order. After a crash entries may be missing, stale or torn:
    `open` keeps them only if they rise and lie within the log, the segment adds those that lack, and
    a reader compares the batch found at a position with the entry that led there. No checksum is
    needed, because a wrong index costs time and never gives a wrong answer.

    Owner: the segment, on its one thread.
    """

    __slots__ = (
        "_base",
        "_capacity",
        "_due",
        "_fd",
        "_interval_bytes",
        "_map",
        "_path",
        "_unsaved",
        "count",
    )

    def __init__(self, path: Path, base_offset: int, interval_bytes: int) -> None:
        self._path = path
        self._base = base_offset
        self._interval_bytes = interval_bytes
        self._due = interval_bytes
        self._unsaved: list[bytes] = []
        self._fd = -1
        self._map: mmap.mmap | None = None
        self._capacity = 0
        self.count = 0

    def open(self, log_bytes: int, reserve: int) -> bool:
        """Map the file with room for `reserve` entries. False if it held something not to be trusted.

        An untrusted or missing index is empty afterwards. Raises OSError.
        """
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        # Batches have a least size, so entries have a greatest number; more is not worth reading.
        data = os.pread(self._fd, (log_bytes // HEADER_BYTES + 1) * ENTRY_BYTES, 0)
        used = len(data.rstrip(b"\0"))
        self.count = _count_if_rising(data, -(-used // ENTRY_BYTES), log_bytes)
        os.ftruncate(self._fd, self.count * ENTRY_BYTES)
        self._remap(max(reserve, self.count, 1))
        self._due = self.last()[1] + self._interval_bytes
        return self.count > 0 or used == 0

    def close(self) -> None:
        """Unmap and trim. The object can be opened again."""
        if self._map is not None:
            self._map.close()
            self._map = None
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            try:
                os.ftruncate(fd, self.count * ENTRY_BYTES)
            finally:
                os.close(fd)

    def clear(self) -> None:
        """Forget all entries, on disk too. Raises OSError."""
        self.count = 0
        self._due = self._interval_bytes
        self._unsaved.clear()
        os.ftruncate(self._fd, 0)
        self._remap(self._capacity)

    def offer(self, offset: int, position: int) -> None:
        """Take the batch at `position` as an entry, if one is due there; `save` writes it."""
        if position >= self._due:
            self._unsaved.append(_ENTRY.pack(offset - self._base, position))
            self._due = position + self._interval_bytes

    def save(self) -> None:
        """Write what was taken. Raises OSError; then those entries are missing, nothing else."""
        if not self._unsaved:
            return
        data, added = b"".join(self._unsaved), len(self._unsaved)
        self._unsaved.clear()
        if self.count + added > self._capacity:
            self._remap(2 * (self.count + added))
        if os.pwrite(self._fd, data, self.count * ENTRY_BYTES) != len(data):
            raise OSError(f"{self._path.name}: short write")
        self.count += added

    def last(self) -> tuple[int, int]:
        """Offset and position of the last entry, or of the segment's start."""
        return self._entry(self.count - 1)

    def entries(self) -> list[tuple[int, int]]:
        """All of them, as (offset, position)."""
        return [self._entry(number) for number in range(self.count)]

    def stretch(self, offset: int) -> tuple[int, int, int | None]:
        """The last entry at or below `offset` (or the segment's start), and where the next one points.

        That is None behind the last entry.
        """
        number = self._rank(offset - self._base, field=0)
        last = number + 1 == self.count
        return *self._entry(number), None if last else self._entry(number + 1)[1]

    def at_position(self, position: int) -> tuple[int, int]:
        """The last entry at or below `position`, or the segment's start."""
        return self._entry(self._rank(position, field=1))

    def _rank(self, value: int, field: int) -> int:
        entries, unpack = self._mapped(), _ENTRY.unpack_from

        def key(number: int) -> int:
            found: int = unpack(entries, number * ENTRY_BYTES)[field]
            return found

        return bisect_right(range(self.count), value, key=key) - 1

    def _entry(self, number: int) -> tuple[int, int]:
        if number < 0:
            return self._base, 0
        relative, position = _ENTRY.unpack_from(self._mapped(), number * ENTRY_BYTES)
        return self._base + relative, position

    def _mapped(self) -> mmap.mmap:
        assert self._map is not None, f"{self._path} is not open"
        return self._map

    def _remap(self, capacity: int) -> None:
        os.ftruncate(self._fd, capacity * ENTRY_BYTES)
        mapped = mmap.mmap(self._fd, capacity * ENTRY_BYTES, prot=mmap.PROT_READ)
        if self._map is not None:
            self._map.close()
        self._map, self._capacity = mapped, capacity


def _count_if_rising(data: bytes, count: int, log_bytes: int) -> int:
    """`count` if so many entries are whole, strictly increasing and within the log, else 0."""
    if count == 0 or len(data) < count * ENTRY_BYTES:
        return 0
    cells = array("I", data[: count * ENTRY_BYTES])
    assert cells.itemsize == ENTRY_BYTES // 2
    if sys.byteorder == "little":
        cells.byteswap()
    offsets, positions = cells[0::2], cells[1::2]
    rising = all(map(lt, chain((0,), offsets), offsets)) and all(
        map(lt, chain((0,), positions), positions)
    )
    return count if rising and positions[-1] < log_bytes else 0
