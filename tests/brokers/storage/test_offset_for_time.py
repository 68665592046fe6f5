"""Finding the batch that may hold a time, whatever the timestamps and whatever is left of the index."""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from folkmoot.brokers.storage.segment import Segment
from folkmoot.coordination.topic_config import LogConfig
from folkmoot.protocol import batch_header
from tests.brokers.batches import (
    NOW,
    ONE_SEGMENT,
    SMALL,
    append,
    delete_before,
    make_log,
    reopened,
    timed_batch,
)

T = 1_700_000_000_000


def first_at(batches: list[bytes], timestamp: int) -> int:
    """What a plain search through all batches finds: the base offset, or the end."""
    offset = 0
    for each in batches:
        header = batch_header.read_header(each)
        if header.max_timestamp >= timestamp:
            return offset
        offset += header.record_count
    return offset


def random_batches(source: random.Random, count: int, step: int = 50) -> list[bytes]:
    """Timestamps that go on and back again, before 1970 too."""
    now = source.choice((T, 0, -5_000))
    batches = []
    for _ in range(count):
        now += source.randrange(-step, 2 * step)
        records = source.randrange(1, 4)
        batches.append(timed_batch(*[now + source.randrange(step) for _ in range(records)]))
    return batches


def times_of(batches: list[bytes]) -> list[int]:
    found = {batch_header.read_header(each).max_timestamp for each in batches}
    return sorted({near for each in found for near in (each - 1, each, each + 1)})


@pytest.mark.parametrize("config", [SMALL, ONE_SEGMENT])
def test_every_time_is_found_before_and_after_a_stop_and_a_crash(
    tmp_path: Path, config: LogConfig
) -> None:
    source = random.Random(41)
    batches = random_batches(source, 200)
    log = make_log(tmp_path, config)
    for each in batches:
        append(log, each)
    wanted = [*source.sample(times_of(batches), 150), -(2**61), 2**61]
    for stop in (None, log.close, log.abandon):
        if stop is not None:
            stop()
            log = reopened(tmp_path, config)
        for timestamp in wanted:
            assert log.offset_for_time(timestamp) == first_at(batches, timestamp)
        more = random_batches(source, 5)
        append(log, *more)
        batches += more
    log.close()


def test_no_time_is_found_in_an_empty_log(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    assert log.offset_for_time(T) == 0
    log.close()


def test_equal_timestamps_are_found_at_the_first_of_them(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    for number in range(300):
        append(log, timed_batch(T + number // 100))
    for number in range(3):
        assert log.offset_for_time(T + number) == number * 100
    assert log.offset_for_time(T + 3) == 300
    log.close()


def spoiled(good: bytes) -> Iterator[tuple[str, bytes | None]]:
    source = random.Random(43)
    half = len(good) // 2
    yield "missing", None
    yield "empty", b""
    yield "short", good[:half]
    yield "torn", good[:-3]
    yield "with zeros behind", good + bytes(160)
    yield "zeros in the middle", good[:half] + bytes(16) + good[half + 16 :]
    for number in range(10):
        yield f"random {number}", source.randbytes(len(good))


def test_every_time_is_found_whatever_the_index_holds(tmp_path: Path) -> None:
    source = random.Random(47)
    batches = random_batches(source, 120)
    log = make_log(tmp_path, ONE_SEGMENT)
    for each in batches:
        append(log, each)
    end = log.close()
    path = log.directory / f"{0:020}.index"
    good = path.read_bytes()
    for what, content in spoiled(good):
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content)
        log = reopened(tmp_path, ONE_SEGMENT, end)
        for timestamp in times_of(batches)[::7]:
            assert log.offset_for_time(timestamp) == first_at(batches, timestamp), what
        log.close()
        assert path.read_bytes() == good, what


def test_every_time_is_found_whatever_the_index_of_a_sealed_segment_holds(tmp_path: Path) -> None:
    source = random.Random(61)
    batches = random_batches(source, 120)
    log = make_log(tmp_path)
    for each in batches:
        append(log, each)
    assert len(log.segments) > 4
    log.close()
    path = sorted(log.directory.glob("*.index"))[2]
    good = path.read_bytes()
    for what, content in spoiled(good):
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content)
        log = reopened(tmp_path)
        for timestamp in source.sample(times_of(batches), 60):
            assert log.offset_for_time(timestamp) == first_at(batches, timestamp), what
        log.close()


def test_the_index_of_a_sealed_segment_says_its_largest_timestamp(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    batches = random_batches(random.Random(53), 100)
    for each in batches:
        append(log, each)
    assert len(log.segments) > 3
    log.close()
    log = reopened(tmp_path)
    for segment in log.sealed_segments:
        largest, offset = [], 0
        for each in batches:
            header = batch_header.read_header(each)
            if segment.base_offset <= offset < segment.end_offset:
                largest.append(header.max_timestamp)
            offset += header.record_count
        assert segment.summary is None
        assert segment.use_index().summary == (NOW, NOW, max(largest))
    log.close()


def test_a_look_up_in_an_emptied_log_opens_no_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = make_log(tmp_path)
    append(log, timed_batch(T))
    delete_before(log, 1)
    assert [segment.size for segment in log.segments] == [0]
    built: list[object] = []
    monkeypatch.setattr(Segment, "complete_index", lambda *_: built.append(_))
    for point in (log.close(), None):
        log = reopened(tmp_path, SMALL, point)
        for timestamp in (-(2**61), 0, T, 2**61):
            assert log.offset_for_time(timestamp) == 1
        log.abandon()
    assert built == []


def test_a_look_up_among_a_thousand_segments_lists_no_directory_and_reads_one_stretch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = LogConfig(segment_bytes=512, index_interval_bytes=200)
    log = make_log(tmp_path, config)
    for number in range(5200):
        append(log, timed_batch(T + number))
    assert len(log.segments) >= 1000
    log.close()
    log = reopened(tmp_path, config)

    def refuse(*_: object) -> None:
        raise AssertionError("a directory is listed")

    reads: list[int] = []
    real = os.pread

    def counted(fd: int, count: int, position: int) -> bytes:
        if os.readlink(f"/proc/self/fd/{fd}").endswith(".log"):
            reads.append(count)
        return real(fd, count, position)

    monkeypatch.setattr("folkmoot.brokers.storage.recovery.os.scandir", refuse)
    monkeypatch.setattr("folkmoot.brokers.storage.segment.os.pread", counted)
    source = random.Random(59)
    log.offset_for_time(T + 5199)
    for _ in range(100):
        number = source.randrange(5200)
        for look_up in (
            lambda number=number: log.read(number, 1),
            lambda number=number: log.offset_for_time(T + number),
        ):
            reads.clear()
            look_up()
            assert len(reads) <= 6
            assert sum(reads) <= 6 * (config.index_interval_bytes + 2 * batch_header.HEADER_BYTES)
        assert log.offset_for_time(T + number) == number
    log.close()
