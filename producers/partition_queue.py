"""A partition's unfinished batches: which one is sent next, and when, and what an answer means."""

from collections import deque
from dataclasses import dataclass
from math import inf
from random import Random
from typing import Any, Final, NamedTuple, Protocol

from folkmoot.network.leaderless import Waiting
from folkmoot.producers.batch import (
    DONE,
    EXPIRED,
    IN_FLIGHT,
    WAITING,
    Batch,
    ChoosePartitions,
    Part,
)
from folkmoot.producers.config import ProducerConfig
from folkmoot.producers.idempotence import Sequences
from folkmoot.producers.metrics import ProducerCounters
from folkmoot.protocol.errors import (
    BatchTooLarge,
    CorruptBatch,
    FolkmootError,
    InvalidRequest,
    NotEnoughReplicas,
    NotLeader,
    OutOfOrderSequence,
    ProducerFenced,
    RetriableError,
    SchemaRefused,
    SerializationError,
    StaleTopicId,
    UnknownApi,
    UnknownProducer,
    UnknownTopicOrPartition,
    UnsupportedCodec,
    UnsupportedVersion,
    ZooKeeperUnreachable,
)
from folkmoot.protocol.quantities import counted
from folkmoot.protocol.records import TopicPartition

LONGEST_PAUSE: Final = 1.0
GATHERING: Final = 0.005
"""Seconds that a batch that is not full waits at most for a request in flight to its broker."""
WINDOW: Final = 5
"""How many batches of a producer a broker recognises when they come again."""

MISPLACED: Final = (OutOfOrderSequence, UnknownProducer, ProducerFenced)
_REFUSALS: Final = (
    *MISPLACED,
    *(BatchTooLarge, CorruptBatch, InvalidRequest, NotEnoughReplicas, NotLeader),
    *(SchemaRefused, StaleTopicId, UnknownApi, UnknownTopicOrPartition, UnsupportedCodec),
    *(UnsupportedVersion, ZooKeeperUnreachable),
)
"""A broker that answers one of these has not written the batch. After any other it may have."""


class View(Protocol):
    """The sender's metadata (`network.cluster.Cluster`). It is read again whenever `version` changes."""

    @property
    def version(self) -> int: ...

    def leader_address(self, partition: TopicPartition) -> str | None: ...

    def leader_epoch(self, partition: TopicPartition) -> int: ...

    def topic_id(self, topic: str) -> str | None: ...

    def partitions(self, topic: str) -> range: ...

    def is_missing(self, topic: str) -> bool: ...

    @property
    def leaderless(self) -> Waiting: ...


@dataclass(frozen=True, slots=True, eq=False)
class SenderContext:
    """The things that all queues of a sender share."""

    config: ProducerConfig[Any, Any]
    codec: int
    sequences: Sequences | None
    counters: ProducerCounters
    random: Random


class FailedBatch(NamedTuple):
    """A batch that its queue has removed, and why; the caller must end it."""

    batch: Batch
    error: FolkmootError


class PartitionQueue:
    """A partition's unfinished batches, in order; the last one may grow. Only the sender's thread uses it.

    Order. Up to WINDOW batches are in flight if the producer is idempotent, else one; the oldest is
    among them. They leave in order. A batch that must be sent again waits until it is the oldest. No batch
    leaves behind an oldest batch that was sent before: the broker refuses all later batches for their
    sequence, so these come back as well. Every attempt sends the same bytes.

    Expiry. A batch that expired in flight is not in `batches`, but nothing leaves until its answer is
    here. Its sequences stay used: if it was written, the next batch follows; else that one is refused.

    Broken sequences. When the oldest batch is refused for its sequence, the broker has lost what came
    before, has forgotten the producer, or never got a batch that failed here. Then nothing leaves
    until nothing is in flight; the partition begins its next epoch, and what was sent before is
    signed again, since it is certainly not in the log. A batch in doubt is an exception: an attempt was
    never answered, and may still lie in a buffer on the way. Signed again it could be written twice, so
    it fails, and its error says why. If the sequences choose no epochs (ClaimedSequences), all batches fail.

    Topic created again. It has nothing of what was sent, and may be that of another cluster, where
    others have the same producer ids: as for broken sequences, but under a new id.

    The queue calls nothing: it returns which batches have failed.
    """

    __slots__ = (
        *("_broken", "_context", "_expired", "_retry_at", "_signed", "_window"),
        *("batches", "in_flight", "last_error", "leader", "leader_epoch", "missing", "partition"),
        *("timer", "topic_id", "version"),
    )

    def __init__(self, partition: TopicPartition, context: SenderContext) -> None:
        self.partition = partition
        self.batches: deque[Batch] = deque()
        self.in_flight = 0
        """Requests without an answer, also those of expired batches."""
        self.version = -1
        """The version of the metadata in `leader`, `leader_epoch`, `topic_id` and `missing`."""
        self.leader: str | None = None
        self.leader_epoch = -1
        self.topic_id = ""
        self.missing: FolkmootError | None = None
        """Why there is no such partition any more."""
        self.last_error: FolkmootError | None = None
        """The error of the last attempt, if it has failed."""
        self.timer = inf
        """When the sender examines the queue again without an event."""
        self._context = context
        self._window = 1 if context.sequences is None else WINDOW
        self._signed = 0
        self._expired = 0
        self._broken: FolkmootError | None = None
        self._retry_at = -inf  # nothing leaves before

    def refresh(self, view: View) -> list[FailedBatch]:
        """Read the metadata again. Return the batches that fail by it."""
        topic, number = self.partition
        self.leader, epoch = view.leader_address(self.partition), view.leader_epoch(self.partition)
        if epoch > self.leader_epoch and self.leader is not None:
            self._retry_at = -inf  # what went wrong did so at an earlier leader
        self.leader_epoch = epoch
        former, self.topic_id = self.topic_id, view.topic_id(topic) or self.topic_id
        if (
            former not in ("", self.topic_id)
            and self._signed
            and self._context.sequences is not None
        ):
            self._broken = StaleTopicId(f"topic {topic} was deleted and created again")
        count = len(view.partitions(topic))
        self.missing = None
        if self.leader is None and 0 < count <= number:
            self.missing = UnknownTopicOrPartition(
                f"{self.partition} does not exist any more: topic {topic} was created again with "
                f"{counted(count, 'partition')}"
            )
        return self.mend()

    # -- which one goes next ------------------------------------------------------------------------

    def ready_at(self, *, hurry: bool, busy: bool = False) -> float:
        """Return when order and time allow the next batch to be sent; infinity if there is none.

        A batch behind others in flight leaves only when it is full, and grows until then. A batch that
        may grow waits for GATHERING if that is longer than `linger` and the leader is `busy`.
        """
        batch = self.next()
        if batch is None:
            return inf
        grows = batch is self.batches[-1] and not batch.closed
        if batch is not self.batches[0]:
            return inf if grows else self._retry_at
        if hurry or not grows:
            return self._retry_at
        linger = self._context.config.linger
        wait = max(linger, GATHERING) if busy else linger
        return max(self._retry_at, batch.opened_at + wait)

    def next(self) -> Batch | None:
        """Return the batch that order allows to be sent now, if any."""
        if not self.batches or self._expired or self._broken is not None:
            return None
        oldest = self.batches[0]
        if oldest.state is WAITING:
            return oldest
        if oldest.attempts or self._signed - oldest.send_order >= self._window:
            return None
        for batch in self.batches:
            if batch.state is WAITING:
                return batch if batch.send_order < 0 else None
        return None

    def send(self, now: float) -> Batch | FailedBatch | None:
        """Return the next batch, in flight, with its bytes, which its first attempt makes.

        Or one that has failed, since it cannot be written: call again for the one behind it. None if none
        is left, there is no producer id, or it is too early.
        """
        batch, context, identity = self.next(), self._context, None
        if batch is None or self._retry_at > now:
            return None
        if batch.send_order < 0:
            sequences = context.sequences
            if sequences is not None:
                identity = sequences.next(self.partition, now, is_idle=not self.in_flight)
                if identity is None:
                    return None
            batch.close()
            is_first = batch.payload is None
            try:
                payload = batch.seal(identity, context.codec, context.config.compression_level)
            except (
                Exception
            ) as error:  # of any kind, want of memory too: the other batches must leave
                return self.fail(batch, _unwritable(batch, error))
            if is_first:
                context.counters.bytes_packed += batch.size
                context.counters.bytes_compressed += len(payload)
            if sequences is not None:
                sequences.advance(self.partition, batch.count, now)
            batch.send_order = self._signed
            self._signed += 1
        self.in_flight += 1
        batch.state = IN_FLIGHT
        batch.was_oldest = batch is self.batches[0]
        return batch

    # -- how an attempt ends ------------------------------------------------------------------------

    def delivered(self, batch: Batch) -> bool:
        """Remove a batch that is in the log. Return False if it has failed before."""
        if self._has_expired(batch):
            return False
        self._remove(batch)
        self.last_error = None
        return True

    def refused(
        self, batch: Batch, error: FolkmootError, now: float, *, sent: bool, at_once: bool
    ) -> list[FailedBatch]:
        """Prepare another attempt, or return what fails. `sent`: the broker may have got the batch.
        `at_once`: the second attempt needs no pause."""
        if self._has_expired(batch):
            return []
        if sent and not isinstance(error, _REFUSALS):
            batch.maybe_written = True
        misplaced = self._context.sequences is not None and isinstance(error, MISPLACED)
        if misplaced or isinstance(error, RetriableError):
            batch.attempts += 1
            batch.last_error = self.last_error = error
            self._context.counters.batches_retried += 1
            # A misplaced batch that was not the oldest: an earlier one did not get there.
            if misplaced and batch.was_oldest:
                self._broken = self._broken or error
            if not misplaced or (batch.was_oldest and batch.attempts > 1):
                pause = 0.0 if at_once and batch.attempts == 1 else self._pause(batch.attempts)
                self._retry_at = now + pause
            return []
        is_divisible = isinstance(error, BatchTooLarge) or (
            isinstance(error, SchemaRefused) and batch.is_mixed
        )
        if is_divisible and batch.count > 1 and not batch.maybe_written:
            return self._halve(batch, error)
        return [self.fail(batch, error)]

    def _halve(self, batch: Batch, error: FolkmootError) -> list[FailedBatch]:
        """Put two batches with its records in its place; only a record that is too large alone fails.

        They count as sent before, so nothing leaves behind them, and they are sent one by one.
        """
        batch.attempts += 1
        batch.last_error = error
        try:
            parts = batch.halves(self._context.codec, self._context.config.compression_level)
        except Exception:  # of any kind, want of memory too
            return [self.fail(batch, error)]
        self._context.counters.batches_retried += 1
        at = self.batches.index(batch)
        first, self.batches[at] = parts
        self.batches.insert(at, first)
        return []

    def mend(self) -> list[FailedBatch]:
        """Begin the next epoch if sequences are broken and nothing is in flight."""
        error, sequences = self._broken, self._context.sequences
        if error is None or sequences is None or self.in_flight:
            return []
        self._broken = None
        if not sequences.chooses_epochs:
            return self.fail_all(error)
        sequences.restart(self.partition, new_id=isinstance(error, ProducerFenced | StaleTopicId))
        self._context.counters.epochs_begun += 1
        failed = []
        for batch in list(self.batches):
            batch.send_order = -1
            if batch.maybe_written:
                failure = type(error)(
                    f"{counted(batch.count, 'record')} for {self.partition} may be in the log or not: an "
                    f"answer was lost, and the broker cannot tell any more: {error}"
                )
                failed.append(self.fail(batch, failure))
        return failed

    # -- without an answer --------------------------------------------------------------------------

    def displace(
        self, error: FolkmootError, choose: ChoosePartitions
    ) -> tuple[list[Part], list[FailedBatch]]:
        """Empty the queue of a partition that is gone, but for what is in flight.

        Return the parts for other partitions, which `choose` chooses by the keys: records that named no
        partition and are certainly in no log. And the failed rest.
        """
        context, moved, failed = self._context, list[Part](), list[FailedBatch]()
        for batch in self._waiting():
            if batch.maybe_written:
                failed.append(self.fail(batch, error))
                continue
            try:
                parts = batch.repartition(choose, context.codec, context.config.compression_level)
            except Exception as failure:  # of any kind, want of memory too
                failed.append(self.fail(batch, _unwritable(batch, failure)))
                continue
            self._remove(batch)
            for part in parts:
                if part.topic_partition == self.partition:
                    failed.append(FailedBatch(part, error))
                else:
                    moved.append(part)
        return moved, failed

    def insert(self, batch: Batch) -> None:
        """Put a batch behind those that were opened before it, and behind all that are signed."""
        at = len(self.batches)
        while at:
            before = self.batches[at - 1]
            if before.send_order >= 0 or before.number <= batch.number:
                break
            at -= 1
        self.batches.insert(at, batch)

    def fail(self, batch: Batch, error: FolkmootError) -> FailedBatch:
        """Remove a batch, also if it is in flight."""
        self._remove(batch)
        return FailedBatch(batch, error)

    def fail_waiting(self, error: FolkmootError) -> list[FailedBatch]:
        """Remove all batches that are not in flight."""
        return [self.fail(batch, error) for batch in self._waiting()]

    def fail_all(self, error: FolkmootError) -> list[FailedBatch]:
        """Remove all batches."""
        return [self.fail(batch, error) for batch in list(self.batches)]

    def _waiting(self) -> list[Batch]:
        return [batch for batch in self.batches if batch.state is WAITING]

    def _has_expired(self, batch: Batch) -> bool:
        """Take a batch out of flight. Return whether it has failed before, so that its answer is ignored."""
        self.in_flight -= 1
        if batch.state is not EXPIRED:
            batch.state = WAITING
            return False
        self._expired -= 1
        batch.state = DONE
        return True

    def _remove(self, batch: Batch) -> None:
        if batch is self.batches[0]:
            self.batches.popleft()
            self._retry_at = -inf
        else:
            self.batches.remove(batch)
        if batch.state is IN_FLIGHT:
            batch.state = EXPIRED
            self._expired += 1

    def _pause(self, attempts: int) -> float:
        """Seconds before the next attempt."""
        growth: float = 2 ** min(attempts - 1, 10)
        pause = min(LONGEST_PAUSE, self._context.config.retry_backoff * growth)
        return pause * self._context.random.uniform(0.8, 1.2)


def _unwritable(batch: Batch, error: Exception) -> FolkmootError:
    if isinstance(error, FolkmootError):
        return error
    failure = SerializationError(
        f"{counted(batch.count, 'record')} for {batch.topic_partition} cannot be written: {error!r}"
    )
    failure.__cause__ = error
    return failure
