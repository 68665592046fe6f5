"""A batch of the producer, from its first record to its outcome, and the parts that it may be sent in."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from enum import Enum, auto
from functools import reduce

from folkmoot.producers.appender import BatchBuilder, Delivery
from folkmoot.producers.futures import RecordOutcome
from folkmoot.producers.idempotence import NO_IDENTITY, Identity
from folkmoot.protocol import batch_header, record_batch
from folkmoot.protocol.batch_header import MIXED, NO_SCHEMA, joined_schemas, written_schema
from folkmoot.protocol.errors import FolkmootError
from folkmoot.protocol.records import TopicPartition

TINY_BYTES = 160
"""Smaller bodies are not compressed: it would take both sides longer than packing, for a dozen bytes."""

ChoosePartitions = Callable[[Sequence[bytes | None]], Sequence[int]]
"""The partitions for records with these keys."""


class State(Enum):
    """The state of a batch; see `Batch`."""

    NEW = auto()
    WAITING = auto()
    IN_FLIGHT = auto()
    EXPIRED = auto()
    DONE = auto()


NEW, WAITING, IN_FLIGHT, EXPIRED, DONE = State
"""Looking a name up in an Enum is much slower."""


class Batch(BatchBuilder):
    """Records of one partition, from the first one that callers append until their outcome is known.

    ```
    NEW ─► WAITING ─► IN_FLIGHT ─► DONE (delivered, or failed)
              │ ▲        │ │         ▲
              │ └────────┘ └► EXPIRED┤
              └──────────────────────┘
    ```

    NEW: the sender does not have it yet. WAITING: it is in its partition's queue, for its first attempt or
    the next one. IN_FLIGHT: a request with it was sent, and there is no answer. EXPIRED: it failed in
    flight, and the answer is still to come.

    Callers append, also while it is WAITING, until it is `closed`: because it is full, or when the
    sender makes its bytes for the first attempt. Every attempt sends the same bytes. `done`, `error`
    and `base_offset` are the outcome that deliveries read.

    Only the sender uses the fields below, but for `number` and `opened_at`, which the accumulator sets.
    """

    callbacks: Iterable[tuple[Callable[[Delivery], object], Delivery]] = ()
    number = 0
    """Among all batches of the producer, from 1 on."""
    opened_at = 0.0
    state = NEW
    unsigned: batch_header.UnsealedBatch | None = None
    """The body for `payload`, if it was compressed ahead."""
    payload: bytes | None = None
    send_order = -1
    """Its number among the signed batches of the partition; -1: it must be signed."""
    was_oldest = False
    """It was the oldest unfinished batch when it was sent last."""
    maybe_written = False
    """An attempt was sent and never answered."""
    attempts = 0
    last_error: FolkmootError | None = None
    part_of: "Batch | None" = None
    """The batch that callers know, for a Part."""
    ranks: Sequence[int] | None = None
    """Which records of the whole a Part has."""
    unfinished = 0
    """How many records of a batch that is sent in parts have no outcome."""

    @property
    def failed(self) -> int:
        """How many of its records have failed; it is done."""
        if self.outcomes is None:
            return 0 if self.error is None else self.count
        return sum(error is not None for *_, error in self.outcomes)

    @property
    def is_mixed(self) -> bool:
        """Return whether its values have several schemas, so that its header names none."""
        sealed = batch_header.schema_of(self.payload or b"")
        return (self.part_of or self).schema_id == MIXED and sealed == NO_SCHEMA

    def seal(self, identity: Identity | None, codec: int, level: int | None) -> bytes:
        """Return the bytes to send. They are made once; only a batch that is certainly not in the log
        gets another identity."""
        *signed, continues = identity or NO_IDENTITY
        if self.payload is None:
            unsigned = self.unsigned
            if unsigned is None:
                unsigned = self.body()
                if sum(map(len, unsigned.body)) > TINY_BYTES:
                    (unsigned,) = record_batch.compress([unsigned], codec, level)
            self.payload = batch_header.seal(unsigned, *signed, continues=continues)
            self.unsigned = None
            self.release()
        else:
            self.payload = batch_header.reseal(self.payload, *signed)
        return self.payload

    def end(self, base_offset: int, error: FolkmootError | None) -> None:
        """Set the outcome and drop the records; `callbacks` must be called next.

        Records whose part has ended before keep that part's outcome.
        """
        self.unsigned, self.payload, self.last_error = None, b"", None
        if self.outcomes is not None:
            other = (self.topic_partition.partition, -1, error)
            self.outcomes = [outcome or other for outcome in self.outcomes]
            error = next((error for *_, error in self.outcomes if error is not None), None)
        self.callbacks = self.finish(base_offset, error)
        if self.state is not EXPIRED:
            self.state = DONE
        for rank, (_, _, failure) in enumerate(self.outcomes or ()):
            if failure is None:
                self.observe(rank)  # there is no failure to report

    # -- in parts -----------------------------------------------------------------------------------

    def halves(self, codec: int, level: int | None) -> "list[Part]":
        """Return two batches with its records and sequences, for a broker that refuses it as a whole."""
        middle, number = self.count // 2, self.topic_partition.partition
        groups = ((number, range(middle)), (number, range(middle, self.count)))
        parts = self._divide(groups, codec, level)
        for part in parts:
            part.send_order, part.attempts = self.send_order, self.attempts
        return parts

    def repartition(self, choose: ChoosePartitions, codec: int, level: int | None) -> "list[Part]":
        """Return a part for each partition that `choose` chooses for records without a named one; the
        others are a part that stays. The batch is certainly not in the log."""
        if self.payload is None:
            self.seal(None, codec, level)
        payload = memoryview(self.payload or b"")
        columns = record_batch.columns_of(batch_header.check(payload), payload)
        keys, switches = columns.keys or [None] * self.count, (self.part_of or self).switches
        ranks = enumerate(self.ranks or range(self.count))
        unnamed = [row for row, rank in ranks if not bisect_right(switches, rank) % 2]
        numbers = choose([keys[row] for row in unnamed]) if unnamed else ()
        chosen = dict(zip(unnamed, numbers, strict=True))
        groups: dict[int, list[int]] = {}
        for row in range(self.count):
            number = chosen.get(row, self.topic_partition.partition)
            groups.setdefault(number, []).append(row)
        return self._divide(groups.items(), codec, level)

    def _divide(
        self, groups: Iterable[tuple[int, Sequence[int]]], codec: int, level: int | None
    ) -> "list[Part]":
        """A part for each partition and the rows that it gets."""
        payload = memoryview(self.payload or b"")
        header = batch_header.check(payload)
        columns = record_batch.columns_of(header, payload)
        ranks = self.ranks or range(self.count)
        is_mixed, parts = self.is_mixed, []
        for number, group in groups:
            rows, schema_id = columns.take(group), header.schema_id
            if is_mixed:
                schema_id = reduce(joined_schemas, map(written_schema, rows.values))
            sequence = header.base_sequence
            if header.producer_id != NO_IDENTITY.producer_id:
                sequence = batch_header.following_sequence(sequence, group[0])
            target = TopicPartition(self.topic_partition.topic, number)
            part = Part(self.part_of or self, [ranks[row] for row in group], target)
            part.last_error = self.last_error
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
            parts.append(part)
        return parts


class Part(Batch):
    """Some records of a batch that is not sent whole; that one is done with the last of its parts."""

    state = WAITING
    part_of: Batch
    ranks: Sequence[int]

    def __init__(
        self, original: Batch, ranks: Sequence[int], topic_partition: TopicPartition
    ) -> None:
        super().__init__(topic_partition, original.owner, len(ranks))
        self.number, self.opened_at = original.number, original.opened_at
        self.part_of, self.ranks = original, ranks

    def end(self, base_offset: int, error: FolkmootError | None) -> None:
        super().end(base_offset, error)
        original, number = self.part_of, self.topic_partition.partition
        if original.done:
            return
        if original.outcomes is None:
            original.outcomes = [None] * original.count
            original.unfinished = original.count
        for row, rank in enumerate(self.ranks):
            outcome: RecordOutcome = (number, base_offset + row if base_offset >= 0 else -1, error)
            original.outcomes[rank] = outcome
        original.unfinished -= len(self.ranks)
        if not original.unfinished:
            original.end(-1, None)


def compress_together(batches: Sequence[Batch], codec: int, level: int | None) -> None:
    """Compress batches all at once before they are sealed. One that fails is left: `seal` raises why."""
    larger: list[tuple[Batch, batch_header.UnsealedBatch]] = []
    for batch in batches:
        with suppress(Exception):  # of any kind, want of memory too
            packed = batch.body()
            if sum(map(len, packed.body)) > TINY_BYTES:
                larger.append((batch, packed))
            else:
                batch.unsigned = packed
    with suppress(Exception):
        compressed = record_batch.compress([packed for _, packed in larger], codec, level)
        for (batch, _), unsigned in zip(larger, compressed, strict=True):
            batch.unsigned = unsigned


def describe(batches: Iterable[Batch]) -> str:
    """How many records of which partitions have failed, for a log line."""
    counts: dict[str, int] = {}
    for batch in batches:
        name = str(batch.topic_partition)
        counts[name] = counts.get(name, 0) + batch.failed
    return ", ".join(f"{count} of {name}" for name, count in sorted(counts.items()))
