"""The body of a record batch: MessagePack columns, each one value for all rows or one per row.

```
body = [keys, values, timestamps, headers, offsets]
column = [0, value]          the same value in every row
       | [1, [value, …]]     one value per row; headers and offsets
       | [2, bin]            one value per row, packed; keys, values and timestamps

bin of keys, values = form (1 byte) | lengths | all cells, back to back
   form 0          all cells have one length: 4 bytes
   form 1, 2, 4    the length of each cell, that many bytes wide
   form + 128      the same, and the length whose bits are all ones is a nil
bin of timestamps   = width (1 byte: 1, 2, 4 or 8) | delta of each row (width bytes) …
```

`timestamps` are deltas to the header's base timestamp, `offsets` deltas to its base offset, neither
negative. A column without values is `[0, nil]`: dense offsets, no keys, no headers. A row without headers
among others with headers is an empty array. msgspec packs and checks the types in one pass in C; the
bytes are plain MessagePack (a test reads them with `msgpack`). Numbers within a `bin` are little-endian,
so that Arrow and numpy read them in place.

A few bytes can unfold into many rows (`[0, value]`, or a compressed run of nils), so the length of a
list is compared with MAX_RECORDS before the list is made.
"""

import struct
from array import array
from collections.abc import Iterator, Sequence
from functools import lru_cache
from io import BytesIO
from operator import lt
from typing import Annotated, Any, Final, Self, TypeVar, overload

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from folkmoot.protocol import speedups
from folkmoot.protocol.batch_header import MAX_RECORDS
from folkmoot.protocol.errors import BatchTooLarge, CorruptBatch
from folkmoot.protocol.records import Headers

CONSTANT: Final = 0
LIST: Final = 1
PACKED: Final = 2
MAX_OFFSET_DELTA: Final = 2**32 - 1
MAX_DELTA: Final = 2**62

_SAME: Final = 0
_NILS: Final = 0x80
_SAME_START: Final = 5
_MOST_SHARED: Final = 16_384
_INT32: Final = np.dtype(np.int32)
_TYPES: Final[dict[int, np.dtype[Any]]] = {width: np.dtype(f"<u{width}") for width in (1, 2, 4)}
_DELTAS: Final[dict[int, np.dtype[Any]]] = {**_TYPES, 8: np.dtype("<i8")}
_ABSENT = (CONSTANT, None)
_FIVE_COLUMNS: Final = b"\x95"
_PACKED_COLUMN: Final = b"\x92\x02"
_compiled: Final = speedups.compiled("folkmoot.protocol._speedups")

_Bytes = bytes | bytearray | memoryview
Int64s = npt.NDArray[np.int64]
Offsets = npt.NDArray[np.int64] | npt.NDArray[np.int32]
_C = TypeVar("_C")


class BinaryColumn(Sequence[bytes | None]):
    """Cells in one run of bytes: cell i is `data[offsets[i]:offsets[i + 1]]`, None where `nulls` is true.

    `size` is the length of all cells if they are known to have one and none is nil, else None. A cell
    becomes a Python object when it is read. A slice shares all bytes. Immutable, and so are its arrays.
    """

    __slots__ = ("data", "nulls", "offsets", "size")
    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self,
        offsets: Offsets,
        data: _Bytes,
        nulls: npt.NDArray[np.bool_] | None = None,
        size: int | None = None,
    ) -> None:
        self.offsets = offsets
        self.data = data
        self.nulls = nulls
        self.size = size

    @classmethod
    def of(cls, cells: Sequence[bytes | None]) -> Self:
        """Return the same cells in one run."""
        try:
            return cls(ends(lengths_of(cells)), b"".join(cells))  # type: ignore[arg-type]  # no None
        except TypeError:
            nulls = np.fromiter((cell is None for cell in cells), np.bool_, len(cells))
            full = [cell or b"" for cell in cells]
            return cls(ends(lengths_of(full)), b"".join(full), nulls)

    @classmethod
    def decode(cls, column: memoryview, count: int) -> Self:
        """Return the cells of a `bin` that must have `count` rows; they share its bytes. Raises
        CorruptBatch."""
        form = column[0] if len(column) else -1
        if form == _SAME and len(column) >= _SAME_START:
            size = int.from_bytes(column[1:_SAME_START], "little")
            _check_run(len(column) - _SAME_START, count * size)
            offsets = (_shared_even_ends if count <= _MOST_SHARED else _even_ends)(count, size)
            return cls(offsets, column[_SAME_START:], None, size)
        width = form & ~_NILS
        start = 1 + count * width
        if width not in _TYPES or len(column) < start:
            raise CorruptBatch(f"a binary column does not have the lengths of {count} cells")
        lengths = np.frombuffer(column, _TYPES[width], count, 1)
        nulls = None
        if form & _NILS:
            nulls = lengths == (1 << 8 * width) - 1
            lengths = np.where(nulls, _TYPES[width].type(0), lengths)
        sums = np.cumsum(lengths, dtype=np.int64)
        _check_run(len(column) - start, int(sums[-1]))
        offsets = np.zeros(count + 1, _INT32)  # Arrow's; no body is longer
        offsets[1:] = sums
        return cls(offsets, column[start:], nulls)

    def is_constant(self) -> bool:
        """Return whether all rows have one value. Columns that vary mostly differ at the ends."""
        first = self[0]
        if first != self[-1]:
            return False
        if self.nulls is not None:
            return first is None and bool(self.nulls.all())
        assert first is not None
        run = self.run()
        return len(run) == len(first) * len(self) and run == first * len(self)

    def rows(self, start: int, end: int) -> "BinaryColumn":
        """Return the cells from `start` to `end`, as by a slice."""
        nulls = None if self.nulls is None else self.nulls[start:end]
        return BinaryColumn(self.offsets[start : end + 1], self.data, nulls, self.size)

    def run(self) -> memoryview:
        """Return the bytes of all cells, back to back."""
        return memoryview(self.data)[self.offsets[0] : self.offsets[-1]]

    def tolist(self) -> list[bytes | None]:
        return list(self)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __iter__(self) -> Iterator[bytes | None]:
        if _compiled is not None:
            cells: Iterator[bytes | None]
            cells = _compiled.CellIterator(self.data, self.offsets, self.nulls)
            return cells
        read = map(BytesIO(self.run()).read, np.diff(self.offsets).tolist())
        if self.nulls is None:
            return read
        pairs = zip(read, self.nulls.tolist(), strict=True)
        return (None if is_nil else cell for cell, is_nil in pairs)

    @overload
    def __getitem__(self, index: int) -> bytes | None: ...

    @overload
    def __getitem__(self, index: slice) -> "BinaryColumn": ...

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            start, end, step = index.indices(len(self))
            if step != 1:
                raise ValueError("a binary column is sliced without a step")
            return self.rows(start, max(start, end))
        position = range(len(self))[index]
        if self.nulls is not None and self.nulls[position]:
            return None
        return bytes(memoryview(self.data)[self.offsets[position] : self.offsets[position + 1]])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self.tolist() == list(other)

    def __repr__(self) -> str:
        return f"BinaryColumn({self.tolist()!r})"


class Columns(msgspec.Struct, frozen=True):
    """A batch's records, column by column; all lists have one length, `count`.

    `keys` and `headers` are None when no row has any; `offsets` is None when they are dense, else
    strictly increasing deltas. `timestamps` are milliseconds since the epoch, per row or one for
    all. Any sequence can be written. Rows that differ are read as a `BinaryColumn` of keys or values, and
    as an `array` of timestamps (type q).
    """

    count: int
    keys: Sequence[bytes | None] | None
    values: Sequence[bytes | None]
    timestamps: Sequence[int] | int
    headers: Sequence[Headers] | None = None
    offsets: Sequence[int] | None = None

    def rows(self, start: int, end: int) -> "Columns":
        """Return the rows from `start` to before `end`, without offsets."""
        stamps, rows = self.timestamps, slice(start, end)
        return Columns(
            len(range(self.count)[rows]),
            None if self.keys is None else self.keys[rows],
            self.values[rows],
            stamps if isinstance(stamps, int) else stamps[rows],
            None if self.headers is None else self.headers[rows],
        )

    def take(self, indices: Sequence[int]) -> "Columns":
        """Return the rows at these places, without offsets."""
        stamps, keys, headers = self.timestamps, self.keys, self.headers
        return Columns(
            len(indices),
            None if keys is None else [keys[index] for index in indices],
            [self.values[index] for index in indices],
            stamps if isinstance(stamps, int) else [stamps[index] for index in indices],
            None if headers is None else [headers[index] for index in indices],
        )


_Length = Meta(max_length=MAX_RECORDS)
_Delta = Annotated[int, Meta(ge=0, le=MAX_DELTA)]


class _Body(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The body in MessagePack; the tags decide how the second element is read.

    A `bin` is read as a view of the body: it is not copied.
    """

    keys: tuple[int, memoryview | None]
    values: tuple[int, memoryview | None]
    timestamps: tuple[int, memoryview | _Delta]
    headers: tuple[int, Annotated[list[Headers], _Length] | None]
    offsets: tuple[int, Annotated[list[int], _Length] | None]


_encode: Final = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(_Body)


# -- writing ------------------------------------------------------------------------------------------


def check_columns(columns: Columns) -> None:
    """Refuse columns that could be written but not read again. Raises BatchTooLarge, CorruptBatch."""
    count = columns.count
    if count > MAX_RECORDS:
        raise BatchTooLarge(f"{count} records exceed the {MAX_RECORDS} that a batch may have")
    per_row = (columns.keys, columns.values, columns.timestamps, columns.headers, columns.offsets)
    for rows in per_row:
        if rows is None or isinstance(rows, int) or len(rows) == count > 0:
            continue
        raise CorruptBatch(f"a column of {len(rows)} rows does not make a batch of {count}")
    _check_offsets(columns.offsets)


def pack_parts(columns: Columns, base_timestamp: int) -> list[_Bytes]:
    """Return the body of columns that `check_columns` has passed, none of them before `base_timestamp`.

    It is in parts, so that packed columns are copied only once, when the parts are joined.
    """
    stamps = columns.timestamps
    times: tuple[int, object]
    if isinstance(stamps, int):
        times = (CONSTANT, stamps - base_timestamp)
    else:
        times = (PACKED, _encode_deltas(stamps, base_timestamp))
    headers = (LIST, columns.headers) if columns.headers and any(columns.headers) else _ABSENT
    offsets = _ABSENT if columns.offsets is None else (LIST, columns.offsets)
    return [
        _FIVE_COLUMNS,
        *([_encode(_ABSENT)] if columns.keys is None else _cell_parts(columns.keys)),
        *_cell_parts(columns.values),
        *map(_encode, (times, headers, offsets)),
    ]


def _cell_parts(cells: Sequence[bytes | None]) -> list[_Bytes]:
    """A column of keys or values, as MessagePack."""
    if _is_constant(cells):  # first: together such cells may be larger than the memory
        return [_encode((CONSTANT, cells[0]))]
    parts = encoded(cells if isinstance(cells, BinaryColumn) else BinaryColumn.of(cells))
    return [_PACKED_COLUMN, bin_header(sum(map(len, parts))), *parts]


def _is_constant(cells: Sequence[bytes | None]) -> bool:
    if isinstance(cells, BinaryColumn):
        return cells.is_constant()
    first = cells[0]
    return first == cells[-1] and cells.count(first) == len(cells)


def encoded(column: BinaryColumn) -> list[bytes | memoryview]:
    """Return the `bin` that `BinaryColumn.decode` reads, in parts; no cell is copied."""
    run = column.run()
    if column.size:
        return [bytes((_SAME,)) + column.size.to_bytes(4, "little"), run]
    # Columns are small and many: `np.diff` takes three times as long for such.
    lengths = column.offsets[1:] - column.offsets[:-1]
    longest = int(lengths.max())
    if column.nulls is None and longest == int(lengths.min()):
        return [bytes((_SAME,)) + longest.to_bytes(4, "little"), run]
    width = 1 if longest < 0xFF else 2 if longest < 0xFFFF else 4
    form = width
    if column.nulls is not None:
        form |= _NILS
        lengths = np.where(column.nulls, (1 << 8 * width) - 1, lengths)
    return [bytes((form,)), lengths.astype(_TYPES[width]).tobytes(), run]


def _encode_deltas(stamps: Sequence[int], base: int) -> bytes:
    """The `bin` of timestamps, none of them before `base`."""
    deltas = np.asarray(stamps, np.int64) - base
    longest = int(deltas.max())
    width = next(width for width in _DELTAS if longest < 1 << 8 * width or width == 8)
    return bytes((width,)) + deltas.astype(_DELTAS[width]).tobytes()


def bin_header(size: int) -> bytes:
    """The head of a MessagePack `bin` of that many bytes."""
    if size < 1 << 8:
        return struct.pack(">BB", 0xC4, size)
    return struct.pack(">BH", 0xC5, size) if size < 1 << 16 else struct.pack(">BI", 0xC6, size)


# -- reading ------------------------------------------------------------------------------------------


def unpack(body: _Bytes, count: int, base_timestamp: int) -> Columns:
    """Return the columns of a body that must have `count` rows. Raises CorruptBatch."""
    try:
        read = _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, MemoryError) as error:
        raise CorruptBatch(f"a batch's body does not have its five columns: {error}") from None
    keys = _cells("keys", read.keys, count)
    values = _cells("values", read.values, count)
    offsets = _rows("offsets", read.offsets, count)
    _check_offsets(offsets)
    return Columns(
        count=count,
        keys=keys,
        values=[None] * count if values is None else values,
        timestamps=_stamps(read.timestamps, count, base_timestamp),
        headers=_rows("headers", read.headers, count),
        offsets=offsets,
    )


def _cells(
    name: str, column: tuple[int, memoryview | None], count: int
) -> Sequence[bytes | None] | None:
    """A column of keys or values; None if all rows are nil."""
    tag, payload = column
    if tag == PACKED and payload is not None:
        return BinaryColumn.decode(payload, count)
    if tag != CONSTANT:
        raise _not_rows(name, count)
    return None if payload is None else [bytes(payload)] * count


def _stamps(column: tuple[int, memoryview | int], count: int, base: int) -> "array[int] | int":
    tag, payload = column
    if tag == PACKED and isinstance(payload, memoryview):
        return _decode_deltas(payload, count, base)
    if tag == CONSTANT and isinstance(payload, int):
        return base + payload
    raise _not_rows("timestamps", count)


def _rows(name: str, column: tuple[int, list[_C] | None], count: int) -> list[_C] | None:
    """A column of headers or offsets; None if no row has any."""
    tag, payload = column
    if tag == CONSTANT and payload is None:
        return None
    if tag == LIST and payload is not None and len(payload) == count:
        return payload
    raise _not_rows(name, count)


def _not_rows(name: str, count: int) -> CorruptBatch:
    return CorruptBatch(f"a batch's column of {name} does not have {count} rows")


def _decode_deltas(column: memoryview, count: int, base: int) -> "array[int]":
    width = column[0] if len(column) else 0
    if width not in _DELTAS or len(column) != 1 + count * width:
        raise CorruptBatch(f"binary timestamps are not those of {count} rows")
    deltas = np.frombuffer(column[1:], _DELTAS[width]).astype(np.int64)
    if width == 8 and not 0 <= int(deltas.min()) <= int(deltas.max()) <= MAX_DELTA:
        raise CorruptBatch("binary timestamps are outside their range")
    return array("q", (deltas + base).tobytes())


def _check_run(size: int, expected: int) -> None:
    if size != expected:
        raise CorruptBatch(f"a binary column has {size} bytes for cells of {expected}")


def _check_offsets(offsets: Sequence[int] | None) -> None:
    if offsets is None:
        return
    within = offsets[0] >= 0 and offsets[-1] <= MAX_OFFSET_DELTA
    if not within or not all(map(lt, offsets, offsets[1:])):
        raise CorruptBatch("a batch's offset deltas do not rise, or leave their range")


# -- the sizes of cells -------------------------------------------------------------------------------


def lengths_of(cells: Sequence[Any]) -> Int64s:
    """Return the length of each cell. Raises TypeError for None."""
    try:  # a fourth quicker than numpy, and nearly all cells are shorter than 256 bytes
        return np.frombuffer(bytes(map(len, cells)), np.uint8).astype(np.int64)
    except ValueError:
        return np.fromiter(map(len, cells), np.int64, len(cells))


def bytes_of(cells: Sequence[bytes | None]) -> int:
    """Return the bytes of all cells together."""
    if isinstance(cells, BinaryColumn):
        return len(cells.run())
    try:
        return sum(map(len, cells))  # type: ignore[arg-type]  # None is the rare case below
    except TypeError:
        return sum(len(cell) for cell in cells if cell is not None)


def ends(lengths: Int64s) -> Int64s:
    """Return the offsets of cells with these lengths: one more than there are cells, from 0 on."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _even_ends(count: int, size: int) -> npt.NDArray[np.int32]:
    """`ends` of that many cells of one size, read-only."""
    offsets = (
        np.arange(0, count * size + 1, size, dtype=_INT32) if size else np.zeros(count + 1, _INT32)
    )
    offsets.flags.writeable = False
    return offsets


_shared_even_ends = lru_cache(maxsize=16)(_even_ends)
"""Many batches are alike."""
