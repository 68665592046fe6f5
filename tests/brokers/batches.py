"""Batches to fill logs with, and what reading them back must give."""

import os
import random
from collections.abc import Sequence
from contextlib import suppress
from mmap import PAGESIZE
from pathlib import Path

import msgspec
import pytest

from folkmoot.brokers.jobs.jobs import result_of
from folkmoot.brokers.storage.log import Appended, Log
from folkmoot.brokers.storage.mapped_file import MappedFiles
from folkmoot.brokers.storage.producer_state import ProducerEntry
from folkmoot.brokers.storage.recovery import RecoveryPoint, save_log_start
from folkmoot.brokers.storage.segment import NotCached
from folkmoot.coordination.topic_config import LogConfig
from folkmoot.protocol import batch_header, record_batch
from folkmoot.protocol.columns import Columns
from folkmoot.protocol.compression import Codec
from folkmoot.protocol.errors import DiskFailed
from folkmoot.protocol.records import TopicPartition

NOW = 1_700_000_000_000
NAME = TopicPartition("flights", 0)
SMALL = LogConfig(
    segment_bytes=2048, index_interval_bytes=256, max_batch_bytes=4096, delete_delay=0.0
)
ONE_SEGMENT = LogConfig(segment_bytes=1024 * 1024, index_interval_bytes=256)


def a_batch(*values: bytes) -> bytes:
    return record_batch.encode(Columns(len(values), None, values, NOW), Codec.NONE)


def timed_batch(*timestamps: int) -> bytes:
    """One record for each timestamp."""
    return record_batch.encode(
        Columns(len(timestamps), None, [b""] * len(timestamps), list(timestamps)), Codec.NONE
    )


def random_batch(source: random.Random, records: int = 4, value_bytes: int = 30) -> bytes:
    values = [
        source.randbytes(source.randrange(value_bytes))
        for _ in range(source.randrange(1, records + 1))
    ]
    return a_batch(*values)


def values_of(chunk: memoryview) -> list[tuple[int, bytes]]:
    """Offset and value of each record; every checksum is compared."""
    return [
        (record.offset, record.value or b"")
        for header, data in batch_header.split(chunk)
        for record in record_batch.records_of("flights", 0, header, data)
    ]


def append(
    log: Log, *batches: bytes | bytearray | memoryview, now: int = NOW, leader_epoch: int = 3
) -> list[int]:
    """Append as the leader of a single replica does; raises what the first was refused with."""
    results = log.append_as_leader(batches, now, leader_epoch)
    log.advance_high_watermark(log.log_end)
    offsets = []
    for result in results:
        if not isinstance(result, Appended):
            raise result
        offsets.append(result.base_offset)
    return offsets


def make_log(data: Path, config: LogConfig = SMALL) -> Log:
    """A new log, open, in a directory of its own under `data`."""
    (data / str(NAME)).mkdir(parents=True)
    return reopened(data, config)


def reopened(data: Path, config: LogConfig = SMALL, point: RecoveryPoint | None = None) -> Log:
    """The log as it is found after a stop, or a crash, with what was noted of it."""
    log = Log(data / str(NAME), NAME, "first", config)
    log.start(point)
    log.advance_high_watermark(log.log_end)
    return log


def flushed(log: Log) -> None:
    """As a checkpoint flushes it, so that nothing of it is on its way to the disk any more."""
    assert log.dirty
    with suppress(DiskFailed):
        log.queue.run_now(log.flush_some())


def flush(log: Log, *, snapshot: bool = False) -> None:
    """Put all of it on disk, here and now. Raises StorageError."""

    async def until_clean() -> None:
        await log.flush_some(snapshot=snapshot)
        while log._dirty_segments():
            await log.flush_some(snapshot=snapshot)

    log.queue.run_now(until_clean())


def evict(log: Log, *, keep_open: bool = False) -> None:
    """Drop what the page cache has of a flushed log; the test is skipped where that cannot be done."""
    for segment in log.segments:
        segment._mapped = None  # a mapping holds its pages
        if not keep_open:
            segment.close_if_flushed()  # with its index in memory
        fd = os.open(segment.path, os.O_RDONLY)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            mapped = MappedFiles().map(fd, segment.size, segment)
        finally:
            os.close(fd)
        # Not by RWF_NOWAIT, which has the kernel read ahead.
        if mapped is not None and mapped.is_cached(0, min(segment.size, PAGESIZE)):
            pytest.skip("this file system keeps what it is asked to drop")


def removed(paths: Sequence[Path]) -> None:
    """Unlink what a log has let go of."""
    for path in paths:
        path.unlink(missing_ok=True)


def delete_before(log: Log, offset: int) -> None:
    """As DELETE_RECORDS does, when the offset is noted and the log flushed."""
    log.snapshot_covers(offset)
    if log.dirty:
        flushed(log)
    save_log_start(log.directory, offset)
    removed(log.advance_log_start(offset))


def states_of(log: Log) -> list[ProducerEntry]:
    """What the log knows of its producers, but for how long they were idle."""
    return [msgspec.structs.replace(each, idle_since=None) for each in log.producers().entries]


def read_now(log: Log, offset: int, max_bytes: int, *, committed: bool = True) -> memoryview:
    """What a read gives when the jobs that it asks for have ended."""
    while True:
        try:
            return log.read(offset, max_bytes, committed=committed)
        except NotCached as cold:
            cold.job.finish(result_of(cold.job.run))


def read_all(log: Log, max_bytes: int = 700) -> list[tuple[int, bytes]]:
    """All records, read as a consumer would."""
    found: list[tuple[int, bytes]] = []
    offset = log.log_start
    while offset < log.log_end:
        records = values_of(read_now(log, offset, max_bytes))
        found += records
        offset = records[-1][0] + 1
    return found


def expected(batches: Sequence[bytes]) -> list[tuple[int, bytes]]:
    """What a log that was given these batches holds."""
    values = [value for each in batches for _, value in values_of(memoryview(each))]
    return list(enumerate(values))
