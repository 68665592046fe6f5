"""Records as `send` stages them, their way into batches, and what a caller holds of each."""

from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from operator import itemgetter
from threading import Condition
from typing import Any, Final

import msgspec
import numpy as np

from folkmoot.producers.batches import Batch, Piece
from folkmoot.producers.partitioners import Partitions
from folkmoot.protocol.errors import FolkmootError, RequestTimeout
from folkmoot.protocol.records import Headers, RecordMetadata, TopicPartition

RECORD_OVERHEAD_BYTES: Final = 32


class Chunk:
    """Records of one topic in the order of their `send`, as columns; partitions are chosen later.

    Until it is taken by the sender it is written under the accumulator's lock. What few records
    have (a partition, headers, a callback) is kept beside the columns, by position. Timestamps are
    float seconds, as the clock gives them.

    When the sender has divided it, the columns are gone and it says where its records went: position
    i went to `partitions[i]`, as that partition's nth record of this chunk, and `parts` tells in
    which batch those are. A Delivery keeps this, and the batches, alive; nothing else does.
    """

    __slots__ = (
        *(
            "callbacks",
            "check_at",
            "completed",
            "counted",
            "explicit",
            "headers",
            "keyless",
            "keys",
            "placed",
        ),
        *(
            "number",
            "opened_at",
            "parts",
            "partitions",
            "ranks",
            "size",
            "stamps",
            "topic",
            "values",
        ),
    )

    def __init__(self, topic: str, completed: Condition) -> None:
        self.topic = topic
        self.number = 0
        self.completed = completed
        self.opened_at = 0.0
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.stamps: array[float] = array("d")
        self.keyless = False
        self.explicit: dict[int, int] = {}
        self.headers: dict[int, Headers] = {}
        self.callbacks: dict[int, Callable[[], None]] = {}
        self.check_at = 0  # the position whose record is to be counted, and all before it
        self.counted = 0
        self.size = 0  # of the records counted, with their overhead
        self.partitions: Partitions | None = None
        self.ranks: Partitions | None = None
        self.parts: dict[int, list[tuple[int, Batch, int]]] = {}
        self.placed = False  # every record has its batch, which stays the same from then on

    def count(self) -> int:
        """Bring `size` up to date; returns what was added to it."""
        start, end = self.counted, len(self.values)
        added = size_of(self.keys[start:end], self.values[start:end])
        self.counted = end
        self.size += added
        return added

    def divide(self, partitions: Partitions) -> Iterator[tuple[int, Piece]]:
        """The pieces by partition. The columns are dropped."""
        self.partitions = partitions
        stamps = np.rint(np.frombuffer(self.stamps, dtype=np.float64) * 1000).astype(np.int64)
        keys: Sequence[bytes | None] = self.keys
        values: Sequence[bytes | None] = self.values
        headers: Sequence[Headers] | None = None
        if self.headers:
            headers = [self.headers.get(position, ()) for position in range(len(values))]
        self.keys, self.values, self.stamps = [], [], array("d")
        numbers, starts, order = sorted_by_partition(partitions)
        if order is not None:
            take = itemgetter(*order.tolist())
            keys, values, stamps = take(keys), take(values), stamps[order]
            headers = None if headers is None else take(headers)
        for number, (start, end) in zip(numbers, pairwise(starts), strict=True):
            rows = slice(start, end)
            some_keys, some_values = keys[rows], values[rows]
            some = None if headers is None else headers[rows]
            size = size_of(some_keys, some_values) + headers_size(some or ())
            yield number, Piece(some_keys, some_values, stamps[rows], some, size)

    def __len__(self) -> int:
        """How many records it holds, or held before it was divided."""
        return len(self.values) if self.partitions is None else len(self.partitions)

    def fail(self, error: FolkmootError) -> Batch:
        """Nothing of it will be sent. Returns what stands for its records."""
        batch = Batch(TopicPartition(self.topic, -1), self.number, self.opened_at)
        count = len(self)
        batch.count, batch.size = count, self.size
        self.keys, self.values, self.stamps = [], [], array("d")
        self.partitions = np.zeros(count, dtype=np.int64)
        self.ranks = None
        self.parts = {0: [(0, batch, 0)]}
        self.placed = True
        batch.fail(error)
        return batch

    def place(self, partition: int, rank: int, batch: Batch, position: int) -> None:
        """From its `rank`-th record of `partition` on, this chunk is in `batch` from `position` on."""
        self.parts.setdefault(partition, []).append((rank, batch, position))

    def whereabouts(self, index: int) -> tuple[Batch, int] | None:
        """The batch of the record at `index` and its position there; None as long as it has none."""
        if self.partitions is None or not self.placed:
            return None
        if self.ranks is None:
            order = _stable_order(self.partitions)
            ordered = self.partitions[order]
            ranks = np.empty(len(order), dtype=np.int64)
            ranks[order] = np.arange(len(order)) - np.searchsorted(ordered, ordered)
            self.ranks = ranks
        rank = int(self.ranks[index])
        for first, batch, position in reversed(self.parts.get(int(self.partitions[index]), [])):
            if first <= rank:
                return batch, position + rank - first
        return None


class Delivery(msgspec.Struct, gc=False, eq=False):
    """What became, or will become, of one record. May be kept, asked from any thread, or ignored."""

    _chunk: Chunk
    _index: int
    _stamp: float

    def done(self) -> bool:
        """Whether the record was acknowledged, or has failed."""
        place = self._chunk.whereabouts(self._index)
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

    def _wait(self, timeout: float | None) -> tuple[Batch, int]:
        with self._chunk.completed:
            if not self._chunk.completed.wait_for(self.done, timeout):
                raise RequestTimeout(
                    f"a record for {self._chunk.topic} is not acknowledged after {timeout:g} s; "
                    "it may be yet"
                )
        place = self._chunk.whereabouts(self._index)
        assert place is not None
        return place


def size_of(keys: Sequence[bytes | None], values: Sequence[bytes | None]) -> int:
    """Bytes of these records, with what they cost besides."""
    return _lengths(keys) + _lengths(values) + RECORD_OVERHEAD_BYTES * len(values)


def _lengths(cells: Sequence[bytes | None]) -> int:
    try:
        return sum(map(len, cells))  # type: ignore[arg-type]  # None is the rare case below
    except TypeError:
        return sum(len(cell) for cell in cells if cell is not None)


def headers_size(headers: Sequence[Headers]) -> int:
    return sum(len(name.encode()) + len(value or b"") for row in headers for name, value in row)


def sorted_by_partition(partitions: Partitions) -> tuple[list[int], list[int], Any]:
    """The partitions that occur, where each one's rows start in `order`, and the end, and `order`,
    which is None if there is one only."""
    if not (partitions != partitions[0]).any():
        return [int(partitions[0])], [0, len(partitions)], None
    order = _stable_order(partitions)
    ordered = partitions[order]
    starts = [0, *(np.flatnonzero(np.diff(ordered)) + 1).tolist(), len(partitions)]
    return ordered[starts[:-1]].tolist(), starts, order


def _stable_order(partitions: Partitions) -> Any:
    """Positions sorted by partition, in order within each; numpy sorts small integers by radix."""
    narrow = partitions.astype(np.uint16) if partitions.max() < 65536 else partitions
    return np.argsort(narrow, kind="stable")
