"""Appends records to their batches, in plain Python; `_speedups.pyx` does the same in C.

Tests hold equal what the two share: where each batch ends, every byte of its body, what handles say,
what is refused and why.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import lru_cache, reduce
from itertools import pairwise
from random import Random
from threading import RLock
from time import time_ns
from typing import Any, Final, Protocol

import msgspec

from folkmoot.producers.columns import (
    RECORD_OVERHEAD_BYTES,
    HeadersArgument,
    RecordColumns,
    as_bytes,
    as_callback,
    as_int,
    as_timestamp,
    encode_headers,
    no_partition,
    too_large,
)
from folkmoot.producers.futures import Delivery, Parts, Run
from folkmoot.producers.partitioner import Choose, Strategy, by_function, draw
from folkmoot.protocol import record_batch
from folkmoot.protocol.batch_header import (
    MAX_BODY_BYTES,
    MAX_RECORDS,
    NO_SCHEMA,
    NO_VALUES,
    UnsealedBatch,
    joined_schemas,
    written_schema,
)
from folkmoot.protocol.columns import Columns
from folkmoot.protocol.errors import FolkmootError
from folkmoot.protocol.murmur2 import partition_for
from folkmoot.protocol.records import TopicPartition

BODY_SPARE_BYTES: Final = 4096
"""Room in the largest body for what is written once per batch."""
MOST_PARTITIONS: Final = 1_000_000
ROWS_AT_ONCE: Final = 4096
"""Rows of columns per call; other threads take their turn after them."""

_SHORT_KEY_BYTES: Final = 64

_NO_HEADERS: Final = msgspec.Raw(b"\x90")

# A hash takes longer than the rest of `send`, and many keys come again.
_partition_for_short: Final = lru_cache(4096)(partition_for)

Callback = Callable[[Delivery], object]


class Owner(Protocol):
    """What an appender calls once per batch, and when it cannot take a record."""

    lock: RLock

    def wait_for(self, done: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until `done` is true, which only finished batches make it. → whether it is."""

    def admit(self, topic: str, partition: int = -1) -> None:
        """Wait until the topic and that partition are known and the buffer has room, or raise why not."""

    def batch_opened(self, builder: Any) -> None:
        """Take note of a batch that has its first record. May be called twice."""

    def batch_full(self, builder: Any) -> None:
        """Take note of a batch that was closed because it is full."""


# A record's fields: key, value, timestamp, encoded headers, whether its partition was named, whether its
# value begins with a schema's id, on_delivery, and if there is that, the handle for it.
_Row = tuple[
    bytes | None, bytes | None, int, bytes | None, bool, bool, Callback | None, Delivery | None
]
_FIELDS: Final = 8


class BatchBuilder:
    """Records of one partition, in order, and what became of them.

    All changes are made under the owner's lock. Other threads read `done` and then, never before it,
    `error` and `base_offset`. Once it is done it holds no records: a handle that is kept costs little.
    """

    __slots__ = (
        *("_announced", "_calls", "_observed", "base_offset", "closed", "count", "done", "error"),
        *("fields", "owner", "parts", "schema_id", "size", "switches", "topic_partition"),
    )

    def __init__(self, topic_partition: TopicPartition, owner: Any, count: int = 0) -> None:
        """`count`: so many records are written already, elsewhere; it takes no more."""
        self.topic_partition = topic_partition
        self.owner: Owner | None = owner
        """What waiters call; None once the batch is done."""
        self.count = count
        self.size = 0
        self.fields: list[Any] = []
        """Those of all records, one record after the other."""
        self.closed = count > 0
        self.done = False
        self.error: FolkmootError | None = None
        self.base_offset = -1
        self.parts: Parts | None = None
        """If it was sent in parts, what became of each; that is known before it is done."""
        self.schema_id = NO_VALUES
        """Of all values; known once the body was made."""
        self.switches: list[int] = []
        """The ranks where records with and without a named partition take turns; as `schema_id`."""
        self._announced = False
        self._calls: list[Any] = []  # each callback, but for those in `fields`, and its handle
        self._observed = bytearray()

    def close(self) -> None:
        """Append nothing more."""
        owner = self.owner
        if owner is not None:
            with owner.lock:
                self.closed = True

    def body(self) -> UnsealedBatch:
        """Close it and make its body. Raises MemoryError; ValueError for a batch without records."""
        self.close()
        count = self.count
        columns: list[Any] = [self.fields[at::_FIELDS] for at in range(_FIELDS)]
        keys, values, stamps, headers, fixed, framed, _, _ = columns
        self.schema_id = _schema_of(values, framed)
        turns = enumerate(pairwise([False, *fixed]))
        self.switches = [rank for rank, (before, now) in turns if before != now]
        if any(headers):
            headers = [_NO_HEADERS if row is None else msgspec.Raw(row) for row in headers]
        else:
            headers = None
        if keys.count(None) == count:
            keys = None
        packed = record_batch.pack(Columns(count, keys, values, stamps, headers))
        return packed._replace(schema_id=self.schema_id)

    def release(self) -> None:
        """Drop the records, which are sealed. Their callbacks stay."""
        pairs = zip(self.fields[6::_FIELDS], self.fields[7::_FIELDS], strict=True)
        self._calls[:0] = [each for pair in pairs if pair[0] is not None for each in pair]
        self.fields = []

    def finish(
        self, base_offset: int, error: FolkmootError | None
    ) -> Iterable[tuple[Callback, Delivery]]:
        """Note that it was delivered, or has failed with `error`. → callbacks, each with its handle.

        They can be iterated once: thousands of pairs at a time would slow the garbage collector down.
        """
        owner = self.owner
        if owner is None:
            return ()
        with owner.lock:
            self.release()
            if error is not None:
                self._observed = bytearray(self.count)
            self.base_offset, self.error = base_offset, error
            self.closed = self.done = True
            calls, self._calls = self._calls, []
            self.owner = None
        if error is not None:
            for delivery in calls[1::2]:
                self.observe(delivery._rank)
        return zip(calls[::2], calls[1::2], strict=True) if calls else ()

    def call_when_done(self, call: Callback, delivery: Delivery) -> bool:
        """Call `call` with the handle once it is done. → False if it is done already."""
        owner = self.owner
        if owner is None:
            return False
        with owner.lock:
            if not self.done:
                self._calls += (call, delivery)
            return not self.done

    def observe(self, first: int, count: int = 1) -> None:
        """Note that the application knows what became of these records."""
        if self.error is not None:
            self._observed[first : first + count] = b"\1" * count

    @property
    def unobserved(self) -> int:
        """How many records have failed without the application knowing."""
        return self._observed.count(0)


def _schema_of(values: list[bytes | None], framed: list[bool]) -> int:
    """What the header of a batch of these values says of their schemas."""
    if not any(framed):
        return NO_VALUES if values.count(None) == len(values) else NO_SCHEMA
    pairs = zip(values, framed, strict=True)
    begins = {value and value[:5] if has_id else value and b"" for value, has_id in pairs}
    return reduce(joined_schemas, map(written_schema, begins))


class _Topic:
    """The open builders of one topic, and where its next record without a key goes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.count = 0
        self.candidates: list[int] = []
        self.sticky = -1
        self.sticky_left = 0
        self.turn = 0
        self.builders: list[BatchBuilder | None] = []


class Appender:
    """Takes records from any number of threads, and puts each into its partition's open batch.

    Everything is done under the owner's lock, which is re-entrant: a signal's handler may send while
    another `send` of its thread is under way. `used` counts the bytes of records that were taken and
    are not released; from `limit` on no record is taken.
    """

    def __init__(
        self,
        owner: Owner,
        *,
        batch_bytes: int,
        buffer_bytes: int,
        max_record_bytes: int,
        strategy: Strategy | Choose = "key-hash",
        random: Random | None = None,
        delivery: type[Delivery] = Delivery,
        batch: type[BatchBuilder] = BatchBuilder,
        framed: bool = False,
    ) -> None:
        """`batch`: what is made for each batch. `framed`: what `send` gets as values begins with a
        schema's id."""
        largest = MAX_BODY_BYTES - BODY_SPARE_BYTES
        self.owner = owner
        self.batch_bytes = min(batch_bytes, largest)
        self.limit = buffer_bytes
        self.used = 0
        self.records = 0
        """How many were ever taken."""
        self._room = min(2 * self.batch_bytes, largest)
        self._largest = min(max_record_bytes, largest)
        self._strategy = strategy
        self._random = random or Random()
        self._delivery = delivery
        self._batch = batch
        self._framed = framed
        self._topics: dict[str, _Topic] = {}
        self._unannounced: list[BatchBuilder] = []  # those that the owner may not know
        self._closed = False

    # -- callers' threads ---------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        partition: int | None = None,
        headers: HeadersArgument | None = None,
        timestamp: int | None = None,
        on_delivery: Callback | None = None,
        *,
        _wait: bool = True,
    ) -> Delivery:
        """Take a record, waiting for its topic and for room. Raises as `Producer.send` does."""
        if value.__class__ is not bytes:
            value = as_bytes("value", value)
        if key.__class__ is not bytes:
            key = as_bytes("key", key)
        size = len(value or b"") + len(key or b"")
        encoded = None
        if headers:
            encoded = encode_headers(headers) or None
            size += len(encoded or b"")
        if size > self._largest:
            raise too_large(size, self._largest)
        size += RECORD_OVERHEAD_BYTES
        stamp = time_ns() // 1_000_000 if timestamp is None else as_timestamp(timestamp)
        if partition is not None:
            partition = as_int("partition", partition)
        if on_delivery is not None:
            as_callback("on_delivery", on_delivery)
        delivery = self._delivery(None, -1, stamp)
        handle = None if on_delivery is None else delivery
        row = (key, value, stamp, encoded, partition is not None, self._framed, on_delivery, handle)
        wanted = -1 if partition is None else partition
        while True:
            with self.owner.lock:
                known = self._topics.get(topic)
                if known is not None and self.used < self.limit and wanted < known.count:
                    if partition is None:
                        wanted = self._choose(known, key, size)
                    elif partition < 0:
                        raise no_partition(topic, partition, known.count)
                    self._append(known, wanted, size, row, delivery)
                    return delivery
            if not _wait:
                return None  # type: ignore[return-value]  # as `try_send` is declared
            self.owner.admit(topic, wanted)

    def try_send(self, *record: Any, **fields: Any) -> Delivery | None:
        """As `send`, but None where that would wait: the record was not taken."""
        return self.send(*record, **fields, _wait=False)

    def send_columns(self, topic: str, columns: RecordColumns, start: int) -> tuple[int, list[Run]]:
        """Take rows from `start` on, until all are taken or there is no more room.

        Returns the first row that was not taken, and where the others went: (builder, rank of the
        first, how many), in the order of the rows for each partition. Waits as `send` does, but only
        before the first row; nothing is taken if any row is refused.
        """
        if start == 0:
            columns.check(self._largest)
        asked = -1 if columns.partition is None else columns.partition
        while start < len(columns):
            with self.owner.lock:
                known = self._topics.get(topic)
                if known is not None and self.used < self.limit and asked < known.count:
                    return self._take_columns(known, columns, start)
            self.owner.admit(topic, asked)
        return start, []

    def _take_columns(
        self, topic: _Topic, columns: RecordColumns, start: int
    ) -> tuple[int, list[Run]]:
        named, fixed = columns.partition, columns.partition is not None
        if named is not None and named < 0:
            raise no_partition(topic.name, named, topic.count)
        end = min(len(columns), start + ROWS_AT_ONCE)
        chosen: list[int] | None = None
        if named is None and callable(self._strategy):
            chosen = columns.choose(self._strategy, topic.name, topic.count)[start:end].tolist()
        runs: list[list[Any]] = []
        last: dict[int, list[Any]] = {}
        taken = 0
        for key, value, stamp, headers, size in columns.rows(start, end):
            if self.used >= self.limit:
                break
            if named is not None:
                number = named
            else:
                number = self._choose(topic, key, size) if chosen is None else chosen[taken]
            row = (key, value, stamp, headers, fixed, columns.framed, None, None)
            builder, rank = self._append(topic, number, size, row)
            taken += 1
            run = last.get(number)
            if run is None or run[0] is not builder or run[1] + run[2] != rank:
                run = last[number] = [builder, rank, 0]
                runs.append(run)
            run[2] += 1
        return start + taken, [(builder, rank, count) for builder, rank, count in runs]

    def _choose(self, topic: _Topic, key: bytes | None, size: int) -> int:
        """The partition of a record that names none. Raises PartitionerFailed."""
        if self._strategy == "key-hash" and key is not None:
            find = partition_for if len(key) > _SHORT_KEY_BYTES else _partition_for_short
            return find(key, topic.count)
        if callable(self._strategy):
            return int(by_function(self._strategy, topic.name, [key], 1, topic.count)[0])
        if self._strategy == "round-robin":
            topic.turn += 1
            return topic.candidates[(topic.turn - 1) % len(topic.candidates)]
        if topic.sticky_left <= 0:
            topic.sticky = draw(self._random, topic.candidates, topic.sticky)
            topic.sticky_left = self.batch_bytes
        topic.sticky_left -= size
        return topic.sticky

    def _append(
        self,
        topic: _Topic,
        number: int,
        size: int,
        row: _Row,
        delivery: Delivery | None = None,
    ) -> tuple[BatchBuilder, int]:
        """Put a record into its partition's batch. → the batch, and the record's rank. Raises
        MemoryError; then it was not taken. The lock is held."""
        # Python runs signal handlers, which may raise or send, where something is called. So nothing is
        # called from the look at a builder until the record is in it as a whole.
        while True:
            builder = topic.builders[number]
            if builder is None or builder.closed:
                self._open(topic, number)
                continue
            rank = builder.count
            if rank and (builder.size + size > self._room or rank >= MAX_RECORDS):
                self._announce(builder, is_full=True)
                continue
            builder.fields += row
            builder.count = rank + 1
            builder.size += size
            self.used += size
            self.records += 1
            if delivery is not None:
                delivery._builder, delivery._rank = builder, rank
            break
        is_full = builder.size >= self.batch_bytes
        if is_full or not builder._announced:
            with suppress(MemoryError):  # the record is taken; `place` announces the batch later
                self._announce(builder, is_full)
        return builder, rank

    def _open(self, topic: _Topic, number: int) -> None:
        fresh = self._batch(TopicPartition(topic.name, number), self.owner)
        self._unannounced.append(fresh)
        last = topic.builders[number]  # a signal's handler may have been here
        if last is None or last.closed:
            topic.builders[number] = fresh

    def _announce(self, builder: BatchBuilder, is_full: bool) -> None:
        """Tell the owner of a batch with its first record, or its last one."""
        builder.closed = builder.closed or is_full
        self.owner.batch_opened(builder)
        builder._announced = True
        if builder in self._unannounced:
            self._unannounced.remove(builder)
        if is_full:
            self.owner.batch_full(builder)

    # -- the sender's thread ------------------------------------------------------------------------

    def topic_known(self, topic: str, partitions: int, available: Sequence[int]) -> None:
        """Note the topic's number of partitions, and which of them have leaders."""
        if not 1 <= partitions <= MOST_PARTITIONS:
            raise ValueError(f"a topic cannot have {partitions} partitions")
        with self.owner.lock:
            if self._closed:
                return
            known = self._topics.setdefault(topic, _Topic(topic))
            known.builders += [None] * (partitions - len(known.builders))
            known.count = partitions
            known.candidates = list(available) or list(range(partitions))
            if known.sticky not in known.candidates:
                known.sticky_left = 0

    def forget(self, topic: str) -> None:
        """Close the topic's batches, and ask the owner before another record of it is taken."""
        with self.owner.lock:
            known = self._topics.pop(topic, None)
            for builder in known.builders if known is not None else ():
                if builder is not None:
                    builder.closed = True

    def place(self) -> None:
        """Tell the owner of batches that it may not know: an exception came in between."""
        with self.owner.lock:
            for builder in list(self._unannounced):
                if builder.count:
                    with suppress(MemoryError):  # it is tried again
                        self._announce(builder, is_full=False)

    def released(self, size: int) -> None:
        """Make room: so many bytes of what was taken are done."""
        with self.owner.lock:
            self.used -= size

    def close(self) -> None:
        """Take nothing more; the owner says why."""
        with self.owner.lock:
            self._closed = True
            self._topics.clear()
