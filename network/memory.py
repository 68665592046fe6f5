"""Keeping the memory of large buffers, which come and go with every message."""

from functools import cache
from typing import Final

LARGEST_BYTES: Final = 8 * 1024 * 1024


@cache
def keep_freed_memory() -> None:
    """Have the allocator keep what is freed in blocks of up to LARGEST_BYTES, from now on.

    What a broker receives and reads, and what a producer fills, are blocks of hundreds of kilobytes and
    more. By default glibc takes such a block from the kernel and gives it back when it is freed, and the
    kernel clears every page of it again: up to half of what serving uncompressed batches costs. But
    when it sees such a block freed it takes it that blocks of that size come and go, and keeps memory
    for them, up to twice that size at the end of its heap. So one is freed here; it was never touched,
    and has cost nothing. Other allocators do not mind.

    This holds for the whole process, so brokers and producers do it, and consumers from when they
    decompress ahead: another thread frees what was made than the one that has made it, and glibc would
    keep none of that in the maker's heap. A process that says by
    MALLOC_TRIM_THRESHOLD_ or the like what is to be kept is not concerned.
    """
    bytes(LARGEST_BYTES)
