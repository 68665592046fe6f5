"""A partition's batches on their way: which one goes next, and when, and what an answer means."""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from itertools import groupby
from math import inf
from operator import itemgetter
from random import Random
from typing import Any, Final

from folkmoot.producers.appender import BatchBuilder, Delivery
from folkmoot.producers.config import ProducerConfig
from folkmoot.producers.idempotence import NOBODY, Identity, Sequences
from folkmoot.producers.metrics import ProducerCounters
from folkmoot.protocol import batch_header, record_batch
from folkmoot.protocol.batch_header import MIXED, NO_SCHEMA, joined_schemas, written_schema
from folkmoot.protocol.columns import Columns
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
TINY_BYTES: Final = 160
"""A body of no more is not compressed: that takes both sides longer than packing it, for a dozen bytes."""

MISPLACED: Final = (OutOfOrderSequence, UnknownProducer, ProducerFenced)
_REFUSALS: Final = (
    *MISPLACED,
    *(BatchTooLarge, CorruptBatch, InvalidRequest, NotEnoughReplicas, NotLeader),
    *(SchemaRefused, StaleTopicId, UnknownApi, UnknownTopicOrPartition, UnsupportedCodec),
    *(UnsupportedVersion, ZooKeeperUnreachable),
)
"""With these a broker says that it has not written a batch. After any other it may have."""


class Batch:
    """Records of one partition on their way, around the builder that callers' threads append to.

    It grows until the sender closes its builder, or until the builder is full, and is sealed when it is
    sent for the first time. Its outcome is the builder's, where every Delivery of its records looks.

    Owner: the sender, but for what callers append.
    """

    __slots__ = (
        *("attempts", "builder", "callbacks", "doubtful", "flying", "last_error", "number"),
        *("opened_at", "outcomes", "payload", "topic_partition", "turn", "unsigned"),
        "was_oldest",
    )

    def __init__(self, builder: BatchBuilder, number: int, opened_at: float) -> None:
        self.builder = builder
        self.callbacks: Iterable[tuple[Callable[[Delivery], object], Delivery]] = ()
        self.topic_partition: TopicPartition = builder.topic_partition
        self.number = number  # among all batches of the producer
        self.opened_at = opened_at
        self.unsigned: batch_header.UnsealedBatch | None = None  # made ahead of `payload`
        self.payload: bytes | None = None
        self.turn = -1  # among those of the partition that were signed; -1: to be signed
        self.flying = False
        self.was_oldest = False  # of those not done, when it was sent last
        self.doubtful = False  # it was sent, and nobody knows whether it was written
        self.attempts = 0
        self.last_error: FolkmootError | None = None
        self.outcomes: list[tuple[int, int, int, int, FolkmootError | None]] = []
        """Of parts that are done: rank of the first record, how many, partition, base offset, error."""

    @property
    def count(self) -> int:
        return self.builder.count

    @property
    def ranks(self) -> Sequence[int]:
        """Which records of the whole it has."""
        return range(self.builder.count)

    @property
    def whole(self) -> "Batch":
        """What callers know of."""
        return self

    @property
    def size(self) -> int:
        """In memory, as it counts against `buffer_bytes`."""
        return self.builder.size

    @property
    def done(self) -> bool:
        return self.builder.done

    @property
    def error(self) -> FolkmootError | None:
        return self.builder.error

    @property
    def failed(self) -> int:
        """How many of its records have failed; it is done, and was sent whole or in parts."""
        parts = self.builder.parts or ((0, -1, -1, self.builder.error),)
        ends = [*(part[0] for part in parts[1:]), self.builder.count]
        return sum(end - part[0] for part, end in zip(parts, ends, strict=True) if part[3])

    @property
    def may_grow(self) -> bool:
        return not self.builder.closed

    @property
    def is_mixed(self) -> bool:
        """Whether its values say several schemas, so that its header says none."""
        sealed = batch_header.schema_of(self.payload or b"")
        return self.builder.schema_id == MIXED and sealed == NO_SCHEMA

    def packed(self) -> batch_header.UnsealedBatch:
        """Its records, uncompressed. From here on it grows no more."""
        self.builder.close()
        return self.builder.body()

    def seal(self, identity: Identity | None, codec: int, level: int | None) -> bytes:
        """The bytes to send, made once: a batch sent again is the same batch.

        Only one that is certainly not in the log is sealed again, with another identity.
        """
        signature = identity or NOBODY
        if self.payload is None:
            unsigned = self.unsigned
            if unsigned is None:
                unsigned = self.packed()
                if unsigned.body_bytes > TINY_BYTES:
                    (unsigned,) = record_batch.compress([unsigned], codec, level)
            *signed, continues = signature
            self.payload = batch_header.seal(unsigned, *signed, continues=continues)
            self.unsigned = None
            self.builder.release()
        else:
            self.payload = batch_header.reseal(self.payload, *signature[:3])
        return self.payload

    def finish(self, base_offset: int, error: FolkmootError | None) -> None:
        """It is done, and holds no records any more; `callbacks` are to be called."""
        self.unsigned, self.payload = None, b""
        self.builder.close()
        self.callbacks = self.builder.finish(base_offset, error)

    def halves(self, codec: int, level: int | None) -> "list[Part]":
        """It was sealed, and its broker takes it in parts at best: the same records, the same sequences."""
        header, columns = self._open()
        middle = columns.count // 2
        groups = range(middle), range(middle, columns.count)
        return self._divide(header, columns, groups, codec, level)

    def elsewhere(
        self,
        place: Callable[[Sequence[bytes | None]], Sequence[int]],
        codec: int,
        level: int | None,
    ) -> "list[Part]":
        """A part for each partition that `place` gives for the keys of records without a named one; the
        others are a part that stays. It is certainly not in the log."""
        if self.payload is None:
            self.seal(None, codec, level)
        header, columns = self._open()
        switches, keys = self.builder.switches, columns.keys or [None] * columns.count
        loose = [at for at, rank in enumerate(self.ranks) if not bisect_right(switches, rank) % 2]
        numbers = place([keys[at] for at in loose]) if loose else ()
        placed = dict(zip(loose, numbers, strict=True))
        topic, former = self.topic_partition
        groups: dict[int, list[int]] = {}
        for at in range(columns.count):
            groups.setdefault(placed.get(at, former), []).append(at)
        parts = self._divide(header, columns, groups.values(), codec, level)
        for number, part in zip(groups, parts, strict=True):
            part.topic_partition = TopicPartition(topic, number)
            part.turn, part.attempts = -1, 0
        return parts

    def _open(self) -> tuple[batch_header.BatchHeader, Columns]:
        payload = memoryview(self.payload or b"")
        header = batch_header.check(payload)
        return header, record_batch.columns_of(header, payload)

    def _divide(
        self,
        header: batch_header.BatchHeader,
        columns: Columns,
        groups: Iterable[Sequence[int]],
        codec: int,
        level: int | None,
    ) -> "list[Part]":
        """A part for each group of rows."""
        parts = []
        for group in groups:
            rows, schema_id = columns.take(group), header.schema_id
            if self.is_mixed:
                schema_id = reduce(joined_schemas, map(written_schema, rows.values))
            sequence = header.base_sequence
            if header.producer_id != NOBODY.producer_id:
                sequence = batch_header.following_sequence(sequence, group[0])
            part = Part(self.whole, [self.ranks[at] for at in group], self.topic_partition)
            part.payload = record_batch.encode(
                rows,
                codec,
                level=level,
                schema_id=schema_id,
                producer_id=header.producer_id,
                producer_epoch=header.producer_epoch,
                base_sequence=sequence,
                continues=header.continues_sequences,
            )
            part.turn, part.attempts, part.last_error = self.turn, self.attempts, self.last_error
            parts.append(part)
        return parts


class Part(Batch):
    """Some records of a batch that was not taken whole; that one is done with the last of its parts."""

    __slots__ = ("_error", "_is_done", "_ranks", "_whole")

    def __init__(self, whole: Batch, ranks: Sequence[int], topic_partition: TopicPartition) -> None:
        super().__init__(whole.builder, whole.number, whole.opened_at)
        self._whole, self._ranks, self.topic_partition = whole, ranks, topic_partition
        self._is_done = False
        self._error: FolkmootError | None = None

    @property
    def whole(self) -> Batch:
        return self._whole

    @property
    def count(self) -> int:
        return len(self._ranks)

    @property
    def ranks(self) -> Sequence[int]:
        return self._ranks

    @property
    def done(self) -> bool:
        return self._is_done

    @property
    def error(self) -> FolkmootError | None:
        return self._error

    def finish(self, base_offset: int, error: FolkmootError | None) -> None:
        self.payload, self._is_done, self._error = b"", True, error
        builder, outcomes = self.builder, self._whole.outcomes
        for _, run in groupby(enumerate(self._ranks), lambda pair: pair[1] - pair[0]):
            (at, first), *more = run
            base = base_offset + at if base_offset >= 0 else -1
            number = self.topic_partition.partition
            outcomes.append((first, 1 + len(more), number, base, error))
        if sum(count for _, count, _, _, _ in outcomes) < builder.count:
            return
        outcomes.sort(key=itemgetter(0))
        builder.parts = [(first, number, base, end) for first, _, number, base, end in outcomes]
        self._whole.finish(-1, next((each[4] for each in outcomes if each[4]), None))
        for first, count, _, _, failed in outcomes:
            if failed is None:  # nobody has to ask about these
                builder.observe(first, count)


def compress_together(batches: Sequence[Batch], codec: int, level: int | None) -> None:
    """Compress batches that are to be sealed, all at once. What cannot be written is left: `seal` says
    why."""
    larger: list[tuple[Batch, batch_header.UnsealedBatch]] = []
    for batch in batches:
        try:
            packed = batch.packed()
            if packed.body_bytes > TINY_BYTES:
                larger.append((batch, packed))
            else:
                batch.unsigned = packed
        except Exception:  # of any kind, want of memory too
            continue
    if larger:
        with suppress(Exception):
            made = record_batch.compress([packed for _, packed in larger], codec, level)
            for (batch, _), unsigned in zip(larger, made, strict=True):
                batch.unsigned = unsigned


def describe(batches: Iterable[Batch]) -> str:
    """How many records of which partitions have failed, for a log line."""
    counts: dict[str, int] = {}
    for batch in batches:
        name = str(batch.topic_partition)
        counts[name] = counts.get(name, 0) + batch.failed
    return ", ".join(f"{count} of {name}" for name, count in sorted(counts.items()))


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """What all queues of a sender share. `finished` is told of each batch that is done."""

    config: ProducerConfig[Any, Any]
    codec: int
    sequences: Sequences | None
    counters: ProducerCounters
    random: Random
    finished: Callable[[Batch], None]


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

    Until `_retry_at` nothing leaves. `leader`, `leader_epoch` and `topic_id` are as of the metadata's
    `version`; `timer` is when the sender looks at it again by itself. Owner: the sender.
    """

    __slots__ = (
        *("_broken", "_flying", "_ghosts", "_retry_at", "_terms", "_turns", "_window"),
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
        self._turns = 0
        self._flying = 0
        self._ghosts = 0
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
        grows = batch is self.batches[-1] and batch.may_grow
        if batch is not self.batches[0]:
            return inf if grows else self._retry_at
        if hurry or not grows:
            return self._retry_at
        linger = self._terms.config.linger
        wait = max(linger, GATHERING) if busy else linger
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
        made = batch is None or batch.payload is not None or batch.unsigned is not None
        return None if made else batch

    def send(self, now: float) -> Batch | None:
        """The next batch, with its bytes, which are made if this is its first attempt; it is under way.

        One that cannot be written fails, and the one behind it takes its place. None if none is left,
        a producer id is wanting, or it is too early.
        """
        if self._retry_at > now:
            return None
        sequences = self._terms.sequences
        while (batch := self._next()) is not None:
            if batch.turn < 0:
                if sequences is not None and not self._flying:
                    sequences.break_silence(self.partition, now)
                identity = None if sequences is None else sequences.next(self.partition)
                if sequences is not None and identity is None:
                    return None
                batch.builder.close()
                try:
                    self._sign(batch, identity)
                except Exception as error:  # of any kind, want of memory too: the others are to go
                    self.end(batch, _unwritable(batch, error))
                    continue
                if sequences is not None:
                    sequences.advance(self.partition, batch.count, now)
                batch.turn = self._turns
                self._turns += 1
            self._flying += 1
            batch.flying = True
            batch.was_oldest = batch is self.batches[0]
            return batch
        return None

    def _sign(self, batch: Batch, identity: Identity | None) -> None:
        terms = self._terms
        is_fresh = batch.payload is None
        payload = batch.seal(identity, terms.codec, terms.config.compression_level)
        if is_fresh:
            terms.counters.bytes_packed += batch.size
            terms.counters.bytes_compressed += len(payload)

    # -- how an attempt ends ------------------------------------------------------------------------

    def delivered(self, batch: Batch, base_offset: int) -> None:
        """It is in the log."""
        if self._landed(batch):
            # In this order nothing that fails in between, want of memory, say, leaves it in nobody's hands.
            batch.finish(base_offset, None)
            self._terms.finished(batch)
            self._take_out(batch)
            self.last_error = None
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
            elif batch.count > 1 and not batch.doubtful and _may_pass_in_parts(batch, error):
                self._halve(batch, error)
            else:
                self.end(batch, error)
        self._mend()

    @property
    def is_idle(self) -> bool:
        """Whether it has nothing, and no answer is to come."""
        return not self.batches and not self._flying

    @property
    def awaits_answers(self) -> bool:
        """Whether something is under way."""
        return self._flying > 0

    def has_new_leader(self) -> None:
        """Another attempt need not wait: what went wrong did so at an earlier leader."""
        self._retry_at = -inf

    def is_of(self, topic_id: str) -> None:
        """What the topic's id is now. One made anew has nothing of what was sent."""
        former, self.topic_id = self.topic_id, topic_id
        if former not in ("", topic_id) and self._turns and self._terms.sequences is not None:
            self._broken = StaleTopicId(f"topic {self.partition.topic} was made anew")
            self._mend()

    def _halve(self, batch: Batch, error: FolkmootError) -> None:
        """Send its records in two batches, in its place; only a record that is too large alone fails.

        They have been sent before, so nothing leaves behind them, and they go one by one.
        """
        batch.attempts += 1
        batch.last_error = error
        try:
            parts = batch.halves(self._terms.codec, self._terms.config.compression_level)
        except Exception:  # of any kind, want of memory too
            self.end(batch, error)
            return
        self._terms.counters.batches_retried += 1
        self._replace(batch, parts)

    def _replace(self, batch: Batch, parts: "list[Part]") -> None:
        at = self.batches.index(batch)
        self.batches[at] = parts[-1]
        for part in parts[-2::-1]:
            self.batches.insert(at, part)

    def displaced(
        self, error: FolkmootError, place: Callable[[Sequence[bytes | None]], Sequence[int]]
    ) -> Iterator[Part]:
        """Its partition is gone. → what goes to another one, which `place` finds by the keys: records that
        named none and are certainly in no log. The others fail, but for what is under way.

        Each is in both queues for a moment, lest it be in none when memory is wanting.
        """
        terms = self._terms
        for batch in list(self.batches):
            if batch.flying:
                continue
            if batch.doubtful:
                self.end(batch, error)
                continue
            try:
                parts = batch.elsewhere(place, terms.codec, terms.config.compression_level)
            except Exception as failure:  # of any kind, want of memory too
                self.end(batch, _unwritable(batch, failure))
                continue
            self._replace(batch, parts)
            for part in parts:
                if part.topic_partition == self.partition:
                    self.end(part, error)
                else:
                    yield part
                    self._take_out(part)

    def insert(self, batch: Batch) -> None:
        """Behind what was opened before it, and behind all that is signed."""
        at = len(self.batches)
        while at and self.batches[at - 1].turn < 0 and self.batches[at - 1].number > batch.number:
            at -= 1
        self.batches.insert(at, batch)

    def end_waiting(self, error: FolkmootError) -> None:
        """Fail all that is not under way."""
        for batch in [batch for batch in self.batches if not batch.flying]:
            self.end(batch, error)

    def _landed(self, batch: Batch) -> bool:
        """It is not under way any more. False if it was a ghost, which nobody waits for."""
        self._flying -= 1
        batch.flying = False
        if batch.done:
            self._ghosts -= 1
        return not batch.done

    def end(self, batch: Batch, error: FolkmootError) -> None:
        """Fail it, wherever it is."""
        if not batch.done:
            batch.finish(-1, error)
        self._terms.finished(batch)
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
        if not sequences.gives_epochs:
            for batch in list(self.batches):
                self.end(batch, error)
            return
        sequences.restart(self.partition, new_id=isinstance(error, ProducerFenced | StaleTopicId))
        self._terms.counters.epochs_begun += 1
        for batch in list(self.batches):
            batch.turn = -1
            if batch.doubtful:
                failure = type(error)(
                    f"{counted(batch.count, 'record')} for {self.partition} may be in the log or not: an "
                    f"answer was lost, and the broker cannot tell any more: {error}"
                )
                self.end(batch, failure)

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
