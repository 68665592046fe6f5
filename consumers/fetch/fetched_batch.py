"""A fetched batch, whose body a thread of the process may decompress ahead."""

import os
from _thread import allocate_lock
from contextlib import suppress
from functools import cache
from queue import SimpleQueue
from threading import Thread
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

_POOL: Final = "the pool"
_READER: Final = "the reader"


class FetchedBatch:
    """Header and bytes of a batch, which never change, and its body, which is made once.

    A thread of the pool or the reader makes the body, whichever claims it first: the reader never waits for
    a job that has not begun. The thread touches nothing but the batch.
    """

    __slots__ = ("_body", "_claim", "_is_done", "data", "header", "size")

    def __init__(self, header: BatchHeader, data: memoryview) -> None:
        self.header = header
        self.data = data
        is_compressed = header.codec != Codec.NONE
        self.size = record_batch.opened_bytes(header, data) if is_compressed else header.length
        """Bytes of the header and of the body, decompressed."""
        self._body: Body | None = None
        self._claim: dict[None, str] | None = None
        """Who makes the body; None: the pool was not asked."""

    @property
    def is_worth_a_thread(self) -> bool:
        """Whether decompressing it ahead pays."""
        is_large = self.header.codec == Codec.ZSTD and self.header.length >= WORTH_A_THREAD_BYTES
        return is_large and compression.THREADS > 1

    @property
    def is_ahead(self) -> bool:
        """Whether the pool was asked."""
        return self._claim is not None

    def open_ahead(self) -> None:
        """Have the pool make the body."""
        self._is_done = allocate_lock()
        self._is_done.acquire()
        self._claim = {}
        _pool().put(self)

    def give_up(self) -> None:
        """The body is not needed: the pool need not begin."""
        if self._claim is not None:
            self._claim.setdefault(None, _READER)

    def body(self) -> Body:
        """Return the body, or make it. Raises CorruptBatch, UnsupportedCodec."""
        # `setdefault` is one step for all threads.
        if self._claim is not None and self._claim.setdefault(None, _READER) == _POOL:
            with self._is_done:
                pass
        return record_batch.body_of(self.header, self.data) if self._body is None else self._body

    def decompress(self) -> None:
        """Make the body unless the reader does. An error here comes again for the reader."""
        if self._claim is not None and self._claim.setdefault(None, _POOL) == _POOL:
            try:
                with suppress(Exception):
                    self._body = record_batch.body_of(self.header, self.data)
            finally:
                self._is_done.release()


@cache
def _pool() -> "SimpleQueue[FetchedBatch]":
    """Return the queue of the process's threads."""
    keep_freed_memory()
    queue = SimpleQueue[FetchedBatch]()
    with suppress(RuntimeError):  # without threads the readers do it all
        for _ in range(compression.THREADS):
            Thread(target=_serve, args=(queue,), name="folkmoot-decompress", daemon=True).start()
    return queue


def _serve(queue: "SimpleQueue[FetchedBatch]") -> None:
    while True:
        queue.get().decompress()  # a variable would keep the last batch alive


os.register_at_fork(after_in_child=_pool.cache_clear)  # the child has none of these threads
