"""Records are given up beside the event loop: who asks waits for the disk, and nobody else does."""

import errno
import os
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from folkmoot.brokers.jobs.jobs import Now
from folkmoot.brokers.storage import flusher as flusher_module
from folkmoot.brokers.storage import retention
from folkmoot.brokers.storage.files import atomic_file
from folkmoot.brokers.storage.flusher import CHECKPOINT_INTERVAL, Flusher
from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.log_manager import LogManager
from folkmoot.brokers.storage.recovery import LOG_START_FILE, load_log_start
from folkmoot.brokers.storage.retention import Retention
from folkmoot.coordination.topic_config import DAY
from folkmoot.protocol.errors import (
    DiskFull,
    FolkmootError,
    Overloaded,
    StorageError,
    UnknownTopicOrPartition,
)
from tests.brokers.batches import (
    SMALL,
    a_batch,
    append,
    delete_before,
    flush,
    make_log,
    read_all,
    reopened,
    timed_batch,
)
from tests.brokers.compaction import COMPACT, Upkept, keyed
from tests.brokers.hands import Hands, create
from tests.brokers.power import NAMES, Power
from tests.brokers.storage.test_log_manager import found, task

MANY = 100

Outcomes = list[FolkmootError | None]


@pytest.fixture
def hands() -> Hands:
    return Hands()


@pytest.fixture
def logs(tmp_path: Path, hands: Hands) -> Iterator[LogManager]:
    logs = LogManager(tmp_path / "data", 1, SMALL, submit=hands.submit)
    logs.start()
    yield logs
    logs.abandon()


@pytest.fixture
def deleting(logs: LogManager, hands: Hands) -> Retention:
    return Retention(logs, Flusher(logs), hands.submit)


def filled(logs: LogManager, partition: int = 0, batches: int = 20) -> Log:
    log = create(logs, "t", "first", partition)
    for number in range(batches):
        append(log, a_batch(bytes([number]) * 300))
    return log


def ask(deleting: Retention, log: Log, *offsets: int) -> Outcomes:
    """→ where the outcomes will be."""
    outcomes: Outcomes = []
    for offset in offsets:
        deleting.delete_records(log, offset, outcomes.append)
    return outcomes


def test_the_answer_comes_when_the_new_start_is_on_disk_and_all_is_readable_until_then(
    logs: LogManager, deleting: Retention, hands: Hands
) -> None:
    log = filled(logs)
    outcomes = ask(deleting, log, 12)
    append(log, a_batch(b"meanwhile"))
    while not outcomes:
        assert (log.log_start, len(read_all(log))) == (0, 21)
        hands.work()
    assert outcomes == [None]
    assert load_log_start(log.directory)[0] == log.log_start == 12
    assert [offset for offset, _ in read_all(log)] == list(range(12, 21))
    hands.work_all()
    assert len(list(log.directory.glob("*.log"))) == len(log.segments) == 3


def test_a_cut_behind_a_deletion_removes_its_files_before_a_new_segment_has_the_name_of_one(
    logs: LogManager, hands: Hands, deleting: Retention
) -> None:
    """As after an unclean election, whose leader lacks the records that the log begins with."""
    log = filled(logs)
    ended = []

    async def cut() -> None:
        assert logs.is_removing(log)
        await logs.remove(log, ())
        log.uncommit(0, "an unclean election has lost")
        await log.cut(0)
        ended.append(True)

    outcomes = ask(deleting, log, 12)
    log.queue.add(cut())
    while not ended:
        hands.work()
    append(log, a_batch(b"acknowledged"))
    hands.work_all()
    assert outcomes == [None]
    assert log.segments[0].path.exists()


def test_nothing_of_it_is_flushed_or_written_on_the_event_loop(
    logs: LogManager, deleting: Retention, hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = filled(logs)
    names = ("fsync", "fdatasync", "rename", "replace", "unlink", "scandir", "listdir")
    with monkeypatch.context() as slow:
        for name in names:
            slow.setattr(os, name, None)
        outcomes = ask(deleting, log, 12)
    while hands.jobs:
        _, work, done = hands.jobs.pop(0)
        result = work()
        with monkeypatch.context() as slow:
            for name in names:
                slow.setattr(os, name, None)
            done(result)
    assert outcomes == [None]


def test_of_many_logs_some_are_flushed_at_a_time(
    logs: LogManager, deleting: Retention, hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flusher_module, "FLUSHES_AT_ONCE", 8)
    outcomes = [ask(deleting, filled(logs, number, batches=2), 1) for number in range(MANY)]
    assert hands.keys() == ["flush"] * 8
    hands.work_all()
    assert outcomes == [[None]] * MANY
    assert [log.log_start for log in logs] == [1] * MANY


def test_of_several_wishes_for_a_log_the_start_only_rises(
    logs: LogManager, deleting: Retention, hands: Hands
) -> None:
    log = filled(logs)
    outcomes = ask(deleting, log, 7, 12, 3)
    starts = []
    while hands.jobs:
        hands.work()
        starts.append(log.log_start)
    assert outcomes == [None] * 3
    assert starts == sorted(starts)
    assert log.log_start == load_log_start(log.directory)[0] == 12


def test_what_is_gone_already_is_no_work(
    logs: LogManager, deleting: Retention, hands: Hands
) -> None:
    log = filled(logs)
    assert ask(deleting, log, 0) == [None]
    assert hands.jobs == []


def test_only_so_many_wait(
    logs: LogManager, deleting: Retention, hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "MOST_WAITING", 2)
    first = [ask(deleting, filled(logs, partition, 2), 1) for partition in range(2)]
    with pytest.raises(Overloaded):
        ask(deleting, filled(logs, 2, 2), 1)
    hands.work_all()
    assert first == [[None]] * 2
    assert ask(deleting, found(logs, 2), 1) == []
    hands.work_all()


@pytest.mark.parametrize("jobs", [0, 1, 2])
def test_a_topic_deleted_meanwhile_is_answered_so_and_a_new_one_keeps_its_records(
    logs: LogManager, deleting: Retention, hands: Hands, jobs: int
) -> None:
    outcomes = ask(deleting, filled(logs), 12)
    for _ in range(jobs):
        hands.work()
    logs.delete_topic(next(iter(logs)).topic_id)
    logs.configure("t", "second", {})
    task(logs)
    new = create(logs, "t", "second", 0)
    append(new, a_batch(b"new"))
    hands.work_all()
    assert len(outcomes) == 1
    assert isinstance(outcomes[0], UnknownTopicOrPartition) or jobs == 2
    assert read_all(new) == [(0, b"new")]
    assert load_log_start(new.directory)[0] == 0


def test_a_full_disk_is_answered_as_such_and_nothing_is_deleted(
    logs: LogManager, deleting: Retention, hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    log = filled(logs)
    with monkeypatch.context() as patch:
        patch.setattr(retention, "save_log_start", full)
        outcomes = ask(deleting, log, 12)
        hands.work_all()
    assert isinstance(outcomes[0], DiskFull)
    assert "nothing was deleted" in str(outcomes[0])
    assert len(read_all(log)) == 20


def test_records_are_deleted_on_a_disk_that_has_no_block_left_and_again_when_it_is_full_again(
    logs: LogManager, deleting: Retention, hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, write = filled(logs), atomic_file._write
    flush(log)  # with a snapshot of producers, as whenever a segment was sealed

    def full(path: Path, mode: str, data: bytes) -> None:
        if mode == "wb" and len(list(log.directory.glob("*.log"))) == count:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, mode, data)

    monkeypatch.setattr(atomic_file, "_write", full)
    for offset in (6, 12):
        count = len(list(log.directory.glob("*.log")))
        outcomes = ask(deleting, log, offset)
        hands.work_all()
        assert outcomes == [None]
        assert load_log_start(log.directory)[0] == offset
        assert len(list(log.directory.glob("*.log"))) < count


def test_a_flush_that_fails_keeps_the_records_and_the_log_takes_no_more(
    logs: LogManager, deleting: Retention, hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    log = filled(logs)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", refuse)
        outcomes = ask(deleting, log, 12)
        hands.work_all()
    assert isinstance(outcomes[0], StorageError)
    assert load_log_start(log.directory)[0] == 0
    with pytest.raises(StorageError):
        log.require_writable()


def test_it_works_beside_a_checkpoint_of_the_same_log(logs: LogManager, hands: Hands) -> None:
    flusher = Flusher(logs)
    deleting = Retention(logs, flusher, hands.submit)
    log = filled(logs)
    flusher.note_appended(log, 1, Now(0.0, 0))
    flusher.task(Now(CHECKPOINT_INTERVAL, 0))
    flusher.task(Now(CHECKPOINT_INTERVAL, 0))
    assert hands.keys() == ["flush"]
    outcomes = ask(deleting, log, 12)
    append(log, a_batch(b"x" * 2000))
    flusher.note_appended(log, 2000, Now(CHECKPOINT_INTERVAL, 0))
    assert hands.keys() == ["flush"], "one flush of a log at a time"
    hands.work_all()
    assert outcomes == [None]
    assert log.log_start == 12


def test_a_time_is_not_found_in_records_that_were_given_up(
    logs: LogManager, deleting: Retention, hands: Hands
) -> None:
    log = create(logs, "t", "first", 0)
    for stamp in (10, 30, 20, 40):
        append(log, timed_batch(stamp, stamp))
    assert log.offset_for_time(25) == 2
    ask(deleting, log, 4)
    hands.work_all()
    assert [log.offset_for_time(stamp) for stamp in (5, 15, 25, 35, 45)] == [4, 4, 6, 6, 8]


# -- what dies when --------------------------------------------------------------------------------


@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("moment", ["before", "flushed", "before the note", "noted", "done"])
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
        logs = LogManager(data, 1, SMALL, submit=hands.submit)
        logs.start()
        log = filled(logs)
        flush(log)
        if moment == "before the note":
            monkeypatch.setattr(retention, "save_log_start", cut)
        ask(Retention(logs, Flusher(logs), hands.submit), log, 12)
        if moment == "before the note":
            hands.work_all()
        else:
            if moment != "before" and hands.keys() == ["flush"]:
                hands.work()
            if moment in ("noted", "done"):
                [(_, work, done)] = hands.jobs
                done(work()) if moment == "done" else work()
            power.cut(left, names, chance)
        logs.abandon()
    power.close()
    again = LogManager(left, 1, SMALL)
    again.start()
    log = found(again)
    assert log.log_start == (12 if moment in ("noted", "done") else 0)
    assert [offset for offset, _ in read_all(log)] == list(range(log.log_start, 20))
    again.close()


def test_what_retention_has_deleted_is_given_up_for_good_when_somebody_asks_for_it(
    tmp_path: Path,
) -> None:
    """A crash may bring back what retention deletes: the removal of a file is not flushed."""
    upkept = Upkept(tmp_path / "data", replace(COMPACT, cleanup_policy="delete", retention=DAY))
    for number in range(30):
        upkept.append(keyed((b"%d" % number, b"value")))
    files = {path: path.read_bytes() for path in upkept.log.directory.glob("*.log")}
    upkept.later(2 * DAY)
    upkept.append(keyed((b"new", b"value")))
    upkept.expire()
    start = upkept.log.log_start
    assert start > 0
    upkept.delete_before(start)
    upkept.logs.abandon()
    for path, content in files.items():
        if not path.exists():
            path.write_bytes(content)
    upkept.open()
    assert upkept.log.log_start == start
    upkept.logs.close()


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"00000000\n7", b"5\n"])
def test_a_log_start_that_cannot_be_understood_brings_no_deleted_record_back(
    tmp_path: Path, content: bytes
) -> None:
    log = make_log(tmp_path)
    append(log, *(a_batch(b"%d" % number) for number in range(6)))
    delete_before(log, 4)
    log.close()
    noted = log.directory / LOG_START_FILE
    whole = noted.read_bytes()
    noted.write_bytes(content)
    with pytest.raises(StorageError, match=str(noted)):
        reopened(tmp_path)
    noted.write_bytes(whole)
    assert [offset for offset, _ in read_all(reopened(tmp_path))] == [4, 5]
    noted.unlink()
    assert reopened(tmp_path).log_start == 0, "as its error says"
