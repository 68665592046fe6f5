"""The appender in plain Python: one lock, lists, a hash per key. `_speedups.pyx` does the same in C.

Tests compare the two: where each batch ends, every byte of its body, outcomes, errors. This one may be
slow, and an exception that a signal handler raises within a call may leave that call half done.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from random import Random
from time import time_ns
from typing import Any, Final

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
from folkmoot.producers.futures import Delivery, Run
from folkmoot.producers.partitioner import Choose, Strategy, by_function, draw
from folkmoot.protocol import record_batch
from folkmoot.protocol.batch_header import (
    MAX_BODY_BYTES,
    MAX_RECORDS,
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
"""Rows per call of `send_columns`; then other threads get the lock."""

_NO_HEADERS: Final = msgspec.Raw(b"\x90")

Callback = Callable[[Delivery], object]
_Row = tuple[bytes | None, bytes | None, int, bytes | None, bool]
"""Key, value, timestamp, encoded headers, whether its partition was named."""


class BatchBuilder:
    """Records of one partition, in order, and their outcome.

    All changes are made under the owner's lock. Other threads read `done` first, and only then `error`
    and `base_offset`. A finished batch holds no records, so that a `Delivery` that is kept costs little.
    """

    def __init__(self, topic_partition: TopicPartition, owner: Any, count: int = 0) -> None:
        """`count`: records that were written elsewhere; such a batch takes no more."""
        self.topic_partition = topic_partition
        self.owner = owner
        """The Accumulator; None once the batch is done."""
        self.count = count
        self.size = 0
        self.closed = count > 0
        self.done = False
        self.error: FolkmootError | None = None
        self.base_offset = -1
        self.outcomes: list[Any] | None = None
        """The outcome of each record of a batch that was sent in parts; set before `done`."""
        self.schema_id = NO_VALUES
        """The schema id of all values."""
        self.switches: list[int] = []
        """Ranks where records with and without a named partition alternate; set by `body`."""
        self._rows: list[_Row] = []
        self._calls: list[tuple[Callback, Delivery]] = []
        self._observed = bytearray()

    def append(self, row: _Row, size: int, *, framed: bool) -> int:
        """Add a record and return its rank. `framed`: its value begins with a schema id."""
        value = row[1] if framed else row[1] and b""
        self.schema_id = joined_schemas(self.schema_id, written_schema(value))
        self._rows += (
            row,
        )  # no call until the record is counted: a signal's handler runs only in calls
        self.size += size
        self.count += 1
        return self.count - 1

    def close(self) -> None:
        """Append nothing more."""
        owner = self.owner
        if owner is not None:
            with owner.lock:
                self.closed = True

    def body(self) -> UnsealedBatch:
        """Close it and make its body. Raises MemoryError; ValueError for a batch without records."""
        self.close()
        if not self._rows:
            raise ValueError("a batch without records has no body")
        keys, values, stamps, headers, named = map(list, zip(*self._rows, strict=True))
        pairs = enumerate(pairwise([False, *named]))
        self.switches = [rank for rank, (before, now) in pairs if before != now]
        rows = [_NO_HEADERS if row is None else msgspec.Raw(row) for row in headers]
        columns: Any = (
            None if keys.count(None) == self.count else keys,
            *(values, stamps, rows if any(headers) else None),
        )
        packed = record_batch.pack(Columns(self.count, *columns))
        return packed._replace(schema_id=self.schema_id)

    def release(self) -> None:
        """Drop the records once they are sealed; their callbacks stay."""
        self._rows = []

    def finish(
        self, base_offset: int, error: FolkmootError | None
    ) -> Iterable[tuple[Callback, Delivery]]:
        """Set the outcome. Return the callbacks, each with its delivery; nothing if it was done before."""
        owner = self.owner
        if owner is None:
            return ()
        with owner.lock:
            self.release()
            self._observed = bytearray(0 if error is None else self.count)
            self.base_offset, self.error = base_offset, error
            self.closed = self.done = True
            calls, self._calls = self._calls, []
            self.owner = None
        for _, delivery in calls:
            self.observe(delivery._rank)
        return calls

    def call_when_done(self, call: Callback, delivery: Delivery) -> bool:
        """Call `call` with the delivery once it is done. Return False if it is done already."""
        owner = self.owner
        if owner is None:
            return False
        with owner.lock:
            if not self.done:
                self._calls.append((call, delivery))
            return not self.done

    def observe(self, first: int, count: int = 1) -> None:
        """Note that the application knows the outcome of these records."""
        if self.error is not None:
            self._observed[first : first + count] = b"\1" * count

    @property
    def unobserved(self) -> int:
        """How many records have failed without the application knowing."""
        return self._observed.count(0)


class _Topic:
    """The open batches of one topic, and which partition gets its next record without a key."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.count = 0
        self.candidates: list[int] = []
        self.sticky = -1
        self.sticky_left = 0
        self.next_candidate = 0
        self.builders: dict[int, BatchBuilder] = {}


class Appender:
    """Takes records from any number of threads, and puts each into its partition's open batch.

    Everything happens under the owner's lock. `used` counts the bytes of records that were taken and not
    released; at `limit` no more are taken.
    """

    def __init__(
        self,
        owner: Any,
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
        """`batch`: the class of batches. `framed`: values given to `send` begin with a schema id."""
        largest = MAX_BODY_BYTES - BODY_SPARE_BYTES
        self.owner = owner
        self.batch_bytes = min(batch_bytes, largest)
        self.limit = buffer_bytes
        self.used = 0
        self.records = 0
        """Records ever taken."""
        self._room = min(2 * self.batch_bytes, largest)
        self._largest = min(max_record_bytes, largest)
        self._strategy = strategy
        self._random = random or Random()
        self._delivery = delivery
        self._batch = batch
        self._framed = framed
        self._topics: dict[str, _Topic] = {}
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
        value, key = as_bytes("value", value), as_bytes("key", key)
        encoded = encode_headers(headers) or None if headers else None
        size = sum(len(part or b"") for part in (value, key, encoded))
        if size > self._largest:
            raise too_large(size, self._largest)
        size += RECORD_OVERHEAD_BYTES
        stamp = time_ns() // 1_000_000 if timestamp is None else as_timestamp(timestamp)
        number = -1 if partition is None else as_int("partition", partition)
        if on_delivery is not None:
            as_callback("on_delivery", on_delivery)
        while True:
            with self.owner.lock:
                known = self._admitted(topic, number)
                if known is not None:
                    if partition is None:
                        number = self._choose(known, key, size)
                    elif number < 0:
                        raise no_partition(topic, number, known.count)
                    builder = self._open_batch(known, number, size)
                    row = (key, value, stamp, encoded, partition is not None)
                    rank = builder.append(row, size, framed=self._framed)
                    delivery = self._delivery(builder, rank, stamp)
                    if on_delivery is not None:
                        builder.call_when_done(on_delivery, delivery)
                    self._count_record(builder, size)
                    return delivery
            if not _wait:
                return None  # type: ignore[return-value]  # as `try_send` is declared
            self.owner.admit(topic, number)

    def try_send(self, *record: Any, **fields: Any) -> Delivery | None:
        """As `send`, but return None instead of waiting: the record was not taken."""
        return self.send(*record, **fields, _wait=False)

    def send_columns(self, topic: str, columns: RecordColumns, start: int) -> tuple[int, list[Run]]:
        """Take rows from `start` on, until all are taken or there is no more room.

        Return the first row that was not taken, and the runs of the others: (batch, rank of the first
        record, number of records). They have the order of the rows for each partition. Waits as `send`
        does, but only before the first row; if any row is refused, none is taken.
        """
        if start == 0:
            columns.check(self._largest)
        partition = -1 if columns.partition is None else columns.partition
        while start < len(columns):
            with self.owner.lock:
                known = self._admitted(topic, partition)
                if known is not None:
                    return self._append_rows(known, columns, start)
            self.owner.admit(topic, partition)
        return start, []

    def _append_rows(
        self, topic: _Topic, columns: RecordColumns, start: int
    ) -> tuple[int, list[Run]]:
        named = columns.partition
        if named is not None and named < 0:
            raise no_partition(topic.name, named, topic.count)
        end = min(len(columns), start + ROWS_AT_ONCE)
        chosen: list[int] | None = None
        if named is None and callable(self._strategy):
            chosen = columns.choose(self._strategy, topic.name, topic.count)[start:end].tolist()
        runs: list[list[Any]] = []
        last: dict[int, list[Any]] = {}
        row_count = 0
        for key, value, stamp, headers, size in columns.rows(start, end):
            if self.used >= self.limit:
                break
            if named is not None:
                number = named
            else:
                number = self._choose(topic, key, size) if chosen is None else chosen[row_count]
            builder = self._open_batch(topic, number, size)
            row = (key, value, stamp, headers, named is not None)
            rank = builder.append(row, size, framed=columns.framed)
            self._count_record(builder, size)
            row_count += 1
            run = last.get(number)
            if run is None or run[0] is not builder or run[1] + run[2] != rank:
                run = last[number] = [builder, rank, 0]
                runs.append(run)
            run[2] += 1
        return start + row_count, [(builder, rank, count) for builder, rank, count in runs]

    def _admitted(self, topic: str, partition: int) -> _Topic | None:
        known = self._topics.get(topic)
        has_room = known is not None and self.used < self.limit and partition < known.count
        return known if has_room else None

    def _choose(self, topic: _Topic, key: bytes | None, size: int) -> int:
        """The partition of a record that names none. Raises PartitionerFailed."""
        if self._strategy == "key-hash" and key is not None:
            return partition_for(key, topic.count)
        if callable(self._strategy):
            return int(by_function(self._strategy, topic.name, [key], 1, topic.count)[0])
        if self._strategy == "round-robin":
            topic.next_candidate += 1
            return topic.candidates[(topic.next_candidate - 1) % len(topic.candidates)]
        if topic.sticky_left <= 0:
            topic.sticky = draw(self._random, topic.candidates, topic.sticky)
            topic.sticky_left = self.batch_bytes
        topic.sticky_left -= size
        return topic.sticky

    def _open_batch(self, topic: _Topic, number: int, size: int) -> BatchBuilder:
        """The partition's batch with room for a record of this size, new if there is none."""
        builder = topic.builders.get(number)
        if builder is not None and not builder.closed:
            if builder.size + size <= self._room and builder.count < MAX_RECORDS:
                return builder
            self._fill(builder)
        builder = self._batch(TopicPartition(topic.name, number), self.owner)
        self.owner.register_batch(builder)
        topic.builders[number] = builder
        return builder

    def _count_record(self, builder: BatchBuilder, size: int) -> None:
        self.used += size
        self.records += 1
        if builder.size >= self.batch_bytes:
            self._fill(builder)

    def _fill(self, builder: BatchBuilder) -> None:
        builder.closed = True
        self.owner.register_full_batch(builder)

    # -- the sender's thread ------------------------------------------------------------------------

    def set_topic_partitions(self, topic: str, partitions: int, available: Sequence[int]) -> None:
        """Set the topic's number of partitions, and which of them have leaders."""
        if not 1 <= partitions <= MOST_PARTITIONS:
            raise ValueError(f"a topic cannot have {partitions} partitions")
        with self.owner.lock:
            if self._closed:
                return
            known = self._topics.setdefault(topic, _Topic(topic))
            known.count = partitions
            known.candidates = list(available) or list(range(partitions))
            if known.sticky not in known.candidates:
                known.sticky_left = 0

    def forget(self, topic: str) -> None:
        """Close the topic's batches, and ask the owner before another record of it is taken."""
        with self.owner.lock:
            known = self._topics.pop(topic, None)
            for builder in known.builders.values() if known is not None else ():
                builder.closed = True

    def register_interrupted(self) -> None:
        """Register batches whose registration was interrupted. Here there are none."""

    def released(self, size: int) -> None:
        """Make room for this many bytes."""
        with self.owner.lock:
            self.used -= size

    def close(self) -> None:
        """Take nothing more; the owner says why."""
        with self.owner.lock:
            self._closed = True
            self._topics.clear()
