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


class _Ahead:
    """A body that a thread of the pool makes, unless the reader cancels that first.

    It has only locks in C: after Ctrl-C, a Future may keep its lock, and the pool's thread waits for ever.
    """

    __slots__ = ("_body", "_claim", "_ended")

    def __init__(self) -> None:
        self._claim: dict[None, str] = {}
        self._ended = allocate_lock()
        self._ended.acquire()
        self._body: Body | None = None

    def cancel(self) -> bool:
        """Return whether no thread has begun, nor will."""
        return self._claim.setdefault(None, "the reader") == "the reader"

    def done(self) -> bool:
        return not self._ended.locked()

    def run(self, header: BatchHeader, data: memoryview) -> None:
        if self._claim.setdefault(None, "the pool") == "the pool":
            try:
                with suppress(Exception):  # it fails again for the reader
                    self._body = record_batch.body_of(header, data)
            finally:
                self._ended.release()

    def result(self) -> Body | None:
        """Wait for the body, and return it; None if it could not be made."""
        with self._ended:
            return self._body


class FetchedBatch:
    """Header and bytes of a batch, which never change, and its body, which is made once.

    The reader makes the body unless a thread of the pool has begun: it never waits for a job in the queue.
    """

    __slots__ = ("ahead", "data", "header", "size")

    def __init__(self, header: BatchHeader, data: memoryview) -> None:
        self.header = header
        self.data = data
        is_compressed = header.codec != Codec.NONE
        self.size = (
            record_batch.decompressed_bytes(header, data) if is_compressed else header.length
        )
        """Bytes of the header and of the body, decompressed."""
        self.ahead: _Ahead | None = None
        """The job that makes the body, if the pool was asked."""

    @property
    def is_worth_a_thread(self) -> bool:
        """Return whether decompressing it ahead pays."""
        is_large = self.header.codec == Codec.ZSTD and self.header.length >= WORTH_A_THREAD_BYTES
        return is_large and compression.THREADS > 1

    def open_ahead(self) -> None:
        """Have the pool make the body."""
        queue = _pool()
        if queue is not None:  # without threads the reader does it
            self.ahead = _Ahead()
            queue.put((self.ahead, self.header, self.data))

    def body(self) -> Body:
        """Return the body, or make it. Raises CorruptBatch, UnsupportedCodec."""
        if self.ahead is not None and not self.ahead.cancel():
            body = self.ahead.result()
            if body is not None:
                return body
        return record_batch.body_of(self.header, self.data)


_Queue = SimpleQueue[tuple[_Ahead, BatchHeader, memoryview]]


@cache
def _pool() -> _Queue | None:
    """Return the queue of the process's threads, which never keep it from ending; None without threads."""
    keep_freed_memory()
    queue, threads = _Queue(), 0
    with suppress(RuntimeError):
        for _ in range(compression.THREADS):
            Thread(target=_serve, args=(queue,), name="folkmoot-decompress", daemon=True).start()
            threads += 1
    return queue if threads else None


def _serve(queue: _Queue) -> None:
    while True:
        _Ahead.run(*queue.get())  # no variable: it would hold the last batch


os.register_at_fork(after_in_child=_pool.cache_clear)  # the child has none of these threads
