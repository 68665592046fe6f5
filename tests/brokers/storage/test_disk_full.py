"""A disk that is full: a small file system in memory, and one that fails any write of a start."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from errno import ENOSPC
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from folkmoot.brokers.storage import log_manager
from folkmoot.brokers.storage.files import atomic_file
from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.log_manager import RUNNING_FILE, STOPPED
from folkmoot.brokers.storage.segment import Segment
from folkmoot.coordination.topic_config import LogConfig
from folkmoot.protocol.errors import DiskFull
from tests.brokers.batches import SMALL, a_batch, append, flush, make_log, read_all, reopened
from tests.brokers.full_disk import fill_blocks, mounted
from tests.brokers.hands import OneLog

CONFIG = LogConfig(segment_bytes=64 * 1024, index_interval_bytes=1024)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", "size=1m") as disk:
        yield disk


def fill(logs: dict[int, Log], acknowledged: dict[int, list[bytes]]) -> None:
    """Append to all logs until none takes any more."""
    source = 0
    refused: set[int] = set()
    while len(refused) < len(logs):
        for partition in set(logs) - refused:
            source += 1
            value = source.to_bytes(4, "big") * 200
            try:
                append(logs[partition], a_batch(value))
                acknowledged[partition].append(value)
            except DiskFull:
                refused.add(partition)


def check(logs: dict[int, Log], acknowledged: dict[int, list[bytes]]) -> None:
    for partition, values in acknowledged.items():
        assert read_all(logs[partition]) == list(enumerate(values))
        assert logs[partition].offset_for_time(0) == 0


def opened(data: Path) -> dict[int, Log]:
    """The logs as a crash has left them."""
    return {number: reopened(data / str(number), CONFIG) for number in range(3)}


def release(logs: dict[int, Log]) -> None:
    for log in logs.values():
        log.release()


def test_a_full_disk_refuses_appends_serves_reads_and_recovers_when_space_returns(
    small_disk: Path,
) -> None:
    logs = {number: make_log(small_disk / str(number), CONFIG) for number in range(3)}
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(300_000))
    acknowledged: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    fill(logs, acknowledged)
    assert sum(map(len, acknowledged.values())) > 500
    for log in logs.values():
        flush(log)
        assert log.failed is None
    check(logs, acknowledged)
    release(logs)
    check(logs, acknowledged)
    with pytest.raises(DiskFull):
        append(logs[0], a_batch(b"x" * 100_000))

    ballast.unlink()
    fill(logs, acknowledged)
    check(logs, acknowledged)

    # Killed while it is full, then closed in order while it is full: nothing acknowledged is lost.
    for log in logs.values():
        log.abandon()
    logs = opened(small_disk)
    check(logs, acknowledged)
    for log in logs.values():
        log.close()
    logs = opened(small_disk)
    check(logs, acknowledged)
    for index in small_disk.rglob("*index"):
        index.unlink()
    fill_blocks(small_disk)
    release(logs)
    check(logs, acknowledged)  # by indexes that are built anew and find no room
    fill(logs, acknowledged)
    check(logs, acknowledged)
    for log in logs.values():
        log.close()


# -- a start -------------------------------------------------------------------------------------------


class Writes:
    """Counts what needs room, a block or a file; what `is_refused` finds none."""

    def __init__(self, is_refused: Callable[[int], bool]) -> None:
        self.done = 0
        self._is_refused = is_refused

    def take(self, *_: object) -> None:
        self.done += 1
        if self._is_refused(self.done):
            raise OSError(ENOSPC, os.strerror(ENOSPC))

    @contextmanager
    def counted(self) -> Iterator[None]:
        write, create, mkdir, pwrite = atomic_file._write, Segment.create, os.mkdir, os.pwrite

        def written(path: Path, mode: str, data: bytes) -> None:
            if mode == "wb" or path.stat().st_size < len(data):
                self.take()
            write(path, mode, data)

        def written_at(fd: int, data: bytes, position: int) -> int:
            if os.fstat(fd).st_size < position + len(data):
                self.take()
            return pwrite(fd, data, position)

        def created(*arguments: Any) -> Segment:
            try:
                self.take()
            except OSError as error:
                raise DiskFull(str(error)) from error
            return create(*arguments)

        def made(*arguments: Any, **named: Any) -> None:
            self.take()
            mkdir(*arguments, **named)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(atomic_file, "_write", written)
            patch.setattr(Segment, "create", created)
            patch.setattr(os, "pwrite", written_at)
            patch.setattr(os, "mkdir", made)
            yield


def a_stopped_broker(data: Path, stop: str) -> OneLog:
    """A log with 20 records, some of them given up, as a stop has left it."""
    one = OneLog(data, SMALL)
    for number in range(20):
        append(one.log, a_batch(b"%d" % number * 150))
    flush(one.log, snapshot=True)
    one.delete_before(3)
    append(one.log, a_batch(b"20"))
    one.logs.close() if stop == "in order" else one.logs.abandon()
    return one


STOPS = ("in order", "by a kill", "by a power cut", "in order, and the machine, too")


@pytest.mark.parametrize("all_behind", [True, False], ids=["from there on", "that one"])
@pytest.mark.parametrize("stop", STOPS)
def test_a_start_finds_no_room_for_any_of_its_writes_and_serves_and_deletes_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: str, all_behind: bool
) -> None:
    one = a_stopped_broker(tmp_path / "data", "in order" if "order" in stop else stop)
    if stop in STOPS[2:]:
        monkeypatch.setattr(log_manager, "boot_id", lambda: b"another boot of the machine")
    for number in count(1):
        one.data = tmp_path / f"{number}"
        shutil.copytree(tmp_path / "data", one.data)
        writes = Writes(number.__le__ if all_behind else number.__eq__)
        with writes.counted():
            one.open()
            assert [offset for offset, _ in read_all(one.log)] == list(range(3, 21))
            size = one.log.size
            one.delete_before(15)
            assert (one.log.log_start, one.log.size < size) == (15, True)
        one.logs.close()
        one.open()
        assert (one.log.log_start, one.log.log_end) == (15, 21)
        one.logs.abandon()
        if writes.done < number:
            break
    assert number > 1


def test_a_stop_in_order_on_a_full_disk_leaves_what_one_with_room_does(tmp_path: Path) -> None:
    one = a_stopped_broker(tmp_path / "data", "by a kill")
    one.open()
    with Writes(lambda number: True).counted():
        append(one.log, a_batch(b"x"))
        flush(one.log)
        one.logs.close()
    assert (one.data / "notes").exists()
    assert (one.data / RUNNING_FILE).read_bytes() == STOPPED
    one.open()
    assert one.log.recovery_point_offset == 22
    one.logs.close()


def test_two_threads_that_need_the_spare_room_do_not_write_into_one_file(tmp_path: Path) -> None:
    """One gets it, the other is told that the disk is full."""
    spare = tmp_path / "spare"
    atomic_file.make_spare(spare)
    with Writes(lambda number: True).counted():
        inner: list[Path] = []
        write = atomic_file._write

        def written(path: Path, mode: str, data: bytes) -> None:
            if mode == "r+b" and not inner:
                inner.append(path)
                with pytest.raises(OSError, match="No space"):
                    atomic_file.write_atomic(tmp_path / "two", b"2" * 100, spare)
            write(path, mode, data)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(atomic_file, "_write", written)
            atomic_file.write_atomic(tmp_path / "one", b"1" * 50, spare)
    assert (tmp_path / "one").read_bytes() == b"1" * 50
    assert not (tmp_path / "two").exists()
