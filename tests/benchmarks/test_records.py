"""The records that are sent in benchmarks."""

from pathlib import Path

import pytest

from benchmarks.clients.program import read_columns, write_columns
from benchmarks.records import KEYS, RecordSets, SetName, write_lines


@pytest.mark.parametrize("name", ["small", "unique", "large", "flights"])
def test_all_values_of_a_set_differ_and_come_again_with_the_same_seed(
    name: SetName, tmp_path: Path
) -> None:
    made = RecordSets(tmp_path / "a", 7).get(name, 3_000)
    again = RecordSets(tmp_path / "b", 7).get(name, 3_000)
    keys, values = read_columns(made.path, made.count)
    assert len(keys) == len(values) == len(set(values)) == 3_000
    assert (keys, values) == read_columns(again.path, again.count)
    assert made.payload(3_000) == (sum(map(len, keys)), sum(map(len, values)))


def test_values_have_the_size_that_is_said_and_keys_repeat_or_not(tmp_path: Path) -> None:
    sets = RecordSets(tmp_path, 7)
    for name, size, most in (("small", 100, KEYS), ("unique", 100, 9_000), ("large", 1000, KEYS)):
        keys, values = read_columns(sets.get(name, 9_000).path, 9_000)  # type: ignore[arg-type]
        assert set(map(len, values)) == {size}
        assert len(set(keys)) <= most
        assert len(set(keys)) > 0.8 * min(most, 9_000)


def test_the_first_records_of_a_file_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_columns(path, [b"", b"a", b"bc"], [b"xyz", b"", b"1234"])
    assert read_columns(path, 3) == ([b"", b"a", b"bc"], [b"xyz", b"", b"1234"])
    assert read_columns(path, 2) == ([b"", b"a"], [b"xyz", b""])
    with pytest.raises(ValueError, match="3 records, not 4"):
        read_columns(path, 4)


def test_kafkas_tool_gets_one_value_a_line(tmp_path: Path) -> None:
    made = RecordSets(tmp_path, 7).get("flights", 100)
    lines = write_lines(made, tmp_path / "lines", 60).read_bytes().splitlines()
    assert lines == read_columns(made.path, 60)[1]
