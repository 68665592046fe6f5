"""Which records go, when, and that those who still read them, and the offsets, are not disturbed."""

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from folkmoot.brokers.jobs.jobs import Now
from folkmoot.brokers.storage import retention
from folkmoot.brokers.storage.log_manager import REMOVE_AGAIN_AFTER, LogManager
from folkmoot.brokers.storage.retention import RETENTION_INTERVAL
from folkmoot.brokers.storage.segment import Segment, SegmentReader
from folkmoot.brokers.storage.segment_index import SegmentIndex
from folkmoot.coordination.topic_config import DAY, LogConfig
from folkmoot.protocol.batch_header import MAX_TIMESTAMP
from folkmoot.protocol.errors import DiskFull, OffsetOutOfRange, StorageError
from tests.brokers.batches import NOW, SMALL, a_batch, append, read_all, timed_batch, values_of
from tests.brokers.hands import OneLog, create
from tests.brokers.storage.test_log_manager import found

HOUR = 3_600_000
WEEK = 7 * 24 * HOUR
FLIGHTS_OF_2013 = 1_357_000_000_000


def moment(wall: int) -> Now:
    """One that a clock gives which goes as time does."""
    return Now((wall - NOW) / 1000, wall)


class Kept(OneLog):
    """The log, with times of a test's own."""

    def expire(self, now: int) -> None:
        """A round; what a snapshot has to tell of first goes after the next flush."""
        for _ in range(2):
            for _ in range(20):
                if self.retention.task(moment(now)) == RETENTION_INTERVAL:
                    break
                self.hands.work_all()
            self.flusher.flush(self.log)
            self.hands.work_all()

    def append_at(self, *times: int) -> None:
        """Five such batches fill a segment."""
        for each in times:
            append(self.log, a_batch(bytes(300)), now=each)

    def files(self) -> int:
        return len(list(self.log.directory.glob("*.log")))


def filled(data: Path, config: LogConfig = SMALL) -> Kept:
    """Five batches a segment, one batch an hour, 20 batches."""
    kept = Kept(data, config)
    for number in range(20):
        append(kept.log, a_batch(bytes([number]) * 300), now=NOW + number * HOUR)
    assert [segment.base_offset for segment in kept.log.sealed_segments] == [0, 5, 10]
    return kept


@pytest.mark.parametrize("stop", [None, True, False])
def test_a_segment_goes_once_its_last_append_is_older_than_the_retention(
    tmp_path: Path, stop: bool | None
) -> None:
    kept = filled(tmp_path)
    for later, start in (
        (WEEK + 4 * HOUR - 1, 0),
        (WEEK + 4 * HOUR, 5),
        (WEEK + 14 * HOUR - 1, 10),
        (WEEK + 14 * HOUR, 15),
        (WEEK + 19 * HOUR - 1, 15),
        (WEEK + 19 * HOUR, 20),
        (WEEK + 99 * HOUR, 20),
    ):
        if stop is not None:
            kept.reopen(clean=stop)
        kept.expire(NOW + later)
        assert (kept.log.log_start, kept.log.log_end) == (start, 20)
        assert [offset for offset, _ in read_all(kept.log)] == list(range(start, 20))
    assert {path.suffix for path in kept.log.directory.iterdir()} <= {
        *(".log", ".index", ".snapshot", ""),
    }
    assert kept.files() == 1
    for clean in (True, False):
        kept.reopen(clean=clean)
        assert (kept.log.log_start, kept.log.log_end) == (20, 20)
    assert append(kept.log, a_batch(b"next"), now=NOW) == [20]
    kept.logs.close()


def test_a_segment_in_which_nothing_can_be_read_goes_by_the_time_of_its_file(
    tmp_path: Path,
) -> None:
    kept = filled(tmp_path)
    kept.logs.close()
    oldest = kept.log.directory / f"{0:020}.log"
    oldest.write_bytes(bytes(oldest.stat().st_size))
    oldest.with_suffix(".index").unlink()
    os.utime(oldest, (0, NOW // 1000 + 4 * 3600))
    kept.reopen(clean=False)
    kept.expire(NOW + WEEK + 4 * HOUR - 1)
    assert kept.log.log_start == 0
    kept.expire(NOW + WEEK + 4 * HOUR)
    assert kept.log.log_start == 5
    kept.logs.close()


@pytest.mark.parametrize("stop", [None, True, False])
def test_what_was_appended_while_the_clock_was_ahead_goes_with_what_is_behind_it(
    tmp_path: Path, stop: bool | None
) -> None:
    """Else it would stay for years, and everything behind it too."""
    kept = Kept(tmp_path)
    kept.append_at(*([NOW] * 4), *([NOW + 500 * WEEK] * 11), *([NOW + HOUR] * 11))
    assert [segment.base_offset for segment in kept.log.sealed_segments] == [0, 4, 9, 14, 15, 20]
    if stop is not None:
        kept.reopen(clean=stop)
    kept.expire(NOW + WEEK + HOUR - 1)
    assert kept.log.log_start == 4
    kept.expire(NOW + WEEK + HOUR)
    assert kept.log.log_start == kept.log.log_end == 26
    kept.logs.close()


@pytest.mark.parametrize("segment_age", [7 * DAY, 10_000 * DAY])
@pytest.mark.parametrize("stop", [None, True, False])
def test_a_clock_that_goes_back_for_a_while_makes_no_record_old(
    tmp_path: Path, stop: bool | None, segment_age: float
) -> None:
    kept = Kept(tmp_path, replace(SMALL, segment_age=segment_age))
    kept.append_at(NOW, NOW, NOW - 500 * WEEK)
    if stop is not None:
        kept.reopen(clean=stop)
    kept.append_at(NOW - 500 * WEEK)
    kept.expire(NOW + WEEK - 1)
    assert (kept.log.log_start, kept.log.log_end) == (0, 4)
    kept.expire(NOW + WEEK)
    assert (kept.log.log_start, kept.log.log_end) == (4, 4)
    kept.logs.close()


@pytest.mark.parametrize("jump", [2 * WEEK, 520 * WEEK])
def test_a_clock_that_is_set_forward_while_the_broker_runs_makes_no_record_old(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, jump: int
) -> None:
    """As much time has to pass, or the clock to be put right; a start believes it."""

    def expire(passed: int, wall: int) -> int:
        for _ in range(20):
            if kept.retention.task(Now(passed / 1000, wall)) == RETENTION_INTERVAL:
                break
            kept.hands.work_all()
        kept.flusher.flush(kept.log)
        kept.hands.work_all()
        return kept.log.log_start

    kept = filled(tmp_path)
    now = 20 * HOUR
    assert expire(now, NOW + now) == 0
    for later in (60_000, 120_000, HOUR):
        assert expire(now + later, NOW + now + later + jump) == 0
    assert caplog.text.count("the wall clock was set forward") == 1
    append(kept.log, a_batch(b"of the future"), now=NOW + now + HOUR + jump)
    for _ in range(
        2
    ):  # what has grown old all the same goes, with a clock that is ahead and one that is not
        assert expire(WEEK + 4 * HOUR, NOW + WEEK + 4 * HOUR + jump) == 5
    assert expire(WEEK + 5 * HOUR, NOW + WEEK + 5 * HOUR) == 5
    assert caplog.text.count("the wall clock is right again") == 1
    assert expire(WEEK + 9 * HOUR, NOW + WEEK + 9 * HOUR) == 10
    kept.reopen(clean=True)
    assert expire(0, NOW + 2 * WEEK) == 20
    kept.logs.close()


def test_records_of_the_far_future_are_kept_by_the_day_of_their_append(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    for number in range(40):
        append(kept.log, timed_batch(MAX_TIMESTAMP - 39 + number), now=NOW)
    append(kept.log, timed_batch(NOW), now=NOW)
    wanted = (NOW, MAX_TIMESTAMP - 39, MAX_TIMESTAMP - 32, MAX_TIMESTAMP, 2**63 - 1)
    assert [kept.log.offset_for_time(each) for each in wanted] == [0, 0, 7, 39, 41]
    kept.expire(NOW + WEEK)
    assert kept.log.log_start == 41
    kept.logs.close()


def test_records_with_old_timestamps_are_kept_by_the_day_of_their_append(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    for number in range(40):
        append(kept.log, timed_batch(FLIGHTS_OF_2013 + number), now=NOW)
    kept.expire(NOW + WEEK - 1)
    assert kept.log.log_start == 0
    kept.expire(NOW + WEEK)
    assert kept.log.log_start == 40
    kept.logs.close()


def test_without_a_retention_nothing_goes(tmp_path: Path) -> None:
    kept = filled(tmp_path, replace(SMALL, retention=None))
    kept.expire(NOW + 1000 * WEEK)
    assert kept.log.log_start == 0
    kept.logs.close()


def test_by_size_the_oldest_go_as_long_as_so_much_is_left(tmp_path: Path) -> None:
    kept = filled(tmp_path, replace(SMALL, retention=None))
    segment = kept.log.sealed_segments[0].size
    for bytes_left, start in (
        (kept.log.size, 0),
        (kept.log.size - segment + 1, 0),
        (kept.log.size - segment, 5),
        (segment + 1, 10),
        (0, 15),
    ):
        kept.log.config = replace(kept.log.config, retention_bytes=bytes_left)
        kept.expire(NOW)
        assert kept.log.log_start == start
    kept.logs.close()


def test_a_fetch_under_way_on_a_deleted_segment_ends_correctly(tmp_path: Path) -> None:
    kept = filled(tmp_path)
    chunk = kept.log.read(0, 1000)
    kept.expire(NOW + WEEK + 10 * HOUR)
    assert not (kept.log.directory / f"{0:020}.log").exists()
    assert [value[:1] for _, value in values_of(chunk)] == [b"\0", b"\1"]
    with pytest.raises(OffsetOutOfRange):
        kept.log.read(4, 1000)
    assert kept.log.offset_for_time(0) == 10
    kept.logs.close()


def test_a_round_goes_through_all_logs_and_files_are_removed_in_the_background(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "LOGS_AT_ONCE", 10)
    kept = Kept(tmp_path / "data")
    for partition in range(25):
        log = create(kept.logs, "flights", "first", partition)
        if partition % 10 == 0:
            append(log, a_batch(b"a"), now=NOW)
    later = moment(NOW + WEEK)
    for _ in range(3):
        kept.retention.task(later)
        kept.hands.work_all()
    for log in list(kept.logs.dirty):
        kept.flusher.flush(log)
    kept.hands.work_all()
    pauses = [kept.retention.task(later) for _ in range(3)]
    assert pauses[0] == pauses[1] < pauses[2]
    assert [log.log_start for log in kept.logs] == [int(number % 10 == 0) for number in range(25)]
    assert (kept.log.directory / f"{0:020}.log").exists()
    kept.hands.work_all()
    assert not (kept.log.directory / f"{0:020}.log").exists()
    kept.logs.close()


def test_the_first_look_after_a_start_touches_no_disk_on_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It checked the indexes of 100 logs in one step, which took 0.9 s; and again after a minute."""
    kept = filled(tmp_path)
    kept.reopen(clean=True)
    names = ("open", "pread", "fsync", "fdatasync", "rename", "unlink", "scandir", "stat")
    later, jobs = moment(NOW + WEEK + 4 * HOUR), 0
    for _ in range(6):
        with monkeypatch.context() as slow:
            for name in names:
                slow.setattr(os, name, None)
            kept.retention.task(later)
        while kept.hands.jobs:
            _, work, done = kept.hands.jobs.pop(0)
            result = work()
            jobs += 1
            with monkeypatch.context() as slow:
                for name in names:
                    slow.setattr(os, name, None)
                done(result)
    assert kept.log.log_start == 5
    assert not (kept.log.directory / f"{0:020}.log").exists()
    before = jobs
    kept.logs.files.release_idle()
    kept.logs.files.release_idle()
    kept.retention.task(later)
    assert kept.hands.jobs == [], "what was read once is known"
    assert jobs == before
    kept.logs.close()


def test_what_cannot_be_read_keeps_its_log_for_now_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = filled(tmp_path)
    other = create(kept.logs, "other", "second", 0)
    append(other, a_batch(b"a"), now=NOW)
    kept.reopen(clean=True)
    kept.logs.configure("other", "second", {})
    found(kept.logs, 0, "second")
    later = NOW + 2 * WEEK
    real = SegmentReader.open_index

    def refuse(reader: SegmentReader, interval: int) -> SegmentIndex:
        if reader.directory == kept.log.directory:
            raise StorageError("it cannot be read")
        return real(reader, interval)

    with monkeypatch.context() as broken:
        broken.setattr(SegmentReader, "open_index", refuse)
        kept.expire(later)
    assert kept.log.log_start == 0
    assert found(kept.logs, 0, "second").log_start == 1
    kept.expire(later)
    assert kept.log.log_start == 20
    kept.logs.close()


def test_a_removal_that_waits_does_not_touch_a_later_topic_of_the_name(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "data")
    append(kept.log, a_batch(b"old"), now=NOW)
    kept.delete_before(1)
    kept.logs.configure("flights", "second", {})
    new = create(kept.logs, "flights", "second", 0)
    append(new, a_batch(b"new"), now=NOW)
    kept.logs.deletion_task(Now(0.0, 0))
    kept.hands.work_all()
    assert read_all(new) == [(0, b"new")]
    kept.logs.close()
    with LogManager(kept.data, 1, SMALL) as logs:
        assert read_all(found(logs, 0, "second")) == [(0, b"new")]


def test_a_round_passes_over_logs_that_were_deleted_since_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "LOGS_AT_ONCE", 1)
    later = moment(NOW + WEEK)
    kept = Kept(tmp_path / "data")
    old = create(kept.logs, "old", "old", 0)
    append(old, a_batch(b"old"), now=NOW)
    kept.logs.configure("old", "old", {})
    kept.retention.task(later)
    kept.logs.delete_topic("old")
    kept.logs.deletion_task(later)
    kept.hands.work_all()
    assert kept.retention.task(later) == RETENTION_INTERVAL
    assert kept.hands.jobs == []
    kept.logs.close()


def test_a_removal_that_was_interrupted_is_finished_by_a_later_life(tmp_path: Path) -> None:
    kept = filled(tmp_path)
    later = moment(NOW + WEEK + 4 * HOUR)
    kept.flusher.flush(kept.log)
    kept.hands.work_all()
    kept.retention.task(later)
    assert kept.log.log_start == 5
    assert kept.files() == 4
    kept.reopen(clean=False)
    kept.expire(later.wall)
    assert (kept.log.log_start, kept.files()) == (5, 3)
    kept.logs.close()


# -- delete records ----------------------------------------------------------------------------------


@pytest.mark.parametrize("clean", [True, False])
def test_records_before_an_offset_are_deleted_and_stay_so(tmp_path: Path, clean: bool) -> None:
    kept = filled(tmp_path)
    for offset, files in ((0, 4), (3, 4), (5, 3), (2, 3), (12, 2), (20, 1)):
        kept.delete_before(offset)
        start = max(offset, 5) if offset == 2 else offset
        for _ in range(2):
            assert (kept.log.log_start, kept.log.log_end) == (start, 20)
            assert kept.files() == files
            if start < 20:
                assert values_of(kept.log.read(start, 1))[0][0] == start
                assert kept.log.offset_for_time(0) == start
            if start:
                with pytest.raises(OffsetOutOfRange):
                    kept.log.read(start - 1, 1)
            kept.reopen(clean=clean)
    assert append(kept.log, a_batch(b"next"), now=NOW) == [20]
    kept.logs.close()


def test_an_empty_log_that_is_older_than_the_retention_stays_as_it_is_without_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = filled(tmp_path)
    kept.expire(NOW + WEEK + 99 * HOUR)
    for clean in (True, False):
        kept.reopen(clean=clean)
        for path in kept.log.directory.glob("*.log"):
            os.utime(path, (NOW / 1000, NOW / 1000))
        kept.expire(NOW + 2 * WEEK)
        assert (kept.log.log_start, kept.log.log_end, kept.files()) == (20, 20, 1)
    assert not [each for each in caplog.records if each.levelname == "WARNING"]
    assert append(kept.log, a_batch(b"next"), now=NOW) == [20]
    kept.logs.close()


def test_offsets_given_up_are_not_given_again_even_if_the_end_of_the_log_was_lost(
    tmp_path: Path,
) -> None:
    kept = filled(tmp_path)
    kept.delete_before(20)
    kept.logs.abandon()
    for path in kept.log.directory.glob("*.log"):
        path.unlink()
    kept.open()
    assert (kept.log.log_start, kept.log.log_end) == (20, 20)
    assert append(kept.log, a_batch(b"next"), now=NOW) == [20]
    kept.logs.close()


def test_on_a_full_disk_all_goes_but_what_a_new_segment_would_be_needed_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise DiskFull("no space left")

    kept = filled(tmp_path)
    with monkeypatch.context() as full:
        full.setattr(Segment, "create", refuse)
        kept.expire(NOW + 2 * WEEK)
    assert (kept.log.log_start, kept.log.log_end) == (15, 20)
    kept.expire(NOW + 2 * WEEK)
    assert (kept.log.log_start, kept.log.log_end) == (20, 20)
    kept.logs.close()


# -- files that cannot be removed ---------------------------------------------------------------------


class StuckFile:
    """A disk that refuses to remove one file."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
        self.is_stuck = True
        unlink = Path.unlink

        def refuse(self_: Path, missing_ok: bool = False) -> None:
            if self.is_stuck and self_ == path:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            unlink(self_, missing_ok=missing_ok)

        monkeypatch.setattr(Path, "unlink", refuse)


def test_behind_a_file_that_cannot_be_removed_newer_ones_stay_until_it_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else the next start would find a hole."""
    kept = filled(tmp_path)
    stuck = StuckFile(monkeypatch, kept.log.directory / f"{0:020}.log")
    for later in (WEEK + 4 * HOUR, WEEK + 9 * HOUR):
        kept.expire(NOW + later)
    assert kept.log.log_start == 10
    assert kept.files() == 4
    assert "deleted files stay for now" in caplog.text
    kept.reopen(clean=False)
    assert [offset for offset, _ in read_all(kept.log)] == list(range(20))
    kept.expire(NOW + WEEK + 9 * HOUR)
    stuck.is_stuck = False
    kept.logs.deletion_task(Now(0.0, NOW))
    kept.logs.deletion_task(Now(REMOVE_AGAIN_AFTER, NOW))
    kept.hands.work_all()
    assert (kept.log.log_start, kept.files()) == (10, 2)
    kept.logs.close()


def test_a_file_that_was_made_again_is_not_removed_with_one_that_could_not_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a cut to the begin, or a log that begins anew, makes it."""
    kept = filled(tmp_path)
    first, second = (kept.log.segments[number].files() for number in (0, 1))
    stuck = StuckFile(monkeypatch, second[0])
    kept.log.queue.add(kept.logs.remove(kept.log, [*first, *second]))
    kept.hands.work_all()
    assert not any(path.exists() for path in first)
    for path in first:
        path.write_bytes(b"again")
    stuck.is_stuck = False
    kept.logs.deletion_task(Now(REMOVE_AGAIN_AFTER, NOW))
    kept.hands.work_all()
    assert all(path.exists() for path in first)
    assert not any(path.exists() for path in second)
    kept.logs.abandon()


def test_what_is_deleted_while_a_removal_is_under_way_is_removed_behind_it(tmp_path: Path) -> None:
    kept = filled(tmp_path)
    first, second = (kept.log.segments[number].files() for number in (0, 1))
    kept.log.queue.add(kept.logs.remove(kept.log, first))
    kept.log.queue.add(kept.logs.remove(kept.log, second))
    assert len(kept.hands.jobs) == 1
    kept.hands.work_all()
    assert not any(path.exists() for path in (*first, *second))
    kept.logs.abandon()
