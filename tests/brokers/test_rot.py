"""Headers that have rotted on the disk: what lies beside them is served, found and appended to."""

import dataclasses
import shutil
from pathlib import Path

import msgspec
import pytest

from folkmoot.brokers.storage.atomic_file import write_checked
from folkmoot.brokers.storage.config import LogConfig
from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.log_manager import DURABLE_FILE, Logs
from folkmoot.protocol.errors import CorruptBatch
from tests.brokers.batches import append, timed_batch, values_of

RECORDS = 60
LAST_OFFSET_DELTA = 42
"""A byte of it (`docs/format.md`)."""
ROTTEN = 10
SIZE = len(timed_batch(1000))
SEGMENTS = dataclasses.replace(LogConfig(), segment_bytes=4096)
"""Two: 40 batches of a record each, and the rest."""


def logs_in(data: Path, config: LogConfig = SEGMENTS) -> Logs:
    return Logs(data, 1, config)


def rot(data: Path, number: int, byte: int = 9) -> None:
    """Flip a bit in the header of a batch of the first segment."""
    segment = data / "flights-0" / f"{0:020}.log"
    content = bytearray(segment.read_bytes())
    content[number * SIZE + byte] ^= 0x40
    segment.write_bytes(content)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A log with one header of the first segment rotted, after an orderly stop."""
    data = tmp_path / "data"
    with logs_in(data) as logs:
        log = logs.create("flights", "first", 0)
        for number in range(RECORDS):
            append(log, timed_batch(1000 + number))
        assert log.segments == 2
    rot(data, ROTTEN)
    return data


def offsets_in(log: Log, offset: int, max_bytes: int) -> list[int]:
    return [at for at, _ in values_of(log.read(offset, max_bytes))]


@pytest.mark.parametrize("max_bytes", [SIZE // 2, SIZE + SIZE // 2, 3 * SIZE])
def test_all_beside_it_can_be_read_whatever_is_asked_for(data: Path, max_bytes: int) -> None:
    with logs_in(data) as logs:
        log = logs.get("flights", 0)
        for offset in range(RECORDS):
            if offset == ROTTEN:
                with pytest.raises(CorruptBatch, match="go on at 11"):
                    log.read(offset, max_bytes)
            else:
                found = offsets_in(log, offset, max_bytes)
                assert found[0] == offset
                assert ROTTEN not in found


def test_a_count_of_records_that_has_rotted_hides_nothing_but_its_batch(tmp_path: Path) -> None:
    """Headers lead from batch to batch by it, and their checksum does not cover it."""
    data = tmp_path / "data"
    with logs_in(data) as logs:
        log = logs.create("flights", "first", 0)
        for number in range(RECORDS):
            append(log, timed_batch(1000 + number))
    rot(data, ROTTEN, byte=LAST_OFFSET_DELTA)
    for first in (30, 8, 9, 7, 11):
        with logs_in(data) as logs:
            found = offsets_in(logs.get("flights", 0), first, 400)
            assert found[0] == first
            assert ROTTEN not in found
            assert logs.get("flights", 0).offset_for_time(1000 + first) == first
    with logs_in(data) as logs, pytest.raises(CorruptBatch, match="go on at 11"):
        logs.get("flights", 0).read(ROTTEN, 400)


@pytest.mark.parametrize("first", [8, 9, 11, 12, 30])
def test_what_lies_near_it_can_be_read_first(data: Path, first: int) -> None:
    """Nobody has met it, so nothing is marked yet."""
    with logs_in(data) as logs:
        log = logs.get("flights", 0)
        for max_bytes in (250, 320, 150):
            assert offsets_in(log, first, max_bytes)[0] == first


def test_times_behind_it_are_found_before_and_after_it_is_marked_and_after_a_start(
    data: Path,
) -> None:
    wanted = {
        1000 + number: number + 1 if number == ROTTEN else number for number in range(RECORDS)
    }
    for look in range(3):
        with logs_in(data) as logs:
            log = logs.get("flights", 0)
            found = {timestamp: log.offset_for_time(timestamp) for timestamp in wanted}
            assert found == wanted
            if look == 1:
                for index in (data / "flights-0").glob("*.timeindex"):
                    index.unlink()


def test_a_time_that_only_a_damaged_batch_has_is_looked_for_behind_it(tmp_path: Path) -> None:
    """Its header is legible and tells of it; that its body is not is seen on the way there."""
    data = tmp_path / "data"
    with logs_in(data) as logs:
        log = logs.create("flights", "first", 0)
        for number in range(RECORDS):
            append(log, timed_batch(9000 if number == 12 else 1000 + number))
        append(log, timed_batch(9001))
    rot(data, 8)
    rot(data, 12, byte=SIZE - 1)
    with logs_in(data) as logs:
        log = logs.get("flights", 0)
        assert log.offset_for_time(8000) == RECORDS
        assert log.offset_for_time(1030) == 30


@pytest.mark.parametrize("unflushed", [0, 1])
def test_a_start_after_a_kill_serves_appends_and_finds_times(
    tmp_path: Path, unflushed: int
) -> None:
    """The last entry of the time index is that of an orderly stop, and where it leads has rotted."""
    data = tmp_path / "data"
    with logs_in(data, LogConfig()) as logs:
        log = logs.create("flights", "first", 0)
        other = logs.create("flights", "first", 1)
        for timestamp in (1, 2, 3):
            append(log, timed_batch(timestamp))
        append(other, timed_batch(1))
    logs = logs_in(data, LogConfig())
    logs.start()
    log = logs.get("flights", 0)
    append(log, timed_batch(9000))
    log.flush()
    write_checked(data / DURABLE_FILE, msgspec.json.encode(logs.durable_ends()))
    for _ in range(unflushed):
        append(log, timed_batch(9001))
    killed = tmp_path / "killed"
    shutil.copytree(data, killed)
    rot(killed, 1)

    with logs_in(killed, LogConfig()) as logs:
        log = logs.get("flights", 0)
        end = 4 + unflushed
        for number in range(3):
            assert append(log, timed_batch(5)) == [end + number]
        assert log.offset_for_time(8000) == 3
        assert log.offset_for_time(2) == 2  # the next that is left
        with pytest.raises(CorruptBatch, match="go on at 2"):
            log.read(1, 100)
        assert offsets_in(log, 2, 10_000) == list(range(2, end + 3))
        assert append(logs.get("flights", 1), timed_batch(2)) == [1]
