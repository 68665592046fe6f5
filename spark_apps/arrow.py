"""Record batches of the log as Arrow, in the columns of Spark's Kafka source.

Columns go from one format to the other as a whole: no Python object is made per record beyond the
bytes that the batch's decoder gives. Arrays are put together from buffers, since `pa.array` imports
pandas, which takes each new worker process longer than its first task.

A few bytes can unfold into many (one value for a million rows), so what is gathered, and what one
RecordBatch holds, is bounded by the bytes that it has in Arrow.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from folkmoot.protocol import batch
from folkmoot.protocol.batch import BatchHeader
from folkmoot.spark_apps.planning import Slice

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
ROWS = 10_000
BYTES = 64 * 1024 * 1024

CREATE_TIME, APPEND_TIME = 0, 1
_MAX_MS = (2**63 - 1) // 1000

_Cells = Sequence[bytes | None]
_Int32s = npt.NDArray[np.int32]
_Int64s = npt.NDArray[np.int64]
_Bools = npt.NDArray[np.bool_]


class Rows:
    """The records of a slice, gathered from small batches until they make a RecordBatch (`full`)."""

    def __init__(self, part: Slice) -> None:
        self._part = part
        self._clear()

    def _clear(self) -> None:
        self._count = 0
        self._keys = _BinaryColumn()
        self._values = _BinaryColumn()
        self._offsets: list[_Int64s] = []
        self._times: list[_Int64s] = []
        self._kinds: list[_Int32s] = []

    @property
    def full(self) -> bool:
        return self._count >= ROWS or self._keys.bytes + self._values.bytes >= BYTES

    def add(self, header: BatchHeader, data: memoryview) -> None:
        """Those of the batch's records that lie within the slice."""
        columns = batch.columns_of(header, data)
        base = header.base_offset
        deltas: Sequence[int] = range(columns.count) if columns.offsets is None else columns.offsets
        low = bisect_left(deltas, self._part.first - base)
        high = bisect_left(deltas, self._part.end - base)
        count = high - low
        if not count:
            return
        self._count += count
        if columns.keys is None:
            self._keys.extend_with_nothing(count)
        else:
            self._keys.extend(columns.keys[low:high])
        self._values.extend(columns.values[low:high])
        self._offsets.append(
            np.arange(base + low, base + high)
            if columns.offsets is None
            else base + np.asarray(columns.offsets[low:high], np.int64)
        )
        stamps = columns.timestamps
        self._times.append(
            np.full(count, stamps, np.int64)
            if isinstance(stamps, int)
            else np.asarray(stamps[low:high], np.int64)
        )
        kind = APPEND_TIME if header.uses_append_time else CREATE_TIME
        self._kinds.append(np.full(count, kind, np.int32))

    def take(self) -> Iterator[pa.RecordBatch]:
        """What was gathered, each RecordBatch of BYTES at most unless it is a single row."""
        if not self._count:
            return
        part = self._part
        topic = part.topic.encode()
        keys, values = self._keys, self._values
        offsets, kinds = np.concatenate(self._offsets), np.concatenate(self._kinds)
        times = np.clip(np.concatenate(self._times), -_MAX_MS, _MAX_MS) * 1000
        ends = np.cumsum(keys.sizes() + values.sizes())
        self._clear()
        first = 0
        while first < len(offsets):
            before = ends[first - 1] if first else 0
            last = max(first + 1, int(np.searchsorted(ends, before + BYTES, "right")))
            count = last - first
            arrays = [
                keys.array(first, last),
                values.array(first, last),
                _text(np.arange(count + 1, dtype=np.int32) * len(topic), topic * count),
                _numbers(pa.int32(), np.full(count, part.partition, np.int32)),
                _numbers(pa.int64(), offsets[first:last]),
                _numbers(pa.timestamp("us", "UTC"), times[first:last]),
                _numbers(pa.int32(), kinds[first:last]),
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
            first = last


class _BinaryColumn:
    """Binary values, some perhaps missing; `bytes` is what they take in all."""

    def __init__(self) -> None:
        self.bytes = 0
        self._cells: list[bytes] = []
        self._sizes: list[_Int64s] = []
        self._present: list[_Bools] = []
        self._complete = True

    def extend(self, cells: _Cells) -> None:
        count = len(cells)
        present = np.ones(count, np.bool_)
        try:
            filled = cast(Sequence[bytes], cells)
            sizes = np.fromiter(map(len, filled), np.int64, count)
        except TypeError:  # None has no length: a look at each cell that is mostly for nothing
            present = np.fromiter((cell is not None for cell in cells), np.bool_, count)
            filled = [cell or b"" for cell in cells]
            sizes = np.fromiter(map(len, filled), np.int64, count)
            self._complete = False
        self.bytes += int(sizes.sum())
        self._cells.extend(filled)
        self._sizes.append(sizes)
        self._present.append(present)

    def extend_with_nothing(self, count: int) -> None:
        self._cells.extend((b"",) * count)
        self._sizes.append(np.zeros(count, np.int64))
        self._present.append(np.zeros(count, np.bool_))
        self._complete = False

    def sizes(self) -> _Int64s:
        return np.concatenate(self._sizes)

    def array(self, first: int, last: int) -> pa.Array:
        count = last - first
        present = None
        if not self._complete:
            mask = np.concatenate(self._present)[first:last]
            present = pa.py_buffer(np.packbits(mask, bitorder="little"))
        ends = np.zeros(count + 1, np.int32)
        np.cumsum(self.sizes()[first:last], out=ends[1:])
        data = pa.py_buffer(b"".join(self._cells[first:last]))
        return pa.Array.from_buffers(pa.binary(), count, [present, pa.py_buffer(ends), data])


def _numbers(kind: pa.DataType, values: _Int64s | _Int32s) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _text(ends: _Int32s, text: bytes) -> pa.Array:
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(text)]
    return pa.Array.from_buffers(pa.string(), len(ends) - 1, buffers)
