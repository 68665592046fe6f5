"""What readers report as damaged: looked at again, marked if it is, and never believed."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from folkmoot.brokers.server.context import Context
from folkmoot.brokers.server.job_queue import Background
from folkmoot.brokers.server.scheduler import Now
from folkmoot.brokers.storage import damage_reports as suspects
from folkmoot.brokers.storage.log import Log
from folkmoot.protocol.errors import (
    CorruptBatch,
    NotLeader,
    OffsetOutOfRange,
    Overloaded,
    StaleTopicId,
)
from folkmoot.protocol.messages import ReportDamageEntry, ReportDamageRequest, ReportDamageResponse
from tests.brokers.batches import SMALL, a_batch, append, read_all, values_of
from tests.brokers.compaction import never
from tests.brokers.parts import make_context, make_logs
from tests.brokers.test_checkpoints import rot
from tests.brokers.test_handlers import answer

NOW = Now(100.0, 1_700_000_000_000)
SIZE = len(a_batch(bytes(300)))


class Bench:
    """A leader of partition 0 of "t", whose log has sealed segments of five batches, and a background."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.background = Background(never)
        self.log: Log = context.logs.create("t", "id-1", 0)
        for number in range(23):
            append(self.log, a_batch(bytes([number]) * 300))
        assert self.log.segments > 3

    def report(self, *offsets: int) -> list[int]:
        """The error codes of the answer."""
        entries = [ReportDamageEntry("t", "id-1", 0, offset) for offset in offsets]
        response = answer(ReportDamageRequest(entries), self.context)
        assert isinstance(response, ReportDamageResponse)
        return [result.error for result in response.results]

    def rot(self, offset: int) -> None:
        """Flip a bit in the body of the batch, in whose segment all batches have one record."""
        segment = self.log.containing(offset)
        place = (offset - segment.base_offset) * SIZE + 200
        rot(self.log.directory / f"{segment.base_offset:020}.log", place)

    def look(self) -> float:
        """One turn of the chore, and what it handed to the background."""
        pause = self.context.suspects.chore(self.background, NOW)
        self.background.run_all()
        return pause

    def damaged(self) -> list[int]:
        return [offset for offset in range(23) if self.log.containing(offset).is_damaged(offset)]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with make_logs(tmp_path / "data", SMALL) as logs:
        yield Bench(make_context(logs))


@pytest.mark.parametrize("offset", [5, 7, 9, 22])
def test_a_bad_batch_that_a_reader_was_served_is_marked(bench: Bench, offset: int) -> None:
    """Of a sealed segment, which is served from a mapping; and of the active one."""
    assert bool(bench.log.sealed(bench.log.containing(offset).base_offset)) == (offset != 22)
    bench.log.read(offset, 1)  # mapped, and in the page cache
    bench.rot(offset)
    with pytest.raises(CorruptBatch):
        values_of(bench.log.read(offset, 1))
    assert bench.report(offset) == [0]
    assert bench.damaged() == []
    bench.look()
    assert bench.damaged() == [offset]
    with pytest.raises(CorruptBatch, match=f"go on at {offset + 1}"):
        bench.log.read(offset, 1)
    others = [other for other in range(23) if other != offset]
    assert [values_of(bench.log.read(other, 1))[0][0] for other in others] == others


def test_a_batch_whose_header_has_rotted_is_marked_too(bench: Bench) -> None:
    bench.log.read(5, 1)
    rot(bench.log.directory / f"{5:020}.log", 2 * SIZE + 10)
    assert bench.report(7) == [0]
    bench.look()
    assert bench.damaged() == [7]


def test_a_report_about_a_good_batch_changes_nothing(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    whole = read_all(bench.log)
    with caplog.at_level(logging.WARNING):
        assert bench.report(7, 22) == [0, 0]
        bench.look()
        bench.look()
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    assert bench.damaged() == []
    assert read_all(bench.log) == whole
    assert not list(bench.log.directory.glob("*.damage"))


def test_a_report_names_what_the_broker_leads_and_has(bench: Bench) -> None:
    assert bench.report(23, 10**12) == [OffsetOutOfRange.code] * 2
    entries = [ReportDamageEntry("t", "old", 0, 1), ReportDamageEntry("t", "id-1", 2, 1)]
    response = answer(ReportDamageRequest(entries), bench.context)
    assert [result.error for result in response.results] == [StaleTopicId.code, NotLeader.code]
    assert bench.context.suspects.chore(bench.background, NOW) > suspects.PAUSE


def test_reports_are_looked_at_one_by_one_and_each_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suspects, "MOST", 2)
    assert bench.report(1, 2, 1, 3, 2) == [0, 0, 0, Overloaded.code, 0]
    for _ in range(5):  # no second look is handed out before the first is reported
        assert bench.context.suspects.chore(bench.background, NOW) == suspects.PAUSE
    assert bench.background._jobs.qsize() == 1
    bench.background.run_all()
    assert bench.report(3) == [0]
    assert [bench.look() for _ in range(3)][-1] > suspects.PAUSE
    assert bench.background._jobs.empty()


def test_what_is_marked_is_not_looked_at_again(bench: Bench) -> None:
    bench.rot(7)
    bench.report(7)
    bench.look()
    assert bench.report(7) == [0]
    assert bench.look() > suspects.PAUSE
    assert bench.background._jobs.empty()


def test_an_index_that_leads_astray_does_not_make_good_batches_bad(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = bench.log.containing(7)
    for place in [(SIZE, 7), (3 * SIZE + 5, 7), (10**9, 7)]:
        monkeypatch.setattr(type(segment), "near", lambda *_, place=place: place)
        bench.report(7)
        bench.look()
        assert bench.damaged() == []
    bench.rot(7)
    bench.report(7)
    bench.look()
    assert bench.damaged() == [7]


def test_a_log_that_is_deleted_under_a_look_is_left_alone(bench: Bench) -> None:
    bench.rot(7)
    bench.rot(8)
    bench.report(7, 8)
    bench.context.suspects.chore(bench.background, NOW)
    bench.context.logs.delete_topic("id-1")
    bench.background.run_all()
    bench.look()
    assert not list(bench.log.directory.parent.rglob("*.damage"))
