"""BinaryColumn columns: a sequence like any other, and the same bytes in and out."""

import msgpack
import numpy as np
import pytest

from folkmoot.protocol.columns import (
    BinaryColumn,
    bin_header,
    bytes_of,
    encoded,
    lengths_of,
)
from folkmoot.protocol.errors import CorruptBatch

CELLS = [b"a", None, b"", b"bcd", None, b"ef"]


def written(column: BinaryColumn) -> bytes:
    return b"".join(encoded(column))


def test_a_packed_column_is_a_sequence_of_its_cells() -> None:
    packed = BinaryColumn.of(CELLS)
    assert (len(packed), list(packed), packed.tolist()) == (6, CELLS, CELLS)
    assert [packed[position] for position in range(-6, 6)] == CELLS + CELLS
    assert packed == CELLS
    assert packed != [*CELLS, b""]
    with pytest.raises(IndexError):
        packed[6]


@pytest.mark.parametrize("start", range(7))
@pytest.mark.parametrize("end", range(7))
def test_a_slice_is_a_packed_column_and_can_be_written(start: int, end: int) -> None:
    part = BinaryColumn.of(CELLS)[start:end]
    assert part == CELLS[start:end]
    if len(part):
        again = BinaryColumn.decode(memoryview(written(part)), len(part))
        assert again == CELLS[start:end]
    with pytest.raises(ValueError, match="step"):
        BinaryColumn.of(CELLS)[::2]


@pytest.mark.parametrize(
    ("length", "width"), [(1, 1), (254, 1), (255, 2), (65_534, 2), (65_535, 4), (70_000, 4)]
)
@pytest.mark.parametrize("nil", [False, True])
def test_lengths_are_as_wide_as_the_longest_cell_needs(length: int, width: int, nil: bool) -> None:
    cells = [b"", b"x" * length, None if nil else b"y"]
    packed = written(BinaryColumn.of(cells))
    assert packed[0] == width + (128 if nil else 0)
    assert len(packed) == 1 + 3 * width + length + (0 if nil else 1)
    assert BinaryColumn.decode(memoryview(packed), 3) == cells


@pytest.mark.parametrize("length", [0, 1, 97, 70_000])
def test_one_length_for_all_cells_is_said_once(length: int) -> None:
    cells = [bytes([65 + number]) * length for number in range(3)]
    packed = written(BinaryColumn.of(cells))
    assert packed == b"\0" + length.to_bytes(4, "little") + b"".join(cells)
    again = BinaryColumn.decode(memoryview(packed), 3)
    assert again == cells
    assert {type(cell) for cell in again.tolist()} == {bytes}
    assert list(again[1:]) == cells[1:]


def test_iterating_gives_what_the_list_has() -> None:
    columns: list[list[bytes | None]]
    columns = [[b"a", b"bcd", b""], [b"ab", b"cd"], [b"", b""], [None, b"x"], [None]]
    for cells in columns:
        packed = BinaryColumn.decode(memoryview(written(BinaryColumn.of(cells))), len(cells))
        assert list(iter(packed)) == packed.tolist() == cells


@pytest.mark.parametrize("cells", [[b"ab"] * 3, [None] * 2, [b""] * 2, [b"x"]])
def test_a_column_of_one_value_is_known(cells: list[bytes | None]) -> None:
    assert BinaryColumn.of(cells).is_constant()


@pytest.mark.parametrize(
    "cells", [[b"ab", b"ba", b"ab"], [None, b""], [b"", None, b""], [b"a", b"aa", b"a"]]
)
def test_a_column_of_several_values_is_no_constant(cells: list[bytes | None]) -> None:
    assert not BinaryColumn.of(cells).is_constant()


def test_cells_are_read_without_copying_them() -> None:
    wire = memoryview(written(BinaryColumn.of([b"abc", b"def"])))
    packed = BinaryColumn.decode(wire, 2)
    mine = np.frombuffer(packed.data, np.uint8)
    assert np.shares_memory(mine, np.frombuffer(wire, np.uint8))


def test_lengths_that_do_not_fit_the_bytes_are_corrupt() -> None:
    for cells in ([b"abc", b"def"], [b"abc", b"de"], [b"abc", None]):
        wire = written(BinaryColumn.of(cells))
        for wrong in (wire[:-1], wire + b"x", wire[:2], b"", b"\x03" + wire[1:]):
            with pytest.raises(CorruptBatch):
                BinaryColumn.decode(memoryview(wrong), 2)
        with pytest.raises(CorruptBatch):
            BinaryColumn.decode(memoryview(wire), 3)


def test_lengths_whose_sum_would_overflow_are_corrupt() -> None:
    wire = b"\x04" + b"\xff\xff\xff\xff" + b"\x04\0\0\0" + b"abc"
    with pytest.raises(CorruptBatch):
        BinaryColumn.decode(memoryview(wire), 2)
    with pytest.raises(CorruptBatch):
        BinaryColumn.decode(memoryview(b"\0\xff\xff\xff\xffabc"), 2)


def test_columns_of_one_length_do_not_disturb_each_other_whatever_their_rows() -> None:
    for count in (1, 2, 3, 64, 65, 4_098, 16_384, 16_385):
        for size in (1, 9):
            cells = [b"%d" % (row % 10) * size for row in range(count)]
            decoded = BinaryColumn.decode(memoryview(written(BinaryColumn.of(cells))), count)
            assert decoded.size == size
            assert list(decoded.offsets) == list(range(0, count * size + 1, size))
            assert list(decoded) == cells
            with pytest.raises(ValueError, match="read-only"):
                decoded.offsets[0] = 1


@pytest.mark.parametrize("count", [0, 1, 15, 16, 2**16 - 1, 2**16])
def test_headers_are_what_messagepack_writes(count: int) -> None:
    for size in (count, 255, 256):
        packed: bytes = msgpack.packb(bytes(size))
        assert bin_header(size) + bytes(size) == packed


def test_the_bytes_and_the_length_of_each_cell_are_told() -> None:
    short = [b"a", b"", b"x" * 255]
    for cells in (short, [*short, b"y" * 256]):
        assert lengths_of(cells).tolist() == [len(cell) for cell in cells]
        assert bytes_of(cells) == bytes_of(BinaryColumn.of(cells)) == sum(map(len, cells))
    assert bytes_of(CELLS) == bytes_of(BinaryColumn.of(CELLS)) == 6
    with pytest.raises(TypeError):
        lengths_of(CELLS)
