"""What `send_batch` stages, and the handle that its caller gets."""

from collections.abc import Sequence
from itertools import pairwise
from threading import Condition

import numpy as np

from folkmoot.producers.batches import RECORD_OVERHEAD_BYTES, Batch, Sorted, Stamps, headers_size
from folkmoot.producers.cells import Cells, has_nils, total_bytes
from folkmoot.producers.chunks import TAKEN, Chunk, cut, sorted_by_partition
from folkmoot.producers.key_memory import KeyMemory, remembered
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
        self.check_at = TAKEN
        self.count = self.counted = len(values)
        self.size = _size(keys, values, headers)

    @property
    def keyless(self) -> bool:
        return self.cell_keys is None or has_nils(self.cell_keys)

    def measure(self) -> int:
        return 0  # its size has always been exact

    def divide_by_key(self, count: int, memory: KeyMemory | None = None) -> bool:
        keys = self.cell_keys
        if self.partition is not None:
            self.divide(np.full(self.count, self.partition, np.uint16))
            return True
        if keys is None or self.keyless:
            return False
        self.divide(remembered(keys, count, memory))
        return True

    def divide(self, partitions: Partitions) -> None:
        """Make the pieces, by partition."""
        values, keys = self.cell_values, self.cell_keys
        stamps, headers = self.row_stamps, self.row_headers
        assert values is not None
        numbers, starts, order = sorted_by_partition(partitions)
        if order is not None:
            values, stamps = values.take(order), stamps[order]
            keys = None if keys is None else keys.take(order)
            headers = None if headers is None else [headers[row] for row in order.tolist()]
        packed_keys = None if keys is None else keys.packed()
        self.partitions = partitions
        self.counts = dict(zip(numbers, np.diff(starts).tolist(), strict=True))
        self.pieces = cut(numbers, starts, Sorted(packed_keys, values.packed(), stamps, headers))
        self.cell_values = self.cell_keys = self.row_headers = None

    def fail(self, error: FolkmootError) -> Batch:
        self.cell_values = self.cell_keys = self.row_headers = None
        return super().fail(error)

    def batches(self) -> "list[tuple[Batch, int, int]] | None":
        """Where its records went: batch, position of the first, how many; None while undecided."""
        if self.failed is not None:
            return [(self.failed, 0, self.count)]
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
    size = RECORD_OVERHEAD_BYTES * len(values) + total_bytes(values)
    if keys is not None:
        size += total_bytes(keys)
    return size + headers_size(headers or ())
