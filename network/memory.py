"""Memory of large buffers, which come and go with every message."""

from functools import cache
from typing import Final

LARGEST_BYTES: Final = 8 * 1024 * 1024


@cache
def keep_freed_memory() -> None:
    """Have the allocator keep what is freed in blocks of up to LARGEST_BYTES, from now on.

    Requests and decompressed batches are blocks of hundreds of kilobytes and more. By default glibc takes
    such a block from the kernel and returns it when it is freed, and the kernel clears every page again:
    up to half of what serving uncompressed batches costs. When glibc sees such a block freed, it keeps
    memory for blocks of that size, up to twice the size at the end of its heap. So one is freed here. It
    was never touched, and costs nothing. Other allocators are not changed by it, and neither is a process
    with MALLOC_TRIM_THRESHOLD_ or the like in its environment.

    This holds for the whole process. Brokers do it, and consumers that decompress ahead: one thread frees
    what another one has made, and glibc keeps little of that by itself. Without it, columns cost a consumer
    1.4 times the CPU. Producers do it, too: glibc learns from the first blocks that they free, but records
    of 1 kB and of 100 kB still cost 1.2 times the CPU without it.
    """
    bytes(LARGEST_BYTES)
