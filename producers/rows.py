"""Rows as `send` stages them, made into columns."""

from struct import pack
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from folkmoot.producers.cells import (
    Cells,
    SameCells,
    all_begin,
    cells_of_any_list,
    encode,
    size_of_some,
)
from folkmoot.protocol.columns import Int64s, array_header, bin_header

ROW: Final = 3
"""Rows are flat: key, value, stamp, key, value, stamp. Stamps are floats, in seconds."""
WORTH_ENCODING: Final = 64

_NIL: Final = b"\xc0"
_FLOAT: Final = b"\xcb"
_STAMP_BYTES: Final = 8


class Columns(NamedTuple):
    """What rows are made into; `keys` is None if no row has one, `stamps` are in ms."""

    keys: Cells | None
    values: Cells
    stamps: Int64s


def columns_of(rows: list[Any], count: int) -> Columns:
    """The first `count` rows."""
    end = ROW * count
    if count >= WORTH_ENCODING:
        even = _even_columns(rows if len(rows) == end else rows[:end], count)
        if even is not None:
            return even
    listed = rows[0:end:ROW]
    bare = listed[0] is None and listed.count(None) == count
    seconds = np.frombuffer(pack(f"{count}d", *rows[2:end:ROW]))  # half of what fromiter costs
    keys = None if bare else cells_of_any_list(listed)
    return Columns(keys, cells_of_any_list(rows[1:end:ROW]), _milliseconds(seconds))


def _even_columns(rows: list[Any], count: int) -> Columns | None:
    """All columns by one pass in C, if the keys have one length, or none has one, and the values, too.

    MessagePack writes the length of each cell before it. Where all heads are the same, rows are of one
    size, and columns are cells at even distances: nothing is sliced, measured or joined.
    """
    value_size = size_of_some(rows, 1, ROW)
    key_size = 0 if rows[0] is None else size_of_some(rows, 0, ROW)
    if not value_size or (not key_size and rows[0] is not None):
        return None
    data = encode(rows)  # with a row that has come too late, if one just came: then it is too long
    key_head = bin_header(key_size) if key_size else _NIL
    value_head = bin_header(value_size)
    start = len(array_header(ROW * count))
    value_start = start + len(key_head) + key_size
    stamp_start = value_start + len(value_head) + value_size + len(_FLOAT)
    stride = stamp_start + _STAMP_BYTES - start
    if len(data) != start + count * stride:
        return None
    # From the front, row by row: where a head is what it should be, the next one is where it should be.
    for place, head in ((start, key_head), (value_start, value_head)):
        if not all_begin(data, place, stride, count, head):
            return None

    def cells(head_start: int, head: bytes, size: int) -> SameCells:
        return SameCells(data, size, start=head_start + len(head), stride=stride, count=count)

    seconds: npt.NDArray[np.float64] = np.ndarray((count,), ">f8", data, stamp_start, (stride,))
    return Columns(
        cells(start, key_head, key_size) if key_size else None,
        cells(value_start, value_head, value_size),
        _milliseconds(seconds),
    )


def _milliseconds(seconds: npt.NDArray[np.float64]) -> Int64s:
    return np.rint(seconds * 1000).astype(np.int64)
