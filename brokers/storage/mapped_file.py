"""Reads of a file without a copy: views of a mapping, for what is in the page cache."""

import ctypes
from collections.abc import Callable
from mmap import ACCESS_COPY, PAGESIZE, mmap
from typing import Final
from weakref import ref

MAPPED_BYTES: Final = 256 * 1024
"""Reads of fewer bytes are copied: at 128 KiB both cost the same, at 64 KiB a copy costs less."""

_MAX_MAPPINGS: Final = 10_000
"""All mappings, those that only views hold included: Linux allows a process 65,530."""

# It never waits for a disk, so it keeps the GIL.
_mincore: Final[Callable[..., int]] = ctypes.PyDLL(None).mincore
_mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)  # type: ignore[attr-defined]


class MappedFile:
    """The first `size` bytes of a file, which nothing writes to any more.

    Two things end the process by SIGBUS when a view is read: a page that the disk cannot give, and a
    file that was shortened. So `cached` gives a view only when the page cache has all of it, and a file
    is shortened only when `MappedFiles.has_views` is False.

    A view keeps the mapping; without views and owner it is unmapped.
    """

    __slots__ = ("_address", "_view", "size")

    def __init__(self, mapping: mmap) -> None:
        self.size = len(mapping)
        # A private mapping shows the page cache's pages: nothing is written to it.
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
        self._view = memoryview(mapping).toreadonly()

    def is_cached(self, position: int, end: int) -> bool:
        """Whether the page cache has all of `[position, end)`."""
        first = position - position % PAGESIZE
        pages = ctypes.create_string_buffer(-(-(end - first) // PAGESIZE))
        return not _mincore(self._address + first, end - first, pages) and b"\0" not in pages.raw

    def cached(self, position: int, end: int) -> memoryview | None:
        """A view of `[position, end)`; None if the page cache does not have all of it."""
        return self._view[position:end] if self.is_cached(position, end) else None


class MappedFiles:
    """Makes the mappings of a broker's segments, and counts those that are alive.

    Each segment keeps one (`Segment`), as long as it is among the open ones (`OpenSegments`). Those
    that it had before live until ZeroMQ has sent their last view. Above the limit reads are copied.

    Owner: the event loop. A view may be given back on any thread.
    """

    def __init__(self, limit: int = _MAX_MAPPINGS) -> None:
        self._limit = limit
        self._alive: dict[int, ref[mmap]] = {}

    def __len__(self) -> int:
        return len(self._alive)

    def map(self, fd: int, size: int) -> tuple[MappedFile, "ref[mmap]"] | None:
        """Map the first `size` bytes; None if that cannot be done now."""
        if len(self._alive) >= self._limit:
            return None
        try:
            mapping = mmap(fd, size, access=ACCESS_COPY)
        except (OSError, ValueError):  # no room in the address space, or the file is shorter
            return None
        key = id(mapping)
        alive = self._alive
        alive[key] = found = ref(mapping, lambda _: alive.pop(key, None))
        return MappedFile(mapping), found
