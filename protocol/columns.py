"""The body of a record batch: MessagePack columns, each one value for all rows or one per row.

```
body = [keys, values, timestamps, headers, offsets]
column = [0, value]          the same value in every row
       | [1, [value, …]]     one value per row
       | [2, bin]            one value per row, packed (see packed.py); keys, values, timestamps
```

`timestamps` are deltas to the header's base timestamp, `offsets` deltas to its base offset, neither
negative. What no row has is the column `[0, nil]`: dense offsets, no keys, no headers; a row that
has no headers among others that do is an empty array. msgspec packs and checks the types in one pass
in C; the bytes are plain MessagePack (a test reads them with `msgpack`).

A few bytes can unfold into many rows (`[0, value]`, or a compressed run of nils), so the length of a
list is compared with MAX_RECORDS before any of it is made.
"""

import struct
from array import array
from collections.abc import Sequence
from operator import lt
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta

from folkmoot.protocol.batch_header import MAX_RECORDS
from folkmoot.protocol.errors import BatchTooLarge, CorruptBatch
from folkmoot.protocol.packed import (
    MAX_DELTA,
    Packed,
    PackedRuns,
    decode_deltas,
    encode_deltas,
    encoded,
)
from folkmoot.protocol.records import Headers

CONSTANT: Final = 0
PER_ROW: Final = 1
PACKED: Final = 2
MAX_OFFSET_DELTA: Final = 2**32 - 1

_ABSENT = (CONSTANT, None)
_FIVE_COLUMNS: Final = b"\x95"
_PACKED_COLUMN: Final = b"\x92\x02"
_FEW: Final = (list, tuple)
_Bytes = bytes | bytearray | memoryview
_Length = Meta(max_length=MAX_RECORDS)
_TimeDelta = Annotated[int, Meta(ge=0, le=MAX_DELTA)]
# As a view of the body: a packed column is not copied.
_Cells = Annotated[list[bytes | None], _Length] | memoryview | None
_TimeDeltas = Annotated[list[_TimeDelta], _Length] | memoryview | _TimeDelta
_OffsetDeltas = Annotated[list[int], _Length] | None
_HeaderCells = Annotated[list[Headers], _Length] | None
_C = TypeVar("_C")


class Columns(msgspec.Struct, frozen=True):
    """A batch's records, column by column; all lists have one length, `count`.

    `keys` and `headers` are None when no row has any; `offsets` is None when they are dense, else
    strictly increasing deltas. `timestamps` are milliseconds since the epoch, per row or one for
    all. `keys` and `values` may be `Packed` and `timestamps` an array of type q: then they are
    written packed; what was written so is read to the same types.
    """

    count: int
    keys: Sequence[bytes | None] | None
    values: Sequence[bytes | None]
    timestamps: Sequence[int] | int
    headers: Sequence[Headers] | None = None
    offsets: Sequence[int] | None = None


class _Body(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The body as MessagePack has it; the tags decide how the second element is read."""

    keys: tuple[int, _Cells]
    values: tuple[int, _Cells]
    timestamps: tuple[int, _TimeDeltas]
    headers: tuple[int, _HeaderCells]
    offsets: tuple[int, _OffsetDeltas]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Body)


def pack(columns: Columns, base_timestamp: int) -> bytes:
    """The body for columns that `check_columns` has passed, none of them before `base_timestamp`."""
    return b"".join(pack_parts(columns, base_timestamp))


def pack_parts(columns: Columns, base_timestamp: int) -> list[_Bytes]:
    """The body in parts, so that packed columns are copied once, when all is joined."""
    stamps = columns.timestamps
    times: tuple[int, object]
    if isinstance(stamps, int):
        times = (CONSTANT, stamps - base_timestamp)
    elif isinstance(stamps, array):
        times = (PACKED, encode_deltas(stamps, base_timestamp))
    else:
        times = (PER_ROW, [stamp - base_timestamp for stamp in stamps])
    headers = (PER_ROW, columns.headers) if columns.headers and any(columns.headers) else _ABSENT
    offsets = _ABSENT if columns.offsets is None else (PER_ROW, columns.offsets)
    keys, values = columns.keys, columns.values
    # Asked in this order: whether something is no `Packed`, a sequence like any other, takes long to tell.
    if isinstance(values, _FEW) and (keys is None or isinstance(keys, _FEW)):
        few = _ABSENT if keys is None else _column(keys), _column(values)
        return [_encoder.encode((*few, times, headers, offsets))]
    return [
        _FIVE_COLUMNS,
        *([_encoder.encode(_ABSENT)] if keys is None else _cell_parts(keys)),
        *_cell_parts(values),
        *map(_encoder.encode, (times, headers, offsets)),
    ]


def unpack(body: _Bytes, count: int, base_timestamp: int) -> Columns:
    """The columns of a body that must have `count` rows. Raises CorruptBatch."""
    try:
        packed = _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, MemoryError) as error:
        raise CorruptBatch(f"a batch's body is not what it should be: {error}") from None
    keys = _cells("keys", packed.keys, count)
    values = _cells("values", packed.values, count)
    offsets = _rows("offsets", packed.offsets, count)
    if offsets is not None and not _rising(offsets):
        raise CorruptBatch("a batch's offset deltas do not rise, or leave their range")
    return Columns(
        count=count,
        keys=keys,
        values=[None] * count if values is None else values,
        timestamps=_stamps(packed.timestamps, count, base_timestamp),
        headers=_rows("headers", packed.headers, count),
        offsets=offsets,
    )


def is_constant(cells: Sequence[object]) -> bool:
    """Whether all rows have one value. Columns that vary mostly differ at the ends: a cheap look."""
    first = cells[0]
    return first == cells[-1] and cells.count(first) == len(cells)


def check_columns(columns: Columns) -> None:
    """Refuses what could be written but not read again. Raises BatchTooLarge, CorruptBatch."""
    count = columns.count
    if count > MAX_RECORDS:
        raise BatchTooLarge(f"{count} records exceed the {MAX_RECORDS} that a batch may have")
    per_row = (columns.keys, columns.values, columns.timestamps, columns.headers, columns.offsets)
    for rows in per_row:
        if rows is None or isinstance(rows, int) or len(rows) == count > 0:
            continue
        raise CorruptBatch(f"a column of {len(rows)} rows does not make a batch of {count}")
    if columns.offsets is not None and not _rising(columns.offsets):
        raise CorruptBatch("a batch's offset deltas do not rise, or leave their range")


def _column(cells: Sequence[bytes | None]) -> tuple[int, object]:
    return (CONSTANT, cells[0]) if is_constant(cells) else (PER_ROW, cells)


def _cell_parts(cells: Sequence[bytes | None]) -> list[_Bytes]:
    """A column of keys or values, as MessagePack."""
    if not isinstance(cells, Packed | PackedRuns):
        return [_encoder.encode(_column(cells))]
    if cells.is_constant():
        return [_encoder.encode((CONSTANT, cells[0]))]
    parts = encoded(cells.parts if isinstance(cells, PackedRuns) else [cells])
    size = sum(map(len, parts))
    return [_PACKED_COLUMN, bin_header(size), *parts]


def array_header(count: int) -> bytes:
    """What MessagePack writes before that many elements."""
    if count < 1 << 4:
        return struct.pack(">B", 0x90 | count)
    return struct.pack(">BH", 0xDC, count) if count < 1 << 16 else struct.pack(">BI", 0xDD, count)


def bin_header(size: int) -> bytes:
    """What MessagePack writes before that many bytes."""
    if size < 1 << 8:
        return struct.pack(">BB", 0xC4, size)
    return struct.pack(">BH", 0xC5, size) if size < 1 << 16 else struct.pack(">BI", 0xC6, size)


def _rising(offsets: Sequence[int]) -> bool:
    within = offsets[0] >= 0 and offsets[-1] <= MAX_OFFSET_DELTA
    return within and all(map(lt, offsets, offsets[1:]))


def _cells(
    name: str, column: tuple[int, list[bytes | None] | memoryview | None], count: int
) -> Sequence[bytes | None] | None:
    """A column of keys or values, whichever way it says them; None if all rows are nil."""
    tag, packed = column
    if tag == PACKED and isinstance(packed, memoryview):
        return Packed.decode(packed, count)
    cells = _rows(name, column, count)
    return [bytes(cells)] * count if isinstance(cells, memoryview) else cells


def _stamps(
    column: tuple[int, list[int] | memoryview | int], count: int, base: int
) -> Sequence[int] | int:
    tag, packed = column
    if tag == PACKED and isinstance(packed, memoryview):
        return decode_deltas(packed, count, base)
    deltas = _rows("timestamps", column, count)
    if isinstance(deltas, memoryview):
        raise CorruptBatch("a batch's timestamps are not numbers")
    return base + deltas if isinstance(deltas, int) else [base + delta for delta in deltas]


def _rows(name: str, column: tuple[int, _C], count: int) -> _C:
    """The column's payload, after checking that tag, type and length agree."""
    tag, cells = column
    if tag == PER_ROW and isinstance(cells, list) and len(cells) == count:
        return cells
    if tag == CONSTANT and not isinstance(cells, list):
        return cells
    raise CorruptBatch(f"a batch's column of {name} does not have {count} rows")
