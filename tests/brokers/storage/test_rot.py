"""Headers that have rotted on the disk: what lies beside them is served, found and appended to."""

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.recovery import RecoveryPoint
from folkmoot.brokers.storage.segment import Damage, headers_from
from folkmoot.coordination.topic_config import LogConfig
from folkmoot.protocol import batch_header
from folkmoot.protocol.errors import CorruptBatch
from tests.brokers.batches import NAME, ONE_SEGMENT, append, flush, make_log, reopened, timed_batch

RECORDS = 60
LAST_OFFSET_DELTA = 42
"""A byte of it (`docs/format.md`)."""
ROTTEN = 10
SIZE = len(timed_batch(1000))
SEGMENTS = LogConfig(segment_bytes=4096, index_interval_bytes=250)
"""Two: 40 batches of a record each, and the rest; every third batch has an entry in the index."""
NEXT_ENTRY = 12
"""Behind the rotten header: what lies before it cannot be told from what the header stands for."""


def rot(data: Path, number: int, byte: int = 9) -> None:
    """Flip a bit in the header of a batch of the first segment."""
    segment = data / str(NAME) / f"{0:020}.log"
    content = bytearray(segment.read_bytes())
    content[number * SIZE + byte] ^= 0x40
    segment.write_bytes(content)


def written(data: Path) -> RecoveryPoint | None:
    """A log of many batches, stopped in order."""
    log = make_log(data, SEGMENTS)
    for number in range(RECORDS):
        append(log, timed_batch(1000 + number))
    assert len(log.segments) == 2
    return log.close()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    """A log with one header of the first segment rotted, since an orderly stop."""
    end = written(tmp_path)
    rot(tmp_path, ROTTEN)
    log = reopened(tmp_path, SEGMENTS, end)
    yield log
    log.close()


def offsets_in(log: Log, offset: int, max_bytes: int) -> list[int]:
    """What a consumer gets: it stops in front of what does not match its checksum."""
    found: list[int] = []
    chunk = log.read(offset, max_bytes)
    with suppress(CorruptBatch):
        for header, _ in batch_header.split(chunk):
            found.append(header.base_offset)
    return found


@pytest.mark.parametrize("max_bytes", [SIZE // 2, SIZE + SIZE // 2, 3 * SIZE])
def test_all_but_what_lies_before_the_next_entry_can_be_read_whatever_is_asked_for(
    log: Log, max_bytes: int
) -> None:
    for offset in range(RECORDS):
        if ROTTEN <= offset < NEXT_ENTRY:
            with pytest.raises(CorruptBatch, match=f"go on at {NEXT_ENTRY}"):
                log.read(offset, max_bytes)
        else:
            found = offsets_in(log, offset, max_bytes)
            assert found[0] == offset
            assert ROTTEN not in found


@pytest.mark.parametrize("first", [30, 8, 9, 7, 11])
def test_a_count_of_records_that_has_rotted_hides_nothing_but_its_batch(
    tmp_path: Path, first: int
) -> None:
    """Headers lead from batch to batch by it, and their checksum does not cover it."""
    end = written(tmp_path)
    rot(tmp_path, ROTTEN, byte=LAST_OFFSET_DELTA)
    log = reopened(tmp_path, SEGMENTS, end)
    found = offsets_in(log, first, 400)
    assert found[0] == first
    assert ROTTEN not in found
    assert log.offset_for_time(1000 + first) == first
    assert offsets_in(log, ROTTEN, 400) == []
    for each in log.segments[0].reader().batches():  # as the scrubber looks
        if isinstance(each, Damage):
            log.segments[0].mark(each)
    with pytest.raises(CorruptBatch, match="go on at 11"):
        log.read(ROTTEN, 400)
    assert offsets_in(log, 11, 400)[0] == 11
    log.close()


def test_a_batch_that_has_rotted_takes_no_other_with_it_however_high_its_offset(
    tmp_path: Path,
) -> None:
    many = 1000
    log = make_log(tmp_path, ONE_SEGMENT)
    append(log, timed_batch(*range(many)))
    before = log.segments[0].size
    for number in range(20):
        append(log, timed_batch(number))
    segment, end = log.segments[0].path, log.close()
    content = bytearray(segment.read_bytes())
    content[before + ROTTEN * SIZE + LAST_OFFSET_DELTA] ^= 0x40
    segment.write_bytes(content)
    log = reopened(tmp_path, ONE_SEGMENT, end)
    found = [each for each in log.segments[0].reader().batches() if isinstance(each, Damage)]
    assert [(each.offset, each.next_offset) for each in found] == [
        (many + ROTTEN, many + ROTTEN + 1)
    ]
    log.close()


@pytest.mark.parametrize("first", [8, 9, 12, 30])
def test_what_lies_near_it_can_be_read_first(log: Log, first: int) -> None:
    """Nobody has met it, so nothing is marked yet."""
    for max_bytes in (250, 320, 150):
        assert offsets_in(log, first, max_bytes)[0] == first


def test_times_behind_it_are_found_before_and_after_it_is_marked_and_after_a_start(
    log: Log,
) -> None:
    lost = range(ROTTEN, NEXT_ENTRY)
    wanted = {1000 + number: NEXT_ENTRY if number in lost else number for number in range(RECORDS)}
    for look in range(3):
        found = {timestamp: log.offset_for_time(timestamp) for timestamp in wanted}
        assert found == wanted
        if look == 0:
            log = reopened(log.directory.parent, SEGMENTS, log.close())


def test_without_an_index_damage_reaches_to_the_end_of_its_segment(tmp_path: Path) -> None:
    end = written(tmp_path)
    rot(tmp_path, ROTTEN)
    for index in (tmp_path / str(NAME)).glob("*.index"):
        index.unlink()
    log = reopened(tmp_path, SEGMENTS, end)
    assert offsets_in(log, 9, SIZE) == [9]
    with pytest.raises(CorruptBatch, match="go on at 40"):
        log.read(ROTTEN, SIZE)
    assert log.offset_for_time(1020) == 40
    assert append(log, timed_batch(1)) == [RECORDS]
    log.close()


@pytest.mark.parametrize("unflushed", [0, 1])
def test_a_start_after_a_kill_serves_appends_and_finds_times(
    tmp_path: Path, unflushed: int
) -> None:
    """The first append behind an orderly stop has an entry in the index, so that what has rotted in front
    of it ends there."""
    config = LogConfig()
    log = make_log(tmp_path / "a", config)
    for timestamp in (1, 2, 3):
        append(log, timed_batch(timestamp))
    log = reopened(tmp_path / "a", config, log.close())
    append(log, timed_batch(9000))
    flush(log)
    for _ in range(unflushed):
        append(log, timed_batch(9001))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    rot(tmp_path / "b", 1)
    log = reopened(tmp_path / "b", config, log.recovery_point)
    end = 4 + unflushed
    for number in range(3):
        assert append(log, timed_batch(5)) == [end + number]
    with pytest.raises(CorruptBatch, match="go on at 3"):
        log.read(1, 100)
    assert log.offset_for_time(2) == 3  # the next that is left
    assert log.offset_for_time(8000) == 3
    assert offsets_in(log, 3, 10_000) == list(range(3, end + 3))
    log.close()


def test_headers_come_to_an_end_behind_damage_that_is_marked_up_to_the_end_of_a_segment(
    log: Log,
) -> None:
    segment = log.segments[0]
    segment.mark(Damage(ROTTEN, segment.end_offset, ROTTEN * SIZE, segment.size))
    before, behind = range(ROTTEN), range(segment.end_offset, RECORDS)
    readers = [each.reader() for each in log.segments]
    assert [header.base_offset for header in headers_from(readers, 0)] == [*before, *behind]
