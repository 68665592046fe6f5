"""How many files a broker keeps open, what is left to one who still reads, and who is told of an error."""

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from folkmoot.brokers.jobs.jobs import Now
from folkmoot.brokers.storage.flusher import Flusher
from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.log_manager import LogManager
from folkmoot.brokers.storage.segment import OPEN_FILES_PER_SEGMENT, OpenSegments
from folkmoot.coordination.topic_config import LogConfig
from folkmoot.protocol.errors import StorageError
from folkmoot.protocol.records import TopicPartition
from tests.brokers.batches import (
    NOW,
    SMALL,
    a_batch,
    append,
    expected,
    flush,
    make_log,
    random_batch,
    read_all,
    reopened,
)
from tests.brokers.hands import Hands, create
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
    assert len(open_below(tmp_path)) <= 7 * OPEN_FILES_PER_SEGMENT + len(files.unflushed)
    for log in logs:
        flush(log)
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
        flush(log)
        read_all(log)
    files.release_idle()
    assert len(files) > 2
    append(busy, a_batch(b"y"))
    files.release_idle()
    assert len(files) == 1
    flush(busy)
    assert len(open_below(tmp_path)) <= OPEN_FILES_PER_SEGMENT
    files.release_idle()
    files.release_idle()
    assert open_below(tmp_path) == []
    assert append(idle, a_batch(b"z")) == [10]
    assert len(read_all(busy)) == 11
    for log in (idle, busy):
        log.close()


# -- what is not flushed yet ----------------------------------------------------------------------------


class WriteBack:
    """The kernel, which tells of an error whoever had the file open then, and forgets it otherwise."""

    def __init__(self) -> None:
        self._failing: set[Path] = set()

    def fails(self, path: Path) -> None:
        """What was written there does not come onto the disk."""
        if path in open_below(path.parent):
            self._failing.add(path)

    def sync(self, fd: int) -> None:
        if Path(os.readlink(f"/proc/self/fd/{fd}")) in self._failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.fixture
def write_back(monkeypatch: pytest.MonkeyPatch) -> WriteBack:
    made = WriteBack()
    monkeypatch.setattr(os, "fdatasync", made.sync)
    return made


def sealed(log: Log, other: Log, files: OpenSegments) -> Log:
    log.roll()
    return log


def sealed_and_read(log: Log, other: Log, files: OpenSegments) -> Log:
    log.roll()
    read_all(log)
    append(other, a_batch(b"y"))
    return log


def pushed_out(log: Log, other: Log, files: OpenSegments) -> Log:
    append(other, a_batch(b"y"))
    return log


def not_used_for_long(log: Log, other: Log, files: OpenSegments) -> Log:
    files.release_idle()
    files.release_idle()
    return log


def left_by_a_kill(log: Log, other: Log, files: OpenSegments) -> Log:
    log.abandon()
    again = Log(log.directory, log.name, "first", SMALL)
    again.start()
    return again


def left_by_a_kill_sealed(log: Log, other: Log, files: OpenSegments) -> Log:
    log.roll()
    append(log, a_batch(b"z"))
    return left_by_a_kill(log, other, files)


@pytest.mark.parametrize(
    "released",
    [
        *(sealed, sealed_and_read, pushed_out, not_used_for_long),
        *(left_by_a_kill, left_by_a_kill_sealed),
    ],
)
def test_an_error_of_what_is_written_back_between_an_append_and_its_flush_is_never_missed(
    tmp_path: Path, write_back: WriteBack, released: Callable[[Log, Log, OpenSegments], Log]
) -> None:
    files = OpenSegments(1)
    log, other = many_logs(tmp_path, files, 2)
    append(log, a_batch(b"x"))
    path = log.segments[0].path
    log = released(log, other, files)
    write_back.fails(path)
    with pytest.raises(StorageError, match="could not be flushed"):
        flush(log)
    assert log.failed is not None


def test_who_appends_to_many_partitions_has_them_flushed_before_files_run_out(
    tmp_path: Path,
) -> None:
    hands, files = Hands(), OpenSegments(8)
    logs = LogManager(tmp_path / "data", 1, SMALL, files, hands.submit)
    logs.start()
    flusher = Flusher(logs)
    flusher.task(Now(1000.0, 0))
    for number in range(40):
        log = create(logs, "t", "first", number)
        append(log, a_batch(b"x"))
        flusher.note_appended(log, 100, Now(1000.0, 0))
    assert files.is_crowded
    flusher.task(Now(1000.1, 0))
    hands.work_all()
    assert not files.unflushed
    assert all(log.recovery_point_offset == 1 for log in logs)
    assert len(open_below(tmp_path / "data")) <= 8 * (OPEN_FILES_PER_SEGMENT + 1)
    logs.abandon()


def test_a_start_behind_a_kill_keeps_few_files_open_and_flushes_the_others(
    tmp_path: Path,
) -> None:
    with LogManager(tmp_path / "data", 1, SMALL) as logs:
        for number in range(40):
            append(create(logs, "t", "first", number), a_batch(b"x"))
        logs.abandon()
    files = OpenSegments(8)
    logs = LogManager(tmp_path / "data", 1, SMALL, files)
    logs.start()
    assert len(open_below(tmp_path / "data")) <= 8 * (OPEN_FILES_PER_SEGMENT + 1)
    assert [log.log_end for log in logs] == [1] * 40
    logs.close()


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


@pytest.mark.parametrize(
    ("policy", "lag", "age"),
    [("compact", 10.0, 10_000), ("delete", 10.0, 100_000), ("compact", None, 100_000)],
)
def test_a_segment_is_followed_after_the_compaction_lag_if_its_records_are_compacted(
    tmp_path: Path, policy: Literal["compact", "delete"], lag: float | None, age: int
) -> None:
    config = LogConfig(cleanup_policy=policy, segment_age=100.0, max_compaction_lag=lag)
    log = make_log(tmp_path, config)
    for later, segments in ((0, 1), (age - 1, 1), (age, 2)):
        append(log, a_batch(b"a"), now=NOW + later)
        assert len(log.segments) == segments
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
