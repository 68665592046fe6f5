"""Records on their way into batches, in plain Python; `_speedups.pyx` is the same in C.

What the two share, and tests hold equal: where each batch ends, every byte of its body, what handles
say, what is refused and why.
"""

from array import array
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import reduce
from itertools import pairwise
from random import Random
from threading import Lock, RLock
from time import time_ns
from typing import Any, Final, NamedTuple, Protocol

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
from folkmoot.producers.partitioner import Choose, Strategy, by_function, by_key, draw
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
from folkmoot.protocol.columns import BinaryColumn, Columns
from folkmoot.protocol.errors import FolkmootError
from folkmoot.protocol.records import TopicPartition

PACK_FROM: Final = 64
"""So many records are written packed: fewer are read more quickly from lists."""
BODY_SPARE_BYTES: Final = 4096
"""Of the largest body, for what is written once per batch."""
MOST_PARTITIONS: Final = 1_000_000
STAGED_RECORDS: Final = 4096
ROWS_AT_ONCE: Final = 4096
"""Of columns: then other threads have their turn."""

_NO_HEADERS: Final = msgspec.Raw(b"\x90")
_observing: Final = Lock()


class Owner(Protocol):
    """Whom an appender tells, once per batch, and asks when it cannot go on."""

    lock: RLock

    def wait_for(self, done: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until it is true, which only batches that are done make it. → whether it is."""

    def admit(self, topic: str, partition: int = -1) -> None:
        """The topic, or that partition, is not known, or the buffer is full, or all is closed: wait, or
        raise why not."""

    def batch_opened(self, builder: Any) -> None:
        """A batch has got its first record. May be told twice."""

    def batch_full(self, builder: Any) -> None:
        """A batch was closed because it is full."""


# A record that was taken: partition (-1 where its key says it), size, key, value, timestamp, encoded
# headers, its handle (None in columns), on_delivery, whether its partition was named. A tuple, since zip
# turns many of them at once.
_Row = tuple[
    int,
    int,
    bytes | None,
    bytes | None,
    int,
    bytes | None,
    Delivery | None,
    Callable[[Delivery], object] | None,
    bool,
]


class _Step(NamedTuple):
    """Records that follow each other in one batch. Carrying it out twice is carrying it out once."""

    builder: "BatchBuilder"
    start: int
    end: int
    calls_start: int
    columns: tuple[Any, ...]  # of the rows, without partition and size
    size: int  # of the batch, when they are in it
    schema_id: int
    closes: bool


class BatchBuilder:
    """Records of one partition, in order, and what became of them.

    Written under the owner's lock. Other threads read `done` and then, never before it, `error` and
    `base_offset`. Once done nothing of the records is held any more: a handle that somebody keeps
    costs little.
    """

    __slots__ = (
        *("_called", "_calls", "_fixed", "_headers", "_keys", "_late", "_observed", "_seen"),
        *("_stamps", "_topic", "_values", "base_offset", "batch", "closed", "count", "done"),
        *("error", "parts", "schema_id", "size", "topic_partition"),
    )

    def __init__(self, topic_partition: TopicPartition, topic: "_Topic") -> None:
        self.topic_partition = topic_partition
        self.count = 0
        self.size = 0
        self.schema_id = NO_VALUES
        self.closed = False
        self.done = False
        self.error: FolkmootError | None = None
        self.base_offset = -1
        self.parts: Parts | None = None
        """If it was sent in parts, what became of each; that is known before it is done."""
        self.batch: Any = None
        self._topic: _Topic | None = topic
        self._keys: list[bytes | None] = []
        self._values: list[bytes | None] = []
        self._stamps: list[int] = []
        self._headers: list[bytes | None] | None = None
        self._fixed: list[bool] = []
        self._calls: list[Callable[[Delivery], object]] = []  # those that came with their records
        self._called: list[Delivery] = []
        self._late: list[tuple[Callable[[Delivery], object], Delivery]] = []
        self._observed: bytearray | None = None
        self._seen = 0

    @property
    def owner(self) -> Owner | None:
        """Whom waiters ask; None once it is done."""
        topic = self._topic
        return None if topic is None else topic.owner

    @property
    def switches(self) -> list[int]:
        """The ranks from which on partitions were named, and were not, in turns; until it is done."""
        fixed = self._fixed
        return [rank for rank, pair in enumerate(pairwise([False, *fixed])) if pair[0] != pair[1]]

    def close(self) -> None:
        """Nothing is appended from here on."""
        topic = self._topic
        if topic is not None:
            with topic.owner.lock:
                topic.carry_out()
                self.closed = True

    def body(self) -> UnsealedBatch:
        """Close it, and make the records what is compressed and sealed. Raises MemoryError."""
        self.close()
        count = self.count
        keys: Sequence[bytes | None] | None = self._keys
        values: Sequence[bytes | None] = self._values
        stamps: Sequence[int] = self._stamps
        headers: Any = self._headers
        if headers is not None:
            headers = [_NO_HEADERS if row is None else msgspec.Raw(row) for row in headers]
        if self._keys.count(None) == count:
            keys = None
        if count >= PACK_FROM:
            keys = None if keys is None else BinaryColumn.of(keys)
            values, stamps = BinaryColumn.of(values), array("q", stamps)
        packed = record_batch.pack(Columns(count, keys, values, stamps, headers))
        return packed._replace(schema_id=self.schema_id)

    def release(self) -> None:
        """The records are sealed, and not needed here any more."""
        self._keys, self._values, self._stamps, self._headers = [], [], [], None

    def finish(
        self, base_offset: int, error: FolkmootError | None
    ) -> Iterable[tuple[Callable[[Delivery], object], Delivery]]:
        """Delivered, or failed with `error`. Returns what is to be called, each with its handle.

        Empty, or to be gone through once: pairs that live together cost the garbage collector more
        than all the rest.
        """
        topic = self._topic
        if topic is None:
            return ()
        with topic.owner.lock:
            topic.carry_out()
            self.release()
            self.base_offset, self.error = base_offset, error
            self.closed = self.done = True
            self._topic = self.batch = None
            calls = self._calls + [call for call, _ in self._late]
            called = self._called + [delivery for _, delivery in self._late]
            self._calls, self._called, self._late, self._fixed = [], [], [], []
        if error is not None:
            for delivery in called:
                self.observe(delivery._rank)
        return zip(calls, called, strict=True) if calls else ()

    def call_when_done(self, call: Callable[[Delivery], object], delivery: Delivery) -> bool:
        """False if it is done: then nobody will call."""
        topic = self._topic
        if topic is None:
            return False
        with topic.owner.lock:
            if not self.done:
                self._late.append((call, delivery))
            return not self.done

    def observe(self, first: int, count: int = 1) -> None:
        """Somebody has asked, or is told, what became of these records."""
        if self.error is None or self._seen == self.count:
            return
        with _observing:
            observed = self._observed
            if observed is None:
                observed = self._observed = bytearray(self.count + 7 >> 3)
            for rank in range(first, first + count):
                bit = 1 << (rank & 7)
                if not observed[rank >> 3] & bit:
                    observed[rank >> 3] |= bit
                    self._seen += 1
            if self._seen == self.count:
                self._observed = None

    @property
    def unobserved(self) -> int:
        """How many records have failed without anybody asking about them."""
        return 0 if self.error is None else self.count - self._seen


class _Topic:
    """The open builders of one topic, and the records that were staged for them.

    Placing a record asks for the hash of its key, which is quick in bulk alone. So records are staged,
    and moved to their builders together. What a thread that is interrupted leaves behind (Ctrl-C comes
    between any two lines) the next one finishes: a plan is made without touching anything, and each of
    its steps says what is to be where. Nor does it matter if a signal's handler sends in the middle.
    Signals are looked for where something is called, so what must be seen as one calls nothing.
    """

    done: Final = False  # for handles of records that are staged

    def __init__(self, name: str, appender: "Appender") -> None:
        self.name = name
        self.topic_partition = TopicPartition(name, -1)  # as a handle shows it
        self.owner = appender.owner
        self._appender = appender
        self.count = 0
        self.candidates: list[int] = []
        self.sticky = -1
        self.sticky_left = 0
        self.turn = 0
        self.rows: list[_Row] = []
        self.place_at = 1  # rows; more once the owner knows of a batch and will come back for it
        self._full, self._room = appender.batch_bytes, appender.room
        self._framed = appender.framed
        self._builders: dict[int, BatchBuilder] = {}
        self._plan: list[_Step] = []
        self._plans = 0  # made so far

    def known(self, count: int, available: Sequence[int]) -> None:
        """So many partitions, those with leaders."""
        if count != self.count:
            self.place()
            self.count = count
        self.candidates = list(available) or list(range(count))
        if self.sticky not in self.candidates:
            self.sticky_left = 0

    def stick(self, size: int) -> int:
        """Where a record of so many bytes goes that may go anywhere."""
        if self.sticky_left <= 0:
            self.sticky = draw(self._appender.random, self.candidates, self.sticky)
            self.sticky_left = self._full
        self.sticky_left -= size
        return self.sticky

    def take_turn(self) -> int:
        """As `stick`, record by record."""
        number = self.candidates[self.turn % len(self.candidates)]
        self.turn += 1
        return number

    def place(self) -> None:
        """Move what is staged to its builders. Raises MemoryError; then it is staged still."""
        with self.owner.lock:
            self.carry_out()
            while self.rows:
                count, turn = len(self.rows), self._plans
                plan = self.plan(self.rows[:count], self._framed)
                if self._plans == turn:  # else another plan was made meanwhile
                    self._plan, self._plans = plan, turn + 1
                    self._appender.placed += count
                    del self.rows[:count]
                self.carry_out()

    def close(self) -> None:
        """Nothing is appended to the batches that are open. Raises MemoryError."""
        self.place()
        for builder in self._builders.values():
            builder.closed = True

    def put(self, rows: list[_Row], framed: bool, size: int) -> list[_Step]:
        """Plan to place rows that were not staged, behind those that are, and count them. Raises
        MemoryError; then they are not taken. The lock is held. `framed`: their values begin with a
        schema's id; `size`: of all."""
        count = len(rows)
        while True:
            self.place()
            turn = self._plans
            plan = self.plan(rows, framed)
            if self._plans == turn and not self.rows:
                self._plan, self._plans = plan, turn + 1
                self._appender.used += size
                self._appender.placed += count
                return plan

    def carry_out(self) -> None:
        """Do what is planned. The lock is held."""
        plan = self._plan
        for builder, start, end, calls_start, columns, size, schema_id, closes in plan:
            self._builders[builder.topic_partition.partition] = builder
            joined = joined_schemas(builder.schema_id, schema_id)
            # From here to the new count nothing is called.
            if end > start and builder.count <= end:  # else it has been done, and more since
                keys, values, stamps, headers, deliveries, calls, fixed = columns
                builder._keys[start:] = keys
                builder._values[start:] = values
                builder._stamps[start:] = stamps
                builder._fixed[start:] = fixed
                if headers is not None:
                    if builder._headers is None:
                        builder._headers = [None] * start
                    builder._headers[start:] = headers
                elif builder._headers is not None:
                    builder._headers[start:] = [None] * (end - start)
                if calls is not None:
                    builder._calls[calls_start:], builder._called[calls_start:] = calls
                builder.schema_id, builder.count, builder.size = joined, end, size
                rank = start
                for delivery in deliveries:
                    delivery._builder, delivery._rank = builder, rank
                    rank += 1
            builder.closed = builder.closed or closes
            if builder.batch is None:
                self.owner.batch_opened(builder)
            if closes:
                self.owner.batch_full(builder)
        if self._plan is plan:
            self._plan = []

    def plan(self, rows: list[_Row], framed: bool) -> list[_Step]:
        """What is to be done for these rows; nothing is. `carry_out` has been called, the lock is held."""
        by_partition: dict[int, list[_Row]] = {}
        for number, row in zip(self._numbers(rows), rows, strict=True):
            some = by_partition.get(number)
            if some is None:
                by_partition[number] = [row]
            else:
                some.append(row)
        plan: list[_Step] = []
        for number, some in by_partition.items():
            self._plan_partition(plan, number, some, framed)
        return plan

    def _numbers(self, rows: list[_Row]) -> list[int]:
        """The partition of each row."""
        if self.count == 1:
            return [0] * len(rows)
        numbers = [row[0] for row in rows]
        keyed = numbers.count(-1)
        if keyed:
            keys: Any = [row[2] for row in rows if row[0] < 0]
            if keyed == len(numbers):
                return by_key(keys, self.count)
            hashed = iter(by_key(keys, self.count))
            numbers = [next(hashed) if number < 0 else number for number in numbers]
        return numbers

    def _plan_partition(
        self, plan: list[_Step], number: int, rows: list[_Row], framed: bool
    ) -> None:
        builder = self._builders.get(number)
        if builder is None or builder.closed:
            builder = BatchBuilder(TopicPartition(self.name, number), self)
        start, size = builder.count, builder.size
        sizes = [row[1] for row in rows]
        total = size + sum(sizes)
        if total < self._full and start + len(rows) < MAX_RECORDS:
            plan.append(_step(builder, rows, framed, total, False))
            return
        first = 0
        for position, row_size in enumerate(sizes):
            count = start + position - first
            if count and (size + row_size > self._room or count >= MAX_RECORDS):
                plan.append(_step(builder, rows[first:position], framed, size, True))
                builder = BatchBuilder(TopicPartition(self.name, number), self)
                start, size, first = 0, 0, position
            size += row_size
            if size >= self._full:
                plan.append(_step(builder, rows[first : position + 1], framed, size, True))
                builder = BatchBuilder(TopicPartition(self.name, number), self)
                start, size, first = 0, 0, position + 1
        if first < len(rows):
            plan.append(_step(builder, rows[first:], framed, size, False))


def _step(builder: BatchBuilder, rows: list[_Row], framed: bool, size: int, closes: bool) -> _Step:
    start = builder.count
    columns: tuple[Any, ...] = ()
    schema_id = NO_VALUES
    if rows:
        _, _, keys, values, stamps, headers, deliveries, calls, fixed = zip(*rows, strict=True)
        told = None
        if calls.count(None) != len(calls):
            given = [row for row in rows if row[7] is not None]
            told = [row[7] for row in given], [row[6] for row in given]
        if deliveries[0] is None:  # they come from columns
            deliveries = ()
        some = headers if any(headers) else None
        columns = (keys, values, stamps, some, deliveries, told, fixed)
        schema_id = _schema_of(values, framed)
    end = start + len(rows)
    return _Step(builder, start, end, len(builder._calls), columns, size, schema_id, closes)


def _schema_of(values: Sequence[bytes | None], framed: bool) -> int:
    """What the header of a batch of these values says of their schemas."""
    if framed:
        return reduce(
            joined_schemas, map(written_schema, {value and value[:5] for value in values})
        )
    return NO_VALUES if all(value is None for value in values) else NO_SCHEMA


class Appender:
    """Takes records from any number of threads, and puts each into its partition's open batch.

    Everything is under the owner's lock, which is re-entrant; what is told to the owner is told under
    it. `used` counts the bytes of records that were taken and are not released; from `limit` on
    nothing is taken.
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
        framed: bool = False,
    ) -> None:
        """`framed`: what `send` gets as values begins with a schema's id."""
        self.owner = owner
        self.batch_bytes = min(batch_bytes, MAX_BODY_BYTES - BODY_SPARE_BYTES)
        self.limit = buffer_bytes
        self.used = 0
        self.placed = 0
        self.room = min(2 * self.batch_bytes, MAX_BODY_BYTES - BODY_SPARE_BYTES)
        self.random = random or Random()
        most = min(max_record_bytes, MAX_BODY_BYTES - BODY_SPARE_BYTES)
        self._largest = most + RECORD_OVERHEAD_BYTES
        self._strategy = strategy
        self._by_key = strategy == "key-hash"
        self._delivery = delivery
        self.framed = framed
        self._topics: dict[str, _Topic] = {}
        self._closed = False

    @property
    def records(self) -> int:
        """How many were ever taken."""
        with self.owner.lock:
            return self.placed + sum(len(topic.rows) for topic in self._topics.values())

    # -- callers' threads ---------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        partition: int | None = None,
        headers: HeadersArgument | None = None,
        timestamp: int | None = None,
        on_delivery: Callable[[Delivery], object] | None = None,
        *,
        _wait: bool = True,
    ) -> Delivery:
        """Take a record, waiting for its topic and for room. Raises as `Producer.send` does."""
        # Every line here is paid for every record.
        size = RECORD_OVERHEAD_BYTES
        if value is not None:
            if value.__class__ is not bytes:
                value = as_bytes("value", value)
            size += len(value)  # type: ignore[arg-type]
        if key is not None:
            if key.__class__ is not bytes:
                key = as_bytes("key", key)
            size += len(key)  # type: ignore[arg-type]
        encoded = None
        if headers:
            encoded = encode_headers(headers) or None
            size += len(encoded or b"")
        if size > self._largest:
            raise too_large(size - RECORD_OVERHEAD_BYTES, self._largest - RECORD_OVERHEAD_BYTES)
        stamp = time_ns() // 1_000_000 if timestamp is None else as_timestamp(timestamp)
        if partition is not None and partition.__class__ is not int:
            partition = as_int("partition", partition)
        if on_delivery is not None:
            as_callback("on_delivery", on_delivery)
        fixed = partition is not None
        while True:
            with self.owner.lock:
                known = self._topics.get(topic)
                if (
                    known is not None
                    and self.used < self.limit
                    and (partition is None or partition < known.count)
                ):
                    if partition is None:
                        if key is not None and self._by_key:
                            number = -1
                        else:
                            number = self._choose(known, key, size)
                    elif partition >= 0:
                        number = partition
                    else:
                        raise no_partition(topic, partition, known.count)
                    delivery = self._delivery(known, -1, stamp)
                    rows = known.rows
                    self.used += size
                    try:
                        rows.append(
                            (number, size, key, value, stamp, encoded, delivery, on_delivery, fixed)
                        )
                    except MemoryError:
                        self.used -= size
                        raise
                    if len(rows) >= known.place_at:
                        with suppress(MemoryError):  # the record is taken; it is placed later
                            known.place()
                            known.place_at = STAGED_RECORDS
                    return delivery
            if not _wait:
                return None  # type: ignore[return-value]  # try_send says so
            self.owner.admit(topic, -1 if partition is None else partition)

    def try_send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        partition: int | None = None,
        headers: HeadersArgument | None = None,
        timestamp: int | None = None,
        on_delivery: Callable[[Delivery], object] | None = None,
    ) -> Delivery | None:
        """As `send`, but None where that would wait: the record was not taken."""
        return self.send(
            *(topic, value, key, partition, headers, timestamp, on_delivery), _wait=False
        )

    def _choose(self, topic: _Topic, key: bytes | None, size: int) -> int:
        """A record's partition, -1 if its key will say it. Raises PartitionerFailed."""
        if self._by_key:
            return topic.stick(size) if key is None else -1
        if callable(self._strategy):
            return int(by_function(self._strategy, topic.name, [key], 1, topic.count)[0])
        return topic.stick(size) if self._strategy == "sticky" else topic.take_turn()

    def send_columns(self, topic: str, columns: RecordColumns, start: int) -> tuple[int, list[Run]]:
        """Take rows from `start` on, until all are taken or there is no more room.

        Returns the first row that was not taken, and where the others went: (builder, rank of the
        first, how many), in the order of the rows for each partition. Waits as `send` does, but only
        before the first row; nothing is taken if any row is refused.
        """
        if start == 0:
            columns.check(self._largest - RECORD_OVERHEAD_BYTES)
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
        given, count = columns.partition, topic.count
        if given is not None and given < 0:
            raise no_partition(topic.name, given, count)
        chosen: list[int] | None = None
        end = min(len(columns), start + ROWS_AT_ONCE)
        if given is None and callable(self._strategy):
            chosen = columns.choose(self._strategy, topic.name, count)[start:end].tolist()
        taken = 0
        rows: list[_Row] = []
        for position, (key, value, stamp, headers, size) in enumerate(columns.rows(start, end)):
            if self.used + taken >= self.limit:
                break
            taken += size
            if given is not None:
                number = given
            else:
                number = self._choose(topic, key, size) if chosen is None else chosen[position]
            is_fixed = given is not None
            rows.append((number, size, key, value, stamp, headers, None, None, is_fixed))
        plan = topic.put(rows, columns.framed, taken)
        with suppress(MemoryError):  # they are taken; the rest is done later
            topic.carry_out()
        runs = [(step.builder, step.start, step.end - step.start) for step in plan if step.columns]
        return start + len(rows), runs

    # -- the sender's thread ------------------------------------------------------------------------

    def topic_known(self, topic: str, partitions: int, available: Sequence[int]) -> None:
        """The topic has so many partitions, and those have leaders. May be told again and again."""
        if not 1 <= partitions <= MOST_PARTITIONS:
            raise ValueError(f"a topic cannot have {partitions} partitions")
        with self.owner.lock:
            if not self._closed:
                known = self._topics.get(topic)
                if known is None:
                    known = self._topics[topic] = _Topic(topic, self)
                known.known(partitions, available)

    def forget(self, topic: str) -> None:
        """Its open batches are closed, and the owner is asked before another record is taken."""
        with self.owner.lock:
            known = self._topics.get(topic)
            if known is not None:
                with suppress(MemoryError):  # then it stays
                    known.close()
                    del self._topics[topic]

    def place(self) -> None:
        """Move everything staged to its builders, and tell the owner of the next record."""
        with self.owner.lock:
            for topic in list(self._topics.values()):
                with suppress(MemoryError):  # it is tried again
                    topic.place_at = 1
                    topic.place()

    def released(self, size: int) -> None:
        """So many bytes of what was taken are done."""
        with self.owner.lock:
            self.used -= size

    def close(self) -> None:
        """Take nothing more; the owner is asked, and says why."""
        with self.owner.lock:
            self._closed = True
            for name, topic in list(self._topics.items()):
                topic.place()
                del self._topics[name]
