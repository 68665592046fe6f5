"""The index of a segment: its entries, its file, what is believed of that, and its memory."""

import random
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.recovery import RecoveryPoint
from folkmoot.brokers.storage.segment import OpenSegments
from folkmoot.brokers.storage.segment_index import (
    ENTRY_BYTES,
    NO_TIMESTAMP,
    SegmentIndex,
    Summary,
)
from folkmoot.coordination.topic_config import LogConfig
from folkmoot.protocol.batch_header import BatchHeader
from folkmoot.protocol.checksum import crc32c
from tests.brokers.batches import (
    NAME,
    NOW,
    SMALL,
    a_batch,
    append,
    make_log,
    read_all,
    reopened,
    timed_batch,
    values_of,
)
from tests.seeds import new_seed

BASE = 1000
Batch = tuple[int, int, int]
"""Offset, position, largest timestamp."""


def header(offset: int, timestamp: int) -> BatchHeader:
    return BatchHeader(offset, 100, 0, 50 + offset, 0, 0, 0, 1, timestamp, timestamp, -1, -1, -1, 0)


def made(batches: Sequence[Batch], interval: int = 100) -> SegmentIndex:
    index = SegmentIndex(BASE, interval)
    for offset, position, timestamp in batches:
        index.observe(header(offset, timestamp), position)
    return index


def entries(index: SegmentIndex) -> list[tuple[int, int]]:
    return list(index.entries_after(0))


def test_an_entry_is_added_once_an_interval_of_log_lies_behind_the_last() -> None:
    index = made([(BASE + number, number * 40, number) for number in range(20)])
    assert entries(index) == [(BASE + number, number * 40) for number in (3, 6, 9, 12, 15, 18)]


def test_the_file_is_a_header_three_columns_and_a_checksum() -> None:
    index = made([(BASE, 0, 7), (BASE + 1, 256, 5), (BASE + 2, 512, 9)])
    data = index.encode(600, BASE + 3)
    times = BASE + 50, BASE + 52, 9
    expected = struct.pack(">4sIqqqqq", b"FIX3", 600, BASE, BASE + 3, *times)
    expected += struct.pack(">IIIIqq", 1, 2, 256, 512, 7, 7)
    assert data == expected + struct.pack(">I", crc32c(expected))
    again = SegmentIndex.decode(data, BASE, 100, 600)
    assert again is not None
    assert (entries(again), again.summary) == (entries(index), Summary(*times))
    assert (again.due, again.saved_bytes) == (612, 600)


def test_a_file_of_the_beginning_of_a_log_has_an_entry_where_that_ends() -> None:
    data = made([(BASE, 0, 7), (BASE + 1, 256, 5)]).encode(300, BASE + 2)
    index = SegmentIndex.decode(data, BASE, 100, 500)
    assert index is not None
    assert entries(index) == [(BASE + 1, 256), (BASE + 2, 300)]
    assert (index.before_time(7), index.before_time(8)) == ((BASE, 0), (BASE + 2, 300))


def test_the_index_of_another_or_a_longer_log_or_with_any_bit_flipped_is_not_believed() -> None:
    batches = [(BASE + number, number * 100, number) for number in range(6)]
    good = made(batches).encode(600, BASE + 6)
    assert SegmentIndex.decode(good, BASE, 100, 600) is not None
    assert SegmentIndex.decode(good, BASE, 100, 599) is None
    assert SegmentIndex.decode(good, BASE + 1, 100, 600) is None
    for position in range(len(good)):
        assert SegmentIndex.decode(good[:position], BASE, 100, 600) is None
        for bit in range(8):
            bad = bytearray(good)
            bad[position] ^= 1 << bit
            assert SegmentIndex.decode(bytes(bad), BASE, 100, 600) is None
    assert SegmentIndex.decode(good + bytes(ENTRY_BYTES), BASE, 100, 600) is None


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(-50, 50)), max_size=60),
    st.integers(-5, 1300),
)
def test_look_ups_give_the_last_entry_at_or_below(
    steps: list[tuple[int, int]], wanted: int
) -> None:
    batches, offset = [], BASE
    for step, timestamp in steps:
        offset += step
        batches.append((offset, offset - BASE, timestamp))
    index = made(batches, interval=1)
    points = [(offset, position) for offset, position, _ in batches]
    before = [
        max((t for _, _, t in batches[:n]), default=NO_TIMESTAMP) for n in range(len(batches))
    ]
    start = (BASE, 0)
    below = [point for point in points if point[0] <= BASE + wanted]
    assert index.lookup(BASE + wanted) == (below or [start])[-1]
    assert index.at_position(wanted) == ([p for p in points if p[1] <= wanted] or [start])[-1]
    early = [p for p, time in zip(points, before, strict=True) if time < wanted]
    assert index.before_time(wanted) == (early or [start])[-1]
    assert list(index.entries_after(wanted)) == [p for p in points if p[1] > wanted]


@pytest.mark.parametrize("base", [2**31, 2**32, 2**62])
def test_a_segment_far_from_the_logs_beginning_is_indexed_as_well(base: int) -> None:
    index = SegmentIndex(base, 100)
    for offset, position in ((base, 0), (base + 1, 256), (base + 2**32 - 1, 512)):
        index.observe(header(offset, 7), position)
    index.observe(header(base + 2**32, 7), 768)  # an entry has no room for its offset
    assert entries(index) == [(base + 1, 256), (base + 2**32 - 1, 512)]


# -- in a log -------------------------------------------------------------------------------------------


def test_damage_to_an_index_file_never_makes_a_wrong_answer(tmp_path: Path) -> None:
    """Every byte flipped, and the file cut at every length: of a sealed and of the active segment."""
    config = LogConfig(segment_bytes=1200, index_interval_bytes=150)
    log = make_log(tmp_path, config)
    for number in range(15):
        append(log, timed_batch(NOW + number))
    end = log.close()
    for path in sorted(log.directory.glob("*.index")):
        good = path.read_bytes()
        spoiled = [good[:length] for length in range(len(good))]
        for position in range(len(good)):
            bad = bytearray(good)
            bad[position] ^= 0xFF
            spoiled.append(bytes(bad))
        for content in spoiled:
            path.write_bytes(content)
            log = reopened(tmp_path, config, end)
            for offset in range(14, -1, -1):
                assert values_of(log.read(offset, 1))[0][0] == offset
                assert log.offset_for_time(NOW + offset) == offset
            log.abandon()
            assert path.read_bytes() == good, "it is built anew"


@pytest.mark.parametrize("left", [0, 5])
def test_a_log_that_was_cut_never_believes_an_index_of_what_was_there(
    tmp_path: Path, left: int
) -> None:
    """The cut loses the tail (a power cut, say), others are appended, and the broker is killed."""
    config = LogConfig(segment_bytes=10**6, index_interval_bytes=1)
    log = make_log(tmp_path, config)
    for number in range(20):
        append(log, timed_batch(NOW + number))
    log.close()
    path, size = log.segments[0].path, len(timed_batch(NOW))
    with path.open("r+b") as file:
        file.truncate(left * size)
    log = reopened(tmp_path, config, RecoveryPoint(left, 0, left * size))
    for number in range(left, 20):
        append(log, timed_batch(*[NOW + number] * 3))  # other batches at the same offsets
    log.abandon()
    log = reopened(tmp_path, config)
    assert log.log_end == left + 3 * (20 - left)
    for offset in reversed(range(log.log_end)):
        first = values_of(log.read(offset, 1))[0][0]
        assert first == (offset if offset < left else offset - (offset - left) % 3)
    log.abandon()


def test_a_kill_leaves_the_index_of_most_of_a_segment(tmp_path: Path) -> None:
    log = make_log(tmp_path, LogConfig())
    large = [a_batch(bytes(1 << 20)) for _ in range(20)]
    for each in large:
        append(log, each)
    path = log.segments[0].index_path
    log.abandon()
    assert path.exists()
    log = reopened(tmp_path, LogConfig())
    index = log.segments[0].load_index()
    assert index is not None
    assert 16 * 2**20 < index.saved_bytes < log.size
    for offset in range(19, -1, -1):
        assert values_of(log.read(offset, 1))[0][0] == offset
    assert log.segments[0].load_index().saved_bytes == log.size  # type: ignore[union-attr]
    log.abandon()


def test_the_indexes_of_sealed_segments_are_dropped_with_their_files_and_loaded_again(
    tmp_path: Path,
) -> None:
    files = OpenSegments(3)
    source = random.Random(new_seed())
    config = LogConfig(segment_bytes=4000, index_interval_bytes=1)
    log = Log(tmp_path, NAME, "first", config, files)
    log.start()
    batches = [timed_batch(NOW + number) for number in range(1000)]
    for number, each in enumerate(batches):
        append(log, each)
        assert sum(each.index is not None for each in log.sealed_segments) <= 3
        offset = source.randrange(number + 1)
        assert values_of(log.read(offset, 1))[0][0] == offset
        assert log.offset_for_time(NOW + offset) == offset
    assert len(log.segments) > 3
    assert len(read_all(log)) == 1000
    log.close()
    assert not any(each.index for each in log.segments)


def test_the_index_of_a_segment_that_is_appended_to_stays_when_its_file_is_closed(
    tmp_path: Path,
) -> None:
    files = OpenSegments(1)
    logs = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        logs.append(Log(tmp_path / name, NAME, "first", SMALL, files))
        logs[-1].start()
    for number in range(15):
        for log in logs:
            append(log, timed_batch(NOW + number))
    for log in logs:
        for number in range(14, -1, -1):
            assert log.offset_for_time(NOW + number) == number
        assert log.segments[-1].index is not None
        log.close()
        assert log.segments[-1].index_path.exists()
