"""Columns of keys or values: checked once, then moved by numpy and Arrow.

An Arrow array cannot change and is kept as it is; a list is copied. Nothing is looked at row by row in
Python; the length of a nil is -1.
"""

import sys
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from operator import itemgetter
from typing import Any, Final, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from folkmoot.protocol.columns import (
    BinaryColumn,
    Int64s,
    array_header,
    bin_header,
    ends,
    lengths_of,
)

NIL: Final = -1
SAMPLE: Final = 64
SAMPLE_OF_LENGTHS: Final = 8

encode: Final = msgspec.msgpack.Encoder().encode


class Cells(Protocol):
    """A column. `size` is the one length of all its cells, where that is known and not 0."""

    @property
    def size(self) -> int | None: ...

    def __len__(self) -> int: ...

    @property
    def lengths(self) -> Int64s:
        """Of each cell, NIL where there is none."""

    def take(self, order: Int64s) -> "Cells": ...

    def packed(self) -> BinaryColumn: ...

    def run(self) -> bytes | memoryview:
        """The bytes of all cells, back to back; there are no nils."""

    @property
    def column(self) -> Any:
        """What a partitioner of the application's own gets: a sequence, or the Arrow array."""


class SameCells:
    """Cells of one length at even distances, as most keys and many values can be had: to numpy they are
    numbers of so many bytes, and it moves them three to five times as fast as anything moves cells that
    differ.

    Cell i is the `size` bytes of `data` from `start + i * stride` on.
    """

    __slots__ = ("_arrow", "_count", "data", "size", "start", "stride")

    def __init__(
        self,
        data: bytes | memoryview,
        size: int,
        arrow: Any = None,
        *,
        start: int = 0,
        stride: int = 0,
        count: int = 0,
    ) -> None:
        self.data = data
        self.size = size
        self.start = start
        self.stride = stride or size
        self._count = count if stride else len(data) // size
        self._arrow = arrow  # the array that they come from, if they do

    def __len__(self) -> int:
        return self._count

    @property
    def lengths(self) -> Int64s:
        return np.full(len(self), self.size, np.int64)

    def take(self, order: Int64s) -> "SameCells":
        return SameCells(_run_of(self._rows()[order]), self.size)

    def packed(self) -> BinaryColumn:
        return BinaryColumn(np.arange(len(self) + 1) * self.size, self.run(), None, self.size)

    def run(self) -> bytes | memoryview:
        back_to_back = self.stride == self.size and self.start == 0
        return self.data if back_to_back else _run_of(np.ascontiguousarray(self._rows()))

    def _rows(self) -> npt.NDArray[np.void]:
        kind = np.dtype((np.void, self.size))
        return np.ndarray((self._count,), kind, self.data, self.start, (self.stride,))

    @property
    def column(self) -> Any:
        return self.packed().tolist() if self._arrow is None else as_binary(self._arrow)


def _run_of(rows: npt.NDArray[np.void]) -> memoryview:
    return rows.view(np.uint8).data


class ListCells:
    """Cells of Python bytes."""

    __slots__ = ("column", "lengths", "size")

    def __init__(self, column: Sequence[bytes | None], lengths: Int64s) -> None:
        self.column = column
        self.lengths = lengths
        self.size: int | None = None

    def __len__(self) -> int:
        return len(self.column)

    def take(self, order: Int64s) -> "ListCells":
        return ListCells(picked(self.column, order.tolist()), self.lengths[order])

    def packed(self) -> BinaryColumn:
        try:
            return BinaryColumn(ends(self.lengths), self.run())
        except TypeError:  # there are nils
            return BinaryColumn.of(self.column)

    def run(self) -> bytes | memoryview:
        return b"".join(self.column)  # type: ignore[arg-type]  # no None


class ArrowCells:
    """Cells of an Arrow array of binary or string; a `take` copies in C."""

    __slots__ = ("_array", "lengths", "size")

    def __init__(self, array: Any, lengths: Int64s) -> None:
        self._array = array
        self.lengths = lengths
        self.size: int | None = None

    def __len__(self) -> int:
        return len(self.lengths)

    def take(self, order: Int64s) -> "ArrowCells":
        pa = _pyarrow()
        rows = pa.Array.from_buffers(pa.int64(), len(order), [None, pa.py_buffer(order)])
        return ArrowCells(self._array.take(rows), self.lengths[order])

    def packed(self) -> BinaryColumn:
        places = _places(_pyarrow(), self._array)
        nulls = self.lengths == NIL if self._array.null_count else None
        if nulls is not None and int(np.diff(places)[nulls].sum()):
            # What lies behind a null may be anything, and must not be sent.
            return BinaryColumn.of(as_binary(self._array).to_pylist())
        return BinaryColumn(places.astype(np.int64, copy=False), _data(self._array), nulls)

    def run(self) -> bytes | memoryview:
        return self.packed().run()

    @property
    def column(self) -> Any:
        return as_binary(self._array)


def total_bytes(cells: Cells) -> int:
    """Of all cells together."""
    if cells.size is not None:
        return cells.size * len(cells)
    return int(np.maximum(cells.lengths, 0).sum())


def has_nils(cells: Cells) -> bool:
    return cells.size is None and bool((cells.lengths == NIL).any())


def picked(cells: Sequence[Any], places: Sequence[int]) -> Sequence[Any]:
    """The cells at these places."""
    return itemgetter(*places)(cells) if len(places) > 1 else [cells[place] for place in places]


def cells_of_list(column: Sequence[Any]) -> SameCells | ListCells:
    """Raises TypeError if there is a None, or what else has no length."""
    return same_cells(column) or ListCells(column, lengths_of(column))


def same_cells(column: Sequence[Any]) -> SameCells | None:
    """None unless all are bytes, or as good as bytes, of one length.

    MessagePack writes the length of each cell before it. So one pass in C tells the lengths and
    collects the bytes, which costs less than either by itself.
    """
    count = len(column)
    size = size_of_some(column)
    if not size:
        return None
    try:
        data = encode(column)
    except (TypeError, ValueError, ArithmeticError, BufferError, RecursionError):
        return None  # there are no bytes only
    head = bin_header(size)
    stride, start = len(head) + size, len(array_header(count))
    if len(data) != start + count * stride or not all_begin(data, start, stride, count, head):
        return None
    return SameCells(data, size, start=start + len(head), stride=stride, count=count)


def size_of_some(column: Sequence[Any], start: int = 0, step: int = 1) -> int:
    """The length of all cells of a sample, of those `step` apart; 0 if they differ or are no bytes."""
    sample = column[start :: step * max(1, len(column) // (step * SAMPLE_OF_LENGTHS))]
    first = sample[0]
    if type(first) is not bytes:
        return 0
    size = len(first)
    return size if all(type(cell) is bytes and len(cell) == size for cell in sample) else 0


def all_begin(data: bytes, start: int, stride: int, count: int, head: bytes) -> bool:
    """Whether `head` is at `start` in `data` and at each of `count` places that are `stride` apart."""
    kind = np.dtype((np.void, len(head)))
    return np.ndarray((count,), kind, data, start, (stride,)).tobytes() == head * count


def cells_of_any_list(column: Sequence[bytes | None]) -> SameCells | ListCells:
    """Of bytes and None."""
    try:
        return cells_of_list(column)
    except TypeError:
        lengths = (NIL if cell is None else len(cell) for cell in column)
        return ListCells(column, np.fromiter(lengths, np.int64, len(column)))


def bytes_per_row(column: Any) -> int:
    """About, from its first rows."""
    some = column[:SAMPLE]
    if hasattr(some, "nbytes"):
        return int(some.nbytes) // len(some)
    try:
        return sum(len(cell) for cell in some if cell is not None) // len(some)
    except TypeError:
        return 0  # it is refused as soon as it is looked at


def unboxed(what: str, column: Any) -> Any:
    """A numpy array of objects as a list, any other column as it is. Raises TypeError."""
    if not isinstance(column, np.ndarray):
        return column
    if column.dtype != object or column.ndim != 1:
        raise TypeError(
            f"{what} must be a list of bytes or an Arrow array, not a numpy array of {column.dtype}: "
            "one of objects (bytes and None) in one dimension is taken; numpy drops zeros at the end "
            "of strings of fixed size"
        )
    return column.tolist()


def cells_of(what: str, column: Any) -> Callable[[int, int], Cells]:
    """Gives any range of rows of `column`: a sequence of bytes and None, or an Arrow array or chunked
    array of binary or string.

    Raises TypeError for other types; rows of lists are looked at when they are asked for.
    """
    pa = _pyarrow() if "pyarrow" in sys.modules else None  # else it is no array either
    if pa is not None and isinstance(column, pa.Array | pa.ChunkedArray):
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        names = ("binary", "string", "large_binary", "large_string", "fixed_size_binary")
        views = ("binary_view", "string_view")
        if not any(getattr(pa.types, f"is_{name}")(kind) for name in (*names, *views)):
            raise TypeError(f"{what} must be binary or string, not {column.type}")
        return lambda start, end: _arrow_rows(pa, column.slice(start, end - start))
    if isinstance(column, str | bytes | bytearray | memoryview) or not isinstance(column, Sequence):
        raise TypeError(
            f"{what} must be a list of bytes or an Arrow array, not {type(column).__name__}"
        )
    return lambda start, end: _list_rows(what, column[start:end])


@cache
def _pyarrow() -> Any:
    """The module, imported when it is first of use, or None."""
    try:
        return import_module("pyarrow")
    except ModuleNotFoundError:
        return None


def as_binary(array: Any) -> Any:
    pa = _pyarrow()
    return array if pa.types.is_binary(array.type) else array.cast(pa.binary())


def _arrow_rows(pa: Any, column: Any) -> Cells:
    if isinstance(column, pa.ChunkedArray):
        chunks = column.chunks
        column = chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if column.type not in (pa.binary(), pa.string(), pa.large_binary(), pa.large_string()):
        column = column.cast(pa.binary())
    places = _places(pa, column)
    lengths = (places[1:] - places[:-1]).astype(np.int64, copy=False)
    if column.null_count:
        lengths[_nulls(column)] = NIL
        return ArrowCells(column, lengths)
    size = int(lengths[0])
    if size and (lengths == size).all():
        return SameCells(_data(column)[int(places[0]) : int(places[-1])], size, column)
    return ArrowCells(column, lengths)


def _places(pa: Any, array: Any) -> npt.NDArray[Any]:
    """Where cells begin in `_data`, and the end of the last one."""
    kind = array.type
    wide = pa.types.is_large_binary(kind) or pa.types.is_large_string(kind)
    offsets = np.frombuffer(array.buffers()[1], np.int64 if wide else np.int32)
    return offsets[array.offset : array.offset + len(array) + 1]


def _data(array: Any) -> memoryview:
    data = array.buffers()[2]
    return memoryview(b"" if data is None else data)


def _nulls(array: Any) -> npt.NDArray[np.bool_]:
    """Whether each is a null. (`to_numpy` would import pandas first.)"""
    bits = np.unpackbits(np.frombuffer(array.buffers()[0], np.uint8), bitorder="little")
    nulls: npt.NDArray[np.bool_] = bits[array.offset : array.offset + len(array)] == 0
    return nulls


def _list_rows(what: str, column: Sequence[Any]) -> Cells:
    """The slice is ours already."""
    try:
        cells = cells_of_list(column)
        if isinstance(cells, SameCells):
            return cells  # joined: they are bytes, or as good as bytes
    except TypeError:
        cells = None
    kinds = set(map(type, column))
    if kinds == {bytes} and cells is not None:
        return cells
    for kind in kinds:
        if kind is not type(None) and not issubclass(kind, bytes | bytearray | memoryview):
            raise TypeError(
                f"{what} must hold bytes or None, not {kind.__name__}: encode them first"
            )
    return cells_of_any_list([None if cell is None else bytes(cell) for cell in column])
