"""Records as `send` stages them, and their way into batches."""

from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from threading import Condition
from typing import Any, Final

import msgspec
import numpy as np

from folkmoot.producers.batches import (
    RECORD_OVERHEAD_BYTES,
    Batch,
    Few,
    Piece,
    Sorted,
    headers_size,
)
from folkmoot.producers.cells import cells_of_any_list, has_nils, picked
from folkmoot.producers.key_memory import KeyMemory, remembered
from folkmoot.producers.partitioners import Partitions
from folkmoot.producers.rows import ROW, Columns, columns_of
from folkmoot.protocol.columns import Int64s, bytes_of
from folkmoot.protocol.errors import FolkmootError, RequestTimeout
from folkmoot.protocol.records import Headers, RecordMetadata, TopicPartition

TAKEN: Final = -1
FEW_ROWS: Final = 768
"""Fewer rows than these are divided as lists: numpy needs more to start."""


class Delivery(msgspec.Struct, gc=False, eq=False):
    """What became, or will become, of one record. May be kept, asked from any thread, or ignored.

    One is made for every record, so it is no more than the record's chunk and stamp, which is an object
    that belongs to this record alone; all else is found out when somebody asks.
    """

    _chunk: "Chunk"
    _stamp: float

    def done(self) -> bool:
        """Whether the record was acknowledged, or has failed."""
        place = self._place()
        return place is not None and place[0].done

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Where the record is. Raises the error that it failed with, RequestTimeout after `timeout`."""
        batch, position = self._wait(timeout)
        batch.observed = True
        if batch.error is not None:
            raise batch.error
        offset = batch.base_offset + position if batch.base_offset >= 0 else -1
        return RecordMetadata(*batch.topic_partition, offset, round(self._stamp * 1000))

    def exception(self, timeout: float | None = None) -> FolkmootError | None:
        """The error that the record failed with, or None if it was acknowledged."""
        batch, _ = self._wait(timeout)
        batch.observed = True
        return batch.error

    def _place(self) -> tuple[Batch, int] | None:
        """For the producer itself: its batch and the position there; None as long as it has none."""
        return self._chunk.whereabouts(self._chunk.position_of(self._stamp))

    def _wait(self, timeout: float | None) -> tuple[Batch, int]:
        with self._chunk.completed:
            if not self._chunk.completed.wait_for(self.done, timeout):
                raise RequestTimeout(
                    f"a record for {self._chunk.topic} is not acknowledged after {timeout:g} s; "
                    "it may be yet"
                )
        place = self._place()
        assert place is not None
        return place


class Chunk:
    """Records of one topic in the order of their `send`; partitions are chosen later.

    `rows` is flat: key, value, stamp, key, value, stamp. A thread stages a record with one
    `rows.extend`, which CPython carries out at once or not at all, without a lock; that defines the
    order of records. Two questions are left, and each has its answer without a lock as well:

    - *Which row is mine?* The one whose stamp is this very object: a float that the clock has just
      made, and that nobody else has. (Hence stamps are floats, in seconds.) A Delivery knows its
      record by it, and looks for its place only when it is asked something.
    - *Was the chunk taken meanwhile?* Who takes it (under the accumulator's lock) first sets `check_at`
      to TAKEN and then reads how many rows there are; who stages a row reads `check_at` after that.
      So a row that was not counted has a thread that sees TAKEN, goes to the accumulator, finds its row
      behind the counted ones, and stages the record again. Its `send` has not returned, so no order
      that anybody has seen is broken. Rows behind the counted ones are nobody's. The list that takes
      the place of the rows, once they are gone, begins with a gap, so that nobody who comes even later
      takes a row there for one that was counted.

    `check_at` is the length of `rows` from which on a thread has to go to the accumulator; this one
    comparison also tells the first record of a chunk and a chunk that is full.

    What few records have (a partition, headers, a callback) is kept beside the rows, by position, and
    is written under the accumulator's lock. `size` is an estimate until `measure` is called.

    `divide` cuts the chunk into pieces by partition: in the thread that has filled it, while the
    records are still in the cache, or in the sender's. Then the rows are gone and it says where its
    records went: position i, that of the stamp `marks[i]`, went to `partitions[i]`, as that partition's
    nth record of this chunk, and `parts` tells in which batch those are. A Delivery keeps this, and the
    batches, alive; nothing else does.
    """

    __slots__ = (
        *("callbacks", "check_at", "completed", "count", "counted", "explicit", "failed"),
        *(
            "headers",
            "marks",
            "number",
            "opened_at",
            "partitions",
            "parts",
            "pieces",
            "placed",
            "places",
        ),
        *("ranks", "rows", "size", "topic"),
    )

    def __init__(self, topic: str, completed: Condition) -> None:
        self.topic = topic
        self.number = 0  # 0: its first record has not been to the accumulator
        self.completed = completed
        self.opened_at = 0.0
        self.rows: list[Any] = []
        self.check_at = 0
        self.count = 0  # of records, from when it was taken
        self.counted = 0  # how many of them are part of `size`
        self.size = 0
        self.explicit: dict[int, int] = {}
        self.headers: dict[int, Headers] = {}
        self.callbacks: dict[int, Callable[[], None]] = {}
        self.pieces: list[tuple[int, Piece | Few]] | None = None
        self.marks: list[float] = []  # the stamps of its records, once the rows are gone
        self.places: dict[int, int] | None = None
        self.partitions: Partitions | None = None
        self.ranks: Int64s | None = None
        self.parts: dict[int, list[tuple[int, Batch, int]]] = {}
        self.failed: Batch | None = None  # stands for all its records, if none of them will be sent
        self.placed = False  # every record has its batch, which stays the same from then on

    def __len__(self) -> int:
        """How many records it holds, or held before it was divided."""
        return len(self.rows) // ROW if self.check_at != TAKEN else self.count

    # -- while it is open: under the accumulator's lock, but for `rows.extend` -------------------------

    def stage(
        self,
        key: bytes | None,
        value: bytes | None,
        stamp: float,
        partition: int | None,
        headers: Headers,
        on_delivery: Callable[[Delivery], None] | None,
    ) -> Delivery:
        """A record of any kind. The chunk cannot be taken meanwhile, but others may stage rows."""
        rows = self.rows
        rows.extend((key, value, stamp))
        position = self.end_of(rows, stamp) // ROW - 1
        delivery = Delivery(self, stamp)
        if partition is not None:
            self.explicit[position] = partition
        if headers:
            self.headers[position] = headers
        if on_delivery is not None:
            self.callbacks[position] = partial(on_delivery, delivery)
        return delivery

    @staticmethod
    def end_of(rows: list[Any], stamp: float) -> int:
        """Where the row ends that has this very stamp; it is one of the last."""
        end = len(rows)
        while rows[end - 1] is not stamp:
            end -= ROW
        return end

    def estimate(self, sample: int) -> int:
        """Bring `size` up to date, from at most `sample` of the records added; returns the difference."""
        total = len(self)
        added = total - self.counted
        start = max(self.counted, total - sample)
        if start == total:
            return 0
        size = self._size(start, total) * added // (total - start)
        self.counted = total
        self.size += size
        return size

    def holds(self, end: int) -> bool:
        """Whether the row that ends there was counted when the chunk was taken."""
        return end <= ROW * self.count and end % ROW == 0

    def take(self) -> None:
        """From here on it has the records that it has."""
        self.check_at = TAKEN  # before counting: see above
        self.count = len(self.rows) // ROW

    def measure(self) -> int:
        """Make `size` exact, once it is divided; returns by how much it was wrong."""
        size = sum(piece.size for _, piece in self.pieces or ())
        wrong = size - self.size
        self.size = size
        return wrong

    def _size(self, start: int, end: int) -> int:
        staged = self.rows[ROW * start : ROW * end]
        size = bytes_of(staged[0::ROW]) + bytes_of(staged[1::ROW])
        size += RECORD_OVERHEAD_BYTES * (end - start)
        if self.headers:
            size += headers_size([self.headers.get(number, ()) for number in range(start, end)])
        return size

    # -- once it is taken ------------------------------------------------------------------------------

    @property
    def keyless(self) -> bool:
        """Whether any record has no key."""
        return None in self.keys

    @property
    def bare(self) -> bool:
        """Whether no record has a key."""
        return self.rows[0] is None and self.keys.count(None) == self.count

    @property
    def keys(self) -> list[bytes | None]:
        return self.rows[0 : ROW * self.count : ROW]

    def divide_by_key(self, count: int, memory: KeyMemory | None = None) -> bool:
        """Divide it among `count` partitions if nothing but the keys of all records decides."""
        if self.explicit or self.rows[0] is None:
            return False
        if self.count < FEW_ROWS:
            few = cells_of_any_list(self.keys)
            if has_nils(few):
                return False
            self._divide_few(remembered(few, count, memory))
            return True
        columns = columns_of(self.rows, self.count)
        keys = columns.keys
        if keys is None or has_nils(keys):
            return False
        self._divide(remembered(keys, count, memory), columns)
        return True

    def divide(self, partitions: Partitions) -> None:
        """Make the pieces, by partition. If it is interrupted it may be done again."""
        if self.count < FEW_ROWS:
            self._divide_few(partitions)
        else:
            self._divide(partitions, columns_of(self.rows, self.count))

    def _divide_few(self, partitions: Partitions) -> None:
        keys, end = self.keys, ROW * self.count
        values, self.marks = self.rows[1:end:ROW], self.rows[2:end:ROW]
        stamps = [round(mark * 1000) for mark in self.marks]
        bare = keys[0] is None and keys.count(None) == len(keys)
        headers: Sequence[Headers] | None = None
        if self.headers:
            headers = [self.headers.get(position, ()) for position in range(self.count)]
        positions: dict[int, list[int]] = {}
        for position, number in enumerate(partitions.tolist()):
            some = positions.get(number)
            if some is None:
                positions[number] = [position]
            else:
                some.append(position)
        pieces: list[tuple[int, Piece | Few]] = []
        for number in sorted(positions):
            some = positions[number]
            pick = itemgetter(*some) if len(some) > 1 else partial(_one, some[0])
            some_keys = None if bare else pick(keys)
            some_headers = None if headers is None else pick(headers)
            pieces.append((number, Few(some_keys, pick(values), pick(stamps), some_headers)))
        self.pieces = pieces
        self.partitions = partitions
        self.rows = [None]

    def _divide(self, partitions: Partitions, columns: Columns) -> None:
        keys, values, stamps = columns
        self.marks = self.rows[2 : ROW * self.count : ROW]
        headers: Sequence[Headers] | None = None
        if self.headers:
            headers = [self.headers.get(position, ()) for position in range(self.count)]
        numbers, starts, order = sorted_by_partition(partitions)
        if order is not None:
            keys = None if keys is None else keys.take(order)
            values, stamps = values.take(order), stamps[order]
            headers = None if headers is None else picked(headers, order.tolist())
        packed_keys = None if keys is None else keys.packed()
        self.partitions = partitions
        self.pieces = cut(numbers, starts, Sorted(packed_keys, values.packed(), stamps, headers))
        self.rows = [None]

    def fail(self, error: FolkmootError) -> Batch:
        """Nothing of it will be sent. Returns what stands for its records.

        Memory may be what is wanting: this takes next to none.
        """
        batch = Batch(TopicPartition(self.topic, -1), self.number, self.opened_at)
        batch.count, batch.size = len(self), self.size
        batch.fail(error)
        self.failed = batch
        self.rows, self.pieces = [None], None
        return batch

    def place(self, partition: int, rank: int, batch: Batch, position: int) -> None:
        """From its `rank`-th record of `partition` on, this chunk is in `batch` from `position` on."""
        self.parts.setdefault(partition, []).append((rank, batch, position))

    def position_of(self, stamp: float) -> int | None:
        """Of the record staged with this very stamp; None as long as the rows are not divided."""
        if self.partitions is None or self.failed is not None:
            return None
        if self.places is None:
            self.places = {id(mark): position for position, mark in enumerate(self.marks)}
        return self.places[id(stamp)]

    def whereabouts(self, index: int | None) -> tuple[Batch, int] | None:
        """The batch of the record at `index` and its position there; None as long as it has none."""
        if self.failed is not None:
            return self.failed, 0
        if index is None or self.partitions is None or not self.placed:
            return None
        if self.ranks is None:
            order = stable_order(self.partitions)
            ordered = self.partitions[order]
            ranks = np.empty(len(order), dtype=np.int64)
            ranks[order] = np.arange(len(order)) - np.searchsorted(ordered, ordered)
            self.ranks = ranks
        rank = int(self.ranks[index])
        for first, batch, position in reversed(self.parts.get(int(self.partitions[index]), [])):
            if first <= rank:
                return batch, position + rank - first
        return None


def _one(position: int, cells: Sequence[Any]) -> tuple[Any]:
    return (cells[position],)


def cut(numbers: list[int], starts: list[int], columns: Sorted) -> list[tuple[int, Piece | Few]]:
    """Pieces of columns that are sorted by partition: `numbers[i]` has the rows from `starts[i]` on."""
    before = columns.values.offsets[starts]
    if columns.keys is not None:
        before = before + columns.keys.offsets[starts]
    sizes = (before[1:] - before[:-1]).tolist()
    pieces: list[tuple[int, Piece | Few]] = []
    for number, size, start, end in zip(numbers, sizes, starts, starts[1:], strict=False):
        size += RECORD_OVERHEAD_BYTES * (end - start)
        if columns.headers is not None:
            size += headers_size(columns.headers[start:end])
        pieces.append((number, Piece(columns, start, end, size)))
    return pieces


def sorted_by_partition(partitions: Partitions) -> tuple[list[int], list[int], Int64s | None]:
    """The partitions that occur, where each one's rows start in `order`, and the end, and `order`,
    which is None if there is one only."""
    if not (partitions != partitions[0]).any():
        return [int(partitions[0])], [0, len(partitions)], None
    order = stable_order(partitions)
    ordered = partitions[order]
    starts = [0, *(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist(), len(partitions)]
    return ordered[starts[:-1]].tolist(), starts, order


def stable_order(partitions: Partitions) -> Int64s:
    """Positions sorted by partition, in order within each; numpy sorts small integers by radix."""
    highest = int(partitions.max())
    narrow = np.uint8 if highest < 2**8 else np.uint16 if highest < 2**16 else np.int64
    return np.argsort(partitions.astype(narrow, copy=False), kind="stable")
