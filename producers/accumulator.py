"""Where callers' threads leave records and the sender's thread takes them: the one place they share."""

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from math import inf
from threading import Condition, Lock
from typing import Any, Final

from folkmoot.producers.batches import Batch
from folkmoot.producers.chunks import TAKEN, Chunk, Delivery
from folkmoot.producers.key_memory import KeyMemory
from folkmoot.producers.rows import ROW
from folkmoot.protocol.errors import (
    BrokerUnreachable,
    BufferFull,
    ClosedError,
    FolkmootError,
    UnknownTopicOrPartition,
)
from folkmoot.protocol.records import Headers

CHUNK_RECORDS: Final = 4096
CHUNK_BYTES: Final = 1024 * 1024
CHECK_EVERY: Final = 512
SAMPLE: Final = 8
FEW: Final = 256

Ring = Callable[[], None]
Wait = Callable[[str], float]


class Accumulator:
    """The open chunk of every topic, and how much is buffered.

    `chunks`, always the same dictionary, is where `send` finds the chunk to stage a record in, without a
    lock (see `Chunk`): a topic is there when its partitions are known and there is room. In every other
    case (topic not known yet, buffer full, closed) it is not, and the caller goes the slow way, through
    `stage`. So the fast way has one look-up for all of it. Everything else is under `lock`.

    A chunk that has grown to CHUNK_RECORDS, or about CHUNK_BYTES, is handed in by the thread that has
    filled it. With `by_key`, when nothing but the hash of its key decides where a record goes, that
    thread divides it among the partitions as well: the records are in its cache, and it need not compete
    with itself for the interpreter's lock. Smaller chunks are taken, and divided, by the sender's thread.

    Sizes are looked at every CHECK_EVERY records, from a sample, not at each: by so many records, per
    topic, the buffer may grow past its limit. They are exact for what is divided. A record counts until
    its batch is done.

    All else is called by the sender's thread. Callers wait on `changed` (for a topic, for room) and
    on `completed` (for deliveries and flushes); both share the lock, which is held briefly.
    """

    def __init__(
        self,
        buffer_bytes: int,
        batch_bytes: int,
        ring: Ring,
        clock: Callable[[], float] | None = None,
        *,
        by_key: bool = False,
    ) -> None:
        self.lock = Lock()
        self.changed = Condition(self.lock)
        self.completed = Condition(self.lock)
        self.chunks: dict[str, Chunk] = {}
        self.counts: dict[str, int] = {}  # partitions of the topics known
        self.wanted: set[str] = set()
        self.refused: dict[str, tuple[float, FolkmootError]] = {}
        self.trouble: FolkmootError | None = None
        self.buffered = 0
        self.records = 0  # taken by the sender and not done
        self.settled = 0  # every record of chunks up to this number is done
        self.flush_up_to = 0
        self.failed: list[Batch] = []
        self._limit = buffer_bytes
        self._batch_bytes = batch_bytes
        self.by_key = by_key
        self._ring = ring
        self._rung = False  # since the sender's thread has last looked
        self._told: Ring = lambda: None
        self._clock = clock or time.monotonic
        self._gated: dict[str, Chunk] = {}
        self._handed_in: list[Chunk] = []
        self._memories: dict[str, KeyMemory] = {}
        self._closed: FolkmootError | None = None
        self._number = 0

    def listen(self, told: Ring) -> None:
        """Have `told` called whenever the conditions are notified, under the lock, in any thread."""
        self._told = told

    # -- callers' threads ---------------------------------------------------------------------------

    def stage(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        stamp: float,
        max_block: float,
        *,
        partition: int | None = None,
        headers: Headers = (),
        on_delivery: Callable[[Delivery], None] | None = None,
        large: bool = False,
    ) -> Delivery:
        """A record of any kind. Raises as `admit` does, UnknownTopicOrPartition for the partition."""
        with self.lock:
            chunk = self.admit(topic, max_block)
            if partition is not None:
                self.check_partition(topic, partition)
            delivery = chunk.stage(key, value, stamp, partition, headers, on_delivery)
            if len(chunk.rows) >= chunk.check_at or large:
                self._checkpoint(chunk)
            return delivery

    def check_partition(self, topic: str, partition: int) -> None:
        """Raises UnknownTopicOrPartition. The topic is known."""
        count = self.counts[topic]
        if not 0 <= partition < count:
            raise UnknownTopicOrPartition(
                f"topic {topic} has no partition {partition}, only 0 to {count - 1}"
            )

    def staged(self, chunk: Chunk, rows: list[Any], stamp: float, max_block: float) -> Delivery:
        """`send` has staged a plain record in `rows`, which were the chunk's, and met `check_at`."""
        with self.lock:
            if chunk.check_at != TAKEN:
                self._checkpoint(chunk)
                return Delivery(chunk, stamp)
        end = chunk.end_of(rows, stamp)
        if chunk.holds(end):
            return Delivery(chunk, stamp)
        key, value = rows[end - ROW], rows[end - ROW + 1]
        return self.stage(chunk.topic, value, key, stamp, max_block)

    def _checkpoint(self, chunk: Chunk) -> None:
        """The chunk has reached `check_at`, or has got something unusual. The lock is held."""
        if chunk.number == 0:
            self._open(chunk)
        self.buffered += chunk.estimate(SAMPLE)
        if chunk.counted >= CHUNK_RECORDS or chunk.size >= self._chunk_bytes(chunk.topic):
            self._close(chunk)
        else:
            step = min(CHECK_EVERY, chunk.counted)
            chunk.check_at = ROW * min(CHUNK_RECORDS, chunk.counted + step)
        self._gate_if_full()

    def _chunk_bytes(self, topic: str) -> int:
        return min(CHUNK_BYTES, self.counts[topic] * self._batch_bytes, self._limit // 8)

    def _open(self, chunk: Chunk) -> None:
        # Numbered by its first record: what is staged after a flush was asked for is not part of it.
        self._number += 1
        chunk.number = self._number
        chunk.opened_at = self._clock()
        self._ring_once()

    def _close(self, chunk: Chunk) -> None:
        """The chunk is full: hand it in. What is interrupted here the sender's thread makes good."""
        self._take(chunk)
        self._handed_in.append(chunk)
        self._ring_once()
        with suppress(MemoryError):  # the record is taken, and its fate told by its Delivery
            if self.by_key and len(chunk) > FEW and self.divide(chunk):
                self.buffered += chunk.measure()

    def divide(self, chunk: Chunk) -> bool:
        """By key, if that is all that decides where its records go. Needs no lock."""
        topic = chunk.topic
        memory = self._memories.setdefault(topic, KeyMemory())
        return chunk.divide_by_key(self.counts[topic], memory)

    def hand_in(self, chunk: Chunk, max_block: float) -> None:
        """Stage a chunk that is complete, behind all that was staged before it. The lock is held.

        Raises as `admit` does.
        """
        open_chunk = self.admit(chunk.topic, max_block)
        if len(open_chunk):
            self._take(open_chunk)
            self._handed_in.append(open_chunk)
        self._open(chunk)
        self.buffered += chunk.size
        self.records += len(chunk)
        self._handed_in.append(chunk)
        self._gate_if_full()

    def _ring_once(self) -> None:
        """Wake the sender's thread, unless it will look anyway."""
        if not self._rung:
            self._rung = True
            self._ring()

    def _gate_if_full(self) -> None:
        if self.buffered >= self._limit and not self._gated:
            # From here on callers wait, until records are done.
            self._gated.update(self.chunks)
            self.chunks.clear()
            self._ring()

    def admit(self, topic: str, max_block: float) -> Chunk:
        """The topic's open chunk, waiting for the topic to be known and for room. The lock is held."""
        begun = self._clock()
        while not self.admits(topic, begun):
            left = begun + max_block - self._clock()
            if left <= 0:
                raise self.too_late(topic, max_block)
            self.changed.wait(left)
        return self.chunks[topic]

    def admits(self, topic: str, begun: float) -> bool:
        """Whether the topic has an open chunk; if not, `changed` tells when to look again.

        Raises why it will have none, as far as that became known since `begun`. The lock is held.
        """
        if self._closed is not None:
            raise self._closed
        if topic in self.chunks:
            return True
        refused_at, reason = self.refused.get(topic, (-inf, None))
        if reason is not None and refused_at >= begun:
            raise reason
        if topic not in self.counts and topic not in self.wanted:
            self.wanted.add(topic)
            self._ring()
        return False

    def too_late(self, topic: str, max_block: float) -> FolkmootError:
        """Why waiting ended without a chunk. The lock is held."""
        if topic in self.counts:
            return BufferFull(
                f"{self.buffered} bytes are not acknowledged yet, and no room came within "
                f"{max_block:g} s: send less, or raise buffer_bytes"
            )
        self.wanted.discard(topic)
        if self.trouble is not None:
            return BrokerUnreachable(f"topic {topic} could not be looked up: {self.trouble}")
        return UnknownTopicOrPartition(f"topic {topic} was not found within {max_block:g} s")

    def request_flush(self) -> int:
        """Ask for everything staged so far to be sent. Returns what `settled` must reach."""
        with self.lock:
            self.flush_up_to = self._number
            self._ring()
            return self._number

    def unacknowledged(self) -> int:
        """How many records are neither delivered nor failed."""
        with self.lock:
            return self.records + sum(map(len, self._open_chunks()))

    def take_failed(self) -> list[Batch]:
        """The batches that failed since the last call and that nobody has looked at."""
        with self.lock:
            failed, self.failed = self.failed, []
        return [batch for batch in failed if not batch.observed]

    def close(self, reason: ClosedError) -> None:
        """Take nothing more; who waits to be admitted gets the reason."""
        with self.lock:
            self._closed = self._closed or reason
            # All are taken, the empty ones as well: whoever stages a record in one at this moment
            # would otherwise wait for it for ever.
            for chunk in self._open_chunks():
                self._take(chunk)
                if len(chunk):
                    self._handed_in.append(chunk)
            self._gated.clear()
            self.chunks.clear()
            self._notify()

    # -- the sender's thread ------------------------------------------------------------------------

    def topics_wanted(self) -> list[str]:
        """Topics that somebody waits for."""
        with self.lock:
            return list(self.wanted)

    def topic_known(self, topic: str, partitions: int) -> None:
        with self.lock:
            if topic not in self.counts:
                self._renew(topic)
            self.counts[topic] = partitions
            self.wanted.discard(topic)
            self._notify()

    def refuse(self, topic: str, error: FolkmootError) -> None:
        """Tell who waits for this topic that it will not be known."""
        with self.lock:
            self.wanted.discard(topic)
            self.refused[topic] = (self._clock(), error)
            self._notify()

    def take(self, now: float, wait: Wait | None = None) -> list[Chunk]:
        """The chunks that were handed in, or have waited as long as those of their topic shall.

        All if there is no `wait`, or if room is needed.
        """
        with self.lock:
            self._rung = False
            taken, self._handed_in = self._handed_in, []
            if self._gated:
                wait = None
            for chunk in self._open_chunks():
                if len(chunk) and (wait is None or chunk.opened_at + wait(chunk.topic) <= now):
                    self._take(chunk)
                    taken.append(chunk)
            for chunk in taken:
                if chunk.pieces is None:
                    with suppress(MemoryError):  # then the correction is all of it
                        self.buffered += chunk.estimate(SAMPLE)
        return taken

    def correct(self, wrong: int) -> None:
        """What was taken is so many bytes larger than it was estimated."""
        if wrong:
            with self.lock:
                self.buffered += wrong

    def take_rest(self) -> list[Chunk]:
        """All that was staged and not taken; it was closed before."""
        with self.lock:
            rest, self._handed_in = self._handed_in, []
        return rest

    def _take(self, chunk: Chunk) -> None:
        """Put another one in its place. The lock is held."""
        chunk.take()
        if chunk.number == 0 and len(chunk):
            self._open(chunk)
        self.records += len(chunk)
        self._renew(chunk.topic)

    def due(self, wait: Wait) -> float:
        """When there will be something to take, unless it is woken before; or infinity."""
        with self.lock:
            if self._handed_in:
                return -inf
            chunks = [chunk for chunk in self._open_chunks() if chunk.number]
            return min((chunk.opened_at + wait(chunk.topic) for chunk in chunks), default=inf)

    def complete(self, batches: Iterable[Batch], oldest_number: float) -> None:
        """These are done. `oldest_number` is the lowest among the batches that are not."""
        with self.lock:
            for batch in batches:
                self.buffered -= batch.size
                self.records -= batch.count
                if batch.error is not None:
                    self.failed.append(batch)
            open_numbers = [chunk.number for chunk in self._open_chunks() if chunk.number]
            open_numbers += [chunk.number for chunk in self._handed_in]
            self.settled = int(min(oldest_number, *open_numbers, self._number + 1) - 1)
            if self._gated and self.buffered < self._limit and self._closed is None:
                self.chunks.update(self._gated)
                self._gated.clear()
                self.changed.notify_all()
            self.completed.notify_all()
            self._told()

    def _notify(self) -> None:
        self.changed.notify_all()
        self._told()

    @property
    def is_full(self) -> bool:
        return bool(self._gated)

    def _open_chunks(self) -> list[Chunk]:
        return [*self.chunks.values(), *self._gated.values()]

    def _renew(self, topic: str) -> None:
        """Begin a chunk, behind the gate if it is closed; none when all is over."""
        if self._closed is None:
            where = self._gated if self._gated else self.chunks
            where[topic] = Chunk(topic, self.completed)
