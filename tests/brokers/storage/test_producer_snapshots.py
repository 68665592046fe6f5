"""Producers over stops, kills and damage: whatever is left, the state is the one that the log tells."""

import os
import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from folkmoot.brokers.jobs.jobs import result_of
from folkmoot.brokers.storage import producer_state
from folkmoot.brokers.storage.files.atomic_file import read_checked, write_checked
from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.recovery import save_log_start
from folkmoot.brokers.storage.segment import SegmentReader, headers_from
from folkmoot.coordination.topic_config import FOREVER, LogConfig
from folkmoot.protocol import batch_header
from folkmoot.protocol.batch_header import BatchHeader
from folkmoot.protocol.errors import (
    DiskFull,
    FolkmootError,
    OutOfOrderSequence,
    StorageError,
    UnknownProducer,
)
from tests.brokers.batches import (
    NAME,
    SMALL,
    a_batch,
    append,
    delete_before,
    flush,
    flushed,
    make_log,
    read_all,
    removed,
    reopened,
    states_of,
)
from tests.seeds import new_seed


def sent(first: int, *, producer: int = 1, epoch: int = 0, records: int = 1) -> bytes:
    """A batch whose values tell where it comes from."""
    values = [b"%d.%d.%d" % (producer, epoch, first + n) for n in range(records)]
    return batch_header.reseal(a_batch(*values), producer, epoch, first)


def snapshots(log: Log) -> list[int]:
    return sorted(int(path.stem) for path in log.directory.glob("*.snapshot"))


def killed(log: Log, to: Path) -> Log:
    """The log as it is found after a kill, in a directory of its own."""
    shutil.copytree(log.directory, to / str(NAME))
    return reopened(to, log.config)


def test_a_batch_that_comes_again_is_answered_with_its_offset_and_not_written(
    tmp_path: Path,
) -> None:
    log = make_log(tmp_path)
    assert append(log, sent(0, records=3), sent(3)) == [0, 3]
    assert append(log, sent(3)) == [3]
    assert append(log, sent(0, records=3), sent(4)) == [0, 4]
    assert log.log_end == 5
    assert [value for _, value in read_all(log)] == [b"1.0.%d" % n for n in range(5)]
    with pytest.raises(OutOfOrderSequence):
        append(log, sent(6), sent(7))
    assert log.log_end == 5
    log.abandon()


def test_the_producer_of_a_batch_that_a_copy_begins_within_is_known_after_a_kill(
    tmp_path: Path,
) -> None:
    leader = make_log(tmp_path / "leader")
    append(leader, sent(0, records=3))
    copy = make_log(tmp_path / "copy")
    copy.queue.run_now(copy.begin_anew(2))
    flush(copy, snapshot=True)
    copy.append_as_follower(leader.read(2, 10_000))
    assert (copy.log_start, copy.log_end) == (2, 3)
    copy.abandon()
    after = reopened(tmp_path / "copy")
    assert append(after, sent(0, records=3)) == [0]
    assert after.log_end == 3
    after.abandon()
    leader.abandon()


def test_producers_are_known_after_a_kill_when_all_their_records_were_given_up(
    tmp_path: Path,
) -> None:
    log = make_log(tmp_path / "a")
    append(log, sent(0), sent(1))
    delete_before(log, 2)
    assert states_of(killed(log, tmp_path / "b")) == states_of(log)
    append(log, sent(2))
    for _ in range(2):
        removed(log.delete_segments(len(log.segments)))
        flush(log)
    assert log.log_start == 3
    again = killed(log, tmp_path / "c")
    assert states_of(again) == states_of(log)
    assert append(again, sent(2), sent(3)) == [2, 3]


def test_no_segment_goes_before_a_snapshot_on_disk_tells_what_its_headers_tell(
    tmp_path: Path,
) -> None:
    log = make_log(tmp_path / "a")
    append(log, sent(0), sent(1))
    save_log_start(log.directory, 2)
    assert states_of(killed(log, tmp_path / "b")) == states_of(log)
    again = killed(log, tmp_path / "c")
    assert again.delete_segments(0) == []
    assert (again.log_start, len(again.segments)) == (2, 2), "a power cut may take the headers' end"
    flushed(again)
    removed(again.delete_segments(0))
    assert (again.log_start, len(again.segments)) == (2, 1)
    assert states_of(again) == states_of(log)
    assert states_of(killed(again, tmp_path / "d")) == states_of(log)


def test_a_duplicate_is_answered_when_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = make_log(tmp_path)
    append(log, sent(0))

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("folkmoot.brokers.storage.segment.write_at", full)
        with pytest.raises(DiskFull):
            append(log, sent(1))
        assert append(log, sent(0)) == [0]
    assert append(log, sent(1)) == [1], "what was not written was not noted"
    log.abandon()


def test_a_log_whose_flush_has_failed_takes_nothing_and_answers_no_duplicate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = make_log(tmp_path, replace(SMALL, durability="fsync"))
    append(log, sent(0))
    flushed(log)
    append(log, sent(1))

    def refuse(fd: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("os.fdatasync", refuse)
        flushed(log)
    assert (log.recovery_point_offset, log.dirty) == (1, False)
    for again in (0, 1, 2):
        with pytest.raises(StorageError, match="could not be flushed"):
            append(log, sent(again))
    with pytest.raises(StorageError, match="could not be flushed"):
        flush(log)
    with pytest.raises(StorageError):
        log.close()


def test_producers_are_known_after_an_orderly_stop_without_reading_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = make_log(tmp_path)
    for first in range(50):
        append(log, sent(first))
    before, end = states_of(log), log.close()
    assert snapshots(log)[-1] == 50
    monkeypatch.setattr(SegmentReader, "headers", None)
    log = reopened(tmp_path, SMALL, end)
    assert log._snapshots.state is None, "an idle log has loaded nothing"
    assert append(log, sent(49)) == [49]
    assert states_of(log) == before
    log.abandon()


def test_producers_are_known_after_a_kill_from_the_snapshot_and_the_headers_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = make_log(tmp_path / "a")
    for first in range(50):
        append(log, sent(first))
        if first == 30:
            flush(log)
    (*_, last) = snapshots(log)
    assert 0 < last < 50
    monkeypatch.setattr("folkmoot.protocol.compression.decompress", None)
    asked: list[int] = []

    def headers(readers: list[SegmentReader], offset: int) -> Iterator[BatchHeader]:
        asked.append(offset)
        return headers_from(readers, offset)

    monkeypatch.setattr("folkmoot.brokers.storage.log.headers_from", headers)
    again = killed(log, tmp_path / "b")
    assert asked[-1] == last, "behind what is asked for leader epochs"
    assert states_of(again) == states_of(log)
    assert append(again, sent(49), sent(50)) == [49, 50]
    log.abandon()
    again.abandon()


@pytest.mark.parametrize("harm", ["missing", "torn", "flipped", "empty", "foreign"])
def test_without_a_snapshot_that_can_be_read_the_log_is(tmp_path: Path, harm: str) -> None:
    log = make_log(tmp_path)
    for first in range(30):
        append(log, sent(first), sent(first, producer=2))
    before, end = states_of(log), log.close()
    for path in log.directory.glob("*.snapshot"):
        data = path.read_bytes()
        match harm:
            case "missing":
                path.unlink()
            case "torn":
                path.write_bytes(data[: len(data) // 2])
            case "flipped":
                path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
            case "empty":
                path.write_bytes(b"")
            case "foreign":
                write_checked(path, b"\x93\x01\x02\x03")
    for clean in (end, None):
        log = reopened(tmp_path, SMALL, clean)
        assert states_of(log) == before
        log.abandon()


def test_a_snapshot_ahead_of_a_log_that_lost_its_end_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_disk: list[list[str]] = []
    log = make_log(tmp_path, replace(SMALL, segment_bytes=1 << 20))
    append(log, sent(0))
    log.snapshot_covers(1)
    flush(log)
    size = log.size
    append(log, sent(1))
    log.close()
    assert snapshots(log) == [2]
    with (log.directory / f"{0:020}.log").open("r+b") as file:
        file.truncate(size)
    monkeypatch.setattr(
        "folkmoot.brokers.storage.log.sync_directory",
        lambda path: on_disk.append([each.name for each in path.glob("*.snapshot")]),
    )
    log = reopened(tmp_path)
    assert (log.log_end, snapshots(log)) == (1, [])
    assert on_disk == [[]], "a power cut brings it back when the log has grown past it"
    assert append(log, sent(1, records=2)) == [1], "what the log lost was not written"
    log.abandon()


def test_a_start_offset_that_moves_or_segments_that_go_take_no_producer_along(
    tmp_path: Path,
) -> None:
    log = make_log(tmp_path)
    for first in range(60):
        append(log, sent(first))
    delete_before(log, 60)
    assert append(log, sent(59)) == [59]
    end = log.close()
    for clean in (end, None):
        log = reopened(tmp_path, SMALL, clean)
        assert append(log, sent(59)) == [59]
        with pytest.raises(OutOfOrderSequence):
            append(log, sent(61))
        log.abandon()


def test_a_snapshot_that_cannot_be_written_costs_nothing_but_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("folkmoot.brokers.storage.log.write_checked", full)
    log = make_log(tmp_path)
    for first in range(60):
        append(log, sent(first))
    assert len(log.segments) > 1
    flushed(log)
    assert (log.recovery_point_offset, log.failed) == (60, None)
    before, end = states_of(log), log.close()
    assert snapshots(log) == []
    assert caplog.text.count("the disk is full") == 1
    log = reopened(tmp_path, SMALL, end)
    assert states_of(log) == before
    log.abandon()


def test_damage_in_the_log_hides_only_the_batches_in_it(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    for first in range(60):
        append(log, sent(first), sent(first, producer=2))
    end = log.close()
    for path in log.directory.glob("*.snapshot"):
        path.unlink()
    path = log.directory / f"{0:020}.log"
    data = bytearray(path.read_bytes())
    data[len(sent(0)) + 9] ^= 1
    path.write_bytes(data)
    log = reopened(tmp_path, SMALL, end)
    assert [(state.producer_id, state.batches[-1].last) for state in states_of(log)] == [
        *((1, 59), (2, 59))
    ]
    assert append(log, sent(60)) == [120]
    log.abandon()


def test_a_flush_takes_a_snapshot_of_what_was_written_to_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_state, "SNAPSHOT_BATCHES", 10)
    log = make_log(tmp_path, LogConfig())
    for first in range(30):
        append(log, sent(first))
        if first in (2, 12, 14, 29):
            flushed(log)
            assert snapshots(log) == {2: [], 12: [13], 14: [13], 29: [30]}[first]
    log.close()
    assert snapshots(log) == [30], "it is on disk, and needs none before it"


def test_producers_that_are_idle_for_long_are_forgotten_and_so_after_a_restart(
    tmp_path: Path,
) -> None:
    config = LogConfig(producer_id_expiry=100.0)
    log = make_log(tmp_path, config)
    append(log, sent(0), sent(0, producer=2))
    log.expire_producers(1000.0)
    append(log, sent(1, producer=2))
    log.expire_producers(1060.0)
    log = reopened(tmp_path, config, log.close())
    assert append(log, sent(0)) == [0]
    log.expire_producers(5.0)
    assert append(log, sent(0)) == [0], "the time while the broker was down does not count"
    log.expire_producers(46.0)
    with pytest.raises(UnknownProducer):
        append(log, sent(1))
    assert append(log, sent(2, producer=2)) == [3]
    log.close()


def test_the_state_after_any_kills_and_stops_is_the_one_before(tmp_path: Path) -> None:
    seed = new_seed()
    chance = random.Random(seed)
    config = replace(SMALL, segment_bytes=1024, max_producers=6, producer_id_expiry=FOREVER)
    log = make_log(tmp_path / "0", config)
    sequences: dict[int, list[int]] = {}
    for life in range(1, 25):
        for _ in range(chance.randrange(30)):
            producer = chance.randrange(10)
            epoch, first = sequences.get(producer, [0, 0])
            if chance.random() < 0.1:
                epoch, first = epoch + 1, 0
            records = chance.randrange(1, 4)
            made = [sent(first, producer=producer, epoch=epoch, records=records)]
            if chance.random() < 0.3:
                made.append(a_batch(b"nobody's"))
            try:
                append(log, *made)
                sequences[producer] = [epoch, first + records]
            except FolkmootError:
                sequences[producer] = [epoch + 1, 0]  # it was forgotten, and begins anew
            if chance.random() < 0.05:
                log.snapshot_covers(log.log_end)
            if chance.random() < 0.05:
                flush(log)
        before, end = states_of(log), log.log_end
        clean = log.recovery_point if chance.random() < 0.5 else None
        data = tmp_path / str(life)
        if chance.random() < 0.5:
            clean = log.close()
            shutil.copytree(log.directory, data / str(NAME))
        else:
            shutil.copytree(log.directory, data / str(NAME))
            log.abandon()
        for path in (data / str(NAME)).glob("*.snapshot"):
            if chance.random() < 0.2:
                path.write_bytes(path.read_bytes()[:-1])
        log = reopened(data, config, clean)
        assert log.log_end == end
        assert states_of(log) == before
    log.abandon()


def test_a_stop_ends_though_a_snapshot_that_somebody_waits_for_finds_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[object] = []

    def full(path: Path, *_: object) -> None:
        tries.append(path)
        assert len(tries) < 10, "it tries for ever"
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("folkmoot.brokers.storage.log.write_checked", full)
    log = make_log(tmp_path)
    append(log, sent(0))
    assert not log.snapshot_covers(1)  # as retention asks, which would let go of a segment
    end = log.close()
    assert end is not None
    assert end.end_offset == 1


def test_the_snapshot_of_a_million_producers_can_be_read_back(tmp_path: Path) -> None:
    """One takes about 125 bytes."""
    write_checked(tmp_path / "snapshot", bytes(125_000_000))
    assert len(read_checked(tmp_path / "snapshot") or b"") == 125_000_000


def test_what_finds_no_room_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checked(tmp_path / "small", b"before")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_checked(tmp_path / "small", b"after")
    assert [path.name for path in tmp_path.iterdir()] == ["small"]
    assert read_checked(tmp_path / "small") == b"before"


def test_who_needs_the_producers_at_once_does_not_wait_for_the_background(tmp_path: Path) -> None:
    """Nor does it share the descriptors of a job that may be running."""
    log = make_log(tmp_path)
    append(log, sent(0), sent(1))
    log = reopened(tmp_path, log.config, log.close())
    waiting, other = log.prepare_append(), log.prepare_append()
    assert waiting is not None
    assert other is not None
    found = result_of(waiting.run)
    assert append(log, sent(2)) == [2]
    waiting.finish(found)
    other.finish(result_of(other.run))
    assert append(log, sent(2), sent(3)) == [2, 3]
    assert log.prepare_append() is None
    log.abandon()


def test_the_job_before_the_first_append_goes_back_to_an_older_snapshot_that_can_be_read(
    tmp_path: Path,
) -> None:
    log = make_log(tmp_path)
    append(log, sent(0), sent(1))
    log = reopened(tmp_path, log.config, log.close())
    newest = log.directory / f"{2:020}.snapshot"
    newest.write_bytes(b"spoiled")
    jobs = 0
    while (job := log.prepare_append()) is not None:
        job.finish(result_of(job.run))
        jobs += 1
    assert jobs == 3, "of the index, of the newest snapshot and of the one before"
    assert not newest.exists()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("open", "pread"):
            patch.setattr(os, name, None)
        assert len(states_of(log)) == 1, "nothing is read any more"
    assert append(log, sent(1), sent(2)) == [1, 2]
    log.abandon()
