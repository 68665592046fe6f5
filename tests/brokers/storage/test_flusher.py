"""Group commit, flushes by time, and what an unclean stop leaves to be read."""

import errno
import gc
import inspect
import os
import shutil
import warnings
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from folkmoot.brokers.jobs.jobs import Now
from folkmoot.brokers.jobs.serial_queue import Pending
from folkmoot.brokers.storage import flusher as flushing
from folkmoot.brokers.storage.files.cluster_facts import HighestIds
from folkmoot.brokers.storage.flusher import (
    CHECKPOINT_BYTES,
    CHECKPOINT_INTERVAL,
    Flusher,
)
from folkmoot.brokers.storage.leader_epochs import EPOCH_STARTS_FILE
from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.log_manager import LogManager
from folkmoot.brokers.storage.notes import load_notes
from folkmoot.coordination.topic_config import LogConfig
from folkmoot.protocol import batch_header
from folkmoot.protocol.errors import StorageError
from tests.brokers.batches import SMALL, a_batch, append, read_all, values_of
from tests.brokers.hands import Hands, create
from tests.brokers.storage.test_log_manager import found


def refuse(*_: object) -> None:
    raise OSError(5, "Input/output error")


def refuse_for_room(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def a_fault(*_: object) -> None:
    raise RuntimeError("a fault")


class Disk:
    """A data directory and its flusher, whose jobs are done when a test says so."""

    def __init__(self, data: Path, config: LogConfig = SMALL) -> None:
        self.data = data
        self.hands = Hands()
        self.now = Now(1000.0, 0)
        self.advanced: list[tuple[Log, int]] = []
        self.failures: list[Exception] = []
        self.logs = LogManager(data, 1, config, submit=self.hands.submit)
        self.logs.start()
        self.flusher = Flusher(self.logs, self.failures.append)

    def log(self, partition: int = 0) -> Log:
        return create(self.logs, "flights", "first", partition)

    def append(self, log: Log, *batches: bytes) -> bool:
        """→ whether this is acknowledged only when it is on disk."""
        append(log, *batches)
        self.flusher.note_appended(log, sum(map(len, batches)), self.now)
        if log.flushes:
            self.flusher.flush(log, partial(self._flushed, log))
        return log.flushes

    def _flushed(self, log: Log, error: Exception | None) -> None:
        self.advanced.append((log, log.recovery_point_offset))

    def later(self, seconds: float) -> float:
        self.now = Now(self.now.monotonic + seconds, 0)
        return self.flusher.task(self.now)

    def checkpoint(self) -> None:
        """A whole round, and its note."""
        self.later(CHECKPOINT_INTERVAL)
        for _ in range(20):
            self.hands.work_all()
            self.later(0.1)
        self.hands.work_all()

    def points(self) -> bytes:
        return msgspec.json.encode(load_notes(self.data).recovery_points)


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path / "data")


def crash(data: Path, name: str) -> Path:
    copy = data.with_name(name)
    shutil.copytree(data, copy)
    return copy


def checked_bytes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lengths of the batches whose bodies are compared from here on."""
    lengths: list[int] = []
    real = batch_header.check

    def check(data: memoryview, position: int = 0) -> batch_header.BatchHeader:
        header = real(data, position)
        lengths.append(header.length)
        return header

    monkeypatch.setattr(batch_header, "check", check)
    return lengths


# -- group commit ------------------------------------------------------------------------------------


def test_an_append_waits_for_its_flush_where_the_topic_asks_for_it(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "data", replace(SMALL, durability="fsync"))
    log = disk.log()
    assert disk.append(log, a_batch(b"a"))
    assert disk.hands.keys() == ["flush"]
    assert log.recovery_point_offset == 0
    disk.hands.work()
    assert log.recovery_point_offset == 1
    assert disk.advanced == [(log, 1)]
    disk.logs.close()


def test_a_log_is_flushed_by_one_job_at_a_time_and_logs_beside_each_other(
    tmp_path: Path,
) -> None:
    disk = Disk(tmp_path / "data", replace(SMALL, durability="fsync"))
    logs = [disk.log(number) for number in range(6)]
    for log in (logs[0], logs[0], *logs[1:]):
        disk.append(log, a_batch(b"a"))
    assert disk.hands.keys() == ["flush"] * 6, "one of each log"
    disk.hands.work()
    assert disk.advanced == [(logs[0], 1)]
    assert disk.hands.keys() == ["flush"] * 6, "what came meanwhile is in the next one"
    disk.hands.work_all()
    ends = dict(disk.advanced)
    assert ends == {logs[0]: 2, **dict.fromkeys(logs[1:], 1)}
    disk.logs.close()


class Waiter:
    """Somebody who waits for a flush; `compared` counts how often one was compared with another."""

    compared = 0

    def __init__(self, told: list[Exception | None]) -> None:
        self._told = told

    def __call__(self, error: Exception | None) -> None:
        self._told.append(error)

    def __eq__(self, other: object) -> bool:
        Waiter.compared += 1
        return self is other

    __hash__ = object.__hash__


def test_those_who_wait_behind_a_slow_flush_are_not_compared_with_each_other(disk: Disk) -> None:
    """A second of produce requests would cost as much again, and more than that with each second."""
    Waiter.compared = 0
    told: list[Exception | None] = []
    log = disk.log()
    disk.append(log, a_batch(b"a"))
    disk.flusher.flush(log, Waiter(told))
    disk.append(log, a_batch(b"b"))
    for _ in range(100):
        disk.flusher.flush(log, Waiter(told))
    disk.hands.work()
    assert told == [None], "the others wait for the next one"
    disk.hands.work_all()
    assert told == [None] * 101
    assert Waiter.compared == 0
    disk.logs.close()


def test_nobody_is_told_of_a_flush_that_another_one_who_was_answered_has_begun(
    disk: Disk,
) -> None:
    first, failing, waiting, other = (disk.log(partition) for partition in range(4))
    told: list[tuple[str, int]] = []
    for log in (first, failing, waiting, other):
        append(log, a_batch(b"a"))
    disk.flusher.flush(first)
    disk.flusher.flush(failing, lambda _: disk.flusher.flush(other))
    disk.flusher.flush(
        waiting, lambda error: told.append((str(error), waiting.recovery_point_offset))
    )
    failing.fail("its disk", readable=True)
    assert told == []
    disk.hands.work_all()
    assert told == [("None", 1)]
    assert other.recovery_point_offset == 1


def test_an_interval_that_was_long_is_followed_by_the_one_that_the_topic_asks_for_now(
    tmp_path: Path,
) -> None:
    disk = Disk(tmp_path / "data", replace(SMALL, flush_interval=86_400.0))
    log = disk.log()
    disk.append(log, a_batch(b"a"))
    disk.checkpoint()
    log.config = replace(SMALL, flush_interval=1.0)
    disk.append(log, a_batch(b"b"))
    disk.later(1.0)
    assert disk.hands.keys() == ["flush"]
    disk.hands.work_all()
    assert log.recovery_point_offset == 2


def test_what_is_appended_is_flushed_after_the_interval_that_the_topic_asks_for(
    tmp_path: Path,
) -> None:
    disk = Disk(tmp_path / "data", replace(SMALL, flush_interval=2.0))
    log = disk.log()
    disk.checkpoint()
    assert not disk.append(log, a_batch(b"a"))
    disk.later(1.0)
    assert not disk.append(log, a_batch(b"b"))
    disk.later(0.9)
    assert disk.hands.jobs == []
    disk.later(0.1)
    disk.hands.work_all()
    assert log.recovery_point_offset == 2
    disk.append(log, a_batch(b"c"))
    disk.later(1.9)
    assert disk.hands.jobs == []
    disk.later(0.1)
    disk.hands.work_all()
    assert log.recovery_point_offset == 3
    disk.logs.close()


def test_who_waits_is_told_when_all_segments_of_a_log_are_on_disk(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("folkmoot.brokers.storage.log.SEGMENTS_AT_ONCE", 2)
    log = disk.log()
    for _ in range(7):
        disk.append(log, a_batch(b"a" * 1500))
    outcomes: list[object] = []
    disk.flusher.flush(log, outcomes.append)
    jobs = 0
    while disk.hands.jobs:
        assert outcomes == []
        disk.hands.work()
        jobs += 1
    assert (jobs, outcomes) == (4, [None])
    disk.flusher.flush(log, outcomes.append)
    assert outcomes == [None, None], "there is nothing to flush"
    disk.logs.close()


def test_a_log_that_is_deleted_while_somebody_waits_is_an_error(disk: Disk) -> None:
    log, other = disk.log(), disk.log(1)
    disk.append(log, a_batch(b"a"))
    disk.append(other, a_batch(b"a"))
    outcomes: list[object] = []
    disk.flusher.flush(other)
    disk.flusher.flush(log, outcomes.append)
    disk.logs.delete_topic("first")
    disk.logs.deletion_task(disk.now)
    disk.hands.work_all()
    assert len(outcomes) == 1
    assert isinstance(outcomes[0], Exception)
    assert disk.failures == []
    disk.logs.close()


def test_a_log_that_is_deleted_while_its_flush_is_under_way_is_an_error_too(disk: Disk) -> None:
    log = disk.log()
    disk.append(log, a_batch(b"a"))
    outcomes: list[object] = []
    disk.flusher.flush(log, outcomes.append)
    disk.logs.delete_topic("first")
    disk.logs.deletion_task(disk.now)
    disk.hands.work_all()
    assert len(outcomes) == 1
    assert isinstance(outcomes[0], Exception)
    assert disk.failures == []
    disk.logs.close()


def test_flushes_of_many_deleted_logs_end_one_after_another_and_not_within_each_other(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 400 of them the stack of Python was too small, and some were never answered."""
    monkeypatch.setattr(flushing, "FLUSHES_AT_ONCE", 1)
    outcomes: list[object] = []
    depths: list[int] = []

    def flushed(error: Exception | None) -> None:
        outcomes.append(error)
        depths.append(len(inspect.stack(0)))

    logs = [disk.log(number) for number in range(10)]
    for log in logs:
        disk.append(log, a_batch(b"a"))
        disk.flusher.flush(log, flushed)
    disk.logs.delete_topic("first")
    disk.logs.deletion_task(disk.now)
    assert outcomes == []
    disk.hands.work()
    assert len(outcomes) == len(logs)
    assert all(isinstance(each, Exception) for each in outcomes)
    assert max(depths) - min(depths) < len(logs)
    assert all(log.queue.is_idle for log in logs)
    disk.logs.close()


def test_a_fault_of_one_that_waits_for_a_flush_ends_neither_the_round_nor_other_flushes(
    disk: Disk,
) -> None:
    log, other = disk.log(), disk.log(1)
    disk.append(log, a_batch(b"a"))
    disk.flusher.flush(log)
    disk.append(log, a_batch(b"b"))
    disk.flusher.flush(log, a_fault)
    disk.checkpoint()
    turn: Pending[None] = Pending()
    turn.when_finished(partial(a_fault, None))
    disk.flusher._waiting_flushes.append(turn)
    outcomes: list[object] = []
    disk.append(other, a_batch(b"a"))
    disk.flusher.flush(other, outcomes.append)
    disk.append(log, a_batch(b"c"))
    disk.checkpoint()
    assert outcomes == [None]
    assert disk.logs.saved_notes.recovery_points["first-0"].end_offset == 3
    disk.logs.close()


# -- a flush that fails ------------------------------------------------------------------------------


def test_a_flush_that_fails_ends_the_log_and_nothing_is_acknowledged_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(tmp_path / "data", replace(SMALL, durability="fsync"))
    log = disk.log()
    disk.append(log, a_batch(b"a"))
    outcomes: list[object] = []
    disk.flusher.flush(log, outcomes.append)
    with monkeypatch.context() as broken:
        broken.setattr(os, "fdatasync", refuse)
        disk.hands.work()
    [failure] = disk.failures
    assert "could not be flushed: Input/output error" in str(failure)
    assert log.recovery_point is None
    assert disk.advanced == [(log, 0)], "who waits is refused"
    assert isinstance(outcomes[0], StorageError)
    with pytest.raises(StorageError, match="could not be flushed"):
        append(log, a_batch(b"b"))
    disk.checkpoint()  # the kernel says that all is well now, and it proves nothing
    assert log.recovery_point is None
    assert not log.dirty
    disk.logs.close()
    assert b"first" not in disk.points()


def test_two_flushes_of_a_log_are_never_under_way_together(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two descriptors of one open file are told of an error once: the other flush would succeed."""
    log = disk.log()
    disk.append(log, a_batch(b"a"))
    disk.later(CHECKPOINT_INTERVAL)
    disk.later(0.1)
    assert disk.hands.keys() == ["flush"]
    outcomes: list[object] = []
    disk.append(log, a_batch(b"b"))
    disk.flusher.flush(log, outcomes.append)
    disk.later(0.1)
    assert disk.hands.keys() == ["flush"]
    told: list[int] = []

    def tell_once(fd: int) -> None:
        told.append(fd)
        if len(told) == 1:
            refuse(fd)

    monkeypatch.setattr(os, "fdatasync", tell_once)
    disk.hands.work_all()
    assert len(told) == 1
    assert len(outcomes) == len(disk.failures) == 1
    assert isinstance(outcomes[0], StorageError)
    assert log.recovery_point is None
    disk.logs.abandon()


def test_a_log_that_cannot_be_opened_for_a_flush_is_tried_once_an_interval_and_keeps_no_descriptor(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[int] = []
    closed: list[int] = []
    real, real_close = os.dup, os.close

    def close(fd: int) -> None:
        closed.append(fd)
        real_close(fd)

    def refuse_second(fd: int) -> int:
        if len(given) % 2:
            given.append(-1)
            raise OSError(24, "Too many open files")
        given.append(real(fd))
        return given[-1]

    log = disk.log()
    for _ in range(2):
        disk.append(log, a_batch(b"a" * 1500))
    with monkeypatch.context() as broken:
        broken.setattr(os, "dup", refuse_second)
        broken.setattr(os, "close", close)
        pause, end = 0.0, disk.now.monotonic + 80.0
        while disk.now.monotonic < end:
            pause = disk.later(pause)
            disk.hands.work_all()
    assert len(given) == 2 * 3
    assert set(given[::2]) <= set(closed)
    disk.logs.close()


@pytest.mark.parametrize("what", ["the directory", "the epochs"])
def test_a_lack_of_descriptors_in_a_flush_passes_and_ends_no_broker(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """No flush of the kernel's has failed, so nothing is lost."""
    real_open, real_path_open = os.open, Path.open

    def lacking() -> OSError:
        return OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def refuse_directory(path: Path, flags: int, *given: int) -> int:
        if flags & os.O_DIRECTORY:
            raise lacking()
        return real_open(path, flags, *given)

    def refuse_epochs(self: Path, *given: Any) -> object:
        if EPOCH_STARTS_FILE in self.name:
            raise lacking()
        return real_path_open(self, *given)

    log = disk.log()
    disk.append(log, a_batch(b"a"))
    assert log.epoch_starts.changed
    with monkeypatch.context() as broken:
        if what == "the directory":
            broken.setattr(os, "open", refuse_directory)
        else:
            broken.setattr(Path, "open", refuse_epochs)
        disk.flusher.flush(log)
        disk.hands.work_all()
        disk.flusher.note()
        disk.hands.work_all()
        assert log.dirty
        assert b"first" not in disk.points()
    assert (disk.failures, log.failed) == ([], None)
    synced: list[str] = []
    real_fsync = os.fsync

    def sync(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        real_fsync(fd)

    monkeypatch.setattr(os, "fsync", sync)
    disk.checkpoint()
    assert str(log.directory) in synced
    assert (log.directory / EPOCH_STARTS_FILE).exists()
    assert b"first" in disk.points()
    assert log.recovery_point_offset == 1
    disk.logs.close()


# -- checkpoints -------------------------------------------------------------------------------------


def test_after_a_crash_only_what_came_since_the_last_checkpoint_is_read(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        log = disk.log(number)
        for _ in range(20):
            disk.append(log, a_batch(b"before" * 50))
        assert log.dirty
    disk.checkpoint()
    assert not any(log.dirty for log in disk.logs)
    idle = crash(disk.data, "idle")
    disk.append(found(disk.logs, 3), a_batch(b"after" * 100), a_batch(b"after"))
    busy = crash(disk.data, "busy")
    disk.logs.close()
    lengths = checked_bytes(monkeypatch)
    for data, since in ((idle, 0), (busy, 2)):
        lengths.clear()
        with LogManager(data, 1, SMALL) as again:
            assert len(lengths) == since
            assert found(again, 3).log_end == 20 + since
            assert len(read_all(found(again, 3))) == 20 + since


def test_the_batches_checked_after_a_crash_are_those_behind_the_checkpoint(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = disk.log()
    for _ in range(20):
        disk.append(log, a_batch(b"before" * 50))
    disk.checkpoint()
    since = [a_batch(b"x" * number) for number in range(1, 40)]
    for each in since:
        disk.append(log, each)
    killed = crash(disk.data, "killed")
    disk.logs.close()
    lengths = checked_bytes(monkeypatch)
    with LogManager(killed, 1, SMALL) as again:
        assert lengths == [len(each) for each in since]
        assert found(again).log_end == 59


def test_under_traffic_a_round_begins_once_an_interval(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[int] = []
    monkeypatch.setattr(os, "fdatasync", flushed.append)
    log = disk.log()
    pause, end = 0.0, disk.now.monotonic + 100.0
    while disk.now.monotonic < end:
        disk.append(log, a_batch(b"a"))
        pause = max(1.0, disk.later(pause))
        disk.hands.work_all()
    assert 3 <= len(flushed) <= 12  # with up to three segments each time
    disk.logs.close()


def test_a_round_takes_some_logs_at_a_time(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flushing, "LOGS_AT_ONCE", 4)
    for number in range(10):
        disk.append(disk.log(number), a_batch(b"a"))
    disk.later(CHECKPOINT_INTERVAL)
    sizes = []
    for _ in range(10):
        before = len(disk.logs.dirty)
        disk.later(0.1)
        sizes.append(before - len(disk.logs.dirty))
        disk.hands.work_all()
    assert [size for size in sizes if size] == [4, 4, 2]
    disk.logs.close()


def test_a_log_that_was_deleted_since_a_round_began_is_passed_over(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flushing, "LOGS_AT_ONCE", 1)
    disk.append(create(disk.logs, "earlier", "other", 0), a_batch(b"a"))
    old = disk.log()
    disk.append(old, a_batch(b"old"))
    disk.later(CHECKPOINT_INTERVAL)
    disk.later(0.1)
    disk.logs.delete_topic("first")
    disk.logs.deletion_task(disk.now)
    disk.hands.work_all()
    new = create(disk.logs, "flights", "second", 0)
    disk.append(new, a_batch(b"new"))
    disk.checkpoint()
    assert (disk.failures, old.recovery_point) == ([], None)
    assert b"first" not in disk.points()
    assert b"second-0" in disk.points()
    disk.logs.close()


def test_after_a_kill_sealed_segments_behind_the_checkpoint_are_flushed_before_they_are_vouched_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("folkmoot.brokers.storage.log.SEGMENTS_AT_ONCE", 3)
    disk = Disk(tmp_path / "data")
    log = disk.log()
    disk.append(log, a_batch(b"a" * 1500))
    disk.checkpoint()
    for _ in range(10):
        disk.append(log, a_batch(b"b" * 1500))
    disk.logs.abandon()
    flushed: list[str] = []
    real = os.fdatasync

    def note(fd: int) -> None:
        flushed.append(Path(f"/proc/self/fd/{fd}").resolve().name)
        real(fd)

    monkeypatch.setattr(os, "fdatasync", note)
    again = Disk(tmp_path / "data")
    log = found(again.logs)
    assert log.recovery_point_offset == 1
    ends = []
    while log.dirty:
        again.later(1.0)
        while again.hands.jobs:
            again.hands.work()
            ends.append(log.recovery_point_offset)
            # Never more than was flushed.
            assert ends[-1] == 1 or len(set(flushed)) >= ends[-1]
    assert ends == sorted(ends)
    assert set(ends) - {1} == {3, 6, 9, 11}
    # The first one, too: that it ends there may be a cut that is not on disk.
    assert flushed == [f"{base:020}.log" for base in range(11)]
    again.logs.close()


def test_much_that_came_brings_the_next_round_forward(disk: Disk) -> None:
    log = disk.log()
    disk.checkpoint()
    disk.later(CHECKPOINT_INTERVAL)
    disk.append(log, a_batch(b"a"))
    disk.flusher.appended_bytes += CHECKPOINT_BYTES - 1000
    for more, later, noted in ((0, 3.0, False), (1000, 0.0, True)):
        disk.flusher.appended_bytes += more
        for _ in range(5):
            disk.later(later)
            later = 0.1
            disk.hands.work_all()
        assert (b"first-0" in disk.points()) == noted
    disk.logs.close()


def test_what_came_before_the_last_round_brings_none_forward(disk: Disk) -> None:
    log = disk.log()
    disk.flusher.appended_bytes += CHECKPOINT_BYTES
    disk.checkpoint()
    disk.later(CHECKPOINT_INTERVAL)
    disk.append(log, a_batch(b"a"))
    for _ in range(5):
        disk.later(1.0)
        disk.hands.work_all()
    assert b"first-0" not in disk.points()
    disk.logs.close()


def test_recovery_points_that_cannot_be_noted_are_tried_again_with_the_next_round(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = disk.log()
    disk.append(log, a_batch(b"a"))
    with monkeypatch.context() as full:
        full.setattr(flushing, "save_notes", refuse)
        disk.checkpoint()
    assert disk.points() == b"{}"
    assert disk.logs.saved_notes.recovery_points == {}
    disk.append(log, a_batch(b"b"))
    disk.checkpoint()
    assert disk.logs.saved_notes.recovery_points["first-0"].end_offset == 2
    assert values_of(log.read(0, 1000)) == [(0, b"a"), (1, b"b")]
    disk.logs.close()


def test_what_is_noted_while_the_notes_are_written_is_in_one_further_write(disk: Disk) -> None:
    noted: list[tuple[int, dict[str, int]]] = []
    epochs = disk.logs.notes.leader_epochs
    for number in range(5):
        epochs[f"first-{number}"] = number

        def done(outcome: Exception | None, number: int = number) -> None:
            assert outcome is None
            noted.append((number, load_notes(disk.data).leader_epochs))

        disk.flusher.note(done)
    assert disk.hands.keys() == ["notes"]
    disk.hands.work()
    assert noted == [(0, {"first-0": 0})], "as they were when it began"
    assert disk.hands.keys() == ["notes"]
    disk.hands.work()
    assert [number for number, _ in noted] == [0, 1, 2, 3, 4]
    assert noted[1][1] == {f"first-{number}": number for number in range(5)}
    assert disk.hands.keys() == []
    disk.logs.close()


@pytest.mark.parametrize("reason", [errno.ENOSPC, errno.EIO])
def test_notes_that_cannot_be_written_fail_who_waits_and_a_broken_disk_ends_the_broker(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, reason: int
) -> None:
    outcomes: list[Exception | None] = []

    def refuse(*_: object) -> None:
        raise OSError(reason, os.strerror(reason))

    with monkeypatch.context() as broken:
        broken.setattr(flushing, "save_notes", refuse)
        for _ in range(3):
            disk.flusher.note(outcomes.append)
        disk.hands.work_all()
    assert [isinstance(each, OSError) for each in outcomes] == [True] * 3
    assert bool(disk.failures) == (reason == errno.EIO)
    disk.flusher.note(outcomes.append)
    disk.hands.work_all()
    assert outcomes[3] is None
    disk.logs.close()


def test_a_fault_of_one_that_waits_for_the_notes_holds_up_no_other_and_no_later_write(
    disk: Disk,
) -> None:
    outcomes: list[Exception | None] = []
    disk.flusher.note(a_fault)
    disk.flusher.note(a_fault)
    disk.flusher.note(outcomes.append)
    disk.logs.notes.ids.note_ids(9, 4)
    disk.logs._on_ids_saved = a_fault
    for _ in range(2):
        with suppress(RuntimeError):  # the event loop logs it
            disk.hands.work_all()
    disk.flusher.note(outcomes.append)
    disk.hands.work_all()
    assert outcomes == [None, None]
    disk.logs.close()


def test_the_highest_ids_are_on_disk_a_second_later_or_when_there_is_room(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []
    disk.logs._on_ids_saved = lambda ids: told.append(ids.schema)
    disk.logs.notes.ids.note_ids(9, 4)
    with monkeypatch.context() as full:
        full.setattr(flushing, "save_notes", refuse_for_room)
        disk.later(1.0)
        disk.hands.work_all()
    assert told == []
    assert load_notes(disk.data).ids == HighestIds()
    for _ in range(3):
        disk.later(1.0)
        disk.hands.work_all()
    assert told == [4], "once: new schemas get higher ids"
    assert load_notes(disk.data).ids == HighestIds(9, 4)
    disk.logs.close()


def test_a_log_is_not_made_anew_before_the_recovery_point_of_the_one_before_is_off_the_disk(
    disk: Disk,
) -> None:
    """After a power cut it would seem to have lost what the other had, and would not lead."""
    log = disk.log()
    disk.append(log, a_batch(b"a"))
    disk.checkpoint()
    disk.logs.delete_partition("first", 0)
    disk.logs.deletion_task(disk.now)
    disk.hands.work_all()
    assert not log.directory.exists()
    again = Disk(crash(disk.data, "killed"))
    for each in (disk, again):
        directory = each.data / log.directory.name
        assert b"first-0" in each.points()
        assert each.logs.is_deleting(directory)
        each.later(2.0)
        assert each.logs.is_deleting(directory)
        each.hands.work_all()
        assert b"first-0" not in each.points()
        assert not each.logs.is_deleting(directory)
        each.logs.close()


def test_notes_that_wait_at_a_stop_leave_nothing_behind(tmp_path: Path) -> None:
    """An operation that was never begun would be a warning of Python's."""
    hands = Hands()
    logs = LogManager(tmp_path / "data", 1, SMALL, submit=hands.submit)
    logs.start()
    flusher = Flusher(logs)
    flusher.note()
    flusher.note()
    hands.jobs.clear()
    logs.close()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del flusher, logs, hands
        gc.collect()
    assert not caught
