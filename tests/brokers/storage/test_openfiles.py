"""How many files a broker keeps open, and what is left to one who still reads."""

import random
from pathlib import Path

import pytest

from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.segment import OPEN_FILES_PER_SEGMENT, OpenSegments
from folkmoot.coordination.topic_config import LogConfig
from folkmoot.protocol.records import TopicPartition
from tests.brokers.batches import (
    NOW,
    SMALL,
    a_batch,
    append,
    expected,
    make_log,
    random_batch,
    read_all,
    reopened,
)
from tests.processes import open_below


def many_logs(data: Path, files: OpenSegments, count: int) -> list[Log]:
    logs = []
    for number in range(count):
        directory = data / f"flights-{number}"
        directory.mkdir()
        logs.append(Log(directory, TopicPartition("flights", number), "first", SMALL, files))
        logs[-1].start()
    return logs


def test_open_files_are_bounded_however_many_partitions_are_written_and_read(
    tmp_path: Path,
) -> None:
    files = OpenSegments(7)
    source = random.Random(61)
    written: dict[int, list[bytes]] = {number: [] for number in range(60)}
    logs = many_logs(tmp_path, files, 60)
    for _ in range(600):
        number = source.randrange(60)
        each = random_batch(source, value_bytes=200)
        append(logs[number], each)
        written[number].append(each)
        assert len(files) <= 7
    assert len(open_below(tmp_path)) <= 7 * OPEN_FILES_PER_SEGMENT
    for number, batches in written.items():
        assert read_all(logs[number]) == expected(batches)
    assert len(open_below(tmp_path)) <= 7 * OPEN_FILES_PER_SEGMENT
    for log in logs:
        log.close()


def test_what_was_not_used_between_two_sweeps_holds_no_descriptor(tmp_path: Path) -> None:
    files = OpenSegments()
    idle, busy = many_logs(tmp_path, files, 2)
    for log in (idle, busy):
        for _ in range(10):
            append(log, a_batch(b"x" * 400))
        read_all(log)
    files.release_idle()
    assert len(files) > 2
    append(busy, a_batch(b"y"))
    files.release_idle()
    assert len(files) == 1
    assert len(open_below(tmp_path)) <= OPEN_FILES_PER_SEGMENT
    files.release_idle()
    files.release_idle()
    assert open_below(tmp_path) == []
    assert append(idle, a_batch(b"z")) == [10]
    assert len(read_all(busy)) == 11
    for log in (idle, busy):
        log.close()


@pytest.mark.parametrize("stop", [False, True])
def test_a_segment_too_old_is_followed_by_a_new_one_at_the_next_append(
    tmp_path: Path, stop: bool
) -> None:
    config = LogConfig(segment_age=60.0)
    log = make_log(tmp_path, config)
    append(log, a_batch(b"a"), now=NOW)
    for later, segments in (
        (0, 1),
        (59_999, 1),
        (60_000, 2),
        (60_001, 2),
        (1_000, 2),
        (120_000, 3),
    ):
        if stop:
            log.close()
            log = reopened(tmp_path, config)
        append(log, a_batch(b"b"), now=NOW + later)
        assert len(log.segments) == segments
    assert [offset for offset, _ in read_all(log)] == list(range(7))
    log.close()


@pytest.mark.parametrize("stop", [False, True])
def test_a_segment_begun_by_a_clock_far_ahead_is_followed_once_that_is_put_right(
    tmp_path: Path, stop: bool
) -> None:
    config = LogConfig(segment_age=60.0)
    log = make_log(tmp_path, config)
    for later, segments in (
        (10**12, 1),
        (0, 2),
        (-59_999, 2),
        (-60_000, 3),
        (-50_000, 3),
        (10**12, 4),
    ):
        if stop:
            log.close()
            log = reopened(tmp_path, config)
        append(log, a_batch(b"b"), now=NOW + later)
        assert len(log.segments) == segments
    assert [offset for offset, _ in read_all(log)] == list(range(6))
    log.close()
