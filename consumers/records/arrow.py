"""Batches as Arrow, with the columns of Spark's Kafka source; importing this module needs pyarrow."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from folkmoot.protocol.columns import BinaryColumn, Columns, bytes_of
from folkmoot.protocol.errors import BatchTooLarge, MissingExtra, pip_command
from folkmoot.protocol.records import Headers, TopicPartition

try:
    import pyarrow as pa
except ModuleNotFoundError as error:
    raise MissingExtra(
        f"Arrow tables need pyarrow, which is not installed: {pip_command('arrow')}"
    ) from error

CREATE_TIME, APPEND_TIME = 0, 1
_MAX_MS: Final = (2**63 - 1) // 1000
_MAX_BYTES: Final = 2**31 - 1
_SHARED: Final = 16_384

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


def record_batch(
    topic_partition: TopicPartition,
    columns: Columns,
    offsets: Sequence[int],
    append_time: bool,
    *,
    headers: Sequence[Headers] | None = None,
) -> pa.RecordBatch:
    """The rows of one batch; packed columns share the memory of the batch's body.

    With `headers`, one for each row, there is a column of them. Raises BatchTooLarge where few bytes
    unfold into more than an Arrow column can have.
    """
    count = columns.count
    arrays = [
        pa.nulls(count, pa.binary()) if columns.keys is None else _binary(columns.keys),
        _binary(columns.values),
        _text(topic_partition.topic, count),
        _int32s(topic_partition.partition, count),
        _numbers(_integers(offsets), pa.int64()),
        _numbers(_microseconds(columns.timestamps, count), pa.timestamp("us", "UTC")),
        _int32s(APPEND_TIME if append_time else CREATE_TIME, count),
    ]
    if headers is None:
        return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
    rows: list[Any] = [
        [{"key": name, "value": value} for name, value in row] or None for row in headers
    ]
    return pa.RecordBatch.from_arrays(
        [*arrays, pa.array(rows, _HEADERS)], schema=SCHEMA_WITH_HEADERS
    )


def table(batches: Sequence[pa.RecordBatch], *, headers: bool = False) -> pa.Table:
    """All rows of what `record_batch` made; each batch is a chunk."""
    return pa.Table.from_batches(batches, schema=SCHEMA_WITH_HEADERS if headers else SCHEMA)


def _binary(cells: Sequence[bytes | None]) -> pa.Array:
    if not isinstance(cells, BinaryColumn):
        size = bytes_of(cells)
        if size > _MAX_BYTES:
            raise BatchTooLarge(f"a column of {size} bytes is more than Arrow has room for")
        cells = BinaryColumn.of(cells)  # `pa.array` would import pandas
    offsets, data = cells.offsets, cells.data
    if offsets.dtype != np.int32:  # what was read from a batch is Arrow's already
        offsets, data = (offsets - offsets[0]).astype(np.int32), cells.run()
    validity = None
    if cells.nulls is not None:
        validity = pa.py_buffer(np.packbits(~cells.nulls, bitorder="little"))
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(cells), buffers)


def _numbers(values: npt.NDArray[Any], kind: pa.DataType) -> pa.Array:
    """Shares the memory of `values`; `pa.array` would import pandas."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


# -- columns with one value, made once for many batches ------------------------------------------------


def _text(text: str, count: int) -> pa.Array:
    return _texts(text, count) if count > _SHARED else _shared_texts(text).slice(0, count)


def _int32s(number: int, count: int) -> pa.Array:
    if count > _SHARED:
        return _numbers(np.full(count, number, np.int32), pa.int32())
    return _shared_int32s(number).slice(0, count)


@lru_cache(maxsize=16)
def _shared_texts(text: str) -> pa.Array:
    return _texts(text, _SHARED)


@lru_cache(maxsize=128)
def _shared_int32s(number: int) -> pa.Array:
    return _numbers(np.full(_SHARED, number, np.int32), pa.int32())


def _texts(text: str, count: int) -> pa.Array:
    encoded = text.encode()
    places = np.arange(count + 1, dtype=np.int32) * np.int32(len(encoded))
    buffers = [None, pa.py_buffer(places), pa.py_buffer(encoded * count)]
    return pa.Array.from_buffers(pa.string(), count, buffers)


# -- numbers ---------------------------------------------------------------------------------------------


def _integers(numbers: Sequence[int]) -> npt.NDArray[np.int64]:
    if isinstance(numbers, range):
        return np.arange(numbers.start, numbers.stop, dtype=np.int64)
    return np.asarray(numbers, np.int64)


def _microseconds(stamps: Sequence[int] | int, count: int) -> npt.NDArray[np.int64]:
    if isinstance(stamps, int):
        return np.full(count, max(-_MAX_MS, min(stamps, _MAX_MS)) * 1000, np.int64)
    milliseconds = np.asarray(stamps, np.int64)
    if milliseconds.min() < -_MAX_MS or milliseconds.max() > _MAX_MS:
        milliseconds = np.clip(milliseconds, -_MAX_MS, _MAX_MS)
    return milliseconds * 1000
