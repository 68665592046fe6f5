"""Reads of a file without a copy: views of a mapping, for what is in the page cache."""

import ctypes
from collections.abc import Callable
from mmap import MAP_SHARED, PAGESIZE, PROT_READ
from typing import Final
from weakref import finalize

MAPPED_BYTES: Final = 256 * 1024
"""Reads of fewer bytes are copied: at 128 KiB both cost the same, at 64 KiB a copy costs less."""

_MAX_MAPPINGS: Final = 10_000
"""All mappings, those that only views hold included: Linux allows a process 65,530."""

_FAILED: Final = ctypes.c_void_p(-1).value
_libc: Final = ctypes.CDLL(None)
# Python's `mmap` keeps a descriptor of its own, and shows the address of writable mappings only.
_mmap: Final[Callable[..., int]] = _libc.mmap
_mmap.restype = ctypes.c_void_p  # type: ignore[attr-defined]
_mmap.argtypes = (  # type: ignore[attr-defined]
    *(ctypes.c_void_p, ctypes.c_size_t),
    *(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long),
)
_munmap: Final[Callable[..., int]] = _libc.munmap
_munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)  # type: ignore[attr-defined]
# It never waits for a disk, so it keeps the GIL.
_mincore: Final[Callable[..., int]] = ctypes.PyDLL(None).mincore
_mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)  # type: ignore[attr-defined]


class MappedFile:
    """A file that only grows, for reads of what is in it.

    Two things end the process by SIGBUS when a view is read: a page that the disk cannot give, and a
    file that was shortened. So a view is made only of what `is_cached`, and a file is shortened only
    where `MappedFiles.is_used` is False.

    A view keeps the mapping; without views and owner it is unmapped.
    """

    __slots__ = ("_address", "_view", "size")

    def __init__(self, address: int, pages: ctypes.Array[ctypes.c_ubyte]) -> None:
        self._address = address
        self._view = memoryview(pages).cast("B").toreadonly()
        self.size = len(pages)

    def is_cached(self, position: int, end: int) -> bool:
        """Return whether the page cache has all of `[position, end)`, which is in the file."""
        first = position - position % PAGESIZE
        pages = ctypes.create_string_buffer(-(-(end - first) // PAGESIZE))
        return not _mincore(self._address + first, end - first, pages) and b"\0" not in pages.raw

    def view(self, position: int, end: int) -> memoryview:
        """The bytes `[position, end)`, which the page cache has."""
        return self._view[position:end]


class MappedFiles:
    """Makes the mappings of a broker's segments, and knows those that are alive.

    Each segment keeps one (`Segment`), as long as it is among the open ones (`OpenSegments`). Those
    that it had before live until ZeroMQ has sent their last view. Above the limit reads are copied.

    Owner: the event loop. A view may be given back on any thread.
    """

    def __init__(self, limit: int = _MAX_MAPPINGS) -> None:
        self._limit = limit
        # By address. The last view may end on any thread, which removes its entry and nothing else.
        self._owners: dict[int, object] = {}

    def __len__(self) -> int:
        return len(self._owners)

    def map(self, fd: int, size: int, owner: object) -> MappedFile | None:
        """Map a file of `size` bytes, and as many to come; None if that cannot be done now."""
        if not size or len(self._owners) >= self._limit:
            return None
        length = max(PAGESIZE, 1 << size.bit_length())
        address = _mmap(None, length, PROT_READ, MAP_SHARED, fd, 0)
        if address == _FAILED:  # no room in the address space
            return None
        pages = (ctypes.c_ubyte * length).from_address(address)
        self._owners[address] = owner
        finalize(pages, _unmap, self._owners, address, length).atexit = False
        return MappedFile(address, pages)

    def is_used(self, owner: object) -> bool:
        """Return whether a mapping that was made for `owner` is still there."""
        return any(each is owner for each in list(self._owners.values()))


def _unmap(owners: dict[int, object], address: int, length: int) -> None:
    del owners[address]  # before the kernel gives it to another mapping
    _munmap(address, length)
