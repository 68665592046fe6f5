"""A batch of the producer, from its first record to its outcome, and the parts that it may be sent in."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from enum import Enum, auto
from functools import reduce
from itertools import groupby
from operator import itemgetter
from typing import Final

from folkmoot.producers.appender import BatchBuilder, Delivery
from folkmoot.producers.idempotence import NOBODY, Identity
from folkmoot.protocol import batch_header, record_batch
from folkmoot.protocol.batch_header import MIXED, NO_SCHEMA, joined_schemas, written_schema
from folkmoot.protocol.columns import Columns
from folkmoot.protocol.errors import FolkmootError
from folkmoot.protocol.records import TopicPartition

TINY_BYTES: Final = 160
"""A body of no more is not compressed: that takes both sides longer than packing it, for a dozen bytes."""


class State(Enum):
    """Where a batch is; see `Batch`."""

    NEW = auto()
    WAITING = auto()
    IN_FLIGHT = auto()
    EXPIRED = auto()
    DONE = auto()


NEW, WAITING, IN_FLIGHT, EXPIRED, DONE = State
"""A name is looked up in an Enum much more slowly than here."""

Outcomes = tuple[tuple[int, int, int, int, FolkmootError | None], ...]
"""Of runs of records: rank of the first, how many, partition, base offset, error."""


class Batch(BatchBuilder):
    """Records of one partition, from the first one that callers append until their outcome is known.

    ```
    NEW ─► WAITING ─► IN_FLIGHT ─► DONE (delivered, or failed)
              │ ▲        │ │         ▲
              │ └────────┘ └► EXPIRED┤
              └──────────────────────┘
    ```

    NEW: the sender does not have it yet. WAITING, in its partition's queue: for its first attempt or the
    next one. IN_FLIGHT: a request with it was sent, and nothing is known of that. EXPIRED: it has failed
    meanwhile, and the answer is still to come.

    Callers append, also while it is WAITING, until it is `closed`: because it is full, or when the
    sender makes its bytes for the first attempt. A batch sent again is the same bytes. `done`, `error`
    and `base_offset` are its outcome, where every Delivery of its records looks.

    The fields below are the sender's, but for `number` and `opened_at`, which the accumulator sets.
    """

    callbacks: Iterable[tuple[Callable[[Delivery], object], Delivery]] = ()
    number = 0
    """Among all batches of the producer, from 1 on."""
    opened_at = 0.0
    state = NEW
    unsigned: batch_header.UnsealedBatch | None = None
    """What `payload` is made of, if that was made ahead."""
    payload: bytes | None = None
    send_order = -1
    """Its place among those of the partition that were signed; -1: it is to be signed."""
    was_oldest = False
    """Whether it was the oldest that was not done when it was sent last."""
    maybe_written = False
    """Whether an attempt was sent and never answered."""
    attempts = 0
    last_error: FolkmootError | None = None
    outcomes: Outcomes = ()
    """Of parts that are done."""

    @property
    def ranks(self) -> Sequence[int]:
        """Which records of the whole it has."""
        return range(self.count)

    @property
    def whole(self) -> "Batch":
        """What callers know of."""
        return self

    @property
    def failed(self) -> int:
        """How many of its records have failed; it is done, and was sent whole or in parts."""
        return sum(count for _, count, error in self._ended() if error is not None)

    @property
    def is_mixed(self) -> bool:
        """Whether its values say several schemas, so that its header says none."""
        sealed = batch_header.schema_of(self.payload or b"")
        return self.whole.schema_id == MIXED and sealed == NO_SCHEMA

    def seal(self, identity: Identity | None, codec: int, level: int | None) -> bytes:
        """The bytes to send, made once: a batch sent again is the same batch.

        Only one that is certainly not in the log is sealed again, with another identity.
        """
        signature = identity or NOBODY
        if self.payload is None:
            unsigned = self.unsigned
            if unsigned is None:
                unsigned = self.body()
                if unsigned.body_bytes > TINY_BYTES:
                    (unsigned,) = record_batch.compress([unsigned], codec, level)
            *signed, continues = signature
            self.payload = batch_header.seal(unsigned, *signed, continues=continues)
            self.unsigned = None
            self.release()
        else:
            self.payload = batch_header.reseal(self.payload, *signature[:3])
        return self.payload

    def end(self, base_offset: int, error: FolkmootError | None) -> None:
        """It was delivered, or has failed: it holds no records any more, and `callbacks` are to be called.

        Records whose part has ended before keep the outcome of that.
        """
        self.unsigned, self.payload, self.last_error = None, b"", None
        if self.outcomes:
            error = self._join_parts(error)
        self.callbacks = self.finish(base_offset, error)
        if self.state is not EXPIRED:
            self.state = DONE
        for first, count, failure in self._ended() if self.outcomes else ():
            if failure is None:  # nobody has to ask about these
                self.observe(first, count)

    def _join_parts(self, error: FolkmootError | None) -> FolkmootError | None:
        """Set `parts`; records of parts that have not ended fail with `error`. → the first error."""
        parts, rank, own = [], 0, self.topic_partition.partition
        for first, count, number, base, failure in sorted(self.outcomes, key=itemgetter(0)):
            if first > rank:
                parts.append((rank, own, -1, error))
            parts.append((first, number, base, failure))
            rank = first + count
        if rank < self.count:
            parts.append((rank, own, -1, error))
        self.parts = parts
        return next((failure for *_, failure in parts if failure is not None), None)

    def _ended(self) -> Iterable[tuple[int, int, FolkmootError | None]]:
        """How it ended: rank of the first record, how many, error."""
        parts = self.parts or ((0, -1, -1, self.error),)
        ends = [*(part[0] for part in parts[1:]), self.count]
        return ((part[0], end - part[0], part[3]) for part, end in zip(parts, ends, strict=True))

    # -- in parts -----------------------------------------------------------------------------------

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
        switches, keys = self.whole.switches, columns.keys or [None] * columns.count
        loose = [at for at, rank in enumerate(self.ranks) if not bisect_right(switches, rank) % 2]
        numbers = place([keys[at] for at in loose]) if loose else ()
        placed = dict(zip(loose, numbers, strict=True))
        former = self.topic_partition.partition
        groups: dict[int, list[int]] = {}
        for at in range(columns.count):
            groups.setdefault(placed.get(at, former), []).append(at)
        parts = self._divide(header, columns, groups.values(), codec, level, tuple(groups))
        for part in parts:
            part.send_order, part.attempts = -1, 0
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
        partitions: Sequence[int] = (),
    ) -> "list[Part]":
        """A part for each group of rows, in these partitions; without them in its own."""
        parts = []
        for at, group in enumerate(groups):
            rows, schema_id = columns.take(group), header.schema_id
            if self.is_mixed:
                schema_id = reduce(joined_schemas, map(written_schema, rows.values))
            sequence = header.base_sequence
            if header.producer_id != NOBODY.producer_id:
                sequence = batch_header.following_sequence(sequence, group[0])
            target = self.topic_partition
            if partitions:
                target = TopicPartition(target.topic, partitions[at])
            part = Part(self.whole, [self.ranks[row] for row in group], target)
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
            part.send_order, part.attempts = self.send_order, self.attempts
            part.last_error = self.last_error
            parts.append(part)
        return parts


class Part(Batch):
    """Some records of a batch that was not taken whole; that one is done with the last of its parts."""

    state = WAITING

    def __init__(self, whole: Batch, ranks: Sequence[int], topic_partition: TopicPartition) -> None:
        super().__init__(topic_partition, whole.owner, len(ranks))
        self.number, self.opened_at = whole.number, whole.opened_at
        self._whole, self._ranks = whole, ranks

    @property
    def whole(self) -> Batch:
        return self._whole

    @property
    def ranks(self) -> Sequence[int]:
        return self._ranks

    def end(self, base_offset: int, error: FolkmootError | None) -> None:
        super().end(base_offset, error)
        whole, number, runs = self._whole, self.topic_partition.partition, []
        for _, run in groupby(enumerate(self._ranks), lambda pair: pair[1] - pair[0]):
            (at, first), *more = run
            base = base_offset + at if base_offset >= 0 else -1
            runs.append((first, 1 + len(more), number, base, error))
        whole.outcomes += tuple(runs)
        if sum(count for _, count, _, _, _ in whole.outcomes) == whole.count:
            whole.end(-1, None)


def compress_together(batches: Sequence[Batch], codec: int, level: int | None) -> None:
    """Compress batches that are to be sealed, all at once. What cannot be written is left: `seal` says
    why."""
    larger: list[tuple[Batch, batch_header.UnsealedBatch]] = []
    for batch in batches:
        try:
            packed = batch.body()
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
