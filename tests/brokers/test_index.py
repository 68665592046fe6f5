"""The index file: which entries it takes, and how it grows and shrinks."""

import random
import struct
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from folkmoot.brokers.storage.index import ENTRY_BYTES, OffsetIndex

LOG_BYTES = 10**9


def opened(path: Path, reserve: int = 0, interval_bytes: int = 100) -> OffsetIndex:
    index = OffsetIndex(path, 1000, interval_bytes)
    index.open(LOG_BYTES, reserve)
    return index


def test_an_entry_is_taken_once_an_interval_of_log_lies_behind_the_last(tmp_path: Path) -> None:
    index = opened(tmp_path / "index")
    for number in range(20):
        index.offer(1000 + number, number * 40)
    index.save()
    assert index.entries() == [
        (1003, 120),
        (1006, 240),
        (1009, 360),
        (1012, 480),
        (1015, 600),
        (1018, 720),
    ]
    index.close()


def test_the_file_is_presized_while_open_and_trimmed_by_close(tmp_path: Path) -> None:
    path = tmp_path / "index"
    index = opened(path, reserve=500)
    assert path.stat().st_size == 500 * ENTRY_BYTES
    index.offer(1001, 256)
    index.save()
    index.close()
    assert path.read_bytes() == struct.pack(">II", 1, 256)
    again = opened(path)
    assert again.last() == (1001, 256)
    again.close()


def test_it_grows_beyond_its_reserve(tmp_path: Path) -> None:
    index = opened(tmp_path / "index", reserve=3)
    entries = [(1000 + number, number * 100) for number in range(1, 1000)]
    for offset, position in entries:
        index.offer(offset, position)
        index.save()
    assert index.entries() == entries
    index.close()


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(st.sets(st.integers(1, 5000), max_size=60), st.integers(0, 6000))
def test_lookups_give_the_last_entry_at_or_below(chosen: set[int], wanted: int) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        index = opened(Path(scratch) / "index", interval_bytes=1)
        entries = [(1000 + 2 * number, number) for number in sorted(chosen)]
        for entry in entries:
            index.offer(*entry)
        index.save()
        below = [entry for entry in entries if entry[0] <= 1000 + wanted]
        after = [entry[1] for entry in entries if entry[0] > 1000 + wanted]
        last = below[-1] if below else (1000, 0)
        assert index.stretch(1000 + wanted) == (*last, after[0] if after else None)
        below = [entry for entry in entries if entry[1] <= wanted]
        assert index.at_position(wanted) == (below[-1] if below else (1000, 0))
        index.close()


def test_no_content_of_the_file_can_do_harm(tmp_path: Path) -> None:
    path = tmp_path / "index"
    source = random.Random(31)
    for _ in range(300):
        path.write_bytes(source.randbytes(source.randrange(200)) + bytes(source.randrange(3) * 8))
        index = OffsetIndex(path, 1000, 100)
        trusted = index.open(2**31, 10)
        entries = index.entries()
        assert entries == sorted(set(entries))
        assert trusted or not entries
        index.stretch(source.randrange(2**33))
        index.at_position(source.randrange(2**33))
        index.close()
        assert path.stat().st_size == len(entries) * ENTRY_BYTES
