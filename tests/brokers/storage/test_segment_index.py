"""The index file of a segment: its entries, its footer, and what is believed of it."""

import os
import random
import struct
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from folkmoot.brokers.storage.segment_index import (
    ENTRY_BYTES,
    FOOTER_BYTES,
    NO_TIMESTAMP,
    SegmentIndex,
    Summary,
)
from folkmoot.protocol.batch_header import BatchHeader
from folkmoot.protocol.checksum import crc32c

LOG_BYTES = 10**9
BASE = 1000
CUT = os.ftruncate
Batch = tuple[int, int, int]
"""Offset, position, largest timestamp."""


def header(offset: int, timestamp: int) -> BatchHeader:
    return BatchHeader(offset, 100, 0, 50 + offset, 0, 0, 0, 1, timestamp, timestamp, -1, -1, -1, 0)


def made(path: Path, batches: Sequence[Batch], interval: int = 100) -> SegmentIndex:
    index = SegmentIndex(path, BASE, interval)
    for offset, position, timestamp in batches:
        index.observe(header(offset, timestamp), position)
    index.save()
    return index


def packed(*entries: tuple[int, int, int]) -> bytes:
    columns = [struct.pack(">IIq", *entry) for entry in entries]
    return b"".join(each + struct.pack(">I", crc32c(each)) for each in columns)


def entries(index: SegmentIndex) -> list[tuple[int, int]]:
    return list(index.entries_after(0))


def test_an_entry_is_added_once_an_interval_of_log_lies_behind_the_last(tmp_path: Path) -> None:
    batches = [(BASE + number, number * 40, number) for number in range(20)]
    index = made(tmp_path / "index", batches)
    assert entries(index) == [(BASE + number, number * 40) for number in (3, 6, 9, 12, 15, 18)]
    index.release()
    assert entries(index) == [(BASE + number, number * 40) for number in (3, 6, 9, 12, 15, 18)]


def test_the_file_is_entries_with_the_largest_timestamp_before_each_and_a_footer(
    tmp_path: Path,
) -> None:
    path = tmp_path / "index"
    index = made(path, [(BASE, 0, 7), (BASE + 1, 256, 5), (BASE + 2, 512, 9)])
    assert path.read_bytes() == packed((1, 256, 7), (2, 512, 7))
    index.seal(600, BASE + 3)
    assert path.stat().st_size == 2 * ENTRY_BYTES + FOOTER_BYTES
    found = SegmentIndex.load_summary(path, 600, BASE + 3)
    assert found == Summary(BASE + 50, BASE + 52, 9)
    again = SegmentIndex.load_sealed(path, BASE, 100, 600, BASE + 3)
    assert again is not None
    assert (entries(again), again.summary, again.trusted) == (entries(index), found, True)


def test_appends_go_on_behind_a_sealed_index_of_an_orderly_stop(tmp_path: Path) -> None:
    path = tmp_path / "index"
    made(path, [(BASE, 0, 7), (BASE + 1, 256, 5)]).seal(300, BASE + 2)
    index = SegmentIndex.load_sealed(path, BASE, 100, 300, BASE + 2)
    assert index is not None
    index.observe(header(BASE + 2, 11), 300)
    index.observe(header(BASE + 3, 1), 400)
    index.save()
    assert path.read_bytes().rstrip(bytes(1)) == packed((1, 256, 7), (3, 400, 11))
    index.seal(500, BASE + 4)
    assert SegmentIndex.load_summary(path, 500, BASE + 4) == Summary(BASE + 50, BASE + 53, 11)


def test_a_footer_is_written_over_and_cut_off_only_when_more_lies_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To cut a file costs the disk's journal a millisecond, of each log's first append after a start."""
    cuts: list[int] = []

    def cut(fd: int, size: int) -> None:
        cuts.append(size)
        CUT(fd, size)

    monkeypatch.setattr(os, "ftruncate", cut)
    path, end = tmp_path / "index", 2
    made(path, [(BASE, 0, 7), (BASE + 1, 256, 5)]).seal(300, BASE + end)
    for number in range(5):
        index = SegmentIndex.load_sealed(path, BASE, 100, 300 + 200 * number, BASE + end)
        assert index is not None
        for _ in range(number):
            index.observe(header(BASE + end, end), 100 * end + 200)
            end += 1
            index.save()
            crashed = SegmentIndex.load_unsealed(path, BASE, 100, 10_000)
            assert entries(crashed) == entries(index)
        index.seal(500 + 200 * number, BASE + end)
    assert cuts == []
    torn = SegmentIndex.load_unsealed(path, BASE, 100, 500)
    torn.seal(500, BASE + 4)
    assert cuts == [ENTRY_BYTES * torn.count]
    assert SegmentIndex.load_sealed(path, BASE, 100, 500, BASE + 4) is not None


def test_the_index_of_another_log_or_with_any_bit_flipped_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "index"
    batches = [(BASE + number, number * 100, number) for number in range(6)]
    made(path, batches).seal(600, BASE + 6)
    good = path.read_bytes()
    for size, end in ((601, BASE + 6), (600, BASE + 7)):
        assert SegmentIndex.load_sealed(path, BASE, 100, size, end) is None
        assert SegmentIndex.load_summary(path, size, end) is None
    for position in range(len(good)):
        for bit in range(8):
            bad = bytearray(good)
            bad[position] ^= 1 << bit
            path.write_bytes(bad)
            assert SegmentIndex.load_sealed(path, BASE, 100, 600, BASE + 6) is None
            in_footer = position >= len(good) - FOOTER_BYTES
            assert (SegmentIndex.load_summary(path, 600, BASE + 6) is None) == in_footer


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(-50, 50)), max_size=60),
    st.integers(-5, 1300),
)
def test_look_ups_give_the_last_entry_at_or_below(
    steps: list[tuple[int, int]], wanted: int
) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        batches, offset = [], BASE
        for step, timestamp in steps:
            offset += step
            batches.append((offset, offset - BASE, timestamp))
        index = made(Path(scratch) / "index", batches, interval=1)
        points = [(offset, position) for offset, position, _ in batches]
        before = [
            max((t for _, _, t in batches[:n]), default=NO_TIMESTAMP) for n in range(len(batches))
        ]
        start = (BASE, 0)
        below = [point for point in points if point[0] <= BASE + wanted]
        behind = [point[1] for point in points if point[0] > BASE + wanted]
        last = (below or [start])[-1]
        assert index.lookup(BASE + wanted) == (*last, behind[0] if behind else None)
        assert index.at_position(wanted) == ([p for p in points if p[1] <= wanted] or [start])[-1]
        early = [p for p, time in zip(points, before, strict=True) if time < wanted]
        assert index.before_time(wanted) == (early or [start])[-1]
        assert list(index.entries_after(wanted)) == [p for p in points if p[1] > wanted]


def test_no_content_of_the_file_can_do_harm(tmp_path: Path) -> None:
    path = tmp_path / "index"
    source = random.Random(31)
    for _ in range(300):
        path.write_bytes(source.randbytes(source.randrange(200)) + bytes(source.randrange(3) * 8))
        assert SegmentIndex.load_sealed(path, BASE, 100, 2**31, BASE + 9) is None
        index = SegmentIndex.load_unsealed(path, BASE, 100, 2**31)
        assert not index.trusted
        found = entries(index)
        assert found == sorted(set(found))
        index.lookup(source.randrange(2**33))
        index.at_position(source.randrange(2**33))
        index.before_time(source.randrange(2**33))


def test_what_finds_no_room_on_the_disk_is_kept_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "nowhere" / "index"
    index = SegmentIndex(path, BASE, 100)
    for number in range(4):
        index.observe(header(BASE + number, number), number * 100)
    index.replace(400, BASE + 4)
    assert entries(index) == [(BASE + number, number * 100) for number in (1, 2, 3)]
    path.parent.mkdir()
    index.observe(header(BASE + 4, 4), 400)
    index.save()
    index.release()
    assert entries(index) == [(BASE + number, number * 100) for number in (1, 2, 3, 4)]
    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", lambda *_: 0)
        for number in (5, 6):
            index.observe(header(BASE + number, number), number * 100)
            with pytest.raises(OSError, match="short write"):
                index.save()
        index.discard(600)
    assert entries(index) == [(BASE + number, number * 100) for number in (1, 2, 3, 4, 5)]
    assert index.lookup(BASE + 4) == (BASE + 4, 400, 500)
    index.seal(600, BASE + 6)
    index.release()
    again = SegmentIndex.load_sealed(path, BASE, 100, 600, BASE + 6)
    assert again is not None
    assert entries(again) == entries(index)


@pytest.mark.parametrize("base", [2**31, 2**32, 2**62])
def test_a_segment_far_from_the_logs_beginning_is_indexed_as_well(
    tmp_path: Path, base: int
) -> None:
    index = SegmentIndex(tmp_path / "index", base, 100)
    for offset, position in ((base, 0), (base + 1, 256), (base + 2**32 - 1, 512)):
        index.observe(header(offset, 7), position)
    index.observe(header(base + 2**32, 7), 768)  # an entry has no room for its offset
    index.save()
    assert entries(index) == [(base + 1, 256), (base + 2**32 - 1, 512)]
