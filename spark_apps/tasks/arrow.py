"""Record batches of the log as Arrow, in the columns of Spark's Kafka source.

A consumer's `arrow()` has the columns that Spark takes: packed columns travel from a batch's body into
Spark's stream without being looked at, record by record or as a whole. Small batches are joined, since
Spark pays for each RecordBatch; cells of very small ones are gathered before they are packed.

A few bytes can unfold into many (one value for a million rows), so gathered batches and each RecordBatch
are bounded by their bytes in Arrow.
"""

from collections.abc import Iterator, Sequence
from itertools import chain, groupby
from typing import Any, Final

import numpy as np
import pyarrow as pa

from folkmoot.consumers.fetch.range_reader import OffsetRange
from folkmoot.consumers.records.arrow import SCHEMA_WITH_HEADERS
from folkmoot.consumers.records.batch_view import RecordBatchView, view_of_batch
from folkmoot.protocol.batch_header import BatchHeader
from folkmoot.protocol.columns import BinaryColumn, Columns, bytes_of
from folkmoot.protocol.records import TopicPartition
from folkmoot.schemas.values.serialization import VALUE
from folkmoot.schemas.values.wire import frames

ROWS = 10_000
BYTES = 64 * 1024 * 1024
FEW: Final = 64
FEW_BYTES: Final = 64 * 1024
"""With fewer rows and bytes a batch's arrays cost more than its cells do."""

FRAME: Final = "frame"
"""The schema id or GUID in a header; only the decoder of values asks for it."""

_NOTHING: Final = np.zeros(1, np.int64)
_SCHEMA: Final = SCHEMA_WITH_HEADERS.append(pa.field(FRAME, pa.binary()))


class Rows:
    """The records of ranges, gathered from small batches until they make a RecordBatch (`is_full`).

    It has the `columns` named, in that order.
    """

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = list(columns)
        self._headers = "headers" in columns
        self._schema = pa.schema([_SCHEMA.field(name) for name in columns])
        self._views: list[RecordBatchView] = []
        self._count = 0
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        return self._count >= ROWS or self._bytes >= BYTES

    def add(self, part: OffsetRange, header: BatchHeader, data: memoryview) -> None:
        """Those of the batch's records that lie within the range."""
        view = view_of_batch(TopicPartition(part.topic, part.partition), header, data)
        low, high = view.row_of_offset(part.first), view.row_of_offset(part.end)
        if low < high:
            view = view.part(low, high)
            self._views.append(view)
            self._count += len(view)
            self._bytes += _size(view)

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Return the gathered rows, each RecordBatch of at most BYTES unless it is a single row."""
        views, self._views = self._views, []
        fits = self._bytes <= BYTES
        self._count = self._bytes = 0
        if fits:
            yield from self._join(views)
            return
        for view in views:
            for part in _split(view):
                yield self._arrow(part)

    def _arrow(self, view: RecordBatchView) -> pa.RecordBatch:
        batch = view.arrow(headers=self._headers)
        if FRAME in self._columns:
            batch = batch.append_column(FRAME, _frames(view))
        return batch.select(self._columns)

    def _join(self, views: Sequence[RecordBatchView]) -> Iterator[pa.RecordBatch]:
        batches = [self._arrow(each) for each in _merge_small(views)]
        if len(batches) > 1:
            table = pa.Table.from_batches(batches, schema=self._schema)
            batches = table.combine_chunks().to_batches()
        yield from batches


def _frames(view: RecordBatchView) -> pa.Array:
    marks = frames(VALUE, view.columns.headers)
    return pa.nulls(len(view), pa.binary()) if marks is None else pa.array(marks, pa.binary())


def _size(view: RecordBatchView) -> int:
    """The bytes of keys, values and headers: these are held, too, whether they are asked for or not."""
    keys, headers = view.columns.keys, view.columns.headers
    size = bytes_of(view.values) + (0 if keys is None else bytes_of(keys))
    return size + sum(len(data or b"") for row in headers or () for _, data in row)


def _merge_small(views: Sequence[RecordBatchView]) -> Iterator[RecordBatchView]:
    """The same rows, those of neighbours of a partition that have few in one view."""

    def kind(view: RecordBatchView) -> tuple[Any, ...]:
        has_few = len(view) < FEW and _size(view) < FEW_BYTES
        return has_few, view.topic_partition, view.append_time

    for (has_few, partition, append_time), run in groupby(views, kind):
        neighbours = list(run)
        if not has_few or len(neighbours) == 1:
            yield from neighbours
            continue
        keys, values, stamps, headers, offsets = (
            list(chain.from_iterable(getattr(each, name) for each in neighbours))
            for name in ("keys", "values", "timestamps", "headers", "offsets")
        )
        columns = Columns(len(values), keys, values, stamps, headers)
        yield RecordBatchView(partition, columns, offsets, append_time)


def _split(view: RecordBatchView) -> Iterator[RecordBatchView]:
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
