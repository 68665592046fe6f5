"""A partition's batches on their way: which one goes next, and when, and what an answer means."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from random import Random
from typing import Final

from folkmoot.producers.batches import Batch
from folkmoot.producers.config import ProducerConfig
from folkmoot.producers.metrics import ProducerCounters
from folkmoot.producers.sequences import Sequences
from folkmoot.protocol.errors import (
    BatchTooLarge,
    BrokerStopping,
    CorruptBatch,
    FolkmootError,
    InvalidRequest,
    NotLeader,
    OutOfOrderSequence,
    ProducerFenced,
    RetriableError,
    SerializationError,
    StaleTopicId,
    UnknownApi,
    UnknownProducer,
    UnknownTopicOrPartition,
    UnsupportedCodec,
    UnsupportedVersion,
)
from folkmoot.protocol.records import TopicPartition

LONGEST_PAUSE: Final = 1.0
GATHERING: Final = 0.005
"""So long at most a batch that is not full waits for a request that is under way to its broker."""
WINDOW: Final = 5
"""So many batches of a producer are recognised by a broker when they come again."""

_MISPLACED: Final = (OutOfOrderSequence, UnknownProducer, ProducerFenced)
_REFUSALS: Final = (
    *_MISPLACED,
    *(BatchTooLarge, BrokerStopping, CorruptBatch, InvalidRequest, NotLeader, StaleTopicId),
    *(UnknownApi, UnknownTopicOrPartition, UnsupportedCodec, UnsupportedVersion),
)
"""With these a broker says that it has not written a batch. After any other it may have."""


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """What all queues of a sender share. `finish` is told of each batch that is done."""

    config: ProducerConfig
    sequences: Sequences | None
    counters: ProducerCounters
    random: Random
    finish: Callable[[Batch, FolkmootError | None], None]


class Queue:
    """A partition's batches that are not done, in order; the last one grows until it is sealed.

    Order. Up to WINDOW of them are under way if the producer is idempotent, else one, the oldest
    among them. They leave in order. One that comes back to be sent again waits until it is the
    oldest, and as long as the oldest has been sent before, nothing leaves behind it: what is under
    way then is refused for its place, and comes back as well. A batch sent again is the same bytes.

    Ghosts. A batch that expired under way is out of `batches`, but nothing leaves until its answer is
    here. Its sequences stay used: if it was written, the next one follows; else that is refused.

    Broken sequences. When the oldest batch is refused for its sequence, the broker has lost what came
    before, has forgotten the producer, or never got a batch that failed here. Then nothing leaves
    until nothing is under way; the partition begins its next epoch, and what was sent before is
    signed anew, since it is certainly not in the log. Not so a batch in doubt: an attempt was never
    answered, and may still lie in some buffer on the way, in front of which lies what the broker
    lacks. Signed anew it could be written twice, so it fails, and its error says why.

    Until `_retry_at` nothing leaves. Owner: the sender.
    """

    __slots__ = (
        *("_broken", "_flying", "_ghosts", "_retry_at", "_terms", "_turns", "_window"),
        *("batches", "partition"),
    )

    def __init__(self, partition: TopicPartition, terms: Terms) -> None:
        self.partition = partition
        self.batches: deque[Batch] = deque()
        self._terms = terms
        self._window = 1 if terms.sequences is None else WINDOW
        self._turns = 0
        self._flying = 0
        self._ghosts = 0
        self._broken: FolkmootError | None = None
        self._retry_at = -inf

    @property
    def is_idle(self) -> bool:
        return not self.batches and not self._flying

    # -- which one goes next ------------------------------------------------------------------------

    def ready_at(self, *, hurry: bool, busy: bool = False) -> float:
        """When the next batch may be sent, as far as order and time decide it; infinity if none may.

        Behind others that are under way it leaves only when it is full, and grows until then. One
        that may grow waits for GATHERING, if `linger` is less and the leader is `busy` with another.
        """
        batch = self._next()
        if batch is None:
            return inf
        config = self._terms.config
        grows = (
            batch is self.batches[-1] and batch.size < config.batch_bytes and not batch.is_sealed
        )
        if batch is not self.batches[0]:
            return inf if grows else self._retry_at
        if hurry or not grows:
            return self._retry_at
        wait = max(config.linger, GATHERING) if busy else config.linger
        return max(self._retry_at, batch.opened_at + wait)

    def _next(self) -> Batch | None:
        if not self.batches or self._ghosts or self._broken is not None:
            return None
        oldest = self.batches[0]
        if not oldest.flying:
            return oldest
        if oldest.attempts or self._turns - oldest.turn >= self._window:
            return None
        for batch in self.batches:
            if not batch.flying:
                return batch if batch.turn < 0 else None
        return None

    def to_seal(self) -> Batch | None:
        """The batch that `send` will make the bytes of, if it has to."""
        batch = self._next()
        return None if batch is None or batch.is_sealed or batch.unsigned is not None else batch

    def send(self, now: float) -> Batch | None:
        """The next batch, with its bytes, which are made if this is its first attempt; it is under way.

        One that cannot be written fails, and the one behind it takes its place. None if none is left,
        or a producer id is wanting.
        """
        sequences = self._terms.sequences
        while (batch := self._next()) is not None:
            if batch.turn < 0:
                if sequences is not None and not self._flying:
                    sequences.break_silence(self.partition, now)
                identity = None if sequences is None else sequences.next(self.partition)
                if sequences is not None and identity is None:
                    return None
                fresh = not batch.is_sealed
                try:
                    payload = batch.seal(self._terms.config.codec, identity)
                except Exception as error:  # of any kind, want of memory too: the others are to go
                    self._end(batch, _unwritable(batch, error))
                    continue
                if sequences is not None:
                    sequences.advance(self.partition, batch.count, now)
                if fresh:
                    self._terms.counters.bytes_packed += batch.size
                    self._terms.counters.bytes_compressed += len(payload)
                batch.turn = self._turns
                self._turns += 1
            self._flying += 1
            batch.flying = True
            batch.was_oldest = batch is self.batches[0]
            return batch
        return None

    # -- how an attempt ends ------------------------------------------------------------------------

    def delivered(self, batch: Batch, base_offset: int) -> None:
        """It is in the log."""
        if self._landed(batch):
            # In this order nothing that fails in between, want of memory, say, leaves it in nobody's hands.
            batch.deliver(base_offset)
            self._terms.finish(batch, None)
            self._take_out(batch)
        self._mend()

    def refused(
        self, batch: Batch, error: FolkmootError, now: float, *, sent: bool, at_once: bool
    ) -> None:
        """The attempt has failed: another one, or none. `sent`: the broker may have got the batch.

        `at_once`: the first time without a pause.
        """
        if self._landed(batch):
            if sent and not isinstance(error, _REFUSALS):
                batch.doubtful = True
            misplaced = self._terms.sequences is not None and isinstance(error, _MISPLACED)
            if misplaced or isinstance(error, RetriableError):
                batch.attempts += 1
                batch.last_error = error
                self._terms.counters.batches_retried += 1
                # A misplaced one that was not the oldest: what was before it did not get there.
                if misplaced and batch.was_oldest:
                    self._broken = error
                if not misplaced or (batch.was_oldest and batch.attempts > 1):
                    pause = 0.0 if at_once and batch.attempts == 1 else self._pause(batch.attempts)
                    self._retry_at = now + pause
            else:
                self._end(batch, error)
        self._mend()

    def end_oldest(self, error: FolkmootError) -> None:
        """Fail the oldest batch, wherever it is."""
        self._end(self.batches[0], error)

    def _landed(self, batch: Batch) -> bool:
        """It is not under way any more. False if it was a ghost, which nobody waits for."""
        self._flying -= 1
        batch.flying = False
        if batch.done:
            self._ghosts -= 1
        return not batch.done

    def _end(self, batch: Batch, error: FolkmootError) -> None:
        self._terms.finish(batch, error)
        self._take_out(batch)

    def _take_out(self, batch: Batch) -> None:
        if batch is self.batches[0]:
            self.batches.popleft()
            self._retry_at = -inf
        else:
            self.batches.remove(batch)
        if batch.flying:
            self._ghosts += 1

    def _mend(self) -> None:
        """Begin the next epoch if sequences are broken and nothing is under way."""
        error, sequences = self._broken, self._terms.sequences
        if error is None or sequences is None or self._flying:
            return
        self._broken = None
        sequences.restart(self.partition, new_id=isinstance(error, ProducerFenced))
        self._terms.counters.epochs_begun += 1
        for batch in list(self.batches):
            batch.turn = -1
            if batch.doubtful:
                failure = type(error)(
                    f"{batch.count} records for {self.partition} may be in the log or not: an "
                    f"answer was lost, and the broker cannot tell any more: {error}"
                )
                self._end(batch, failure)

    def _pause(self, attempts: int) -> float:
        """How long to wait before the next attempt."""
        growth: float = 2 ** min(attempts - 1, 10)
        pause = min(LONGEST_PAUSE, self._terms.config.retry_backoff * growth)
        return pause * self._terms.random.uniform(0.8, 1.2)


def _unwritable(batch: Batch, error: Exception) -> FolkmootError:
    if isinstance(error, FolkmootError):
        return error
    failure = SerializationError(
        f"{batch.count} records for {batch.topic_partition} cannot be written: {error!r}"
    )
    failure.__cause__ = error
    return failure
