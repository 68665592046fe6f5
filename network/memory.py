"""Memory of the large buffers that each message needs."""

from functools import cache
from typing import Final

LARGEST_BYTES: Final = 8 * 1024 * 1024


@cache
def keep_freed_memory() -> None:
    """Have the allocator keep freed blocks of up to LARGEST_BYTES, from now on.

    Requests and decompressed batches are blocks of hundreds of kilobytes. By default glibc takes such a block
    from the kernel and returns it when it is freed. The kernel then clears each page again: up to half of
    the cost of serving uncompressed batches. Once glibc has seen a block freed, it keeps memory for blocks of
    that size. So one is freed here; it was never touched, and costs nothing. Other allocators, and processes
    with MALLOC_TRIM_THRESHOLD_ or the like in their environment, do not change.

    This holds for the whole process. Brokers do it, producers, and consumers that decompress ahead, where
    one thread frees the blocks of another. Without it columns cost a consumer 1.4 times the CPU, and
    records of 1 kB and of 100 kB cost a producer 1.2 times.
    """
    bytes(LARGEST_BYTES)
