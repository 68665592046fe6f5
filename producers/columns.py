"""Checks of what callers send: the fields of one record, and the columns of many.

A bad record would fail in the producer's thread with all of its batch, so it is refused here. Both
implementations of the appender call these functions for values that are not plain bytes and ints.
"""

import operator
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, Final, Protocol

import msgspec
import numpy as np

from folkmoot.producers.partitioner import Choose, by_function
from folkmoot.protocol.columns import BinaryColumn, Int64s, lengths_of
from folkmoot.protocol.errors import (
    FolkmootError,
    InvalidName,
    MissingExtra,
    RecordTooLarge,
    UnknownTopicOrPartition,
)
from folkmoot.protocol.process.thread_log import thread_log
from folkmoot.protocol.records import Headers
from folkmoot.schemas.values.serialization import writes_schema_id

MAX_RECORD_TIMESTAMP: Final = 2**50
EARLY: Final = 10_000_000_000
"""April 1970 in milliseconds. Present times in seconds are less."""
HeadersArgument = Mapping[str, bytes | None] | Iterable[tuple[str, bytes | None]]
Cells = list[bytes | None] | BinaryColumn

encode: Final = msgspec.msgpack.Encoder().encode
Row = tuple[bytes | None, bytes | None, int, bytes | None, int]
RECORD_OVERHEAD_BYTES: Final = 32
"""Bytes that a record counts beside its key, value and headers: at least what its batch needs for it."""

_BINARY_TYPES: Final = (
    *("binary", "string", "large_binary", "large_string", "fixed_size_binary"),
    *("binary_view", "string_view"),
)

_log = thread_log(__name__)
_is_warned = False


# -- one record ---------------------------------------------------------------------------------------


def as_bytes(what: str, value: object) -> bytes | None:
    """Return a key or a value as bytes. Raises TypeError."""
    if value is None or value.__class__ is bytes:
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise TypeError(
        f"a record's {what} must be bytes or None, not {type(value).__name__}: encode it first"
    )


def as_int(what: str, value: Any) -> int:
    """Return an int, also of numpy's. Raises TypeError, also for a bool."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"a record's {what} must be an int, not {type(value).__name__}: {value!r}")
    return operator.index(value)


def as_timestamp(value: Any) -> int:
    """Return milliseconds since the epoch. Raises TypeError, ValueError."""
    timestamp: int = value if value.__class__ is int else as_int("timestamp", value)
    if not -MAX_RECORD_TIMESTAMP <= timestamp <= MAX_RECORD_TIMESTAMP:
        raise ValueError(f"timestamp {timestamp} is out of range: use milliseconds since 1970")
    if timestamp < EARLY:
        warn_of(timestamp)
    return timestamp


def warn_of(timestamp: int) -> None:
    """Log, once in a process, that a timestamp may be in seconds."""
    global _is_warned
    if not _is_warned:
        _is_warned = True
        _log.warning(
            "timestamp %d is in %s: timestamps are milliseconds since 1970, perhaps this one is in seconds",
            timestamp,
            "1970" if timestamp >= 0 else "a year before 1970",
        )


def as_callback(what: str, value: object) -> None:
    """Raises TypeError."""
    if not callable(value):
        raise TypeError(f"{what} must be callable, not {type(value).__name__}: {value!r}")


def as_headers(headers: HeadersArgument) -> Headers:
    """Return the headers of one record. Raises TypeError, InvalidName."""
    if not isinstance(headers, Iterable):
        raise TypeError(
            "headers must be a mapping, or pairs, of str and bytes or None, "
            f"not {type(headers).__name__}: {headers!r}"
        )
    rows = []
    for header in headers.items() if isinstance(headers, Mapping) else headers:
        match header:
            case (str(name), None | bytes() as value):
                pass
            case _:
                raise TypeError(
                    "headers must be a mapping, or pairs, of str and bytes or None: "
                    f"{header!r} is no header"
                )
        try:
            rows.append((name.encode().decode(), None if value is None else bytes(value)))
        except UnicodeEncodeError as error:
            raise InvalidName(f"a header's name must be Unicode text, not {name!r}") from error
    return tuple(rows)


def encode_headers(headers: HeadersArgument) -> bytes:
    """Return the headers of one record as a batch's column has them; empty if there are none.

    Raises TypeError, InvalidName.
    """
    rows: Any = headers
    if headers.__class__ is dict:
        rows = tuple(headers.items())
    elif headers.__class__ is list:
        rows = tuple(headers)
    if rows.__class__ is not tuple or not all(map(_is_plain, rows)):
        rows = as_headers(headers)
    try:
        return encode(rows) if rows else b""
    except UnicodeEncodeError:
        return encode(as_headers(headers))


def _is_plain(header: Any) -> bool:
    return (
        header.__class__ is tuple
        and len(header) == 2
        and header[0].__class__ is str
        and (header[1] is None or header[1].__class__ is bytes)
    )


def too_large(size: int, limit: int) -> RecordTooLarge:
    return RecordTooLarge(f"a record of {size} bytes is larger than max_record_bytes={limit}")


def no_partition(topic: str, partition: int, count: int) -> FolkmootError:
    return UnknownTopicOrPartition(
        f"topic {topic} has no partition {partition}, only 0 to {count - 1}"
    )


_OF_TABLES: Final = (
    ": a table is written by serializer=ColumnSerializer(registry, schema), or by the producer's "
    "value_serializer=AvroSerializer(registry, schema)"
)

# -- many ---------------------------------------------------------------------------------------------


class TableSerializer(Protocol):
    """Makes a column of values of all rows of a `send_batch`. May be called from any thread.

    It has an attribute `writes_schema_id` that is True if its values begin with byte 0 and their schema's
    id.
    """

    def serialize(self, topic: str, rows: Any, /) -> Any: ...


def is_table(values: object) -> bool:
    """Return whether they are an Arrow table, with columns of its own."""
    pa: Any = sys.modules.get("pyarrow")
    return pa is not None and isinstance(values, pa.Table | pa.RecordBatch)


def table_serializer(serializer: Any) -> Any:
    """Return the same, or for an AvroSerializer the one that writes tables as it does values."""
    if not writes_schema_id(serializer):
        return serializer
    try:
        from folkmoot.schemas.values.serializer import AvroSerializer
    except MissingExtra:  # without the extra `avro` nothing is one
        return serializer
    if not isinstance(serializer, AvroSerializer):
        return serializer
    from folkmoot.schemas.columns.serializer import ColumnSerializer

    return ColumnSerializer(serializer)


class RecordColumns:
    """Columns of equal length: keys and values as lists or as cells in one run of bytes.

    A list is copied; an Arrow array cannot change. The appender calls `check` before it takes the first
    row; until then the cells of a list may be anything.
    """

    __slots__ = (
        *("chosen", "framed", "headers", "key_source", "keys", "partition", "sizes"),
        *("timestamps", "values"),
    )

    def __init__(
        self,
        values: Any,
        keys: Any = None,
        timestamps: Any = None,
        headers: Sequence[Any] | None = None,
        partition: int | None = None,
        *,
        framed: bool = False,
    ) -> None:
        """`framed`: each value begins with its schema's id."""
        self.framed = framed
        self.values = _cells("values", values)
        count = len(self.values)
        self.keys = None if keys is None else _cells("keys", keys)
        self.key_source = keys
        self.timestamps = _timestamps(timestamps, count)
        self.partition = None if partition is None else as_int("partition", partition)
        self.headers = None if headers is None else _encoded_rows(headers)
        self.sizes: Int64s = np.zeros(0, np.int64)
        self.chosen: tuple[int, Int64s] | None = None  # by the application's partitioner
        for name, column in (("keys", self.keys), ("headers", self.headers)):
            if column is not None and len(column) != count:
                raise ValueError(f"{len(column)} {name} do not belong to {count} values")
        if self.headers is not None and not any(self.headers):
            self.headers = None

    def __len__(self) -> int:
        return len(self.values)

    def check(self, max_record_bytes: int) -> None:
        """Make every cell of a list bytes or None, and set `sizes`. Raises TypeError, RecordTooLarge."""
        if isinstance(self.values, list):
            self.values = _checked("values", self.values)
        if isinstance(self.keys, list):
            self.keys = _checked("keys", self.keys)
        self.sizes = _lengths(self.values)
        if self.keys is not None:
            self.sizes += _lengths(self.keys)
        if self.headers is not None:
            self.sizes += lengths_of(self.headers)
        if len(self) and int(self.sizes.max()) > max_record_bytes:
            raise too_large(int(self.sizes.max()), max_record_bytes)
        self.sizes += RECORD_OVERHEAD_BYTES

    def rows(self, start: int, end: int) -> Iterator[Row]:
        """Key, value, timestamp, encoded headers, and size of each row, after `check`."""
        keys = repeat(None) if self.keys is None else self.keys[start:end]
        headers: Iterable[bytes | None] = repeat(None)
        if self.headers is not None:
            headers = (row or None for row in self.headers[start:end])
        stamps, sizes = self.timestamps[start:end].tolist(), self.sizes[start:end].tolist()
        return zip(keys, self.values[start:end], stamps, headers, sizes, strict=False)

    def choose(self, function: Choose, topic: str, count: int) -> Int64s:
        """The partitions of all rows, by the application's partitioner. Raises PartitionerFailed."""
        if self.chosen is None or self.chosen[0] != count:
            chosen = by_function(function, topic, self.key_column(), len(self), count)
            self.chosen = (count, chosen)
        return self.chosen[1]

    def key_column(self) -> Any:
        """The keys for an application's partitioner: a sequence, or the Arrow array."""
        if self.keys is None:
            return [None] * len(self)
        if isinstance(self.keys, list):
            return self.keys
        pa = sys.modules["pyarrow"]
        array = self.key_source
        return array if array.type == pa.binary() else array.cast(pa.binary())


def _cells(what: str, column: Any) -> Cells:
    """Raises TypeError for what is neither a sequence nor an Arrow array of binary or string."""
    if isinstance(column, np.ndarray):
        if column.dtype != object or column.ndim != 1:
            raise TypeError(
                f"{what} must be a list of bytes or an Arrow array, not a numpy array of "
                f"{column.dtype}: one of objects (bytes and None) in one dimension is taken; numpy "
                "drops zeros at the end of strings of fixed size"
            )
        cells: list[bytes | None] = column.tolist()
        return cells
    pa: Any = sys.modules.get("pyarrow")  # if it was not imported, this is no array
    if pa is not None and isinstance(column, pa.Array | pa.ChunkedArray):
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        if not any(getattr(pa.types, f"is_{name}")(kind) for name in _BINARY_TYPES):
            raise TypeError(f"{what} must be binary or string, not {column.type}")
        return _arrow_cells(pa, column)
    if isinstance(column, str | bytes | bytearray | memoryview) or not isinstance(column, Sequence):
        raise TypeError(
            f"{what} must be a list of bytes or an Arrow array, not {type(column).__name__}"
            f"{_OF_TABLES if is_table(column) else ''}"
        )
    return list(column)


def _checked(what: str, column: list[Any]) -> list[bytes | None]:
    kinds = set(map(type, column))
    if kinds <= {bytes, type(None)}:
        return column
    for kind in kinds:
        if kind is not type(None) and not issubclass(kind, bytes | bytearray | memoryview):
            raise TypeError(
                f"{what} must hold bytes or None, not {kind.__name__}: encode them first"
            )
    return [None if cell is None else bytes(cell) for cell in column]


def _lengths(cells: Cells) -> Int64s:
    if isinstance(cells, BinaryColumn):
        return np.diff(cells.offsets).astype(np.int64)
    try:
        return lengths_of(cells)
    except TypeError:  # there are nils
        return lengths_of([cell or b"" for cell in cells])


def _arrow_cells(pa: Any, column: Any) -> BinaryColumn:
    """The array's own buffers."""
    if isinstance(column, pa.ChunkedArray):
        if column.num_chunks != 1:  # wide offsets: there may be more than 2 GiB
            column = column.cast(
                pa.large_string() if _is_text(pa, column.type) else pa.large_binary()
            )
        column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if isinstance(column, pa.ChunkedArray):  # of no chunks, in some versions
        column = pa.array([], pa.binary())
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    narrow = column.type in (pa.binary(), pa.string())
    if not narrow and column.type not in (pa.large_binary(), pa.large_string()):
        column, narrow = column.cast(pa.binary()), True
    buffers, start, count = column.buffers(), column.offset, len(column)
    if buffers[1] is None or not count:
        return BinaryColumn(np.zeros(count + 1, np.int64), b"")
    offsets: Any = np.frombuffer(buffers[1], np.int32 if narrow else np.int64)
    offsets = offsets[start : start + count + 1]
    nulls = None
    if column.null_count:  # (`to_numpy` would import pandas first)
        bits = np.unpackbits(np.frombuffer(buffers[0], np.uint8), bitorder="little")
        nulls = bits[start : start + count] == 0
        if int(np.diff(offsets)[nulls].sum()):
            # The bytes of a null cell may be anything, and must not be sent.
            return BinaryColumn.of(
                [cell.as_buffer() and bytes(cell.as_buffer()) for cell in column]
            )
    return BinaryColumn(offsets, b"" if buffers[2] is None else memoryview(buffers[2]), nulls)


def _is_text(pa: Any, kind: Any) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return any(
        getattr(pa.types, f"is_{name}")(kind) for name in ("string", "large_string", "string_view")
    )


def _encoded_rows(headers: Any) -> list[bytes]:
    """The headers of each record. Raises TypeError, InvalidName."""
    if not hasattr(headers, "__len__"):
        raise TypeError(
            f"headers must be a list with those of each row, not {type(headers).__name__}"
        )
    return [encode_headers(row) if row else b"" for row in headers]


def _timestamps(timestamps: Any, count: int) -> Int64s:
    """One timestamp in ms for each row, of any kind that `send_batch` takes. Raises ValueError."""
    if timestamps is None:
        timestamps = time.time_ns() // 1_000_000
    if hasattr(timestamps, "to_numpy"):
        timestamps = timestamps.to_numpy(
            **({"zero_copy_only": False} if hasattr(timestamps, "buffers") else {})
        )
    array = np.asarray(timestamps)
    if array.dtype.kind == "M":
        array = array.astype("datetime64[ms]").astype(np.int64)
    if array.dtype.kind not in "iu":
        raise ValueError(
            f"timestamps must be integers in milliseconds since the epoch, not {array.dtype}"
        )
    if array.dtype == np.uint64:  # the largest would wrap around
        array = np.minimum(array, np.uint64(MAX_RECORD_TIMESTAMP + 1))
    stamps = array.astype(np.int64)
    if not stamps.ndim:
        stamps = np.full(count, stamps)
    if stamps.shape != (count,):
        raise ValueError(f"{len(stamps)} timestamps do not belong to {count} values")
    limit = MAX_RECORD_TIMESTAMP
    if count and not -limit <= int(stamps.min()) <= int(stamps.max()) <= limit:
        raise ValueError("timestamps must be in milliseconds since the epoch")
    if stamps.size and (earliest := int(stamps.min())) < EARLY:
        warn_of(earliest)
    return stamps
