"""Cells and records made in C are those that plain Python makes, whatever the columns say."""

import gc
import os
import random
import subprocess
import sys
import weakref
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from folkmoot.protocol import speedups
from folkmoot.protocol.batch_header import check
from folkmoot.protocol.columns import BinaryColumn, Columns
from folkmoot.protocol.record_batch import columns_of, encode, offsets_of
from folkmoot.protocol.record_iterator import PureRecordIterator
from folkmoot.protocol.records import Headers, Record
from tests.protocol.golden import GOLDEN
from tests.protocol.twins import plain_columns
from tests.seeds import new_seed

if speedups.compiled("folkmoot.protocol._speedups") is None:
    pytest.skip("no compiled module is in use here", allow_module_level=True)

from folkmoot.protocol import _speedups  # only where it is built

Where = tuple[str, int, Sequence[int], Columns, bool]


@pytest.fixture
def rng() -> random.Random:
    return random.Random(new_seed())


def some_cells(rng: random.Random, count: int) -> Any:
    """A column of keys or values as one may be: binary or a list, of one length or several, with nils."""
    size = rng.choice((0, 1, 8, 300))
    match rng.randrange(5):
        case 0:
            return [rng.randbytes(rng.randrange(9)) if rng.random() < 0.8 else None] * count
        case 1:
            return BinaryColumn.of([rng.randbytes(size) for _ in range(count)])
        case 2:
            cells = [rng.randbytes(rng.randrange(size + 1)) for _ in range(count)]
            return BinaryColumn.of(cells)
        case 3:
            some = [rng.choice((None, b"", rng.randbytes(size))) for _ in range(count)]
            return BinaryColumn.of(some)
        case _:
            more = [rng.randbytes(size) for _ in range(count + 5)]
            return BinaryColumn.of(more)[2 : 2 + count]


def some_records(rng: random.Random) -> Where:
    count = rng.choice((1, 2, 3, 17, 64, 200))
    base = rng.choice((0, 2**40, 2**62))
    offsets: Sequence[int] = range(base, base + count)
    if rng.random() < 0.3:
        offsets = sorted(rng.sample(range(base, base + 5 * count), count))
    time = rng.choice((-(2**61), -1, 0, 1_760_000_000_000, 2**61))
    stamps: Any = rng.choice((time, array("q", [time + rng.randrange(2) for _ in range(count)])))
    headers: list[Headers] | None = None
    if rng.random() < 0.3:
        headers = [rng.choice(((), (("h", b"x"), ("h", None)))) for _ in range(count)]
    keys = None if rng.random() < 0.3 else some_cells(rng, count)
    columns = Columns(count, keys, some_cells(rng, count), stamps, headers)
    return "topic", rng.randrange(100), offsets, columns, rng.random() < 0.2


def by_twin(where: Where) -> list[Record]:
    with plain_columns():
        return list(PureRecordIterator(*where))


def test_records_of_any_columns_are_those_of_the_twin(rng: random.Random) -> None:
    for _ in range(3_000):
        where = some_records(rng)
        made, plain = list(_speedups.RecordIterator(*where)), by_twin(where)
        assert made == plain
        assert [tuple(map(type, fields(each))) for each in made] == [
            tuple(map(type, fields(each))) for each in plain
        ]


def fields(record: Record) -> tuple[Any, ...]:
    return tuple(getattr(record, name) for name in Record.__struct_fields__)


def test_cells_of_any_column_are_those_of_the_twin(rng: random.Random) -> None:
    for _ in range(3_000):
        column = some_cells(rng, rng.choice((1, 2, 30)))
        if not isinstance(column, BinaryColumn):
            continue
        with plain_columns():
            plain = column.tolist()
            assert list(column) == plain
        assert column.tolist() == list(column) == plain
        assert isinstance(iter(column), _speedups.CellIterator)
        wide = BinaryColumn(column.offsets.astype(np.int64), bytes(column.data), column.nulls)
        narrow = BinaryColumn(column.offsets.astype(np.int32), column.data, column.nulls)
        assert wide.tolist() == narrow.tolist() == plain


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden.path.stem)
def test_golden_batches_are_read_to_the_same_records(golden: Any) -> None:
    batch = golden.path.read_bytes()
    header = check(batch)
    columns = columns_of(header, batch)
    where = ("t", 1, offsets_of(header, columns), columns, header.uses_append_time)
    assert list(_speedups.RecordIterator(*where)) == by_twin(where)


def test_a_cut_and_the_row_are_those_of_the_twin(rng: random.Random) -> None:
    for _ in range(500):
        where = some_records(rng)
        made, plain = _speedups.RecordIterator(*where), PureRecordIterator(*where)
        records = iter(plain)
        for _ in range(rng.randrange(where[3].count + 1)):
            assert next(made) == next(records)
            assert made.row == plain.row
        made.cut()
        plain.cut()
        assert list(made) == list(records) == []
        assert made.row == plain.row
        made.cut()
        assert (list(made), made.row) == ([], plain.row)


# -- hostile ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "offsets", [[0, 2, 1], [-1, 2, 3], [0, 2, 2**31 - 1], [5, 6, 7], [0, 4, 4], [3, 0, 0]]
)
@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_nothing_outside_of_a_columns_bytes_is_ever_read(offsets: list[int], kind: Any) -> None:
    with pytest.raises(ValueError, match="does not lie within its column"):
        list(_speedups.CellIterator(b"abc", np.array(offsets, kind)))


@pytest.mark.parametrize(
    ("offsets", "nulls"),
    [
        (np.zeros(0, np.int32), None),
        (np.zeros((2, 2), np.int32), None),
        (np.zeros(3, np.int16), None),
        (np.zeros(3, np.int32), np.zeros(1, np.bool_)),
        (np.zeros(3, np.int32), np.zeros(3, np.bool_)),
        (np.zeros(3, np.int32), np.zeros(2, np.int16)),
    ],
)
def test_arrays_that_do_not_fit_together_are_refused(offsets: Any, nulls: Any) -> None:
    with pytest.raises(ValueError, match=r"offsets of cells|null flag"):
        _speedups.CellIterator(b"abc", offsets, nulls)


def test_what_is_no_buffer_is_refused() -> None:
    fine = np.zeros(2, np.int32)
    for wrong in ((None, fine), ("text", fine), (b"", None), (b"", [0, 0]), (b"", fine, [True])):
        with pytest.raises((TypeError, ValueError)):
            _speedups.CellIterator(*wrong)


def test_columns_of_different_lengths_are_refused() -> None:
    three, two = BinaryColumn.of([b"a", b"b", b"c"]), BinaryColumn.of([b"a", b"b"])
    stamps = array("q", [1, 2, 3])
    for columns in (
        Columns(3, None, two, stamps),
        Columns(3, two, three, stamps),
        Columns(3, None, [b"a"], stamps),
        Columns(3, None, three, stamps[:2]),
        Columns(3, None, three, array("i", [1, 2, 3, 4, 5, 6])),
        Columns(3, None, three, stamps, [()]),
    ):
        with pytest.raises(ValueError, match="each record"):
            _speedups.RecordIterator("t", 0, range(3), columns, False)


def test_a_list_that_shrinks_while_it_is_read_is_an_error_and_no_crash() -> None:
    values: list[bytes | None] = [b"a", b"b", b"c"]
    records = _speedups.RecordIterator("t", 0, range(3), Columns(3, None, values, 0), False)
    assert next(records).value == b"a"
    values.clear()
    with pytest.raises(IndexError):
        next(records)
    assert records.row == 1


def test_the_memory_of_a_column_stays_as_long_as_it_is_read() -> None:
    data = bytearray(b"abc")
    cells = _speedups.CellIterator(data, np.array([0, 1, 3], np.int32))
    with pytest.raises(BufferError):
        data.clear()
    assert list(cells) == [b"a", b"bc"]
    del cells
    data.clear()


def test_what_was_read_is_let_go() -> None:
    class Values(list[bytes | None]):
        """A list that tells when it has gone."""

    values = Values([b"x" * 100, b"y" * 100])
    gone = weakref.ref(values)
    records = _speedups.RecordIterator("t", 0, range(2), Columns(2, None, values, 0), False)
    kept = list(records)
    before = sys.getrefcount(kept[0].value)
    del records, values
    gc.collect()
    assert gone() is None
    assert sys.getrefcount(kept[0].value) < before


def test_reading_a_million_records_leaves_nothing_behind() -> None:
    cells = [b"%06d" % number for number in range(10_000)]
    batch = encode(
        Columns(10_000, BinaryColumn.of(cells), BinaryColumn.of(cells), array("q", range(10_000)))
    )

    def read() -> None:
        header = check(batch)
        columns = columns_of(header, batch)
        for _ in _speedups.RecordIterator("t", 0, offsets_of(header, columns), columns, False):
            pass

    read()
    before = sys.getallocatedblocks()
    for _ in range(100):
        read()
    assert sys.getallocatedblocks() - before < 1_000


# -- the choice ---------------------------------------------------------------------------------------


def chosen(pure: str) -> Iterator[str]:
    program = (
        "from folkmoot.protocol.record_iterator import RecordIterator as chosen; "
        "from folkmoot.protocol.columns import BinaryColumn; "
        "print(chosen.__name__, type(iter(BinaryColumn.of([b'a', b'bc']))).__name__)"
    )
    told = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "FOLKMOOT_PURE": pure},
        capture_output=True,
        text=True,
        check=True,
    )
    yield from told.stdout.split()


def test_the_environment_chooses_plain_python() -> None:
    assert list(chosen("1")) == ["PureRecordIterator", "map"]
    assert list(chosen("0")) == list(chosen("")) == ["RecordIterator", "CellIterator"]
