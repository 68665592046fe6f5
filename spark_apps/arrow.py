"""Record batches of the log as Arrow, in the columns of Spark's Kafka source.

What a consumer's `arrow()` gives is what Spark takes: packed columns travel from a batch's body into
Spark's stream without being looked at, record by record or as a whole. Small batches are joined, since
Spark pays for each RecordBatch.

A few bytes can unfold into many (one value for a million rows), so what is gathered, and what one
RecordBatch holds, is bounded by the bytes that it has in Arrow.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from folkmoot.consumers.records.arrow import SCHEMA_WITH_HEADERS
from folkmoot.consumers.records.batch_view import RecordBatchView, view_of_batch
from folkmoot.protocol.batch_header import BatchHeader
from folkmoot.protocol.columns import BinaryColumn, bytes_of
from folkmoot.protocol.records import TopicPartition
from folkmoot.spark_apps.planning import Slice

ROWS = 10_000
BYTES = 64 * 1024 * 1024

_NOTHING: Final = np.zeros(1, np.int64)


class Rows:
    """The records of slices, gathered from small batches until they make a RecordBatch (`full`).

    It has the `columns` named, in that order.
    """

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = list(columns)
        self._headers = "headers" in columns
        self._schema = pa.schema([SCHEMA_WITH_HEADERS.field(name) for name in columns])
        self._views: list[RecordBatchView] = []
        self._count = 0
        self._bytes = 0

    @property
    def full(self) -> bool:
        return self._count >= ROWS or self._bytes >= BYTES

    def add(self, part: Slice, header: BatchHeader, data: memoryview) -> None:
        """Those of the batch's records that lie within the slice."""
        view = view_of_batch(TopicPartition(part.topic, part.partition), header, data)
        low, high = view.row_of_offset(part.first), view.row_of_offset(part.end)
        if low < high:
            view = view.part(low, high)
            self._views.append(view)
            self._count += len(view)
            self._bytes += _size(view)

    def take(self) -> Iterator[pa.RecordBatch]:
        """What was gathered, each RecordBatch of BYTES at most unless it is a single row."""
        views, self._views = self._views, []
        fits = self._bytes <= BYTES
        self._count = self._bytes = 0
        if fits:
            yield from self._joined(views)
            return
        for view in views:
            for piece in _pieces(view):
                yield self._arrow(piece)

    def _arrow(self, view: RecordBatchView) -> pa.RecordBatch:
        return view.arrow(headers=self._headers).select(self._columns)

    def _joined(self, views: Sequence[RecordBatchView]) -> Iterator[pa.RecordBatch]:
        if len(views) == 1:
            yield self._arrow(views[0])
        elif views:
            table = pa.Table.from_batches(map(self._arrow, views), schema=self._schema)
            yield from table.combine_chunks().to_batches()


def _size(view: RecordBatchView) -> int:
    keys = view.columns.keys
    return bytes_of(view.values) + (0 if keys is None else bytes_of(keys))


def _pieces(view: RecordBatchView) -> Iterator[RecordBatchView]:
    """The view, cut so that none has more than BYTES unless it is a single row."""
    keys = view.columns.keys
    ends = _ends(view.values) + (_NOTHING if keys is None else _ends(keys))
    first = 0
    while first < len(view):
        fitting = int(np.searchsorted(ends, ends[first] + BYTES, "right")) - 1
        last = max(first + 1, fitting)
        yield view.part(first, last)
        first = last


def _ends(cells: Sequence[bytes | None]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The bytes before each cell, and of all of them."""
    if isinstance(cells, BinaryColumn):
        return cells.offsets.astype(np.int64) - int(cells.offsets[0])
    lengths = np.fromiter((len(cell or b"") for cell in cells), np.int64, len(cells))
    return np.concatenate(([0], np.cumsum(lengths)))
