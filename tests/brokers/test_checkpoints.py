"""What an unclean stop leaves to be read, and what the scrub finds that nobody reads."""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from folkmoot.brokers.server.job_queue import Background
from folkmoot.brokers.server.scheduler import Now
from folkmoot.brokers.storage.checkpoints import CHECKPOINT_BYTES, Checkpoints
from folkmoot.brokers.storage.log_manager import Logs
from folkmoot.brokers.storage.scrubber import Scrub
from folkmoot.protocol import batch_header
from folkmoot.protocol.errors import CorruptBatch, StorageError
from tests.brokers.batches import SMALL, a_batch, append, read_all, values_of

NOW = Now(0.0, 0)


def never(error: Exception) -> None:
    raise error


def refuse(fd: int) -> None:
    raise OSError(5, "Input/output error")


def turn_until_idle(chore: Callable[[Now], float], background: Background, longest: float) -> None:
    """Do a chore until it asks for a long pause, and what it hands to the background each time."""
    for _ in range(1000):
        if chore(NOW) >= longest:
            return
        background.run_all()
    raise AssertionError("the chore never rests")


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


def test_after_a_crash_only_what_came_since_the_last_checkpoint_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    background = Background(never)
    logs = Logs(tmp_path / "data", 1, SMALL)
    logs.start()
    checkpoints = Checkpoints(logs, background)
    for number in range(5):
        log = logs.create("flights", "first", number)
        for _ in range(20):
            append(log, a_batch(b"before" * 50))
        assert log.dirty
    turn_until_idle(checkpoints.chore, background, 1.0)
    assert not any(log.dirty for log in logs)
    idle = crash(tmp_path / "data", "idle")
    append(logs.get("flights", 3), a_batch(b"after" * 100), a_batch(b"after"))
    busy = crash(tmp_path / "data", "busy")
    logs.close()
    lengths = checked_bytes(monkeypatch)
    for data, since in ((idle, 0), (busy, 2)):
        lengths.clear()
        with Logs(data, 1, SMALL) as again:
            assert len(lengths) == since
            assert again.get("flights", 3).end_offset == 20 + since
            assert len(read_all(again.get("flights", 3))) == 20 + since


def test_the_batches_checked_after_a_crash_are_those_behind_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    background = Background(never)
    logs = Logs(tmp_path / "data", 1, SMALL)
    logs.start()
    log = logs.create("flights", "first", 0)
    for _ in range(20):
        append(log, a_batch(b"before" * 50))
    turn_until_idle(Checkpoints(logs, background).chore, background, 1.0)
    since = [a_batch(b"x" * number) for number in range(1, 40)]
    for each in since:
        append(log, each)
    killed = crash(tmp_path / "data", "killed")
    logs.close()
    lengths = checked_bytes(monkeypatch)
    with Logs(killed, 1, SMALL) as again:
        assert lengths == [len(each) for each in since]
        assert again.get("flights", 0).end_offset == 59


def test_a_topic_made_again_is_not_recovered_by_the_old_ones_checkpoint(tmp_path: Path) -> None:
    background = Background(never)
    logs = Logs(tmp_path / "data", 1, SMALL)
    logs.start()
    append(logs.create("flights", "first", 0), a_batch(b"old" * 50))
    turn_until_idle(Checkpoints(logs, background).chore, background, 1.0)
    append(logs.create("flights", "second", 0), a_batch(b"new" * 50), a_batch(b"newer" * 50))
    with Logs(crash(tmp_path / "data", "killed"), 1, SMALL) as again:
        assert read_all(again.get("flights", 0)) == [(0, b"new" * 50), (1, b"newer" * 50)]
    logs.close()


def test_a_flush_that_fails_in_the_background_stops_appends_and_is_not_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    background = Background(never)
    logs = Logs(tmp_path / "data", 1, SMALL)
    logs.start()
    log = logs.create("flights", "first", 0)
    append(log, a_batch(b"a"))
    checkpoints = Checkpoints(logs, background)
    checkpoints.chore(NOW)
    checkpoints.chore(NOW)
    with monkeypatch.context() as broken:
        broken.setattr("folkmoot.brokers.storage.flushing.os.fdatasync", refuse)
        background.run_all()
    assert log.durable is None
    with pytest.raises(StorageError, match="could not be flushed"):
        append(log, a_batch(b"b"))
    assert values_of(log.read(0, 100)) == [(0, b"a")]
    for later in (60.0, 120.0, 180.0, 240.0):
        checkpoints.chore(Now(later, 0))
        background.run_all()
    assert log.durable is None  # the kernel says that all is well now, and it proves nothing
    assert not log.dirty
    with pytest.raises(StorageError):
        logs.close()
    assert b"flights" not in (tmp_path / "data" / "clean-shutdown").read_bytes()
    assert b"flights" not in (tmp_path / "data" / "durable").read_bytes()


def test_nothing_is_written_that_a_failed_flush_of_an_older_segment_will_refuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    background = Background(never)
    logs = Logs(tmp_path / "data", 1, replace(SMALL, flush_records=1000))
    logs.start()
    log = logs.create("flights", "first", 0)
    append(log, a_batch(b"a" * 1500))
    checkpoints = Checkpoints(logs, background)
    checkpoints.chore(NOW)
    checkpoints.chore(NOW)
    append(log, a_batch(b"b" * 1500))  # into a segment of its own
    with monkeypatch.context() as broken:
        broken.setattr("folkmoot.brokers.storage.flushing.os.fdatasync", refuse)
        background.run_all()
    log.config = replace(log.config, flush_records=1)
    for _ in range(2):
        with pytest.raises(StorageError, match="could not be flushed"):
            append(log, a_batch(b"c"))
    assert log.end_offset == 2
    assert log.durable is None
    logs.abandon()


def test_under_traffic_a_round_begins_once_an_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[int] = []
    monkeypatch.setattr("folkmoot.brokers.storage.flushing.os.fdatasync", flushed.append)
    background = Background(never)
    with Logs(tmp_path / "data", 1, SMALL) as logs:
        log = logs.create("flights", "first", 0)
        checkpoints = Checkpoints(logs, background)
        now = 1000.0
        while now < 1100.0:
            append(log, a_batch(b"a"))
            now += checkpoints.chore(Now(now, 0))
            background.run_all()
        assert 3 <= len(flushed) <= 12  # with up to three segments each time


def test_a_log_that_cannot_be_lent_is_tried_once_an_interval_and_keeps_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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

    background = Background(never)
    with Logs(tmp_path / "data", 1, SMALL) as logs:
        log = logs.create("flights", "first", 0)
        for _ in range(2):
            append(log, a_batch(b"a" * 1500))
        checkpoints = Checkpoints(logs, background)
        now = 1000.0
        with monkeypatch.context() as broken:
            broken.setattr("folkmoot.brokers.storage.logfile.os.dup", refuse_second)
            broken.setattr("folkmoot.brokers.storage.flushing.os.close", close)
            while now < 1080.0:
                now += checkpoints.chore(Now(now, 0))
                background.run_all()
        assert len(given) == 2 * 3
        assert closed == given[::2]


def test_a_log_that_was_deleted_since_a_round_began_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("folkmoot.brokers.storage.checkpoints.LOGS_AT_ONCE", 1)
    background = Background(never)
    logs = Logs(tmp_path / "data", 1, SMALL)
    logs.start()
    append(logs.create("earlier", "other", 0), a_batch(b"a"))
    old = logs.create("flights", "first", 0)
    append(old, a_batch(b"old"))
    checkpoints = Checkpoints(logs, background)
    for _ in range(2):
        checkpoints.chore(NOW)
        background.run_all()
    logs.delete_topic("first")
    new = logs.create("flights", "second", 0)
    append(new, a_batch(b"new"))
    opened = len(logs.files)
    turn_until_idle(checkpoints.chore, background, 1.0)
    assert len(logs.files) == opened
    assert old.durable is None
    logs.close()


# -- scrub -------------------------------------------------------------------------------------------


def rot(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)
        file.seek(position)
        file.write(bytes([byte[0] ^ 4]))


def test_rot_in_a_sealed_segment_is_found_by_the_scrub_and_then_not_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("folkmoot.brokers.storage.scrubber.STEP_BYTES", 700)
    background = Background(never)
    with Logs(tmp_path / "data", 1, SMALL) as logs:
        for partition in range(3):
            log = logs.create("flights", "first", partition)
            for number in range(30):
                append(log, a_batch(bytes([number]) * 300))
        log, size = logs.get("flights", 2), len(a_batch(bytes(300)))
        assert log.segments > 3
        rot(log.directory / f"{5:020}.log", 2 * size + 200)
        # A reader's own checksum finds it at once; the broker serves it as it is, until the scrub.
        with pytest.raises(CorruptBatch):
            values_of(log.read(7, 1))
        scrub = Scrub(logs, background, 3600.0)
        paused = 0.0
        while not log.sealed(5).damage:  # type: ignore[union-attr]
            paused += scrub.chore(NOW)
            background.run_all()
            assert paused < 3700
        with pytest.raises(CorruptBatch, match="go on at 8"):
            log.read(7, 1)
        assert [offset for offset, _ in values_of(log.read(5, 10_000))] == [5, 6]
        assert [offset for offset, _ in values_of(log.read(8, 10_000))] == [8, 9]
        others = [logs.get("flights", partition) for partition in range(2)]
        assert [len(read_all(other)) for other in others] == [30, 30]
    with Logs(tmp_path / "data", 1, SMALL) as logs, pytest.raises(CorruptBatch, match="go on at 8"):
        logs.get("flights", 2).read(7, 1)


def test_a_round_of_the_scrub_takes_its_period_and_survives_deleted_segments(
    tmp_path: Path,
) -> None:
    background = Background(never)
    with Logs(tmp_path / "data", 1, SMALL) as logs:
        for partition in range(4):
            log = logs.create("flights", "first", partition)
            for number in range(30):
                append(log, a_batch(bytes([number]) * 300))
        scrub = Scrub(logs, background, 1000.0)
        segments = sum(len(log.all_sealed()) for log in logs)
        pauses = []
        for _ in range(segments):
            pauses.append(scrub.chore(NOW))
            background.run_all()
        assert sum(pauses) == pytest.approx(1000.0)
        scrub.chore(NOW)
        logs.delete_topic("first")
        background.run_all()
        for _ in range(3):
            scrub.chore(NOW)
            background.run_all()


def test_a_failed_flush_is_not_made_good_by_a_later_one_that_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel tells of an error once, and drops the pages: the second flush proves nothing."""
    for batches in (1, 4):  # in one segment, and in several
        data = tmp_path / f"data-{batches}"
        background = Background(never)
        logs = Logs(data, 1, SMALL)
        logs.start()
        log = logs.create("flights", "first", 0)
        append(log, a_batch(b"a" * 1500))
        checkpoints = Checkpoints(logs, background)
        checkpoints.chore(NOW)
        checkpoints.chore(NOW)  # lent, not yet flushed
        for _ in range(batches):
            append(log, a_batch(b"b" * 500))
        log.flush()
        with monkeypatch.context() as broken:
            broken.setattr("folkmoot.brokers.storage.flushing.os.fdatasync", refuse)
            background.run_all()
        assert log.durable is None
        assert not log.dirty
        with pytest.raises(StorageError, match="could not be flushed"):
            append(log, a_batch(b"c"))
        with pytest.raises(StorageError, match="could not be flushed"):
            logs.close()
        assert b"flights" not in (data / "clean-shutdown").read_bytes()
        assert b"flights" not in (data / "durable").read_bytes()


def test_after_a_kill_sealed_segments_behind_the_checkpoint_are_flushed_before_they_are_vouched_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("folkmoot.brokers.storage.flushing.SEGMENTS_AT_ONCE", 3)
    background = Background(never)
    logs = Logs(tmp_path / "data", 1, SMALL)
    logs.start()
    log = logs.create("flights", "first", 0)
    append(log, a_batch(b"a" * 1500))
    turn_until_idle(Checkpoints(logs, background).chore, background, 1.0)
    for _ in range(10):
        append(log, a_batch(b"b" * 1500))
    logs.abandon()
    flushed: list[str] = []
    real = os.fdatasync

    def note(fd: int) -> None:
        flushed.append(Path(f"/proc/self/fd/{fd}").resolve().name)
        real(fd)

    monkeypatch.setattr("folkmoot.brokers.storage.flushing.os.fdatasync", note)
    again = Logs(tmp_path / "data", 1, SMALL)
    again.start()
    found = again.get("flights", 0)
    assert found.durable is not None
    assert found.durable.end_offset == 1
    checkpoints = Checkpoints(again, background)
    now, ends = 0.0, []
    while found.dirty:
        now += checkpoints.chore(Now(now, 0))
        background.run_all()
        ends.append(found.durable.end_offset)
        # Never more than was flushed.
        assert ends[-1] == 1 or len(set(flushed)) >= ends[-1]
    assert set(ends) == {1, 3, 6, 9, 11}
    # The first one, too: that it ends there may be a cut that is not on disk.
    assert flushed == [f"{base:020}.log" for base in range(11)]
    again.close()


def test_much_that_came_brings_the_next_round_forward(tmp_path: Path) -> None:
    background = Background(never)
    with Logs(tmp_path / "data", 1, SMALL) as logs:
        log = logs.create("flights", "first", 0)
        checkpoints = Checkpoints(logs, background)
        turn_until_idle(checkpoints.chore, background, 1.0)
        append(log, a_batch(b"a"))
        logs.appended_bytes += CHECKPOINT_BYTES - 1
        for bytes_more, later, noted in ((0, 3.0, None), (1, 1.0, None), (0, 3.0, 1)):
            logs.appended_bytes += bytes_more
            for _ in range(5):
                checkpoints.chore(Now(later, 0))
                background.run_all()
            assert (log.noted and log.noted.end_offset) == noted
