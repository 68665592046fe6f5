"""The background's part of look-ups: which indexes it checks, and what may happen meanwhile."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from folkmoot.brokers.jobs.jobs import Job
from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.segment import (
    NotCached,
    OpenSegments,
    SegmentReader,
    SummaryJob,
)
from folkmoot.brokers.storage.segment_swap import cleaned_path, write_index
from folkmoot.protocol.errors import StorageError
from tests.brokers.batches import (
    NOW,
    ONE_SEGMENT,
    SMALL,
    append,
    delete_before,
    make_log,
    removed,
    reopened,
    timed_batch,
    values_of,
)
from tests.processes import open_below

RECORDS = 400
_REAL = {name: getattr(SegmentReader, name) for name in ("load_index", "complete_index")}


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """A log of many segments after a stop, one record a batch and a millisecond."""
    log = make_log(tmp_path)
    for number in range(RECORDS):
        append(log, timed_batch(NOW + number))
    assert len(log.segments) > 15
    return reopened(tmp_path, SMALL, log.close())


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Whoever is on the event loop checks no index."""

    def refuse(*_: object) -> None:
        raise AssertionError("an index is checked on the event loop")

    for name in _REAL:
        monkeypatch.setattr(SegmentReader, name, refuse)
    return monkeypatch


def run(job: Job | None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert job is not None
    monkeypatch.undo()
    job.finish(job.run())


def wanted_by(look_up: Callable[[], object]) -> Job | None:
    """The job that a look-up asks for, None if it has found something."""
    try:
        look_up()
    except NotCached as cold:
        return cold.job
    return None


def read_job(log: Log, offset: int) -> Job | None:
    log._files.may_wait = False
    return wanted_by(lambda: log.read(offset, 1))


def time_job(log: Log, timestamp: int) -> Job | None:
    log._files.may_wait = False
    return wanted_by(lambda: log.offset_for_time(timestamp))


def test_a_read_of_a_cold_segment_checks_its_index_in_the_background_once(
    log: Log, refused: pytest.MonkeyPatch
) -> None:
    run(read_job(log, 7), refused)
    assert values_of(log.read(7, 1)) == [(7, b"")]
    assert read_job(log, RECORDS) is None, "there is nothing to read"
    log.abandon()


@pytest.mark.parametrize("spoiled", [False, True])
def test_the_active_segment_is_opened_in_the_background_once_for_all_who_wait(
    tmp_path: Path, refused: pytest.MonkeyPatch, spoiled: bool
) -> None:
    """After a kill: what the index lacks is read from the log's headers, all of them if need be."""
    log = make_log(tmp_path, ONE_SEGMENT)
    for number in range(RECORDS):
        append(log, timed_batch(NOW + number))
    assert log.prepare_append() is None, "it was never closed"
    log.abandon()
    log.segments[0].index_path.write_bytes(bytes(160) if spoiled else b"")
    log = reopened(tmp_path, ONE_SEGMENT)
    job = read_job(log, RECORDS - 1)
    assert job is not None
    assert {job, log.prepare_append(), time_job(log, NOW)} == {job}
    with pytest.MonkeyPatch.context() as patch:
        for name, real in _REAL.items():
            patch.setattr(SegmentReader, name, real)
        job.finish(job.run())
    assert read_job(log, 7) is log.prepare_append() is time_job(log, NOW) is None
    append(log, timed_batch(NOW + RECORDS))
    job.finish(job.run())  # somebody else waited for it too
    for number in range(0, RECORDS + 1, 7):
        assert values_of(log.read(number, 1)) == [(number, b"")]
        assert log.offset_for_time(NOW + number) == number
    log.abandon()


def test_a_segment_that_is_sealed_while_its_index_is_loaded_is_looked_at_again(
    tmp_path: Path,
) -> None:
    log = make_log(tmp_path, ONE_SEGMENT)
    append(log, timed_batch(NOW))
    log.abandon()
    log = reopened(tmp_path, ONE_SEGMENT)
    job = log.prepare_append()
    assert job is not None
    found = job.run()
    log.roll()
    job.finish(found)
    again = log.segments[0].index_job()
    assert again is not None
    assert again is not job
    again.finish(again.run())
    assert log.segments[0].index_job() is None
    assert values_of(log.read(0, 1)) == [(0, b"")]
    log.abandon()


def test_a_look_up_of_a_time_reads_each_index_once_and_keeps_the_one_that_it_needs(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []

    def counted(name: str) -> None:
        real = getattr(SegmentReader, name)

        def look(*arguments: object) -> object:
            looked.append(name)
            return real(*arguments)

        monkeypatch.setattr(SegmentReader, name, look)

    counted("open_index")
    for wanted in (0, 200, 200, 399, RECORDS):
        while (job := time_job(log, NOW + wanted)) is not None:
            job.finish(job.run())
        before = len(looked)
        assert log.offset_for_time(NOW + wanted) == wanted
        assert len(looked) == before
    summaries = len(log.segments) - 1
    assert looked.count("open_index") == summaries + 3, "for 0, for 200, and the active segment"
    log.abandon()


def test_what_happens_to_a_log_meanwhile_is_in_the_answer(log: Log) -> None:
    job = time_job(log, NOW)
    assert job is not None
    found = job.run()
    for number in range(RECORDS, RECORDS + 100):
        append(log, timed_batch(NOW + number))
    delete_before(log, 205)
    job.finish(found)
    log._files.may_wait = True
    assert (log.offset_for_time(NOW), log.offset_for_time(NOW + RECORDS + 50)) == (
        log.log_start,
        RECORDS + 50,
    )
    removed(log.delete_segments(len(log.segments)))
    log.abandon()


def test_an_index_that_is_loaded_while_its_segment_is_dropped_is_not_written(log: Log) -> None:
    """The file would be taken for that of a later segment which begins at the same offset."""
    for path in log.directory.glob("*.index"):
        path.unlink()
    job = read_job(log, 7)
    assert job is not None
    found = job.run()
    removed(log.delete_segments(1))
    job.finish(found)
    assert list(log.directory.glob("*.index")) == []
    log.abandon()


def test_indexes_that_push_each_other_out_are_not_loaded_for_ever(tmp_path: Path) -> None:
    """Each is loaded by a job, and by its next use if another segment came in between."""
    log = make_log(tmp_path)
    for number in range(RECORDS):
        append(log, timed_batch(NOW + number))
    point = log.close()
    log = Log(log.directory, log.name, "first", SMALL, OpenSegments(1))
    log.start(point)
    log.advance_high_watermark(log.log_end)
    places = (7, 107, 207)
    for _ in range(3):
        jobs = {offset: job for offset in places if (job := read_job(log, offset)) is not None}
        assert len(jobs) > 1
        for job in jobs.values():
            job.finish(job.run())
        for offset in jobs:
            assert values_of(log.read(offset, 1)) == [(offset, b"")]
    log.abandon()


def test_an_index_that_is_wrong_is_built_anew_in_the_background(
    log: Log, refused: pytest.MonkeyPatch
) -> None:
    for index in log.directory.glob("*.index"):
        index.unlink()
    while (job := time_job(log, NOW + 100)) is not None:
        with pytest.MonkeyPatch.context() as background:
            for name, real in _REAL.items():
                background.setattr(SegmentReader, name, real)
            job.finish(job.run())
    assert log.offset_for_time(NOW + 100) == 100
    assert values_of(log.read(100, 1)) == [(100, b"")]
    log.abandon()


def test_what_cannot_be_read_in_the_background_is_told_to_who_asks(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:

        def broken(*_: object) -> None:
            raise StorageError("cannot be read")

        patch.setattr(SegmentReader, "open_index", broken)
        job = read_job(log, 7)
        assert job is not None
        job.finish(job.run())
        with pytest.raises(StorageError):  # nobody tries for ever
            log.read(7, 1)
    log._files.may_wait = True
    assert values_of(log.read(7, 1)) == [(7, b"")]
    job = read_job(log, 107)
    assert job is not None
    job.finish(OSError("the job itself failed"))
    assert values_of(log.read(107, 1)) == [(107, b"")]
    log.abandon()


@pytest.mark.parametrize("footers", [False, True])
def test_indexes_that_are_built_in_the_background_hold_no_descriptors(
    log: Log, footers: bool
) -> None:
    for index in log.directory.glob("*.index"):
        index.unlink()
    log.release()
    for segment in log.sealed_segments:
        job = SummaryJob([segment]) if footers else segment.index_job()
        assert job is not None
        job.finish(job.run())
    assert len(log.sealed_segments) > 2
    assert open_below(log.directory) == []
    log.abandon()


def test_an_index_for_which_there_is_no_room_holds_no_descriptor(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compaction tries again and again."""
    segment = log.sealed_segments[0]
    log.release()
    segment.path.rename(cleaned_path(log.directory, segment.name))

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(os, "pwritev", refuse)
        with pytest.raises(OSError, match="No space left"):
            write_index(log.directory, segment.name, segment.size, 256)
    assert open_below(log.directory) == []
    log.abandon()
