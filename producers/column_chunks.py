"""What `send_batch` stages, and the handle that its caller gets."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from threading import Condition

import numpy as np

from folkmoot.producers.batches import Batch, Piece, Stamps
from folkmoot.producers.cells import Cells
from folkmoot.producers.chunks import (
    RECORD_OVERHEAD_BYTES,
    Chunk,
    headers_size,
    sorted_by_partition,
)
from folkmoot.producers.partitioners import Partitions
from folkmoot.protocol.errors import FolkmootError, RequestTimeout
from folkmoot.protocol.records import Headers


class ColumnChunk(Chunk):
    """Records of one topic as columns, complete when it is made: nothing is done per record.

    It goes the same way as the chunks that `send` fills: to a partitioner, divided, into batches.
    `partition` is for all its records; without one the partitioner chooses. `counts` remembers how
    many went to each.
    """

    __slots__ = ("cell_keys", "cell_values", "counts", "partition", "row_headers", "row_stamps")

    def __init__(
        self,
        topic: str,
        completed: Condition,
        values: Cells,
        keys: Cells | None,
        stamps: Stamps,
        headers: Sequence[Headers] | None,
        partition: int | None,
    ) -> None:
        super().__init__(topic, completed)
        self.cell_values: Cells | None = values
        self.cell_keys = keys
        self.row_stamps = stamps
        self.row_headers = headers
        self.partition = partition
        self.counts: dict[int, int] = {}
        self.counted = len(values)
        self.size = _size(keys, values, headers)

    def __len__(self) -> int:
        return self.counted

    def divide(self, partitions: Partitions) -> Iterator[tuple[int, Piece]]:
        """The pieces by partition. The columns are dropped."""
        self.partitions = partitions
        values, keys = self.cell_values, self.cell_keys
        stamps, headers = self.row_stamps, self.row_headers
        assert values is not None
        self.cell_values = self.cell_keys = self.row_headers = None
        numbers, starts, order = sorted_by_partition(partitions)
        if order is not None:
            values, stamps = values.take(order), stamps[order]
            keys = None if keys is None else keys.take(order)
            headers = None if headers is None else [headers[row] for row in order.tolist()]
        for number, (start, end) in zip(numbers, pairwise(starts), strict=True):
            some_values = values.rows(start, end)
            some_keys = None if keys is None else keys.rows(start, end)
            some_headers = None if headers is None else headers[start:end]
            self.counts[number] = end - start
            size = _size(some_keys, some_values, some_headers)
            yield number, Piece(some_keys, some_values, stamps[start:end], some_headers, size)

    def fail(self, error: FolkmootError) -> Batch:
        self.counts = {0: self.counted}
        return super().fail(error)

    def batches(self) -> "list[tuple[Batch, int, int]] | None":
        """Where its records went: batch, position of the first, how many; None while undecided."""
        if not self.placed:
            return None
        found = []
        for number, parts in self.parts.items():
            ranks = [rank for rank, _, _ in parts] + [self.counts[number]]
            for (_, batch, position), (first, after) in zip(parts, pairwise(ranks), strict=True):
                found.append((batch, position, after - first))
        return found


class BatchDelivery:
    """What became, or will become, of the records of one `send_batch`; from any thread."""

    __slots__ = ("_chunks", "_completed")

    def __init__(self, chunks: list[ColumnChunk], completed: Condition) -> None:
        self._chunks = chunks
        self._completed = completed

    def __len__(self) -> int:
        """How many records they are."""
        return sum(map(len, self._chunks))

    def done(self) -> bool:
        """Whether every record was acknowledged, or has failed."""
        return all(
            places is not None and all(batch.done for batch, _, _ in places)
            for places in (chunk.batches() for chunk in self._chunks)
        )

    def result(self, timeout: float | None = None) -> dict[int, list[range]]:
        """The offsets by partition, in the order of the rows; no ranges with acks=0.

        Raises the first error that records failed with, RequestTimeout after `timeout`.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error
        offsets: dict[int, list[range]] = {}
        for chunk in self._chunks:
            for batch, position, count in chunk.batches() or ():
                ranges = offsets.setdefault(batch.topic_partition.partition, [])
                start = batch.base_offset + position
                if batch.base_offset < 0:
                    continue
                if ranges and ranges[-1].stop == start:
                    ranges[-1] = range(ranges[-1].start, start + count)
                else:
                    ranges.append(range(start, start + count))
        return offsets

    def exception(self, timeout: float | None = None) -> FolkmootError | None:
        """The first error that records failed with, or None if all were acknowledged."""
        with self._completed:
            if not self._completed.wait_for(self.done, timeout):
                raise RequestTimeout(
                    f"{len(self)} records are not acknowledged after {timeout:g} s; they may be yet"
                )
        first = None
        for chunk in self._chunks:
            for batch, _, _ in chunk.batches() or ():
                batch.observed = True
                first = first or batch.error
        return first


def _size(keys: Cells | None, values: Cells, headers: Sequence[Headers] | None) -> int:
    size = RECORD_OVERHEAD_BYTES * len(values) + int(np.maximum(values.lengths, 0).sum())
    if keys is not None:
        size += int(np.maximum(keys.lengths, 0).sum())
    return size + headers_size(headers or ())
