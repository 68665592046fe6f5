"""Columns of keys or values as `send_batch` takes them: checked once, then moved by numpy and Arrow.

An Arrow array cannot change and is kept as it is; a list is copied. Nothing is looked at row by row in
Python; the length of a nil is -1.
"""

from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from operator import itemgetter
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from folkmoot.protocol.packed import Packed, ends

Int64s = npt.NDArray[np.int64]
NIL: Final = -1


class Cells(Protocol):
    """A column; `lengths` of its cells, NIL where there is none."""

    lengths: Int64s

    def __len__(self) -> int: ...

    def rows(self, start: int, end: int) -> "Cells": ...

    def take(self, order: Int64s) -> "Cells": ...

    def packed(self) -> Packed: ...

    @property
    def column(self) -> Any:
        """What a partitioner of the application's own gets: a sequence, or the Arrow array."""


class ListCells:
    """Cells of Python bytes."""

    __slots__ = ("column", "lengths")

    def __init__(self, column: Sequence[bytes | None], lengths: Int64s) -> None:
        self.column = column
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.column)

    def rows(self, start: int, end: int) -> "ListCells":
        return ListCells(self.column[start:end], self.lengths[start:end])

    def take(self, order: Int64s) -> "ListCells":
        return ListCells(itemgetter(*order.tolist())(self.column), self.lengths[order])

    def packed(self) -> Packed:
        return packed(self.column, self.lengths)


class ArrowCells:
    """Cells of an Arrow array of type binary; slices share its memory, a `take` copies in C."""

    __slots__ = ("column", "lengths")

    def __init__(self, column: Any, lengths: Int64s) -> None:
        self.column = column
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def rows(self, start: int, end: int) -> "ArrowCells":
        return ArrowCells(self.column.slice(start, end - start), self.lengths[start:end])

    def take(self, order: Int64s) -> "ArrowCells":
        pa = _pyarrow()
        rows = pa.Array.from_buffers(pa.int64(), len(order), [None, pa.py_buffer(order)])
        return ArrowCells(self.column.take(rows), self.lengths[order])

    def packed(self) -> Packed:
        count, first = len(self.lengths), self.column.offset
        _, offsets, data = self.column.buffers()
        places = np.frombuffer(offsets, np.int32)[first : first + count + 1].astype(np.int64)
        nulls = self.lengths == NIL
        if nulls.any() and int(np.diff(places)[nulls].sum()):
            # What lies behind a null may be anything, and must not be sent.
            return Packed.of(self.column.to_pylist())
        view = b"" if data is None else memoryview(data)
        return Packed(places, view, nulls if nulls.any() else None)


def packed(cells: Sequence[bytes | None], lengths: Int64s | None = None) -> Packed:
    """Cells in one run of bytes; `lengths` as `Cells` has them, where they are known."""
    try:
        if lengths is None:
            lengths = lengths_of(cells)
        return Packed(ends(lengths), b"".join(cells))  # type: ignore[arg-type]  # no None
    except TypeError:
        return Packed.of(cells)


def lengths_of(cells: Sequence[Any]) -> Int64s:
    """The length of each. Raises TypeError if one has none, as None has.

    Cells shorter than 256 bytes, as most are, are measured in two thirds of the time.
    """
    try:
        return np.frombuffer(bytearray(map(len, cells)), np.uint8).astype(np.int64)
    except ValueError:
        return np.fromiter(map(len, cells), np.int64, len(cells))


def cells_of(what: str, column: Any) -> Callable[[int, int], Cells]:
    """Gives any range of rows of `column`: a sequence of bytes and None, or an Arrow array or chunked
    array of binary or string.

    Raises TypeError for other types; rows of lists are looked at when they are asked for.
    """
    pa = _pyarrow()
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


def _arrow_rows(pa: Any, column: Any) -> ArrowCells:
    if isinstance(column, pa.ChunkedArray):
        chunks = column.chunks
        column = chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not pa.types.is_binary(column.type):
        column = column.cast(pa.binary())
    lengths = import_module("pyarrow.compute").binary_length(column)
    if lengths.null_count:
        lengths = lengths.fill_null(NIL)
    return ArrowCells(column, _numbers(lengths, np.int32))


def _list_rows(what: str, column: Sequence[Any]) -> ListCells:
    """The slice is ours already."""
    kinds = set(map(type, column))
    if kinds == {bytes}:
        return ListCells(column, lengths_of(column))
    for kind in kinds:
        if kind is not type(None) and not issubclass(kind, bytes | bytearray | memoryview):
            raise TypeError(
                f"{what} must hold bytes or None, not {kind.__name__}: encode them first"
            )
    column = [None if cell is None else bytes(cell) for cell in column]
    lengths = (NIL if cell is None else len(cell) for cell in column)
    return ListCells(column, np.fromiter(lengths, np.int64, len(column)))


def _numbers(array: Any, kind: Any) -> Int64s:
    """An Arrow array of integers without nulls. (`to_numpy` would import pandas first.)"""
    found = np.frombuffer(array.buffers()[1], kind)[array.offset : array.offset + len(array)]
    return found.astype(np.int64)
