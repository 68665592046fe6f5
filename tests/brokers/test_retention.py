"""Which records go, when, and that those who still read them, and the offsets, are not disturbed."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from folkmoot.brokers.server.job_queue import Background
from folkmoot.brokers.server.scheduler import Now
from folkmoot.brokers.storage import produced
from folkmoot.brokers.storage.config import DAY, LogConfig
from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.log_manager import Logs
from folkmoot.brokers.storage.retention import Retention
from folkmoot.protocol.batch_header import MAX_TIMESTAMP
from folkmoot.protocol.errors import DiskFull, OffsetOutOfRange
from tests.brokers.batches import (
    NAME,
    NOW,
    SMALL,
    a_batch,
    delete_before,
    flushed,
    make_log,
    read_all,
    timed_batch,
    values_of,
)

HOUR = 3_600_000
WEEK = 7 * 24 * HOUR
FLIGHTS_OF_2013 = 1_357_000_000_000


def never(error: Exception) -> None:
    raise error


def filled(data: Path, config: LogConfig = SMALL) -> Log:
    """Five batches a segment, one batch an hour, 20 batches."""
    log = make_log(data, config)
    for number in range(20):
        produced.append(
            log, [a_batch(bytes([number]) * 300)], now=NOW + number * HOUR, leader_epoch=0
        )
    assert [segment.base_offset for segment in log.all_sealed()] == [0, 5, 10]
    return log


def reopen(log: Log, *, clean: bool, config: LogConfig | None = None) -> Log:
    end = log.close() if clean else None
    log.abandon()
    again = Log(log.directory.parent, NAME, "first", config or log.config)
    again.start(end)
    return again


def expire(log: Log, now: int) -> None:
    """As the chore does it: what a snapshot has to tell of first goes after the next checkpoint."""
    log.expire(now)
    flushed(log)
    log.expire(now)


@pytest.mark.parametrize("stop", [None, True, False])
def test_a_segment_goes_once_its_last_append_is_older_than_the_retention(
    tmp_path: Path, stop: bool | None
) -> None:
    log = filled(tmp_path)
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
            log = reopen(log, clean=stop)
        expire(log, NOW + later)
        assert (log.start_offset, log.end_offset) == (start, 20)
        assert [offset for offset, _ in read_all(log)] == list(range(start, 20))
    assert {path.suffix for path in log.directory.iterdir()} <= {
        *(".log", ".index", ".timeindex", ".snapshot")
    }
    assert len(list(log.directory.glob("*.log"))) == 1
    for clean in (True, False):
        log = reopen(log, clean=clean)
        assert (log.start_offset, log.end_offset) == (20, 20)
    assert produced.append(log, [a_batch(b"next")], now=NOW, leader_epoch=0) == [20]
    log.close()


def test_a_segment_whose_last_batch_has_rotted_goes_by_the_time_of_its_file(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.close()
    oldest = log.directory / f"{0:020}.log"
    content = bytearray(oldest.read_bytes())
    content[-9] ^= 1
    oldest.write_bytes(content)
    os.utime(oldest, (0, NOW // 1000 + 4 * 3600))
    log = reopen(log, clean=False)
    assert [each.next_offset for each in log.all_sealed()[0].damage] == [5]
    expire(log, NOW + WEEK + 4 * HOUR - 1)
    assert log.start_offset == 0
    expire(log, NOW + WEEK + 4 * HOUR)
    assert log.start_offset == 5
    log.close()


def append_at(log: Log, *times: int) -> None:
    """Five such batches fill a segment."""
    for each in times:
        produced.append(log, [a_batch(bytes(300))], now=each, leader_epoch=0)


@pytest.mark.parametrize("stop", [None, True, False])
def test_what_was_appended_while_the_clock_was_ahead_goes_with_what_is_behind_it(
    tmp_path: Path, stop: bool | None
) -> None:
    """Else it would stay for years, and everything behind it too."""
    log = make_log(tmp_path)
    append_at(log, *([NOW] * 4), *([NOW + 500 * WEEK] * 11), *([NOW + HOUR] * 11))
    assert [segment.base_offset for segment in log.all_sealed()] == [0, 4, 9, 14, 15, 20]
    if stop is not None:
        log = reopen(log, clean=stop)
    expire(log, NOW + WEEK + HOUR - 1)
    assert log.start_offset == 4
    expire(log, NOW + WEEK + HOUR)
    assert log.start_offset == log.end_offset == 26
    log.close()


@pytest.mark.parametrize("segment_age", [7 * DAY, 10_000 * DAY])
@pytest.mark.parametrize("stop", [None, True, False])
def test_a_clock_that_goes_back_for_a_while_makes_no_record_old(
    tmp_path: Path, stop: bool | None, segment_age: float
) -> None:
    log = make_log(tmp_path, replace(SMALL, segment_age=segment_age))
    append_at(log, NOW, NOW, NOW - 500 * WEEK)
    if stop is not None:
        log = reopen(log, clean=stop)
    append_at(log, NOW - 500 * WEEK)
    expire(log, NOW + WEEK - 1)
    assert (log.start_offset, log.end_offset) == (0, 4)
    expire(log, NOW + WEEK)
    assert (log.start_offset, log.end_offset) == (4, 4)
    log.close()


def test_records_of_the_far_future_are_kept_by_the_day_of_their_append(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    for number in range(40):
        produced.append(log, [timed_batch(MAX_TIMESTAMP - 39 + number)], now=NOW, leader_epoch=0)
    produced.append(log, [timed_batch(NOW)], now=NOW, leader_epoch=0)
    wanted = (NOW, MAX_TIMESTAMP - 39, MAX_TIMESTAMP - 32, MAX_TIMESTAMP, 2**63 - 1)
    assert [log.offset_for_time(each) for each in wanted] == [0, 0, 7, 39, 41]
    expire(log, NOW + WEEK)
    assert log.start_offset == 41
    log.close()


def test_records_with_old_timestamps_are_kept_by_the_day_of_their_append(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    for number in range(40):
        produced.append(log, [timed_batch(FLIGHTS_OF_2013 + number)], now=NOW, leader_epoch=0)
    expire(log, NOW + WEEK - 1)
    assert log.start_offset == 0
    expire(log, NOW + WEEK)
    assert log.start_offset == 40
    log.close()


def test_without_a_retention_nothing_goes(tmp_path: Path) -> None:
    log = filled(tmp_path, replace(SMALL, retention=None))
    expire(log, NOW + 1000 * WEEK)
    assert log.start_offset == 0
    log.close()


def test_by_size_the_oldest_go_as_long_as_so_much_is_left(tmp_path: Path) -> None:
    log = filled(tmp_path, replace(SMALL, retention=None))
    segment = log.all_sealed()[0].size
    for bytes_left, start in (
        (log.size, 0),
        (log.size - segment + 1, 0),
        (log.size - segment, 5),
        (segment + 1, 10),
        (0, 15),
    ):
        log.config = replace(log.config, retention_bytes=bytes_left)
        expire(log, NOW)
        assert log.start_offset == start
    log.close()


def test_a_fetch_under_way_on_a_deleted_segment_ends_correctly(tmp_path: Path) -> None:
    log = filled(tmp_path)
    chunk = log.read(0, 1000)
    expire(log, NOW + WEEK + 10 * HOUR)
    assert not (log.directory / f"{0:020}.log").exists()
    assert [value[:1] for _, value in values_of(chunk)] == [b"\0", b"\1"]
    with pytest.raises(OffsetOutOfRange):
        log.read(4, 1000)
    assert log.offset_for_time(0) == 10
    log.close()


def test_the_chore_goes_through_all_logs_and_files_are_removed_in_the_background(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(error: Exception) -> None:
        raise error

    monkeypatch.setattr("folkmoot.brokers.storage.retention.LOGS_AT_ONCE", 10)
    background = Background(fail)
    with Logs(tmp_path / "data", 1, SMALL, remove=background.remove) as logs:
        for partition in range(25):
            log = logs.create("flights", "first", partition)
            if partition % 10 == 0:
                produced.append(log, [a_batch(b"a")], now=NOW, leader_epoch=0)
        logs.configure("first", {})
        chore = Retention(logs).chore
        later = Now(0.0, NOW + round(7 * DAY * 1000))
        for _ in range(3):
            chore(later)
        for log in logs:
            flushed(log)
        pauses = [chore(later) for _ in range(3)]
        assert pauses[0] == pauses[1] < pauses[2]
        assert [log.start_offset for log in logs] == [int(number % 10 == 0) for number in range(25)]
        assert not (tmp_path / "data" / "flights-0" / f"{0:020}.log").exists()
        assert (tmp_path / "data" / "flights-0" / f"{0:020}.log.deleted").exists()
        background.run_all()
        assert not (tmp_path / "data" / "flights-0" / f"{0:020}.log.deleted").exists()
        logs.delete_topic("first")
        assert (tmp_path / "data" / "flights-0.first.deleted").exists()
        background.run_all()
        assert not list((tmp_path / "data").glob("flights*"))


def test_a_removal_that_waits_does_not_touch_a_later_topic_of_the_name(tmp_path: Path) -> None:
    background = Background(never)
    with Logs(tmp_path / "data", 1, SMALL, remove=background.remove) as logs:
        old = logs.create("flights", "first", 0)
        produced.append(old, [a_batch(b"old")], now=NOW, leader_epoch=0)
        delete_before(old, 1)
        logs.delete_topic("first")
        new = logs.create("flights", "second", 0)
        produced.append(new, [a_batch(b"new")], now=NOW, leader_epoch=0)
        background.run_all()
        assert (new.directory / f"{0:020}.log").exists()
        assert read_all(new) == [(0, b"new")]


def test_a_round_passes_over_logs_that_were_deleted_since_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("folkmoot.brokers.storage.retention.LOGS_AT_ONCE", 1)
    later = Now(0.0, NOW + WEEK)
    with Logs(tmp_path / "data", 1, SMALL) as logs:
        logs.create("earlier", "other", 0)
        old = logs.create("flights", "first", 0)
        produced.append(old, [a_batch(b"old")], now=NOW, leader_epoch=0)
        logs.configure("first", {})
        retention = Retention(logs)
        retention.chore(later)
        logs.delete_topic("first")
        new = logs.create("flights", "second", 0)
        produced.append(new, [a_batch(b"new")], now=NOW + WEEK, leader_epoch=0)
        retention.chore(later)
        assert (new.directory / f"{0:020}.log").exists()
        assert read_all(new) == [(0, b"new")]
    assert len(list(new.directory.glob("*.log"))) == 1


def test_a_removal_that_was_interrupted_is_finished_by_the_next_start(tmp_path: Path) -> None:
    background = Background(never)
    with Logs(tmp_path / "data", 1, SMALL, remove=background.remove) as logs:
        log = logs.create("flights", "first", 0)
        produced.append(log, [a_batch(b"a")], now=NOW, leader_epoch=0)
        delete_before(log, 1)
    assert list(log.directory.glob("*.deleted"))
    with Logs(tmp_path / "data", 1, SMALL) as logs:
        assert logs.get("flights", 0).start_offset == 1
        assert not list(log.directory.glob("*.deleted"))


# -- delete records ----------------------------------------------------------------------------------


@pytest.mark.parametrize("clean", [True, False])
def test_records_before_an_offset_are_deleted_and_stay_so(tmp_path: Path, clean: bool) -> None:
    log = filled(tmp_path)
    for offset, files in ((0, 4), (3, 4), (5, 3), (2, 3), (12, 2), (20, 1)):
        delete_before(log, offset)
        start = max(offset, 5) if offset == 2 else offset
        for _ in range(2):
            assert (log.start_offset, log.end_offset) == (start, 20)
            assert len(list(log.directory.glob("*.log"))) == files
            if start < 20:
                assert values_of(log.read(start, 1))[0][0] == start
                assert log.offset_for_time(0) == start
            if start:
                with pytest.raises(OffsetOutOfRange):
                    log.read(start - 1, 1)
            log = reopen(log, clean=clean)
    assert produced.append(log, [a_batch(b"next")], now=NOW, leader_epoch=0) == [20]
    log.close()


def test_offsets_given_up_are_not_given_again_even_if_the_end_of_the_log_was_lost(
    tmp_path: Path,
) -> None:
    log = filled(tmp_path)
    delete_before(log, 20)
    log.abandon()
    for path in log.directory.glob("*.log"):
        path.unlink()
    again = Log(tmp_path, NAME, "first", SMALL)
    again.start()
    assert (again.start_offset, again.end_offset) == (20, 20)
    assert produced.append(again, [a_batch(b"next")], now=NOW, leader_epoch=0) == [20]
    again.close()


def test_nothing_is_deleted_when_the_new_start_cannot_be_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(directory: Path, topic_id: str, offset: int) -> None:
        raise OSError(28, "No space left on device")

    log = filled(tmp_path)
    with monkeypatch.context() as full:
        full.setattr("folkmoot.brokers.storage.deletions.save_start", refuse)
        with pytest.raises(DiskFull, match="nothing was deleted"):
            delete_before(log, 12)
    assert [offset for offset, _ in read_all(log)] == list(range(20))
    log.close()


def test_on_a_full_disk_all_goes_but_what_a_new_segment_would_be_needed_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise DiskFull("no space left")

    log = filled(tmp_path)
    with monkeypatch.context() as full:
        full.setattr("folkmoot.brokers.storage.segments.Segment.create", refuse)
        expire(log, NOW + 2 * WEEK)
    assert (log.start_offset, log.end_offset) == (15, 20)
    expire(log, NOW + 2 * WEEK)
    assert (log.start_offset, log.end_offset) == (20, 20)
    log.close()
