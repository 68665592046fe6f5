"""Records are given up beside the reactor: who asks waits for the disk, and nobody else does."""

import errno
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from folkmoot.brokers.server.context import Answer, Context, Later
from folkmoot.brokers.server.job_queue import Background
from folkmoot.brokers.server.metadata_cache import ClusterView
from folkmoot.brokers.server.scheduler import Now
from folkmoot.brokers.storage import deletions, directories
from folkmoot.brokers.storage.deletions import AT_ONCE, Deletions
from folkmoot.brokers.storage.flushing import flush_all
from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.log_manager import Logs
from folkmoot.coordination.topics import TopicInfo
from folkmoot.protocol.errors import (
    DiskFull,
    OffsetOutOfRange,
    Overloaded,
    StorageError,
    UnknownTopicOrPartition,
)
from folkmoot.protocol.messages import LATEST, DeleteRecordsEntry, DeleteRecordsRequest
from tests.brokers.batches import SMALL, a_batch, append, read_all
from tests.brokers.hands import Hands
from tests.brokers.parts import BROKERS, ME, carried_out, make_logs
from tests.brokers.power import NAMES, Power

NOW = Now(100.0, 1_700_000_000_000)
MANY = 100
VIEW = ClusterView(BROKERS, {"t": TopicInfo("id-1", [[ME]] * MANY)})


@pytest.fixture
def hands() -> Hands:
    return Hands()


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[Logs]:
    with make_logs(tmp_path / "data", SMALL) as logs:
        yield logs


@pytest.fixture
def context(logs: Logs, hands: Hands) -> Context:
    return Context(ME, logs, 2**20, VIEW, deletions=Deletions(hands.submit))


def filled(logs: Logs, partition: int = 0, batches: int = 20) -> Log:
    log = logs.create("t", "id-1", partition)
    for number in range(batches):
        append(log, a_batch(bytes([number]) * 300))
    return log


def ask(context: Context, *wanted: tuple[int, int]) -> list[list[tuple[int, int]]]:
    """Ask for partitions and offsets; → where the answers' errors and starts will be."""
    entries = [DeleteRecordsEntry("t", "id-1", each, 0, offset) for each, offset in wanted]
    outcome = carried_out(DeleteRecordsRequest(entries), (), NOW, context)
    answers: list[list[tuple[int, int]]] = []

    def reply(answer: Answer) -> None:
        answers.append([(each.error, each.log_start) for each in answer.response.results])

    if isinstance(outcome, Later):
        outcome.reply = reply
    else:
        assert isinstance(outcome, Answer)
        reply(outcome)
    return answers


def test_the_answer_comes_when_the_new_start_is_on_disk_and_all_is_readable_until_then(
    context: Context, hands: Hands
) -> None:
    log = filled(context.logs)
    answers = ask(context, (0, 12))
    append(log, a_batch(b"meanwhile"))
    assert (answers, log.start_offset, len(read_all(log))) == ([], 0, 21)
    hands.work()
    assert answers == [[(0, 12)]]
    assert [offset for offset, _ in read_all(log)] == list(range(12, 21))
    assert len(list(log.directory.glob("*.log"))) == log.segments == 3


def test_nothing_of_it_is_flushed_or_written_on_the_reactors_thread(
    context: Context, hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(context.logs)
    with monkeypatch.context() as patch:
        for name in ("os.fsync", "os.fdatasync"):
            patch.setattr(name, None)
        answers = ask(context, (0, LATEST))
    (job, report) = hands.jobs.pop()
    outcome = job()
    with monkeypatch.context() as patch:
        for name in ("os.fsync", "os.fdatasync"):
            patch.setattr(name, None)
        report(outcome)
    assert answers == [[(0, 20)]]


def test_entries_are_answered_together_a_few_logs_at_a_time(context: Context, hands: Hands) -> None:
    for partition in range(MANY):
        filled(context.logs, partition, batches=2)
    answers = ask(context, *((partition, 1) for partition in range(MANY)))
    other = ask(context, (0, 2))
    assert answers == other == []
    jobs = 0
    while hands.jobs:
        assert len(hands.jobs) == 1
        hands.work()
        jobs += 1
    assert jobs <= 2 + MANY // AT_ONCE
    assert answers == [[(0, 1)] * MANY]
    assert other == [[(0, 2)]]


def test_of_several_wishes_for_a_log_the_start_only_rises(context: Context, hands: Hands) -> None:
    log = filled(context.logs)
    answers = ask(context, (0, 7), (0, 12), (0, 3))
    hands.work_all()
    assert answers == [[(0, 7), (0, 12), (0, 12)]] or answers == [[(0, 12)] * 3]
    assert log.start_offset == directories.load_start(log.directory, "id-1") == 12


def test_what_lies_behind_the_end_is_refused_and_what_is_gone_already_is_no_work(
    context: Context, hands: Hands
) -> None:
    filled(context.logs)
    assert ask(context, (0, 21)) == [[(OffsetOutOfRange.code, -1)]]
    assert ask(context, (1, 1)) == [[(OffsetOutOfRange.code, -1)]]
    assert ask(context, (0, 0), (1, 0), (1, LATEST)) == [[(0, 0), (0, 0), (0, 0)]]
    assert hands.jobs == []


def test_only_so_many_wait(context: Context, hands: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deletions, "MOST_WAITING", 1)
    for partition in range(3):
        filled(context.logs, partition, 2)
    first, second, third = (ask(context, (partition, 1)) for partition in range(3))
    assert third == [[(Overloaded.code, -1)]]
    hands.work_all()
    assert first == second == [[(0, 1)]]


@pytest.mark.parametrize("anew", [False, True])
def test_a_topic_deleted_meanwhile_is_answered_so_and_a_new_one_keeps_its_records(
    context: Context, hands: Hands, anew: bool
) -> None:
    filled(context.logs)
    answers = ask(context, (0, 12))
    new = {"t": TopicInfo("id-2", [[ME]])} if anew else {}
    context.show(ClusterView(BROKERS, new), frozenset({"id-1"}))
    if anew:
        append(context.logs.create("t", "id-2", 0), a_batch(b"new"))
    hands.work_all()
    assert answers == [[(UnknownTopicOrPartition.code, -1)]]
    if anew:
        log = context.logs.get("t", 0)
        assert read_all(log) == [(0, b"new")]
        again = Log(context.logs.data, log.name, "id-2", SMALL)
        again.start()
        assert again.start_offset == 0
        again.abandon()


def test_a_full_disk_is_answered_as_such_and_nothing_is_deleted(
    context: Context, hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    log = filled(context.logs)
    with monkeypatch.context() as patch:
        patch.setattr(deletions, "save_start", full)
        answers = ask(context, (0, 12))
        hands.work_all()
    assert answers == [[(DiskFull.code, -1)]]
    assert len(read_all(log)) == 20


def test_a_flush_that_fails_keeps_the_records_and_the_log_takes_no_more(
    context: Context, hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    log = filled(context.logs)
    with monkeypatch.context() as patch:
        patch.setattr("folkmoot.brokers.storage.flushing.os.fdatasync", refuse)
        answers = ask(context, (0, 12))
        hands.work_all()
    assert answers == [[(StorageError.code, -1)]]
    assert len(read_all(log)) == 20
    assert directories.load_start(log.directory, "id-1") == 0
    with pytest.raises(StorageError, match="could not be flushed"):
        append(log, a_batch(b"more"))
    # Nor can an orderly stop vouch for it.
    context.logs.abandon()


def test_it_works_beside_a_checkpoint_of_the_same_log(tmp_path: Path) -> None:
    background = Background(lambda error: None)
    with make_logs(tmp_path / "data", SMALL) as logs:
        log = filled(logs)
        asked = Deletions(background.submit)
        outcomes: list[object] = []
        lent = log.lend()
        asked.ask(log, 12, outcomes.append)
        append(log, a_batch(b"x" * 2000))
        background.run_all()
        assert outcomes == [None]
        [flushed] = flush_all([lent])
        log.flushed(lent, flushed)
        assert log.dirty, "of the newest segment nobody has flushed even the name"
        assert log.start_offset == 12


# -- what dies when --------------------------------------------------------------------------------


@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("moment", ["before the job", "before the note", "after the job", "done"])
def test_a_power_cut_leaves_the_old_start_or_the_new_one_and_every_record_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, names: str
) -> None:
    data, left = tmp_path / "data", tmp_path / "left"
    chance = random.Random(7)
    hands = Hands()
    data.mkdir()
    power = Power(data)

    def cut(*_: object) -> None:
        power.cut(left, names, chance)
        raise OSError(errno.EIO, "Input/output error")

    with power.watched():
        logs = make_logs(data, SMALL)
        logs.start()
        context = Context(ME, logs, 2**20, VIEW, deletions=Deletions(hands.submit))
        log = filled(logs)
        log.flush()
        ask(context, (0, 12))
        if moment == "before the job":
            power.cut(left, names, chance)
        elif moment == "before the note":
            monkeypatch.setattr(deletions, "save_start", cut)
            hands.work()
        else:
            job, report = hands.jobs.pop()
            outcome = job()
            if moment == "done":
                report(outcome)
            power.cut(left, names, chance)
        logs.abandon()
    power.close()
    again = make_logs(left, SMALL)
    again.start()
    found = again.get("t", 0)
    assert found.start_offset == (12 if moment in ("after the job", "done") else 0)
    assert [offset for offset, _ in read_all(found)] == list(range(found.start_offset, 20))
    again.close()
