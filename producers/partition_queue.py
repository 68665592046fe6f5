"""A partition's batches on their way: which one goes next, and when, and what an answer means."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from random import Random
from typing import Any, Final, NamedTuple

from folkmoot.producers.batch import DONE, EXPIRED, IN_FLIGHT, WAITING, Batch, Part
from folkmoot.producers.config import ProducerConfig
from folkmoot.producers.idempotence import Identity, Sequences
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
"""So long at most a batch that is not full waits for a request that is under way to its broker."""
WINDOW: Final = 5
"""So many batches of a producer are recognised by a broker when they come again."""

MISPLACED: Final = (OutOfOrderSequence, UnknownProducer, ProducerFenced)
_REFUSALS: Final = (
    *MISPLACED,
    *(BatchTooLarge, CorruptBatch, InvalidRequest, NotEnoughReplicas, NotLeader),
    *(SchemaRefused, StaleTopicId, UnknownApi, UnknownTopicOrPartition, UnsupportedCodec),
    *(UnsupportedVersion, ZooKeeperUnreachable),
)
"""With these a broker says that it has not written a batch. After any other it may have."""


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """What all queues of a sender share."""

    config: ProducerConfig[Any, Any]
    codec: int
    sequences: Sequences | None
    counters: ProducerCounters
    random: Random


class Failed(NamedTuple):
    """A batch that its queue has given up, and why; the caller is to end it."""

    batch: Batch
    error: FolkmootError


class PartitionQueue:
    """A partition's batches that are not done, in order; the last one may grow.

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
    lacks. Signed anew it could be written twice, so it fails, and its error says why. Of a producer that was
    taken over (`gives_epochs` is off) all fail.

    A topic made anew. It has nothing of what was sent, and may be that of another cluster in the place of
    the first, where others have the same producer ids: it goes on as above, under a new id.

    The queue calls nothing: it returns which batches have failed, and its caller ends those.

    Until `_retry_at` nothing leaves. `leader`, `leader_epoch` and `topic_id` are as of the metadata's
    `version`; `timer` is when the sender looks at it again by itself. Owner: the sender.
    """

    __slots__ = (
        *("_broken", "_in_flight", "_expired", "_retry_at", "_terms", "_signed", "_window"),
        *("batches", "last_error", "leader", "leader_epoch", "missing", "partition", "timer"),
        *("topic_id", "version"),
    )

    def __init__(self, partition: TopicPartition, terms: Terms) -> None:
        self.partition = partition
        self.batches: deque[Batch] = deque()
        self.version = -1
        self.leader: str | None = None
        self.leader_epoch = -1
        self.topic_id = ""
        self.missing: FolkmootError | None = None
        """Why there is no such partition any more."""
        self.last_error: FolkmootError | None = None
        """Of the last attempt, if it has failed."""
        self.timer = inf
        self._terms = terms
        self._window = 1 if terms.sequences is None else WINDOW
        self._signed = 0
        self._in_flight = 0
        self._expired = 0
        self._broken: FolkmootError | None = None
        self._retry_at = -inf

    # -- which one goes next ------------------------------------------------------------------------

    def ready_at(self, *, hurry: bool, busy: bool = False) -> float:
        """When the next batch may be sent, as far as order and time decide it; infinity if none may.

        Behind others that are under way it leaves only when it is full, and grows until then. One
        that may grow waits for GATHERING, if `linger` is less and the leader is `busy` with another.
        """
        batch = self._next()
        if batch is None:
            return inf
        grows = batch is self.batches[-1] and not batch.closed
        if batch is not self.batches[0]:
            return inf if grows else self._retry_at
        if hurry or not grows:
            return self._retry_at
        linger = self._terms.config.linger
        wait = max(linger, GATHERING) if busy else linger
        return max(self._retry_at, batch.opened_at + wait)

    def _next(self) -> Batch | None:
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

    def to_seal(self) -> Batch | None:
        """The batch that `send` will make the bytes of, if it has to."""
        batch = self._next()
        made = batch is None or batch.payload is not None or batch.unsigned is not None
        return None if made else batch

    def send(self, now: float) -> Batch | Failed | None:
        """The next batch, with its bytes, which are made if this is its first attempt; it is under way.

        Or one that has failed, since it cannot be written: the one behind it is the next. None if none is
        left, a producer id is wanting, or it is too early.
        """
        batch, sequences = self._next(), self._terms.sequences
        if batch is None or self._retry_at > now:
            return None
        if batch.send_order < 0:
            if sequences is not None and not self._in_flight:
                sequences.break_silence(self.partition, now)
            identity = None if sequences is None else sequences.next(self.partition)
            if sequences is not None and identity is None:
                return None
            batch.close()
            try:
                self._sign(batch, identity)
            except Exception as error:  # of any kind, want of memory too: the others are to go
                return self.fail(batch, _unwritable(batch, error))
            if sequences is not None:
                sequences.advance(self.partition, batch.count, now)
            batch.send_order = self._signed
            self._signed += 1
        self._in_flight += 1
        batch.state = IN_FLIGHT
        batch.was_oldest = batch is self.batches[0]
        return batch

    def _sign(self, batch: Batch, identity: Identity | None) -> None:
        terms = self._terms
        is_fresh = batch.payload is None
        payload = batch.seal(identity, terms.codec, terms.config.compression_level)
        if is_fresh:
            terms.counters.bytes_packed += batch.size
            terms.counters.bytes_compressed += len(payload)

    # -- how an attempt ends ------------------------------------------------------------------------

    def delivered(self, batch: Batch) -> bool:
        """It is in the log. False if it has failed before."""
        if not self._landed(batch):
            return False
        self._take_out(batch)
        self.last_error = None
        return True

    def refused(
        self, batch: Batch, error: FolkmootError, now: float, *, sent: bool, at_once: bool
    ) -> list[Failed]:
        """The attempt has failed: another one, or none. `sent`: the broker may have got the batch.

        `at_once`: the first time without a pause.
        """
        if not self._landed(batch):
            return []
        if sent and not isinstance(error, _REFUSALS):
            batch.maybe_written = True
        misplaced = self._terms.sequences is not None and isinstance(error, MISPLACED)
        if misplaced or isinstance(error, RetriableError):
            batch.attempts += 1
            batch.last_error = self.last_error = error
            self._terms.counters.batches_retried += 1
            # A misplaced one that was not the oldest: what was before it did not get there.
            if misplaced and batch.was_oldest:
                self._broken = self._broken or error
            if not misplaced or (batch.was_oldest and batch.attempts > 1):
                pause = 0.0 if at_once and batch.attempts == 1 else self._pause(batch.attempts)
                self._retry_at = now + pause
            return []
        if batch.count > 1 and not batch.maybe_written and _may_pass_in_parts(batch, error):
            return self._halve(batch, error)
        return [self.fail(batch, error)]

    @property
    def is_idle(self) -> bool:
        """Whether it has nothing, and no answer is to come."""
        return not self.batches and not self._in_flight

    @property
    def is_all_in_flight(self) -> bool:
        """Whether nothing of it waits to be sent."""
        batches = self.batches
        return batches[0].state is not WAITING and batches[-1].state is not WAITING

    @property
    def awaits_answers(self) -> bool:
        """Whether something is under way."""
        return self._in_flight > 0

    def has_new_leader(self) -> None:
        """Another attempt need not wait: what went wrong did so at an earlier leader."""
        self._retry_at = -inf

    def is_of(self, topic_id: str) -> list[Failed]:
        """What the topic's id is now. One made anew has nothing of what was sent."""
        former, self.topic_id = self.topic_id, topic_id
        if former not in ("", topic_id) and self._signed and self._terms.sequences is not None:
            self._broken = StaleTopicId(f"topic {self.partition.topic} was made anew")
        return self.mend()

    def _halve(self, batch: Batch, error: FolkmootError) -> list[Failed]:
        """Send its records in two batches, in its place; only a record that is too large alone fails.

        They have been sent before, so nothing leaves behind them, and they go one by one.
        """
        batch.attempts += 1
        batch.last_error = error
        try:
            parts = batch.halves(self._terms.codec, self._terms.config.compression_level)
        except Exception:  # of any kind, want of memory too
            return [self.fail(batch, error)]
        self._terms.counters.batches_retried += 1
        at = self.batches.index(batch)
        first, self.batches[at] = parts
        self.batches.insert(at, first)
        return []

    def displaced(
        self, error: FolkmootError, place: Callable[[Sequence[bytes | None]], Sequence[int]]
    ) -> tuple[list[Part], list[Failed]]:
        """Its partition is gone. → what goes to another one, which `place` finds by the keys: records that
        named none and are certainly in no log; and the others, which fail, but for what is under way."""
        terms, moved, failed = self._terms, list[Part](), list[Failed]()
        for batch in self._waiting():
            if batch.maybe_written:
                failed.append(self.fail(batch, error))
                continue
            try:
                parts = batch.elsewhere(place, terms.codec, terms.config.compression_level)
            except Exception as failure:  # of any kind, want of memory too
                failed.append(self.fail(batch, _unwritable(batch, failure)))
                continue
            self._take_out(batch)
            moved += [part for part in parts if part.topic_partition != self.partition]
            failed += [
                Failed(part, error) for part in parts if part.topic_partition == self.partition
            ]
        return moved, failed

    def insert(self, batch: Batch) -> None:
        """Behind what was opened before it, and behind all that is signed."""
        at = len(self.batches)
        while (
            at
            and self.batches[at - 1].send_order < 0
            and self.batches[at - 1].number > batch.number
        ):
            at -= 1
        self.batches.insert(at, batch)

    def fail(self, batch: Batch, error: FolkmootError) -> Failed:
        """Give it up, also if it is under way."""
        self._take_out(batch)
        return Failed(batch, error)

    def fail_waiting(self, error: FolkmootError) -> list[Failed]:
        """Give up all that is not under way."""
        return [self.fail(batch, error) for batch in self._waiting()]

    def fail_all(self, error: FolkmootError) -> list[Failed]:
        """Give up all, also what is under way."""
        return [self.fail(batch, error) for batch in list(self.batches)]

    def _waiting(self) -> list[Batch]:
        return [batch for batch in self.batches if batch.state is WAITING]

    def _landed(self, batch: Batch) -> bool:
        """It is not under way any more. False if it was a ghost, which nobody waits for."""
        self._in_flight -= 1
        has_expired = batch.state is EXPIRED
        if has_expired:
            self._expired -= 1
        batch.state = DONE if has_expired else WAITING
        return not has_expired

    def _take_out(self, batch: Batch) -> None:
        if batch is self.batches[0]:
            self.batches.popleft()
            self._retry_at = -inf
        else:
            self.batches.remove(batch)
        if batch.state is IN_FLIGHT:
            batch.state = EXPIRED
            self._expired += 1

    def mend(self) -> list[Failed]:
        """Begin the next epoch if sequences are broken and nothing is under way."""
        error, sequences = self._broken, self._terms.sequences
        if error is None or sequences is None or self._in_flight:
            return []
        self._broken = None
        if not sequences.gives_epochs:
            return self.fail_all(error)
        sequences.restart(self.partition, new_id=isinstance(error, ProducerFenced | StaleTopicId))
        self._terms.counters.epochs_begun += 1
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

    def _pause(self, attempts: int) -> float:
        """How long to wait before the next attempt."""
        growth: float = 2 ** min(attempts - 1, 10)
        pause = min(LONGEST_PAUSE, self._terms.config.retry_backoff * growth)
        return pause * self._terms.random.uniform(0.8, 1.2)


def _may_pass_in_parts(batch: Batch, error: FolkmootError) -> bool:
    return isinstance(error, BatchTooLarge) or (isinstance(error, SchemaRefused) and batch.is_mixed)


def _unwritable(batch: Batch, error: Exception) -> FolkmootError:
    if isinstance(error, FolkmootError):
        return error
    failure = SerializationError(
        f"{counted(batch.count, 'record')} for {batch.topic_partition} cannot be written: {error!r}"
    )
    failure.__cause__ = error
    return failure
