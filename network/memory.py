"""Keeping the memory of large buffers, which come and go with every message."""

from functools import cache
from typing import Final

LARGEST_BYTES: Final = 8 * 1024 * 1024


@cache
def keep_freed_memory() -> None:
    """Have the allocator keep what is freed in blocks of up to LARGEST_BYTES, from now on.

    A fetch's frames and the bodies made of them, and what a broker receives and reads, are blocks of
    hundreds of kilobytes and more. By default glibc takes such a block from the kernel and gives it
    back when it is freed, and the kernel clears every page of it again: a fourth of what decompression
    costs, and of what uncompressed batches cost a broker. But when it sees such a block freed it takes
    it that blocks of that size come and go, and keeps memory for them, up to twice that size at the
    end of its heap. So one is freed here; it was never touched, and has cost nothing. Other allocators
    do not mind.
    """
    bytes(LARGEST_BYTES)
