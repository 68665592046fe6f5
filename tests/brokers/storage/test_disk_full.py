"""A disk that is really full: a small file system in memory."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from folkmoot.brokers.storage.log import Log
from folkmoot.coordination.topic_config import LogConfig
from folkmoot.protocol.errors import DiskFull
from tests.brokers.batches import a_batch, append, make_log, read_all, reopened

CONFIG = LogConfig(segment_bytes=64 * 1024, index_interval_bytes=1024)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a file system can be mounted by root only")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


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
        log.flush()
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
    (small_disk / "filler").write_bytes(bytes(os.statvfs(small_disk).f_bavail * 4096))
    release(logs)
    check(logs, acknowledged)  # by indexes that are built anew and find no room
    fill(logs, acknowledged)
    check(logs, acknowledged)
    for log in logs.values():
        log.close()
