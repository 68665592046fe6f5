"""A file of entries of one size, rising: what both indexes of a segment are."""

import mmap
import os
import struct
import sys
from array import array
from collections.abc import Sequence
from pathlib import Path

_FIELDS = 2


class EntryFile:
    """Pairs of big-endian numbers in a file, pre-sized for those to come, trimmed when it is closed.

    Entries of zeros are free room: no entry that is written has a second field of zero.

    The file is read through a mapping and written by `pwrite`: a store into the mapping of a sparse
    file would be SIGBUS on a full disk, while a failed `pwrite` is an OSError that costs one entry.
    The kernel keeps the two views the same. Without room for more (`reserve` 0) the descriptor is
    closed once the file is mapped, and opened again should an entry be added after all.

    Nothing here is trusted beyond its order (`_trusted` of the kind of index). After a crash entries
    may be missing, stale or torn. No checksum is needed, because who reads an index compares what it
    finds in the log.

    Owner: the segment, on its one thread.
    """

    __slots__ = ("_capacity", "_entry", "_fd", "_grows", "_map", "_path", "_unsaved", "count")

    def __init__(self, path: Path, entry: struct.Struct) -> None:
        self._path = path
        self._entry = entry
        self._unsaved: list[bytes] = []
        self._fd = -1
        self._map: mmap.mmap | None = None
        self._capacity = 0
        self._grows = False
        self.count = 0

    def _open(self, most: int, reserve: int) -> bool:
        """Map the file with room for `reserve` entries; at most `most` are worth reading.

        False if it held something not to be trusted; then it is empty. Raises OSError.
        """
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        size = self._entry.size
        data = os.pread(self._fd, most * size, 0)
        used = len(data.rstrip(b"\0"))
        whole = -(-used // size)
        self.count = self._trusted(*_fields(data[: whole * size], size)) if whole else 0
        self._grows = reserve > 0
        found = os.fstat(self._fd).st_size
        if found > self.count * size and (used > self.count * size or found > len(data)):
            found = self.count * size
            if found:
                os.ftruncate(self._fd, found)
            else:
                self._replace()
        try:
            self._remap(max(reserve, self.count), found)
        except OSError:  # no room for what is to come is no reason not to read what is there
            self._remap(self.count, self.count * size)
        return self.count > 0 or used == 0

    def _replace(self) -> None:
        """Begin with a new file: to cut one to nothing makes ext4 write it to the disk first."""
        os.close(self._fd)
        self._fd = -1
        self._path.unlink()
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)

    def _trusted(self, first: Sequence[int], second: Sequence[int]) -> int:
        """How many of the entries, given by their two fields, are to be trusted."""
        raise NotImplementedError

    def trim(self) -> None:
        """No more entries will come: give the spare room and the descriptor back. Raises OSError."""
        if self._fd >= 0:
            try:
                if self._capacity > self.count:
                    self._remap(self.count)
            finally:
                fd, self._fd = self._fd, -1
                os.close(fd)

    def suspend(self) -> None:
        """Unmap and close, and leave the file as it is until `resume`."""
        if self._map is not None:
            self._map.close()
            self._map = None
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def resume(self) -> bool:
        """Open again what was suspended. False if the file is not what it was. Raises OSError."""
        if self._fd < 0 and self._grows:
            self._fd = os.open(self._path, os.O_RDWR)
            size = self._capacity * self._entry.size
            if os.fstat(self._fd).st_size != size:
                self.suspend()
                return False
            self._map = mmap.mmap(self._fd, size, prot=mmap.PROT_READ) if size else None
        return True

    def close(self) -> None:
        """Unmap and trim. The object can be opened again. Raises OSError, closed."""
        if self._map is not None:
            self._map.close()
            self._map = None
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            try:
                if self._capacity > self.count:
                    os.ftruncate(fd, self.count * self._entry.size)
            finally:
                os.close(fd)

    def save(self) -> None:
        """Write what was added. Raises OSError; then those entries are missing, nothing else."""
        if not self._unsaved:
            return
        data, added = b"".join(self._unsaved), len(self._unsaved)
        self._unsaved.clear()
        if self._fd < 0:
            self._fd = os.open(self._path, os.O_RDWR)
        if self._grows and self.count + added > self._capacity:
            self._remap(2 * (self.count + added))
        if os.pwrite(self._fd, data, self.count * self._entry.size) != len(data):
            raise OSError(f"{self._path.name}: short write")
        if self.count + added > self._capacity:
            self._remap(self.count + added, (self.count + added) * self._entry.size)
        self.count += added

    def _at(self, number: int) -> tuple[int, int]:
        found: tuple[int, int] = self._entry.unpack_from(self._mapped(), number * self._entry.size)
        return found

    def _mapped(self) -> mmap.mmap:
        assert self._map is not None, f"{self._path} is not open"
        return self._map

    def _remap(self, capacity: int, found: int | None = None) -> None:
        """Map room for so many entries; the file is so long already if it is `found` to be."""
        wanted = capacity * self._entry.size
        # A mapping that reaches beyond the file's end must not be looked into.
        if self._map is not None and capacity < self._capacity:
            self._map.close()
            self._map = None
        if found != wanted:
            os.ftruncate(self._fd, wanted)
        mapped = mmap.mmap(self._fd, wanted, prot=mmap.PROT_READ) if capacity else None
        if self._map is not None:
            self._map.close()
        self._map, self._capacity = mapped, capacity


def _fields(data: bytes, size: int) -> tuple[Sequence[int], Sequence[int]]:
    """The first and the second fields of whole entries; those of one cut off are left out."""
    code = {8: "I", 16: "q"}[size]
    cells = array(code, data[: len(data) // size * size])
    assert cells.itemsize * _FIELDS == size
    if sys.byteorder == "little":
        cells.byteswap()
    return cells[0::2], cells[1::2]
