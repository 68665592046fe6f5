"""Columns as one run of bytes: keys and values with the lengths of their cells, timestamps as numbers.

```
keys, values = form (1 byte) | lengths | all cells, back to back
   form 0          all cells have one length: 4 bytes
   form 1, 2, 4    the length of each cell, that many bytes wide
   form + 128      the same, and the length whose bits are all ones is a nil
timestamps   = width (1 byte: 1, 2, 4 or 8) | delta of each row (width bytes) …
```

Little-endian, as Arrow and numpy have it, which take such a column as it lies: cells are told apart
without looking at each one. As Python objects they are made in C, one at a time when they are asked
for, or all at once where they have one length. Timestamps are cheaper this way in every case, since
numpy adds and subtracts the base of all of them at once.
"""

from array import array
from collections.abc import Iterator, Sequence
from functools import lru_cache
from io import BytesIO
from itertools import chain
from typing import Any, Final, Self, overload

import numpy as np
import numpy.typing as npt

from folkmoot.protocol.errors import CorruptBatch

MAX_DELTA: Final = 2**62

_MOST_EVEN: Final = 16_384
_EVEN_RUNS: Final = 32
"""Each of them four times the former in bytes at most."""

_SAME: Final = 0
_NILS: Final = 0x80
_SAME_START: Final = 5
_TYPES: Final[dict[int, np.dtype[Any]]] = {
    1: np.dtype("<u1"),
    2: np.dtype("<u2"),
    4: np.dtype("<u4"),
}
_DELTAS: Final[dict[int, np.dtype[Any]]] = {**_TYPES, 8: np.dtype("<i8")}

_Bytes = bytes | bytearray | memoryview
Int64s = npt.NDArray[np.int64]
Offsets = npt.NDArray[np.int64] | npt.NDArray[np.int32]


class Packed(Sequence[bytes | None]):
    """A sequence of cells; cell i is `data[offsets[i]:offsets[i + 1]]`, or None where `nulls` is true.

    `size` is the one length of all cells where that is known and nothing is nil, else None. A slice
    shares all bytes. Immutable, as are the arrays given to it.
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
        """The same cells, packed."""
        nulls = None
        try:
            data = b"".join(cells)  # type: ignore[arg-type]  # None is the rare case below
        except TypeError:
            nulls = np.fromiter((cell is None for cell in cells), np.bool_, len(cells))
            cells = [cell or b"" for cell in cells]
            data = b"".join(cell or b"" for cell in cells)
        return cls(ends(_lengths(cells)), data, nulls)  # type: ignore[arg-type]

    @classmethod
    def decode(cls, packed: memoryview, count: int) -> Self:
        """The cells of a column that must have `count` rows; they share its bytes.

        Raises CorruptBatch.
        """
        form = packed[0] if len(packed) else -1
        if form == _SAME and len(packed) >= _SAME_START:
            size = int.from_bytes(packed[1:_SAME_START], "little")
            _check_run(len(packed) - _SAME_START, count * size)
            return cls(_even_ends(count, size), packed[_SAME_START:], None, size)
        width = form & ~_NILS
        start = 1 + count * width
        if form < 0 or width not in _TYPES or len(packed) < start:
            raise CorruptBatch(f"a packed column does not have the lengths of {count} cells")
        lengths = np.frombuffer(packed, _TYPES[width], count, 1)
        nulls = None
        if form & _NILS:
            nulls = lengths == (1 << 8 * width) - 1
            lengths = np.where(nulls, _TYPES[width].type(0), lengths)
        _check_run(len(packed) - start, int(lengths.sum(dtype=np.int64)))
        offsets = np.zeros(count + 1, np.int32)  # Arrow's; no body is longer
        np.cumsum(lengths, dtype=np.int32, out=offsets[1:])
        return cls(offsets, packed[start:], nulls)

    def encode(self) -> bytes:
        """What `decode` reads."""
        return b"".join(encoded([self]))

    def is_constant(self) -> bool:
        """Whether all rows have one value. Columns that vary mostly differ at the ends."""
        first = self[0]
        if first != self[-1]:
            return False
        if self.nulls is not None:
            return first is None and bool(self.nulls.all())
        assert first is not None
        run = self.run()
        return len(run) == len(first) * len(self) and run == first * len(self)

    def rows(self, start: int, end: int) -> "Packed":
        """The cells from `start` to `end`, as by a slice."""
        nulls = None if self.nulls is None else self.nulls[start:end]
        return Packed(self.offsets[start : end + 1], self.data, nulls, self.size)

    def run(self) -> memoryview:
        """The bytes of all cells, back to back."""
        return memoryview(self.data)[self.offsets[0] : self.offsets[-1]]

    def tolist(self) -> list[bytes | None]:
        cells: list[bytes | None]
        if self.size:
            cells = np.frombuffer(self.run(), np.dtype((np.void, self.size))).tolist()
            return cells
        cells = list(self._read())
        if self.nulls is not None:
            for position in np.flatnonzero(self.nulls).tolist():
                cells[position] = None
        return cells

    def _read(self) -> Iterator[bytes]:
        # Reading cell after cell costs a third of slicing: no pair of ends, no slice object.
        return map(BytesIO(self.run()).read, np.diff(self.offsets).tolist())

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __iter__(self) -> Iterator[bytes | None]:
        if self.size or self.nulls is not None:
            return iter(self.tolist())
        return self._read()  # each made when it is asked for: its memory is still in the cache

    @overload
    def __getitem__(self, place: int) -> bytes | None: ...

    @overload
    def __getitem__(self, place: slice) -> "Packed": ...

    def __getitem__(self, place: int | slice) -> Any:
        if isinstance(place, slice):
            start, end, step = place.indices(len(self))
            if step != 1:
                raise ValueError("a packed column is sliced without a step")
            return self.rows(start, max(start, end))
        position = range(len(self))[place]
        if self.nulls is not None and self.nulls[position]:
            return None
        return bytes(memoryview(self.data)[self.offsets[position] : self.offsets[position + 1]])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self.tolist() == list(other)

    def __repr__(self) -> str:
        return f"Packed({self.tolist()!r})"


class PackedRuns(Sequence[bytes | None]):
    """The cells of several packed columns, one after the other, to be written without joining them."""

    __slots__ = ("_count", "parts")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, parts: Sequence[Packed]) -> None:
        self.parts = parts
        self._count = sum(map(len, parts))

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: int) -> bytes | None: ...

    @overload
    def __getitem__(self, place: slice) -> list[bytes | None]: ...

    def __getitem__(self, place: int | slice) -> Any:
        if isinstance(place, slice):
            return self.tolist()[place]
        position = range(self._count)[place]
        for part in self.parts:
            if position < len(part):
                return part[position]
            position -= len(part)
        raise AssertionError("the parts have fewer cells than were counted")

    def __iter__(self) -> Iterator[bytes | None]:
        return chain.from_iterable(self.parts)

    def tolist(self) -> list[bytes | None]:
        return list(self)

    def is_constant(self) -> bool:
        """Whether all rows have one value."""
        first = self.parts[0][0]
        return first == self.parts[-1][-1] and all(
            part[0] == first and part.is_constant() for part in self.parts
        )


def encoded(parts: Sequence[Packed]) -> list[bytes | memoryview]:
    """What `Packed.decode` reads, of the cells of all parts; nothing of them is copied."""
    runs = [part.run() for part in parts]
    size = parts[0].size
    if size and all(part.size == size for part in parts):
        return [bytes((_SAME,)) + size.to_bytes(4, "little"), *runs]
    # Parts are small and many: `np.diff` takes three times as long for such.
    lengths = np.concatenate([part.offsets[1:] - part.offsets[:-1] for part in parts])
    longest = int(lengths.max())
    nils = any(part.nulls is not None for part in parts)
    if not nils and longest == int(lengths.min()):
        return [bytes((_SAME,)) + longest.to_bytes(4, "little"), *runs]
    width = 1 if longest < 0xFF else 2 if longest < 0xFFFF else 4
    form = width
    if nils:
        form |= _NILS
        nulls = [np.zeros(len(p), np.bool_) if p.nulls is None else p.nulls for p in parts]
        lengths = np.where(np.concatenate(nulls), (1 << 8 * width) - 1, lengths)
    return [bytes((form,)), lengths.astype(_TYPES[width]).tobytes(), *runs]


def _lengths(cells: Sequence[bytes]) -> Int64s:
    try:  # a fourth quicker than numpy, and nearly all cells are short
        return np.frombuffer(bytes(map(len, cells)), np.uint8).astype(np.int64)
    except ValueError:
        return np.fromiter(map(len, cells), np.int64, len(cells))


def _check_run(found: int, expected: int) -> None:
    if found != expected:
        raise CorruptBatch(f"a packed column has {found} bytes for cells of {expected}")


def ends(lengths: Int64s) -> Int64s:
    """Offsets of cells with these lengths: one more than there are cells, from 0 on."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _even_ends(count: int, size: int) -> npt.NDArray[np.int32]:
    """`ends` of that many cells of one size, which many batches have: made once, to be read only."""
    if count > _MOST_EVEN:
        return np.arange(count + 1, dtype=np.int32) * np.int32(size)
    return _run_of_ends(1 << (count - 1).bit_length(), size)[: count + 1]


@lru_cache(_EVEN_RUNS)
def _run_of_ends(count: int, size: int) -> npt.NDArray[np.int32]:
    run = np.arange(count + 1, dtype=np.int32) * np.int32(size)
    run.flags.writeable = False
    return run


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
    return array("q", (deltas + base).tobytes())
