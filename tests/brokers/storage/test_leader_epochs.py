"""Where leader epochs begin in a log, through appends, cuts, flushes and crashes."""

import errno
import os
import random
from functools import partial
from pathlib import Path

import pytest

from folkmoot.brokers.jobs.jobs import Lane
from folkmoot.brokers.jobs.serial_queue import SerialQueue
from folkmoot.brokers.storage.files.atomic_file import save_json
from folkmoot.brokers.storage.leader_epochs import (
    EPOCH_STARTS_FILE,
    NO_EPOCH,
    EpochStarts,
)
from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.log_manager import LogManager
from folkmoot.brokers.storage.notes import NOTES_FILE, Notes, load_notes, save_notes
from folkmoot.brokers.storage.recovery import RecoveryPoint, save_log_start
from folkmoot.brokers.storage.segment import SegmentReader, headers_from
from folkmoot.protocol.errors import StorageError
from tests.brokers.batches import NAME, NOW, SMALL, a_batch, flush, flushed
from tests.brokers.hands import Hands, create, truncate
from tests.processes import open_below
from tests.seeds import new_seed


def a_replica(data: Path, epoch: int = 0, point: RecoveryPoint | None = None) -> Log:
    directory = data / str(NAME)
    directory.mkdir(parents=True, exist_ok=True)
    log = Log(directory, NAME, "first", SMALL)
    log.leader_epoch = epoch
    log.start(point)
    return log


def starts_of(log: Log) -> list[tuple[int, int]]:
    return list(log.epoch_starts)


def starts_by_headers(log: Log) -> list[tuple[int, int]]:
    found: dict[int, int] = {}
    for header in headers_from(log._readers(log.log_start), log.log_start):
        found.setdefault(header.leader_epoch, header.base_offset)
    return list(found.items())


def test_the_end_of_an_epoch_is_where_the_next_one_begins() -> None:
    starts = EpochStarts([(1, 0), (3, 10), (7, 12)])
    assert starts.latest == 7
    assert starts.end_of(1, 20) == (1, 10)
    assert starts.end_of(2, 20) == (1, 10), "nothing was appended in epoch 2"
    assert starts.end_of(3, 20) == (3, 12)
    assert starts.end_of(6, 20) == (3, 12)
    assert starts.end_of(7, 20) == (7, 20)
    assert starts.end_of(9, 20) == (7, 20)
    assert starts.end_of(0, 20) == (NO_EPOCH, 0)
    assert EpochStarts().end_of(4, 0) == (NO_EPOCH, 0)


def test_epochs_behind_a_cut_or_before_the_log_start_are_forgotten() -> None:
    starts = EpochStarts([(1, 0), (3, 10), (7, 12)])
    starts.cut(12)
    assert list(starts) == [(1, 0), (3, 10)]
    starts.forget_before(10)
    assert list(starts) == [(1, 0), (3, 10)], "a follower may end there, in epoch 1"
    starts.forget_before(11)
    assert list(starts) == [(3, 10)], "it goes on behind that"
    assert starts.end_of(2, 12) == (NO_EPOCH, 10)


def test_a_log_knows_its_epochs_after_any_appends_cuts_flushes_and_stops(tmp_path: Path) -> None:
    """A death keeps what was written, as a kill does; the recovery point may be any earlier one."""
    source = random.Random(new_seed())
    for turn in range(15):
        data = tmp_path / str(turn)
        log, epoch = a_replica(data), 0
        points: list[RecoveryPoint | None] = [None]
        for _ in range(60):
            step = source.random()
            if step < 0.6:
                log.append_as_leader([a_batch(b"v" * source.randrange(80))], NOW, epoch)
            elif step < 0.75:
                epoch += source.randint(1, 3)
            elif step < 0.85 and log.dirty:
                flushed(log)
                points.append(log.recovery_point)
            elif step < 0.92 and log.log_end:
                truncate(log, source.randint(0, log.log_end))
                points = [log.recovery_point]
            elif step >= 0.92:
                if source.random() < 0.5:
                    point = log.close()
                else:
                    log.abandon()
                    point = source.choice(points)
                log = a_replica(data, epoch, point)
                points = [point]
            assert starts_of(log) == starts_by_headers(log)
        log.close()


def test_a_log_that_begins_within_a_batch_knows_its_epoch_after_a_death(tmp_path: Path) -> None:
    """Who does not, and leads, finds every follower's end off its log, again and again."""
    log = a_replica(tmp_path)
    log.append_as_leader([a_batch(b"a", b"b", b"c")], NOW, 1)
    save_log_start(log.directory, 1)
    log.advance_log_start(1)
    log.abandon()
    log = a_replica(tmp_path, 1)
    assert starts_of(log) == [(1, 0)]
    log.append_as_leader([a_batch(b"d")], NOW, 4)
    assert log.epoch_starts.end_of(1, log.log_end) == (1, 3)
    log.close()


def test_a_follower_takes_the_epochs_of_what_it_copies(tmp_path: Path) -> None:
    leader, follower = a_replica(tmp_path / "a"), a_replica(tmp_path / "b")
    for epoch in (0, 0, 2, 5, 5):
        leader.append_as_leader([a_batch(b"v")], NOW, epoch)
    follower.append_as_follower(leader.read(0, 10_000, committed=False))
    assert starts_of(follower) == [(0, 0), (2, 2), (5, 3)]
    for log in (leader, follower):
        log.close()


def test_the_epochs_are_on_disk_before_the_recovery_point_moves(tmp_path: Path) -> None:
    log = a_replica(tmp_path)
    log.append_as_leader([a_batch(b"v")], NOW, 4)
    hands = Hands()
    log.queue = SerialQueue(partial(hands.submit, Lane.DISK))
    log.queue.add(log.flush_last())
    [(_, put_on_disk, done)] = hands.jobs
    result = put_on_disk()
    assert (log.directory / EPOCH_STARTS_FILE).exists()
    assert log.recovery_point_offset == 0
    done(result)
    assert log.recovery_point_offset == 1
    (log.directory / EPOCH_STARTS_FILE).unlink()
    log.append_as_leader([a_batch(b"v")], NOW, 4)
    flushed(log)
    assert not (log.directory / EPOCH_STARTS_FILE).exists(), "nothing has changed"
    log.close()


def test_a_flush_that_cannot_begin_leaves_the_epochs_to_the_next_one_and_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No descriptor is left to read the producers with, for a moment."""
    log = a_replica(tmp_path, 4)
    for epoch in (3, 4):
        for number in range(20):
            log.append_as_leader([a_batch(b"%d" % number)], NOW, epoch)
    flushed(log)
    truncate(log, 20)
    with monkeypatch.context() as patch:
        patch.setattr(SegmentReader, "start_near", _no_descriptor)
        before = open_below(tmp_path)
        with pytest.raises(StorageError, match="Too many open files"):
            flush(log, snapshot=True)
        assert open_below(tmp_path) == before
    for number in range(25):
        log.append_as_leader([a_batch(b"%d" % number)], NOW, 3)
    flushed(log)
    point = log.point_to_note
    log.abandon()
    log = a_replica(tmp_path, 4, point)
    assert starts_of(log) == [(3, 0)]
    log.close()


def _no_descriptor(*_: object) -> int:
    raise StorageError("Too many open files")


def test_what_a_replica_has_lost_is_not_passed_over(tmp_path: Path) -> None:
    """It is fetched again, or is given again in a later leader epoch."""
    log = a_replica(tmp_path)
    for _ in range(4):
        log.append_as_leader([a_batch(b"v")], NOW, 0)
    log.abandon()
    point = RecoveryPoint(9, 0, 10_000)
    replica = a_replica(tmp_path, 0, point)
    assert (replica.log_end, replica.is_incomplete) == (4, True)
    replica.abandon()


def test_the_highest_epochs_are_not_guessed(tmp_path: Path) -> None:
    assert load_notes(tmp_path).leader_epochs == {}
    path = tmp_path / NOTES_FILE
    save_notes(tmp_path, Notes(leader_epochs={"id-0": 7}))
    assert load_notes(tmp_path).leader_epochs == {"id-0": 7}
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)
    assert load_notes(tmp_path) == Notes()


def test_a_replica_whose_epoch_is_lost_does_not_take_itself_for_one_that_has_all(
    tmp_path: Path,
) -> None:
    with LogManager(tmp_path, 1, SMALL) as logs:
        log = create(logs, "t", "id-1", 0)
        log.append_as_leader([a_batch(b"v")], NOW, 3)
    (tmp_path / NOTES_FILE).write_bytes(b"rotten")
    for _ in range(2):
        with LogManager(tmp_path, 1, SMALL) as logs:
            [log] = logs
            assert (log.is_incomplete, log.high_watermark) == (True, 0)
        save_notes(tmp_path, Notes(leader_epochs={"another-0": 1}))


def test_epoch_starts_that_are_not_in_order_are_not_believed(tmp_path: Path) -> None:
    save_json(tmp_path / EPOCH_STARTS_FILE, [(2, 5), (1, 7)])
    assert list(EpochStarts.load(tmp_path)) == []


def test_a_disk_without_room_for_epochs_leaves_the_log_in_use_and_the_noted_point_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = a_replica(tmp_path)
    log.append_as_leader([a_batch(b"a")], NOW, 0)
    flushed(log)
    assert log.point_to_note == log.recovery_point
    log.append_as_leader([a_batch(b"b")], NOW, 1)

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("folkmoot.brokers.storage.log.save_epoch_starts", refuse)
        flushed(log)
        assert log.failed is None
        assert (log.recovery_point_offset, log.point_to_note) == (2, None)
        flush(log)
    assert log.dirty
    flushed(log)
    assert (log.recovery_point_offset, log.point_to_note) == (2, log.recovery_point)
    assert list(EpochStarts.load(log.directory)) == [(0, 0), (1, 1)]
    log.close()
