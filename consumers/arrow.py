"""Batches as Arrow, with the columns of Spark's Kafka source; importing it needs pyarrow."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from folkmoot.consumers.views import RecordBatchView
from folkmoot.protocol.errors import MissingExtra
from folkmoot.protocol.packed import Packed

try:
    import pyarrow as pa
except ModuleNotFoundError as error:
    raise MissingExtra(
        "Arrow tables need pyarrow, which is not installed: pip install 'folkmoot[arrow]'"
    ) from error

CREATE_TIME, APPEND_TIME = 0, 1
_MAX_MS: Final = (2**63 - 1) // 1000

SCHEMA: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestampType", pa.int32()),
    ]
)
_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMA_WITH_HEADERS: Final = pa.schema(
    [*(SCHEMA.field(name) for name in SCHEMA.names), pa.field("headers", _HEADERS)]
)


def record_batch(view: RecordBatchView, *, headers: bool = False) -> pa.RecordBatch:
    """The view's rows; packed columns share the memory of the batch's body."""
    count, columns = len(view), view.columns
    kind = APPEND_TIME if view.append_time else CREATE_TIME
    arrays = [
        pa.nulls(count, pa.binary()) if columns.keys is None else _binary(columns.keys),
        _binary(columns.values),
        _repeated(view.topic.encode(), count),
        _numbers(np.full(count, view.partition, np.int32), pa.int32()),
        _numbers(_integers(view.offsets), pa.int64()),
        _numbers(_microseconds(columns.timestamps, count), pa.timestamp("us", "UTC")),
        _numbers(np.full(count, kind, np.int32), pa.int32()),
    ]
    if not headers:
        return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
    rows: list[Any] = [
        [{"key": name, "value": value} for name, value in row] or None for row in view.headers
    ]
    return pa.RecordBatch.from_arrays(
        [*arrays, pa.array(rows, _HEADERS)], schema=SCHEMA_WITH_HEADERS
    )


def table(views: Sequence[RecordBatchView], *, headers: bool = False) -> pa.Table:
    """All rows of the views; each view is a chunk."""
    schema = SCHEMA_WITH_HEADERS if headers else SCHEMA
    return pa.Table.from_batches(
        [record_batch(view, headers=headers) for view in views], schema=schema
    )


def _binary(cells: Sequence[bytes | None]) -> pa.Array:
    if not isinstance(cells, Packed):
        return pa.array(cells, pa.binary())
    offsets = (cells.offsets - cells.offsets[0]).astype(np.int32)  # a body has 32 MiB at most
    validity = None
    if cells.nulls is not None:
        validity = pa.py_buffer(np.packbits(~cells.nulls, bitorder="little"))
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(cells.run())]
    return pa.Array.from_buffers(pa.binary(), len(cells), buffers)


def _numbers(values: npt.NDArray[Any], kind: pa.DataType) -> pa.Array:
    """Shares the memory of `values`. (`pa.array` and `pa.repeat` would import pandas.)"""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _repeated(text: bytes, count: int) -> pa.Array:
    places = np.arange(0, (count + 1) * len(text), len(text), dtype=np.int32)
    buffers = [None, pa.py_buffer(places), pa.py_buffer(text * count)]
    return pa.Array.from_buffers(pa.string(), count, buffers)


def _integers(numbers: Sequence[int]) -> npt.NDArray[np.int64]:
    if isinstance(numbers, range):
        return np.arange(numbers.start, numbers.stop, dtype=np.int64)
    return np.asarray(numbers, np.int64)


def _microseconds(stamps: Sequence[int] | int, count: int) -> npt.NDArray[np.int64]:
    milliseconds = (
        np.full(count, stamps, np.int64)
        if isinstance(stamps, int)
        else np.asarray(stamps, np.int64)
    )
    clipped: npt.NDArray[np.int64] = np.clip(milliseconds, -_MAX_MS, _MAX_MS) * 1000
    return clipped
