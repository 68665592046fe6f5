"""Batches that readers report as damaged: read again, and marked only if they are."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from folkmoot.brokers.jobs.jobs import Now, SharedJob, result_of
from folkmoot.brokers.storage.damage_reports import damage_job
from folkmoot.brokers.storage.log_manager import LogManager
from folkmoot.brokers.storage.segment_index import SegmentIndex
from folkmoot.protocol.errors import CorruptBatch
from tests.brokers.batches import SMALL, a_batch, append, read_all, values_of
from tests.brokers.hands import create
from tests.brokers.storage.test_log_manager import found
from tests.brokers.storage.test_scrubber import rot

NOW = Now(100.0, 1_700_000_000_000)
SIZE = len(a_batch(bytes(300)))


class Bench:
    """A log that has sealed segments of five batches."""

    def __init__(self, logs: LogManager) -> None:
        self.logs = logs
        self.log = create(logs, "t", "id-1", 0)
        for number in range(23):
            append(self.log, a_batch(bytes([number]) * 300))
        assert len(self.log.segments) > 3

    def job(self, offset: int) -> SharedJob:
        job = damage_job(self.log, offset)
        assert job is not None
        return job

    def report(self, *offsets: int) -> None:
        for offset in offsets:
            job = self.job(offset)
            job.finish(result_of(job.run))

    def rot(self, offset: int) -> None:
        """Flip a bit in the body of the batch, in whose segment all batches have one record."""
        segment = self.log.segment_at(offset)
        place = (offset - segment.base_offset) * SIZE + 200
        rot(self.log.directory / f"{segment.base_offset:020}.log", place)

    def damaged(self) -> list[int]:
        return [offset for offset in range(23) if self.log.segment_at(offset).is_damaged(offset)]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with LogManager(tmp_path / "data", 1, SMALL) as logs:
        yield Bench(logs)


@pytest.mark.parametrize("offset", [5, 7, 9, 22])
def test_a_bad_batch_that_a_reader_was_served_is_marked(bench: Bench, offset: int) -> None:
    """Of a sealed segment, which is served from a mapping; and of the active one."""
    assert bool(bench.log.find_sealed(bench.log.segment_at(offset).base_offset)) == (offset != 22)
    bench.log.read(offset, 1)  # mapped, and in the page cache
    bench.rot(offset)
    with pytest.raises(CorruptBatch):
        values_of(bench.log.read(offset, 1))
    bench.report(offset)
    assert bench.damaged() == [offset]
    with pytest.raises(CorruptBatch, match=f"go on at {offset + 1}"):
        bench.log.read(offset, 1)
    others = [other for other in range(23) if other != offset]
    assert [values_of(bench.log.read(other, 1))[0][0] for other in others] == others


def test_a_batch_whose_header_has_rotted_is_marked_too(bench: Bench) -> None:
    bench.log.read(5, 1)
    rot(bench.log.directory / f"{5:020}.log", 2 * SIZE + 10)
    bench.report(7)
    assert bench.damaged() == [7]


def test_a_report_about_a_good_batch_changes_nothing(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    whole = read_all(bench.log)
    with caplog.at_level(logging.WARNING):
        bench.report(7, 22)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    assert bench.damaged() == []
    assert read_all(bench.log) == whole


def test_what_is_marked_is_not_looked_at_again(bench: Bench) -> None:
    bench.rot(7)
    bench.report(7)
    assert damage_job(bench.log, 7) is None


def test_an_index_that_leads_astray_does_not_make_good_batches_bad(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.rot(8)
    for position in (SIZE, 3 * SIZE, 3 * SIZE + 5, 10**9):
        place = 7, position
        with monkeypatch.context() as astray:
            astray.setattr(SegmentIndex, "lookup", lambda *_, place=place: place)
            bench.report(7)
        assert bench.damaged() == []
    bench.report(8)
    assert bench.damaged() == [8]


def test_nothing_is_read_on_the_event_loop(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.logs.abandon()
    bench.logs.start()
    log = bench.log = found(bench.logs, 0, "id-1")
    bench.rot(7)
    with monkeypatch.context() as slow:
        for name in ("open", "pread", "fsync", "stat"):
            slow.setattr(os, name, None)
        job = bench.job(7)
    job.finish(result_of(job.run))
    assert log.segment_at(7).is_damaged(7)


def test_a_log_that_is_deleted_under_a_look_is_left_alone(bench: Bench) -> None:
    bench.rot(7)
    bench.rot(8)
    job = bench.job(7)
    bench.logs.delete_topic("id-1")
    bench.logs.deletion_task(NOW)
    job.finish(result_of(job.run))
    assert bench.damaged() == []
