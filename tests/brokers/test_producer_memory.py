"""Producers over stops, kills and damage: whatever is left, the state is the one that the log tells."""

import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from folkmoot.brokers.server.job_queue import Background
from folkmoot.brokers.server.scheduler import Now
from folkmoot.brokers.storage import producer_memory
from folkmoot.brokers.storage.atomic_file import note_checked
from folkmoot.brokers.storage.checkpoints import CHECKPOINT_INTERVAL, Checkpoints
from folkmoot.brokers.storage.config import FOREVER, LogConfig
from folkmoot.brokers.storage.directories import save_start
from folkmoot.brokers.storage.flushing import CleanEnd
from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.log_manager import Logs
from folkmoot.brokers.storage.producer_state import ProducerState
from folkmoot.brokers.storage.retention import Retention
from folkmoot.brokers.storage.segments import Segments
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
    NOW,
    SMALL,
    a_batch,
    append,
    delete_before,
    flushed,
    make_log,
    read_all,
    reopened,
)
from tests.seeds import new_seed


def sent(first: int, *, producer: int = 1, epoch: int = 0, records: int = 1) -> bytes:
    """A batch whose values tell where it comes from."""
    values = [b"%d.%d.%d" % (producer, epoch, first + n) for n in range(records)]
    return batch_header.reseal(a_batch(*values), producer, epoch, first)


def states_of(log: Log) -> list[ProducerState]:
    found = list(log._memory.producers().states)
    for state in found:
        state.idle_since = None
    return found


def snapshots(log: Log) -> list[int]:
    return sorted(int(path.stem) for path in log.directory.glob("*.snapshot"))


def killed(log: Log, to: Path) -> Log:
    """The log as it is found after a kill, in a directory of its own."""
    shutil.copytree(log.directory, to / str(NAME))
    again = Log(to, NAME, "first", log.config)
    again.start()
    return again


def test_a_batch_that_comes_again_is_answered_with_its_offset_and_not_written(
    tmp_path: Path,
) -> None:
    log = make_log(tmp_path)
    assert append(log, sent(0, records=3), sent(3)) == [0, 3]
    assert append(log, sent(3)) == [3]
    assert append(log, sent(0, records=3), sent(4)) == [0, 4]
    assert log.end_offset == 5
    assert [value for _, value in read_all(log)] == [b"1.0.%d" % n for n in range(5)]
    with pytest.raises(OutOfOrderSequence):
        append(log, sent(5), sent(7))
    assert log.end_offset == 5, "all of a call or none"
    log.abandon()


def test_producers_are_known_after_a_kill_when_all_their_records_were_given_up(
    tmp_path: Path,
) -> None:
    log = make_log(tmp_path / "a")
    append(log, sent(0), sent(1))
    delete_before(log, 2)
    assert states_of(killed(log, tmp_path / "b")) == states_of(log)
    append(log, sent(2))
    for _ in range(2):
        log.expire(NOW + round(log.config.retention or 0) * 1000 + 10**9)
        flushed(log)
    assert log.start_offset == 3
    again = killed(log, tmp_path / "c")
    assert states_of(again) == states_of(log)
    assert append(again, sent(2), sent(3)) == [2, 3]


def test_producers_are_known_after_a_kill_while_records_are_given_up(tmp_path: Path) -> None:
    log = make_log(tmp_path / "a")
    append(log, sent(0), sent(1))
    save_start(log.directory, "first", 2)
    assert states_of(killed(log, tmp_path / "b")) == states_of(log)
    log._segments.roll()
    again = killed(log, tmp_path / "c")
    again.expire(NOW)
    assert (again.start_offset, again.segments) == (2, 2), "a power cut may still take the snapshot"
    flushed(again)
    again.expire(NOW)
    assert (again.start_offset, again.segments) == (2, 1)
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
        patch.setattr("folkmoot.brokers.storage.logfile.write_at", full)
        with pytest.raises(DiskFull):
            append(log, sent(1))
        assert append(log, sent(0)) == [0]
    assert append(log, sent(1)) == [1], "what was not written was not noted"
    log.abandon()


def test_a_duplicate_is_not_acknowledged_if_the_flush_asked_for_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = make_log(tmp_path, replace(SMALL, flush_records=1))
    append(log, sent(0))

    def refuse(fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("os.fdatasync", refuse)
    with pytest.raises(StorageError):
        append(log, sent(1))
    with pytest.raises(StorageError):
        append(log, sent(1))
    log.abandon()


def test_producers_are_known_after_an_orderly_stop_without_reading_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = make_log(tmp_path)
    for first in range(50):
        append(log, sent(first))
    before, end = states_of(log), log.close()
    assert snapshots(log)[-1] == 50
    monkeypatch.setattr("folkmoot.brokers.storage.segments.Segments.headers", None)
    log = Log(tmp_path, NAME, "first", SMALL)
    log.start(end)
    assert log._memory._known is None, "an idle log has loaded nothing"
    assert append(log, sent(49)) == [49]
    assert states_of(log) == before
    log.abandon()


def test_producers_are_known_after_a_kill_from_the_snapshot_and_the_headers_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = make_log(tmp_path / "a")
    for first in range(50):
        append(log, sent(first))
    (*_, last) = snapshots(log)
    assert 0 < last < 50
    monkeypatch.setattr("folkmoot.protocol.compression.decompress", None)
    asked: list[int] = []
    original = Segments.headers

    def headers(self: Segments, offset: int) -> Iterator[BatchHeader]:
        asked.append(offset)
        return original(self, offset)

    monkeypatch.setattr(Segments, "headers", headers)
    again = killed(log, tmp_path / "b")
    assert asked == [last]
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
                note_checked(path, b"\x93\x01\x02\x03")
    for clean in (end, None):
        log = Log(tmp_path, NAME, "first", SMALL)
        log.start(clean)
        assert states_of(log) == before
        log.abandon()


def test_a_snapshot_ahead_of_a_log_that_lost_its_end_is_not_believed(tmp_path: Path) -> None:
    log = make_log(tmp_path, replace(SMALL, segment_bytes=1 << 20))
    append(log, sent(0))
    log._memory.save(0)
    size = log.size
    append(log, sent(1))
    log._memory.save(0)
    log.abandon()
    assert snapshots(log) == [1, 2]
    with (log.directory / f"{0:020}.log").open("r+b") as file:
        file.truncate(size)
    log = reopened(tmp_path)
    assert (log.end_offset, snapshots(log)) == (1, [1])
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
        log = Log(tmp_path, NAME, "first", SMALL)
        log.start(clean)
        assert append(log, sent(59)) == [59]
        with pytest.raises(OutOfOrderSequence):
            append(log, sent(61))
        log.abandon()


def test_a_snapshot_that_cannot_be_written_costs_nothing_but_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(producer_memory, "note_checked", full)
    log = make_log(tmp_path)
    for first in range(60):
        append(log, sent(first))
    assert log.segments > 1
    assert snapshots(log) == []
    before, end = states_of(log), log.close()
    assert "producers are not noted" in caplog.text
    log = Log(tmp_path, NAME, "first", SMALL)
    log.start(end)
    assert states_of(log) == before
    log.abandon()


def test_damage_in_the_log_hides_only_the_batches_in_it(tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=1 << 20, index_interval_bytes=256)
    log = make_log(tmp_path, config)
    for first in range(60):
        append(log, sent(first), sent(first, producer=2))
    log.abandon()
    path = log.directory / f"{0:020}.log"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    log = reopened(tmp_path, config)
    assert [(state.producer_id, state.batches[-1].last) for state in states_of(log)] == [
        *((1, 59), (2, 59))
    ]
    assert append(log, sent(60)) == [120]
    log.abandon()


def test_checkpoints_take_snapshots_of_what_was_written_to_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_memory, "BATCHES_BETWEEN", 10)
    with Logs(tmp_path / "data", 1, LogConfig()) as logs:
        busy, calm = logs.create("t", "id", 0), logs.create("t", "id", 1)
        background = Background(lambda error: None)
        checkpoints = Checkpoints(logs, background)
        now = 0.0
        for first in range(30):
            append(busy, sent(first))
            if first < 3:
                append(calm, sent(first))
            if first % 10 == 9:
                now += CHECKPOINT_INTERVAL
                while checkpoints.chore(Now(now, NOW)) < 1.0:
                    background.run_all()
        assert snapshots(busy) == [30], "it is on disk, and needs none before it"
        assert snapshots(calm) == []
    assert (snapshots(busy), snapshots(calm)) == ([30], [3])


def test_producers_that_are_idle_for_long_are_forgotten_and_so_after_a_restart(
    tmp_path: Path,
) -> None:
    config = LogConfig(producer_id_expiry=100.0)
    with Logs(tmp_path / "data", 1, config) as logs:
        log = logs.create("t", "id", 0)
        logs.configure("id", {})
        retention = Retention(logs)
        append(log, sent(0), sent(0, producer=2))
        retention.chore(Now(1000.0, NOW))
        append(log, sent(1, producer=2))
        retention.chore(Now(1060.0, NOW))
    with Logs(tmp_path / "data", 1, config) as logs:
        log = logs.create("t", "id", 0)
        logs.configure("id", {})
        retention = Retention(logs)
        assert append(log, sent(0)) == [0]
        retention.chore(Now(5.0, NOW))
        assert append(log, sent(0)) == [0], "the time while the broker was down does not count"
        retention.chore(Now(46.0, NOW))
        with pytest.raises(UnknownProducer):
            append(log, sent(1))
        assert append(log, sent(2, producer=2)) == [3]


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
                # Forgotten, or no room for it: it begins anew, once the others were idle for long.
                sequences[producer] = [epoch + 1, 0]
                for now in (0.0, 1000.0, 2000.0):
                    log.forget_producers(now + 10_000.0 * life)
            if chance.random() < 0.05:
                log._memory.save(0 if log.durable is None else log.durable.end_offset)
            if chance.random() < 0.05:
                log.flush()
        before, end = states_of(log), log.end_offset
        clean: CleanEnd | None = None
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
        log = Log(data, NAME, "first", config)
        log.start(clean)
        assert log.end_offset == end
        assert states_of(log) == before
    log.abandon()
