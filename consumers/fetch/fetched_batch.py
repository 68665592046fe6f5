"""A fetched batch, whose body a thread of the process may decompress ahead."""

import os
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from typing import Final

from folkmoot.network.memory import keep_freed_memory
from folkmoot.protocol import compression, record_batch
from folkmoot.protocol.batch_header import BatchHeader
from folkmoot.protocol.compression import Codec

WORTH_A_THREAD_BYTES: Final = 32 * 1024
"""Smaller zstd batches, and all others, are decompressed when their turn comes.

For each batch, a thread of the pool and the reader hand the interpreter's lock to each other twice. For a few
kilobytes this costs more than zstd does, and for any lz4 batch more than lz4.
"""

Body = bytes | bytearray | memoryview


class FetchedBatch:
    """Header and bytes of a batch, which never change, and its body, which is made once.

    The reader makes the body unless a thread of the pool has begun: it never waits for a job in the queue.
    """

    __slots__ = ("ahead", "data", "header", "size")

    def __init__(self, header: BatchHeader, data: memoryview) -> None:
        self.header = header
        self.data = data
        is_compressed = header.codec != Codec.NONE
        self.size = record_batch.opened_bytes(header, data) if is_compressed else header.length
        """Bytes of the header and of the body, decompressed."""
        self.ahead: Future[Body] | None = None
        """The job that makes the body, if the pool was asked."""

    @property
    def is_worth_a_thread(self) -> bool:
        """Return whether decompressing it ahead pays."""
        is_large = self.header.codec == Codec.ZSTD and self.header.length >= WORTH_A_THREAD_BYTES
        return is_large and compression.THREADS > 1

    def open_ahead(self) -> None:
        """Have the pool make the body."""
        with suppress(RuntimeError):  # without threads the reader does it
            self.ahead = _pool().submit(record_batch.body_of, self.header, self.data)

    def body(self) -> Body:
        """Return the body, or make it. Raises CorruptBatch, UnsupportedCodec."""
        if self.ahead is not None and not self.ahead.cancel():
            with suppress(MemoryError):
                return self.ahead.result()
        return record_batch.body_of(self.header, self.data)


@cache
def _pool() -> ThreadPoolExecutor:
    """Return the process's threads."""
    keep_freed_memory()
    return ThreadPoolExecutor(compression.THREADS, "folkmoot-decompress")


os.register_at_fork(after_in_child=_pool.cache_clear)  # the child has none of these threads
