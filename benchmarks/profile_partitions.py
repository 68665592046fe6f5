"""What many partitions cost one broker's storage: `python -m benchmarks.profile_partitions [number]`.

Memory per idle partition, open files, and the start after an orderly stop, after a kill with
everything before it on disk, and after a kill without any checkpoint.
"""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Final

from folkmoot.brokers.jobs.jobs import Now
from folkmoot.brokers.storage.flusher import CHECKPOINT_INTERVAL, Flusher
from folkmoot.brokers.storage.log_manager import LogManager
from folkmoot.brokers.storage.partition_creation import PartitionCreation
from folkmoot.coordination.topic_config import LogConfig
from folkmoot.protocol import record_batch
from folkmoot.protocol.columns import Columns

PARTITIONS: Final = 10_000
BATCHES: Final = 3
BATCH: Final = record_batch.encode(Columns(100, None, [bytes([n]) * 100 for n in range(100)], 0))


def anonymous_bytes() -> int:
    """Memory of this process that is not a file's."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("this kernel does not tell RssAnon")


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def start(data: Path, what: str, *, read: bool = False) -> None:
    """Start in this process, tell what it took, and die without a word."""
    logs = LogManager(data, 1, LogConfig())
    before, begun = anonymous_bytes(), time.perf_counter()
    logs.start()
    took, grown = time.perf_counter() - begun, anonymous_bytes() - before
    print(
        f"{what}: {took:.2f} s for {len(logs)} partitions, "
        f"{grown / len(logs):.0f} bytes of memory each, {open_files()} files open"
    )
    if read:
        begun = time.perf_counter()
        for log in logs:
            log.read(0, 1000)
        took, grown = (time.perf_counter() - begun) / len(logs), anonymous_bytes() - before
        print(f"first read: {took * 1e6:.0f} µs each, {grown / len(logs):.0f} bytes of memory each")


def in_a_process_of_its_own(work: Callable[..., None], *args: object, **options: object) -> None:
    process = get_context("spawn").Process(target=work, args=args, kwargs=options)
    process.start()
    process.join()


def checkpoint(logs: LogManager) -> None:
    flusher = Flusher(logs)
    begun = time.perf_counter()
    for _ in range(len(logs)):
        flusher.task(Now(CHECKPOINT_INTERVAL, 0))
        if not logs.dirty:
            break
    for _ in range(2):
        flusher.task(Now(CHECKPOINT_INTERVAL, 0))
    print(f"checkpoint of all: {time.perf_counter() - begun:.2f} s, in the background")


def main(partitions: int) -> None:
    scratch = Path(tempfile.mkdtemp(prefix="folkmoot-partitions-"))
    try:
        data = scratch / "data"
        with LogManager(data, 1, LogConfig()) as logs:
            begun = time.perf_counter()
            creation = PartitionCreation(logs)
            for number in range(partitions):
                creation.when_created("t", "id", number, lambda error: None)
            print(f"created: {(time.perf_counter() - begun) / partitions * 1000:.2f} ms each")
            before, begun = anonymous_bytes(), time.perf_counter()
            for _ in range(BATCHES):
                for log in logs:
                    log.append_as_leader([BATCH], 0, 0)
            took = (time.perf_counter() - begun) / partitions / BATCHES
            grown = (anonymous_bytes() - before) / partitions
            print(f"appended to in turn: {took * 1e6:.0f} µs, {grown:.0f} bytes of memory each")
            print(f"open: {open_files()} files of {len(logs.files)} segments")
            logs.files.release_idle()
            logs.files.release_idle()
            print(f"released: {open_files()} files open")
            logs.abandon()
            in_a_process_of_its_own(start, data, "after a kill, no checkpoint")
            logs.start()
            checkpoint(logs)
            logs.abandon()
            in_a_process_of_its_own(start, data, "after a kill, all before the checkpoint")
            logs.start()
        in_a_process_of_its_own(start, data, "after an orderly stop", read=True)
    finally:
        shutil.rmtree(scratch)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else PARTITIONS)
