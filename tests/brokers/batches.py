"""Batches to fill logs with, and what reading them back must give."""

import random
from collections.abc import Sequence
from pathlib import Path

from folkmoot.brokers.storage import produced
from folkmoot.brokers.storage.config import LogConfig
from folkmoot.brokers.storage.deletions import Deletions
from folkmoot.brokers.storage.flushing import flush_all
from folkmoot.brokers.storage.log import Log
from folkmoot.protocol import batch_header, record_batch
from folkmoot.protocol.columns import Columns
from folkmoot.protocol.compression import Codec
from folkmoot.protocol.errors import FolkmootError
from folkmoot.protocol.records import TopicPartition

NOW = 1_700_000_000_000
NAME = TopicPartition("flights", 0)
SMALL = LogConfig(segment_bytes=2048, index_interval_bytes=256, max_batch_bytes=4096)
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


def append(log: Log, *batches: bytes) -> list[int]:
    return produced.append(log, batches, now=NOW, leader_epoch=3)


def make_log(data: Path, config: LogConfig = SMALL) -> Log:
    """A new log, open, in a directory of its own under `data`."""
    (data / str(NAME)).mkdir(parents=True)
    log = Log(data, NAME, "first", config)
    log.start()
    return log


def reopened(data: Path, config: LogConfig = SMALL) -> Log:
    """The log as it is found after a crash."""
    log = Log(data, NAME, "first", config)
    log.start()
    return log


def flushed(log: Log) -> None:
    """As a checkpoint flushes it, so that nothing of it is on its way to the disk any more."""
    flushing = log.lend()
    [outcome] = flush_all([flushing])
    log.flushed(flushing, outcome)


def delete_before(log: Log, offset: int) -> None:
    """As DELETE_RECORDS does; raises what it would answer."""
    outcomes: list[FolkmootError | None] = []
    Deletions().ask(log, offset, outcomes.append)
    [error] = outcomes
    if error is not None:
        raise error


def read_all(log: Log, max_bytes: int = 700) -> list[tuple[int, bytes]]:
    """All records, read as a consumer would."""
    found: list[tuple[int, bytes]] = []
    offset = log.start_offset
    while offset < log.end_offset:
        records = values_of(log.read(offset, max_bytes))
        found += records
        offset = records[-1][0] + 1
    return found


def expected(batches: Sequence[bytes]) -> list[tuple[int, bytes]]:
    """What a log that was given these batches holds."""
    values = [value for each in batches for _, value in values_of(memoryview(each))]
    return list(enumerate(values))
