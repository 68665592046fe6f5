"""A batch that was fetched, and its body, which a thread of the process may decompress ahead."""

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
"""A smaller batch, compressed, is opened when its turn comes, and so is one that is not in zstd.

The threads of the pool and the reader hand the interpreter's lock to each other twice for each batch. A
topic of many partitions has thousands of batches of a few kilobytes, and that costs more than zstd does.
The library of lz4 needs so little time that asking for the interpreter's lock afterwards costs more.
"""

Body = bytes | bytearray | memoryview

_POOL: Final = "the pool"
_READER: Final = "the reader"


class FetchedBatch:
    """Header and bytes of a batch, which never change; the body is made of them once.

    Either a thread of the pool makes it or the reader, whichever claims it first: so the reader never
    waits for a job that has not begun. Such a thread touches nothing but the batch. A seek or the end of
    the consumer lets go of the batch, and with it of what the thread has made.
    """

    __slots__ = ("_body", "_shared", "data", "header", "size")

    def __init__(self, header: BatchHeader, data: memoryview) -> None:
        self.header = header
        self.data = data
        is_compressed = header.codec != Codec.NONE
        self.size = record_batch.opened_bytes(header, data) if is_compressed else header.length
        """Bytes of the header and of the body, decompressed."""
        self._body: Body | None = None
        self._shared: _Shared | None = None

    @property
    def is_worth_a_thread(self) -> bool:
        """Whether decompressing it ahead pays."""
        is_large = self.header.codec == Codec.ZSTD and self.header.length >= WORTH_A_THREAD_BYTES
        return is_large and compression.THREADS > 1

    def open_ahead(self) -> None:
        """Have the pool make the body."""
        self._shared = _Shared()
        _pool().put(self)

    def give_up(self) -> None:
        """The body is not needed: the pool need not begin."""
        if self._shared is not None:
            self._shared.is_claimed_by(_READER)

    def body(self) -> Body:
        """Return the body, or make it. Raises CorruptBatch, UnsupportedCodec."""
        shared = self._shared
        if shared is not None and not shared.is_claimed_by(_READER):
            with shared.is_done:
                pass
        return record_batch.body_of(self.header, self.data) if self._body is None else self._body

    def decompress(self) -> None:
        """Make the body unless the reader does. What fails here fails again for the reader."""
        shared = self._shared
        if shared is not None and shared.is_claimed_by(_POOL):
            try:
                with suppress(Exception):
                    self._body = record_batch.body_of(self.header, self.data)
            finally:
                shared.is_done.release()


class _Shared:
    """What the reader and a thread of the pool agree by: who makes the body, and that it is made."""

    __slots__ = ("_claim", "is_done")

    def __init__(self) -> None:
        self._claim: dict[None, str] = {}
        self.is_done = allocate_lock()
        self.is_done.acquire()

    def is_claimed_by(self, who: str) -> bool:
        """Claim it, unless the other one has: one step, so no two do."""
        return self._claim.setdefault(None, who) == who


@cache
def _pool() -> "SimpleQueue[FetchedBatch]":
    """A queue and the threads that serve it, as long as the process lives."""
    keep_freed_memory()
    queue = SimpleQueue[FetchedBatch]()
    with suppress(RuntimeError):  # no more threads are to be had: readers do it all
        for _ in range(compression.THREADS):
            Thread(target=_serve, args=(queue,), name="folkmoot-decompress", daemon=True).start()
    return queue


def _serve(queue: "SimpleQueue[FetchedBatch]") -> None:
    while True:
        queue.get().decompress()  # no variable: it would hold the last batch


os.register_at_fork(after_in_child=_pool.cache_clear)  # the child has none of these threads
