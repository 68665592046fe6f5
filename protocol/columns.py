"""The body of a record batch: MessagePack columns, each one value for all rows or one value per row.

```
body = [keys, values, timestamps, headers, offsets]
column = [0, value]          the same value in every row
       | [1, [value, …]]     one value per row
```

`timestamps` are deltas to the header's base timestamp, `offsets` deltas to its base offset; dense
offsets are the column `[0, nil]`. msgspec packs and checks the types in one pass in C; the bytes are
plain MessagePack (a test reads them with `msgpack`).
"""

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from folkmoot.protocol.errors import CorruptBatch
from folkmoot.protocol.records import Headers

CONSTANT = 0
PER_ROW = 1

_Bytes = bytes | bytearray | memoryview
_Cells = list[bytes | None] | bytes | None
_Integers = list[int] | int | None
_HeaderCells = list[Headers | None] | None
_C = TypeVar("_C")


class Columns(msgspec.Struct, frozen=True):
    """A batch's records, column by column; all lists have one length, `count`.

    `keys` and `headers` are None when no row has any; `offsets` is None when they are dense, else
    strictly increasing deltas. `timestamps` are milliseconds since the epoch, per row or one for all.
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
    timestamps: tuple[int, _Integers]
    headers: tuple[int, _HeaderCells]
    offsets: tuple[int, _Integers]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Body)


def pack(columns: Columns, base_timestamp: int) -> bytes:
    """The body for `columns`. Timestamps may not lie before `base_timestamp`."""
    stamps = columns.timestamps
    if isinstance(stamps, int):
        times: tuple[int, object] = (CONSTANT, stamps - base_timestamp)
    else:
        times = (PER_ROW, [stamp - base_timestamp for stamp in stamps])
    return _encoder.encode(
        (
            (CONSTANT, None) if columns.keys is None else (PER_ROW, columns.keys),
            (PER_ROW, columns.values),
            times,
            (CONSTANT, None) if columns.headers is None else (PER_ROW, columns.headers),
            (CONSTANT, None) if columns.offsets is None else (PER_ROW, columns.offsets),
        )
    )


def unpack(body: _Bytes, count: int, base_timestamp: int) -> Columns:
    """The columns of a body that must have `count` rows. Raises CorruptBatch."""
    try:
        packed = _decoder.decode(body)
    except (msgspec.MsgspecError, MemoryError) as error:
        raise CorruptBatch(f"a batch's body is not what it should be: {error}") from None
    keys = _rows("keys", packed.keys, count)
    values = _rows("values", packed.values, count)
    deltas = _rows("timestamps", packed.timestamps, count)
    headers = _rows("headers", packed.headers, count)
    offsets = _rows("offsets", packed.offsets, count)
    if deltas is None:
        raise CorruptBatch("a batch's timestamps are missing")
    if isinstance(offsets, int):
        raise CorruptBatch("a batch's offset deltas are not a list")
    return Columns(
        count=count,
        keys=[keys] * count if isinstance(keys, bytes) else keys,
        values=values if isinstance(values, list) else [values] * count,
        timestamps=(
            base_timestamp + deltas
            if isinstance(deltas, int)
            else [base_timestamp + delta for delta in deltas]
        ),
        headers=None if headers is None else [row or () for row in headers],
        offsets=offsets,
    )


def _rows(name: str, column: tuple[int, _C], count: int) -> _C:
    """The column's payload, after checking that tag, type and length agree."""
    tag, cells = column
    if tag == PER_ROW and isinstance(cells, list) and len(cells) == count:
        return cells
    if tag == CONSTANT and not isinstance(cells, list):
        return cells
    raise CorruptBatch(f"a batch's column of {name} does not have {count} rows")
