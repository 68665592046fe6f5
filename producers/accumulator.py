"""Where callers' threads leave records and the sender's thread takes them: the one place they share."""

import time
from collections.abc import Callable, Iterable
from math import inf
from threading import Condition, Lock
from typing import Final

from folkmoot.producers.batches import Batch
from folkmoot.producers.chunks import Chunk
from folkmoot.protocol.errors import (
    BrokerUnreachable,
    BufferFull,
    ClosedError,
    FolkmootError,
    UnknownTopicOrPartition,
)

CHECK_EVERY: Final = 256

Ring = Callable[[], None]


class Accumulator:
    """The open chunk of every topic, and how much is buffered.

    `chunks`, always the same dictionary, is what `send` writes to, under `lock`: a topic is there
    when its partitions are known and there is room. In every other case (topic not known yet, buffer
    full, closed) it is not, and the caller goes the slow way, through `admit`. So the fast way has
    one look-up for all of it.

    Sizes are counted every CHECK_EVERY records, not at each: that is by how much, per topic, the
    buffer may grow past its limit. A record counts until its batch is done.

    All else is called by the sender's thread. Callers wait on `changed` (for a topic, for room) and
    on `completed` (for deliveries and flushes); both share the lock, which is held briefly.
    """

    def __init__(
        self,
        buffer_bytes: int,
        batch_bytes: int,
        ring: Ring,
        clock: Callable[[], float] | None = None,
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
        self._ring = ring
        self._told: Ring = lambda: None
        self._clock = clock or time.monotonic
        self._gated: dict[str, Chunk] = {}
        self._handed_in: list[Chunk] = []
        self._closed: FolkmootError | None = None
        self._number = 0

    def listen(self, told: Ring) -> None:
        """Have `told` called whenever the conditions are notified, under the lock, in any thread."""
        self._told = told

    # -- callers' threads ---------------------------------------------------------------------------

    def checkpoint(self, chunk: Chunk) -> None:
        """The record at `check_at` was just staged. The lock is held."""
        if chunk.counted == 0:
            # Numbered by its first record: what is staged after a flush was asked for is not part of it.
            self._number += 1
            chunk.number = self._number
            chunk.opened_at = self._clock()
            self._ring()
        before = chunk.size
        self.buffered += chunk.count()
        chunk.check_at = chunk.counted + CHECK_EVERY
        if before < self._batch_bytes <= chunk.size:
            self._ring()
        self._gate_if_full()

    def hand_in(self, chunk: Chunk, max_block: float) -> None:
        """Stage a chunk that is complete, behind all that was staged before it. The lock is held.

        Raises as `admit` does.
        """
        open_chunk = self.admit(chunk.topic, max_block)
        if len(open_chunk):
            self._take(open_chunk)
            self._handed_in.append(open_chunk)
        self._number += 1
        chunk.number = self._number
        chunk.opened_at = self._clock()
        self.buffered += chunk.size
        self.records += len(chunk)
        self._handed_in.append(chunk)
        self._ring()
        self._gate_if_full()

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
            return self.records + sum(len(chunk.values) for chunk in self._open_chunks())

    def take_failed(self) -> list[Batch]:
        """The batches that failed since the last call and that nobody has looked at."""
        with self.lock:
            failed, self.failed = self.failed, []
        return [batch for batch in failed if not batch.observed]

    def close(self, reason: ClosedError) -> None:
        """Take nothing more; who waits to be admitted gets the reason."""
        with self.lock:
            self._closed = self._closed or reason
            self._gated.update(self.chunks)
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

    def take(self, now: float, linger: float, *, everything: bool = False) -> list[Chunk]:
        """The chunks that are large enough, or have waited long enough; all if room is needed."""
        with self.lock:
            taken, self._handed_in = self._handed_in, []
            everything = everything or bool(self._gated)
            for chunk in self._open_chunks():
                if chunk.values and (
                    everything or chunk.size >= self._batch_bytes or chunk.opened_at + linger <= now
                ):
                    self._take(chunk)
                    taken.append(chunk)
        return taken

    def _take(self, chunk: Chunk) -> None:
        self.buffered += chunk.count()
        self.records += len(chunk.values)
        self._renew(chunk.topic)

    def oldest(self) -> float:
        """When the oldest record that was not taken yet was staged, or infinity."""
        with self.lock:
            return min(
                (chunk.opened_at for chunk in self._open_chunks() if chunk.values),
                default=inf,
            )

    def complete(self, batches: Iterable[Batch], oldest_number: float) -> None:
        """These are done. `oldest_number` is the lowest among the batches that are not."""
        with self.lock:
            for batch in batches:
                self.buffered -= batch.size
                self.records -= batch.count
                if batch.error is not None:
                    self.failed.append(batch)
            open_numbers = [chunk.number for chunk in self._open_chunks() if chunk.values]
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
        """Begin a chunk, behind the gate if it is closed."""
        where = self._gated if self._gated or self._closed else self.chunks
        where[topic] = Chunk(topic, self.completed)
