"""Packed columns: a sequence like any other, and the same bytes in and out."""

import numpy as np
import pytest

from folkmoot.protocol.errors import CorruptBatch
from folkmoot.protocol.packed import Packed

CELLS = [b"a", None, b"", b"bcd", None, b"ef"]


def test_a_packed_column_is_a_sequence_of_its_cells() -> None:
    packed = Packed.of(CELLS)
    assert (len(packed), list(packed), packed.tolist()) == (6, CELLS, CELLS)
    assert [packed[position] for position in range(-6, 6)] == CELLS + CELLS
    assert packed == CELLS
    assert packed != [*CELLS, b""]
    with pytest.raises(IndexError):
        packed[6]


@pytest.mark.parametrize("start", range(7))
@pytest.mark.parametrize("end", range(7))
def test_a_slice_is_a_packed_column_and_can_be_written(start: int, end: int) -> None:
    part = Packed.of(CELLS)[start:end]
    assert part == CELLS[start:end]
    if len(part):
        again = Packed.decode(memoryview(part.encode()), len(part))
        assert again == CELLS[start:end]
    with pytest.raises(ValueError, match="step"):
        Packed.of(CELLS)[::2]


def test_parts_are_joined_with_their_nils() -> None:
    parts = [Packed.of(CELLS)[2:5], Packed.of([b"x", b"y"])[1:], Packed.of([None])]
    assert Packed.joined(parts) == [b"", b"bcd", None, b"y", None]
    assert Packed.joined(parts[1:2]).nulls is None


@pytest.mark.parametrize(
    ("length", "width"), [(0, 1), (254, 1), (255, 2), (65_534, 2), (65_535, 4), (70_000, 4)]
)
def test_lengths_are_as_wide_as_the_longest_cell_needs(length: int, width: int) -> None:
    cells = [b"", b"x" * length, None]
    packed = Packed.of(cells).encode()
    assert packed[0] == width
    assert len(packed) == 1 + 3 * width + length
    assert Packed.decode(memoryview(packed), 3) == cells


def test_cells_are_read_without_copying_them() -> None:
    wire = memoryview(Packed.of([b"abc", b"def"]).encode())
    packed = Packed.decode(wire, 2)
    mine = np.frombuffer(packed.data, np.uint8)
    assert np.shares_memory(mine, np.frombuffer(wire, np.uint8))


def test_lengths_that_do_not_fit_the_bytes_are_corrupt() -> None:
    wire = Packed.of([b"abc", b"def"]).encode()
    for wrong in (wire[:-1], wire + b"x", wire[:2], b""):
        with pytest.raises(CorruptBatch):
            Packed.decode(memoryview(wrong), 2)
    with pytest.raises(CorruptBatch):
        Packed.decode(memoryview(wire), 3)
