"""Columns of keys or values as `send_batch` takes them: checked once, then moved by numpy and Arrow.

A caller's list is copied, so that it may be used again; an Arrow array cannot change and is kept as
it is. Neither is looked at row by row in Python: lengths (-1 for nil) come from C, and say at once
how large the records are and whether a list holds anything but bytes.
"""

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from operator import itemgetter
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from folkmoot.protocol.packed import Packed, ends

Int64s = npt.NDArray[np.int64]
NIL = -1


class Cells(Protocol):
    """A column; `lengths` of its cells, NIL where there is none."""

    lengths: Int64s

    def __len__(self) -> int: ...

    def rows(self, start: int, end: int) -> "Cells": ...

    def take(self, order: Int64s) -> "Cells": ...

    def packed(self) -> Packed: ...

    @property
    def column(self) -> Any:
        """What a partitioner of the application's own gets: a list, or the Arrow array."""

    def distinct(self) -> "tuple[Sequence[bytes], Int64s] | None":
        """If that is cheap to find: the different cells, and for each row which of them it is."""


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
        if len(order) == 1:
            return ListCells((self.column[int(order[0])],), self.lengths[order])
        return ListCells(itemgetter(*order.tolist())(self.column), self.lengths[order])

    def distinct(self) -> None:
        return None

    def packed(self) -> Packed:
        nulls = self.lengths == NIL
        if nulls.any():
            run = b"".join(cell for cell in self.column if cell is not None)
            return Packed(ends(np.where(nulls, 0, self.lengths)), run, nulls)
        return Packed(ends(self.lengths), b"".join(self.column))  # type: ignore[arg-type]


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
        return ArrowCells(self.column.take(order), self.lengths[order])

    def distinct(self) -> tuple[Sequence[bytes], Int64s]:
        encoded = self.column.dictionary_encode()
        places = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        return encoded.dictionary.to_pylist(), places

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


def cells_of(what: str, column: Any) -> Callable[[int, int], Cells]:
    """Gives any range of rows of `column`: a sequence of bytes and None, or an Arrow array or chunked
    array of binary or string.

    Raises TypeError for other types; rows of lists are looked at when they are asked for.
    """
    pa = sys.modules.get("pyarrow")  # who has an Arrow array has imported it
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
    return ArrowCells(column, lengths.to_numpy(zero_copy_only=False).astype(np.int64))


def _list_rows(what: str, column: Sequence[Any]) -> ListCells:
    """The slice is ours already. `bytes.__len__` takes bytes and nothing else: one pass tells all."""
    try:
        return ListCells(column, np.fromiter(map(bytes.__len__, column), np.int64, len(column)))
    except TypeError:
        pass
    for cell in column:
        if cell is not None and not isinstance(cell, bytes | bytearray | memoryview):
            raise TypeError(
                f"{what} must hold bytes or None, not {type(cell).__name__}: encode them first"
            )
    copy = [cell if cell is None or isinstance(cell, bytes) else bytes(cell) for cell in column]
    lengths = [NIL if cell is None else len(cell) for cell in copy]
    return ListCells(copy, np.array(lengths, np.int64))
