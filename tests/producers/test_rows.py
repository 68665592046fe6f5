"""Rows of `send` become columns: by one pass where cells have one length, one by one where they differ."""

from random import Random
from typing import Any

import pytest

from folkmoot.producers.cells import SameCells, same_cells
from folkmoot.producers.rows import ROW, columns_of
from folkmoot.protocol.murmur2 import murmur2, murmur2_even

Row = tuple[bytes | None, bytes | None, float]


def rows_of(count: int, key: int | None, value: int, seed: int = 1) -> list[Row]:
    """Random bytes, so that contents look like anything, heads of MessagePack too."""
    random = Random(seed)
    return [
        (None if key is None else random.randbytes(key), random.randbytes(value), 1e9 + row / 1000)
        for row in range(count)
    ]


def check(rows: list[Row]) -> tuple[bool, bool]:
    """Whether keys and values lie at even distances; the columns are those of the rows in any case."""
    flat: list[Any] = [cell for row in rows for cell in row]
    columns = columns_of(flat, len(rows))
    keys, values, stamps = zip(*rows, strict=True)
    if columns.keys is None:
        assert set(keys) == {None}
    else:
        assert list(columns.keys.packed()) == list(keys)
    assert list(columns.values.packed()) == list(values)
    assert columns.stamps.tolist() == [round(stamp * 1000) for stamp in stamps]
    return isinstance(columns.keys, SameCells), isinstance(columns.values, SameCells)


@pytest.mark.parametrize("count", [64, 65, 4096, 21_845, 21_846])
def test_rows_of_one_length_make_even_columns(count: int) -> None:
    assert check(rows_of(count, 9, 100)) == (True, True)


@pytest.mark.parametrize("key", [1, 3, 4, 255, 256, 70_000])
@pytest.mark.parametrize("value", [1, 255, 256, 70_000])
def test_of_any_length(key: int, value: int) -> None:
    assert check(rows_of(70, key, value)) == (True, True)


def test_keys_that_no_row_has_make_no_column() -> None:
    assert check(rows_of(100, None, 10)) == (False, True)


def test_few_rows_are_read_one_by_one() -> None:
    for count in (1, 2, 63):
        check(rows_of(count, 3, 10))


@pytest.mark.parametrize("place", range(64, 80))
@pytest.mark.parametrize(
    ("key", "value"),
    [(None, b"v" * 10), (b"k" * 4, None), (b"k" * 5, b"v" * 9), (b"k" * 4, b"v" * 11), (b"", b"")],
)
def test_a_single_row_that_differs_is_noticed(
    place: int, key: bytes | None, value: bytes | None
) -> None:
    rows = rows_of(1000, 4, 10)
    rows[place] = (key, value, 1.5)
    check(rows)


def test_two_that_differ_and_make_up_for_it_are_noticed() -> None:
    rows = rows_of(1000, 4, 10)
    rows[100], rows[101] = (b"12345", b"v" * 10, 1.5), (b"123", b"v" * 10, 2.5)
    assert check(rows) == (False, True)  # values alone are even


def test_a_row_that_came_too_late_is_no_part_of_the_columns() -> None:
    flat = [cell for row in rows_of(101, 4, 10) for cell in row]
    columns = columns_of(flat, 100)
    assert list(columns.values.packed()) == flat[1 : 100 * ROW : ROW]


def test_cells_at_even_distances_hash_as_each_alone() -> None:
    for size in range(1, 12):
        rows = rows_of(100, size, 3)
        keys = columns_of([cell for row in rows for cell in row], 100).keys
        assert isinstance(keys, SameCells)
        hashes = murmur2_even(keys.data, keys.size, keys.start, keys.stride, len(keys))
        assert hashes.tolist() == [murmur2(key or b"") for key, _, _ in rows]


@pytest.mark.parametrize("other", [None, "ab", "abc", 7, 2**70, [b"a"], {}, object(), b"", b"abcd"])
def test_a_list_with_anything_else_between_is_not_taken_for_cells_of_one_length(
    other: object,
) -> None:
    column: list[Any] = [b"abc"] * 1000
    column[77] = other
    assert same_cells(column) is None


def test_what_is_as_good_as_bytes_is_copied() -> None:
    column: list[Any] = [b"abc"] * 1000
    column[77] = changing = bytearray(b"xyz")
    cells = same_cells(column)
    changing[:] = b"123"
    assert cells is not None
    assert list(cells.packed())[76:79] == [b"abc", b"xyz", b"abc"]
