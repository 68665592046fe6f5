"""A disk that is really full: a small file system in memory."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from folkmoot.brokers.server.job_queue import Background
from folkmoot.brokers.server.scheduler import Now
from folkmoot.brokers.storage.checkpoints import Checkpoints
from folkmoot.brokers.storage.config import LogConfig
from folkmoot.brokers.storage.log_manager import Logs
from folkmoot.protocol.errors import DiskFull, StorageError
from tests.brokers.batches import a_batch, append, read_all

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


def fill(logs: Logs, acknowledged: dict[int, list[bytes]]) -> None:
    """Append to all partitions until none takes any more."""
    source = 0
    refused: set[int] = set()
    while len(refused) < 3:
        for partition in {0, 1, 2} - refused:
            source += 1
            value = source.to_bytes(4, "big") * 200
            try:
                append(logs.create("flights", "first", partition), a_batch(value))
                acknowledged[partition].append(value)
            except DiskFull:
                refused.add(partition)


def check(logs: Logs, acknowledged: dict[int, list[bytes]]) -> None:
    for partition, values in acknowledged.items():
        log = logs.get("flights", partition)
        assert read_all(log) == list(enumerate(values))
        assert log.offset_for_time(0) == 0


def test_a_full_disk_refuses_appends_serves_reads_and_recovers_when_space_returns(
    small_disk: Path,
) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(300_000))
    acknowledged: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    background = Background(lambda error: None)
    logs = Logs(small_disk / "data", 1, CONFIG)
    logs.start()
    fill(logs, acknowledged)
    assert sum(map(len, acknowledged.values())) > 500
    checkpoints = Checkpoints(logs, background)
    for _ in range(6):
        checkpoints.chore(Now(0.0, 0))
        background.run_all()
    check(logs, acknowledged)
    for _ in range(2):
        logs.files.sweep()
    check(logs, acknowledged)  # indexes are opened anew, without room for them
    with pytest.raises(DiskFull):
        append(logs.get("flights", 0), a_batch(b"x" * 100_000))

    ballast.unlink()
    fill(logs, acknowledged)
    check(logs, acknowledged)

    # Killed while it is full, then closed in order while it is full: nothing acknowledged is lost.
    logs.abandon()
    logs = Logs(small_disk / "data", 1, CONFIG)
    logs.start()
    check(logs, acknowledged)
    with suppress(StorageError):  # that the orderly stop could not be noted
        logs.close()
    logs.start()
    check(logs, acknowledged)
    for index in small_disk.rglob("*index"):
        index.unlink()
    for _ in range(2):
        logs.files.sweep()
    fill(logs, acknowledged)
    check(logs, acknowledged)
    with suppress(StorageError):
        logs.close()
