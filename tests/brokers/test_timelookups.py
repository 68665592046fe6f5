"""The first look-ups of times after a start: who reads what for them, and what may happen meanwhile."""

import os
from functools import partial
from pathlib import Path

import pytest

from folkmoot.brokers.server.context import Later
from folkmoot.brokers.server.job_queue import Background
from folkmoot.brokers.server.scheduler import Now
from folkmoot.brokers.storage import timelookups
from folkmoot.brokers.storage.config import LogConfig
from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.timelookups import TimeLookups
from folkmoot.brokers.storage.times import TIME_ENTRY_BYTES
from folkmoot.protocol.errors import FolkmootError, Overloaded, UnknownTopicOrPartition
from folkmoot.protocol.messages import ListOffsetsEntry, ListOffsetsRequest
from tests.brokers.batches import (
    NOW,
    SMALL,
    append,
    delete_before,
    make_log,
    reopened,
    timed_batch,
)
from tests.brokers.parts import carried_out, make_context, make_logs

RECORDS = 400


def failed(error: Exception) -> None:
    raise error


@pytest.fixture
def background() -> Background:
    """Without a thread: it works when it is told to."""
    return Background(failed)


def stopped(data: Path) -> None:
    """A log of many segments, one record a batch and a millisecond."""
    log = make_log(data)
    for number in range(RECORDS):
        append(log, timed_batch(NOW + number))
    assert log.segments > 15
    log.close()


def found_later(
    lookups: TimeLookups, log: Log, *wanted: int
) -> list[tuple[int, int | FolkmootError]]:
    answers: list[tuple[int, int | FolkmootError]] = []

    def answer(number: int, found: int | FolkmootError) -> None:
        answers.append((number, found))

    for number in wanted:
        lookups.ask(log, NOW + number, partial(answer, number))
    return answers


def test_a_first_look_up_reads_the_last_entries_alone_and_not_on_the_reactors_thread(
    tmp_path: Path, background: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped(tmp_path)
    log = reopened(tmp_path)
    reads: list[int] = []
    real = os.pread

    def counted(fd: int, count: int, position: int) -> bytes:
        reads.append(count)
        return real(fd, count, position)

    monkeypatch.setattr(os, "pread", counted)
    lookups = TimeLookups(background.submit)
    answers = found_later(lookups, log, 300, 0, RECORDS)
    assert (answers, reads) == ([], [])
    background.run_all()
    assert answers == [(300, 300), (0, 0), (RECORDS, RECORDS)]
    assert reads.count(2 * TIME_ENTRY_BYTES) == log.segments - 1
    answers = found_later(lookups, log, 7, 399)
    assert answers == [(7, 7), (399, 399)]
    log.close()


def test_what_happens_to_a_log_meanwhile_is_in_the_answer(
    tmp_path: Path, background: Background
) -> None:
    stopped(tmp_path)
    log = reopened(tmp_path)
    answers = found_later(TimeLookups(background.submit), log, 0, RECORDS + 50)
    for number in range(RECORDS, RECORDS + 100):
        append(log, timed_batch(NOW + number))
    delete_before(log, 205)
    background.run_all()
    assert answers == [(0, 205), (RECORDS + 50, RECORDS + 50)]
    log.close()


def test_a_topic_that_is_deleted_meanwhile_is_answered_as_such(
    tmp_path: Path, background: Background
) -> None:
    stopped(tmp_path)
    log = reopened(tmp_path)
    answers = found_later(TimeLookups(background.submit), log, 0, 5)
    log.delete()
    background.run_all()
    assert [type(found) for _, found in answers] == [UnknownTopicOrPartition] * 2


def test_only_so_many_look_ups_wait(
    tmp_path: Path, background: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timelookups, "MOST_WAITING", 3)
    stopped(tmp_path)
    log = reopened(tmp_path)
    lookups = TimeLookups(background.submit)
    answers = found_later(lookups, log, 1, 2, 3)
    with pytest.raises(Overloaded):
        found_later(lookups, log, 4)
    background.run_all()
    assert found_later(lookups, log, 4) == [(4, 4)]
    assert len(answers) == 3
    log.close()


def test_a_log_that_was_refused_while_others_waited_is_answered_when_it_asks_again(
    tmp_path: Path, background: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timelookups, "MOST_WAITING", 1)
    logs = []
    for name in ("t-0", "t-1"):
        (tmp_path / name).mkdir()
        stopped(tmp_path / name)
        logs.append(reopened(tmp_path / name))
    lookups = TimeLookups(background.submit)
    found_later(lookups, logs[0], 1)
    with pytest.raises(Overloaded):
        found_later(lookups, logs[1], 2)
    background.run_all()
    answers = found_later(lookups, logs[1], 2)
    background.run_all()
    assert answers == [(2, 2)]
    for log in logs:
        log.close()


def test_a_request_is_answered_when_all_of_its_times_are_known(
    tmp_path: Path, background: Background
) -> None:
    with make_logs(tmp_path, LogConfig(segment_bytes=SMALL.segment_bytes)) as logs:
        log = logs.create("t", "id-1", 0)
        for number in range(50):
            append(log, timed_batch(NOW + number))
        context = make_context(logs)
        context.times = TimeLookups(background.submit)
        wanted = [ListOffsetsEntry("t", "id-1", 0, when) for when in (NOW + 45, -1, NOW)]
        outcome = carried_out(ListOffsetsRequest(wanted), (), Now(0.0, NOW), context)
        assert isinstance(outcome, Later)
        answers: list[list[int]] = []
        outcome.reply = lambda got: answers.append([e.offset for e in got.response.results])
        background.run_all()
        assert answers == [[45, 50, 0]]


def test_a_log_that_was_read_before_is_answered_at_once(
    tmp_path: Path, background: Background
) -> None:
    stopped(tmp_path)
    log = reopened(tmp_path)
    log.offset_for_time(NOW + RECORDS)
    assert found_later(TimeLookups(background.submit), log, 17) == [(17, 17)]
    log.close()
