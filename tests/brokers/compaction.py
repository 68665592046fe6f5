"""Logs to compact, and driving the compactor without threads."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from folkmoot.brokers.server.job_queue import Background
from folkmoot.brokers.server.scheduler import Now
from folkmoot.brokers.storage import produced
from folkmoot.brokers.storage.checkpoints import CHECKPOINT_INTERVAL, Checkpoints
from folkmoot.brokers.storage.compaction.compactor import COMPACTION_INTERVAL, Compactor
from folkmoot.brokers.storage.config import LogConfig
from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.log_manager import Logs
from folkmoot.protocol import batch_header, record_batch
from folkmoot.protocol.columns import Columns
from folkmoot.protocol.compression import Codec
from folkmoot.protocol.records import Record
from tests.brokers.batches import NOW

COMPACT = LogConfig(
    cleanup_policy="compact",
    segment_bytes=2048,
    index_interval_bytes=256,
    max_batch_bytes=4096,
    min_cleanable_dirty_ratio=0.01,
)

Row = tuple[bytes | None, bytes | None]


def keyed(*rows: Row, codec: int = Codec.NONE, timestamp: int = NOW) -> bytes:
    """A batch of keys and values."""
    keys = [key for key, _ in rows]
    values = [value for _, value in rows]
    return record_batch.encode(Columns(len(rows), keys, values, timestamp), codec)


def never(error: Exception) -> None:
    raise error


class Upkept:
    """A data directory with one log, and its chores, on one thread and with a clock of its own."""

    def __init__(
        self, data: Path, config: LogConfig = COMPACT, memory_bytes: int = 1_000_000
    ) -> None:
        self.data = data
        self.config = config
        self.memory_bytes = memory_bytes
        self.now = Now(1000.0, NOW)
        self.open()

    def open(self) -> None:
        self.logs = Logs(self.data, 1, self.config)
        self.logs.start()
        self.log: Log = self.logs.create("flights", "first", 0)
        self.logs.configure("first", {})
        self.background = Background(never)
        self.checkpoints = Checkpoints(self.logs, self.background)
        self.compactor = Compactor(self.logs, self.background, self.memory_bytes, 2**40)

    def reopen(self, *, clean: bool) -> None:
        if clean:
            self.logs.close()
        else:
            self.logs.abandon()
        self.open()

    def later(self, seconds: float) -> None:
        self.now = Now(self.now.monotonic + seconds, self.now.wall + round(seconds * 1000))

    def append(self, *batches: bytes) -> None:
        produced.append(self.log, batches, now=self.now.wall, leader_epoch=3)

    def checkpoint(self) -> None:
        """Until the file `durable` says where the log ends."""
        while True:
            self.later(CHECKPOINT_INTERVAL)
            for _ in range(6):
                self.checkpoints.chore(self.now)
                self.background.run_all()
            if not self.log.dirty:
                break

    def expire(self) -> None:
        """As retention does it: what a snapshot has to tell of first goes after a checkpoint."""
        self.log.expire(self.now.wall)
        self.checkpoint()
        self.log.expire(self.now.wall)

    def step(self) -> float:
        pause = self.compactor.chore(self.now)
        self.background.run_all()
        return pause

    def compact(self) -> None:
        """Until there is nothing left to compact; after a start it is the second checkpoint that has a
        snapshot of producers on disk, since compaction has asked for it."""
        self.checkpoint()
        self.step()
        self.checkpoint()
        for _ in range(10_000):
            if self.step() >= COMPACTION_INTERVAL:
                return
        raise AssertionError("compaction does not end")


def records_in(log: Log, offset: int | None = None, max_bytes: int = 1500) -> list[Record]:
    """All records from an offset on, read as a consumer would."""
    found: list[Record] = []
    position = log.start_offset if offset is None else offset
    while position < log.end_offset:
        chunk = log.read(position, max_bytes)
        assert chunk, f"nothing at {position} of {log.end_offset}"
        for header, data in batch_header.split(chunk):
            assert header.next_offset > position
            found += [
                r for r in record_batch.records_of("t", 0, header, data) if r.offset >= position
            ]
            position = header.next_offset
    return found


def rows(records: Iterable[Record]) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(record.offset, record.key, record.value) for record in records]


def last_of_each(
    written: Sequence[Row], before: int
) -> list[tuple[int, bytes | None, bytes | None]]:
    """What may be left of records written from offset 0 on, if those before an offset are compacted."""
    last = {key: at for at, (key, _) in enumerate(written[:before])}
    return [
        (at, key, value)
        for at, (key, value) in enumerate(written)
        if at >= before or key is None or last[key] == at
    ]
