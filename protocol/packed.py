"""Columns as one run of bytes: keys and values with the lengths of their cells, timestamps as numbers.

```
keys, values = width (1 byte: 1, 2 or 4) | length of each cell (width bytes, little-endian) … | all cells
timestamps   = width (1 byte: 1, 2, 4 or 8) | delta of each row (width bytes, little-endian) …
```

The length whose bits are all ones is a nil. Cells can be told apart without looking at each one, so
Arrow and numpy take such a column as it lies; making a list of it costs about 1.7 times of what
MessagePack's own list costs. Hence `send` writes lists and `send_batch` writes this. Timestamps are
cheaper this way in every case, since numpy adds and subtracts the base of all of them at once.
"""

from array import array
from collections.abc import Iterator, Sequence
from io import BytesIO
from typing import Any, Final, Self, overload

import numpy as np
import numpy.typing as npt

from folkmoot.protocol.errors import CorruptBatch

MAX_DELTA: Final = 2**62

_TYPES: Final[dict[int, np.dtype[Any]]] = {
    1: np.dtype("<u1"),
    2: np.dtype("<u2"),
    4: np.dtype("<u4"),
}
_DELTAS: Final[dict[int, np.dtype[Any]]] = {**_TYPES, 8: np.dtype("<i8")}

_Bytes = bytes | bytearray | memoryview
Int64s = npt.NDArray[np.int64]


class Packed(Sequence[bytes | None]):
    """A sequence of cells; cell i is `data[offsets[i]:offsets[i + 1]]`, or None where `nulls` is true.

    A slice of it shares all bytes. Immutable, as are the arrays given to it.
    """

    __slots__ = ("data", "nulls", "offsets")
    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self, offsets: Int64s, data: _Bytes, nulls: npt.NDArray[np.bool_] | None = None
    ) -> None:
        self.offsets = offsets
        self.data = data
        self.nulls = nulls

    @classmethod
    def of(cls, cells: Sequence[bytes | None]) -> Self:
        """The same cells, packed."""
        nulls = None
        try:
            data = b"".join(cells)  # type: ignore[arg-type]  # None is the rare case below
        except TypeError:
            nulls = np.fromiter((cell is None for cell in cells), np.bool_, len(cells))
            cells = [cell or b"" for cell in cells]
            data = b"".join(cell or b"" for cell in cells)
        lengths = np.fromiter(map(len, cells), np.int64, len(cells))  # type: ignore[arg-type]
        return cls(ends(lengths), data, nulls)

    @classmethod
    def joined(cls, parts: Sequence["Packed"]) -> "Packed":
        """The cells of all parts, one after the other."""
        if len(parts) == 1:
            return parts[0]
        nulls = None
        if any(part.nulls is not None for part in parts):
            nulls = np.concatenate(
                [np.zeros(len(p), np.bool_) if p.nulls is None else p.nulls for p in parts]
            )
        lengths = np.concatenate([np.diff(part.offsets) for part in parts])
        return cls(ends(lengths), b"".join(part.run() for part in parts), nulls)

    @classmethod
    def decode(cls, packed: memoryview, count: int) -> Self:
        """The cells of a column that must have `count` rows; they share its bytes.

        Raises CorruptBatch.
        """
        width = packed[0] if len(packed) else 0
        start = 1 + count * width
        if width not in _TYPES or len(packed) < start:
            raise CorruptBatch(f"a packed column does not have the lengths of {count} cells")
        lengths = np.frombuffer(packed[1:start], _TYPES[width]).astype(np.int64)
        absent = lengths == (1 << 8 * width) - 1
        nulls = None
        if absent.any():
            nulls = absent
            lengths[absent] = 0
        offsets = ends(lengths)
        if offsets[-1] != len(packed) - start:
            raise CorruptBatch(
                f"a packed column has {len(packed) - start} bytes for cells of {offsets[-1]}"
            )
        return cls(offsets, packed[start:], nulls)

    def encode(self) -> bytes:
        """What `decode` reads."""
        lengths = np.diff(self.offsets)
        longest = int(lengths.max())
        width = 1 if longest < 0xFF else 2 if longest < 0xFFFF else 4
        if self.nulls is not None:
            lengths[self.nulls] = (1 << 8 * width) - 1
        return b"".join((bytes((width,)), lengths.astype(_TYPES[width]).tobytes(), self.run()))

    def run(self) -> memoryview:
        """The bytes of all cells, back to back."""
        return memoryview(self.data)[self.offsets[0] : self.offsets[-1]]

    def tolist(self) -> list[bytes | None]:
        # Reading cell after cell costs a third of slicing: no pair of ends, no slice object.
        cells: list[bytes | None]
        cells = list(map(BytesIO(self.run()).read, np.diff(self.offsets).tolist()))
        if self.nulls is not None:
            for position in np.flatnonzero(self.nulls).tolist():
                cells[position] = None
        return cells

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __iter__(self) -> Iterator[bytes | None]:
        return iter(self.tolist())

    @overload
    def __getitem__(self, place: int) -> bytes | None: ...

    @overload
    def __getitem__(self, place: slice) -> "Packed": ...

    def __getitem__(self, place: int | slice) -> Any:
        if isinstance(place, slice):
            start, end, step = place.indices(len(self))
            if step != 1:
                raise ValueError("a packed column is sliced without a step")
            end = max(start, end)
            nulls = None if self.nulls is None else self.nulls[start:end]
            return Packed(self.offsets[start : end + 1], self.data, nulls)
        position = range(len(self))[place]
        if self.nulls is not None and self.nulls[position]:
            return None
        return bytes(memoryview(self.data)[self.offsets[position] : self.offsets[position + 1]])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self.tolist() == list(other)

    def __repr__(self) -> str:
        return f"Packed({self.tolist()!r})"


def ends(lengths: Int64s) -> Int64s:
    """Offsets of cells with these lengths: one more than there are cells, from 0 on."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def encode_deltas(stamps: "array[int]", base: int) -> bytes:
    """Timestamps, none of them before `base`, as `decode_deltas` reads them."""
    deltas = np.frombuffer(stamps, np.int64) - base
    longest = int(deltas.max())
    width = next(width for width in _DELTAS if longest < 1 << 8 * width or width == 8)
    return bytes((width,)) + deltas.astype(_DELTAS[width]).tobytes()


def decode_deltas(packed: memoryview, count: int, base: int) -> "array[int]":
    """The timestamps of `count` rows. Raises CorruptBatch."""
    width = packed[0] if len(packed) else 0
    if width not in _DELTAS or len(packed) != 1 + count * width:
        raise CorruptBatch(f"packed timestamps are not those of {count} rows")
    deltas = np.frombuffer(packed[1:], _DELTAS[width]).astype(np.int64)
    if width == 8 and not 0 <= int(deltas.min()) <= int(deltas.max()) <= MAX_DELTA:
        raise CorruptBatch("packed timestamps are outside their range")
    stamps = array("q")
    stamps.frombytes((deltas + base).tobytes())
    return stamps
