"""Logs to compact, and driving flusher and cleaner without threads."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from folkmoot.brokers.jobs.jobs import Now
from folkmoot.brokers.storage.compaction.cleaning_pass import CleanerCheckpoint
from folkmoot.brokers.storage.compaction.log_cleaner import COMPACTION_INTERVAL, LogCleaner
from folkmoot.brokers.storage.flusher import CHECKPOINT_INTERVAL
from folkmoot.brokers.storage.log import Log
from folkmoot.coordination.topic_config import LogConfig
from folkmoot.protocol import batch_header, record_batch
from folkmoot.protocol.columns import Columns
from folkmoot.protocol.compression import Codec
from folkmoot.protocol.records import Record
from tests.brokers.batches import NOW
from tests.brokers.hands import OneLog

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


class Upkept(OneLog):
    """The log, and what is done to it, on one thread and with a clock of its own."""

    def __init__(
        self, data: Path, config: LogConfig = COMPACT, memory_bytes: int = 1_000_000
    ) -> None:
        self.memory_bytes = memory_bytes
        self.now = Now(1000.0, NOW)
        self.pauses: list[float] = []
        super().__init__(data, config)

    def open(self) -> None:
        super().open()
        self.cleaner = LogCleaner(
            self.logs, self.hands.submit, self.pause, self.memory_bytes, 2**40
        )

    def pause(self, seconds: float) -> bool:
        self.pauses.append(seconds)
        return False

    def later(self, seconds: float) -> None:
        self.now = Now(self.now.monotonic + seconds, self.now.wall + round(seconds * 1000))

    def append(self, *batches: bytes) -> list[int]:
        """→ their base offsets; raises what a batch was refused for."""
        offsets = []
        for appended in self.log.append_as_leader(batches, self.now.wall, 3):
            if isinstance(appended, Exception):
                raise appended
            offsets.append(appended.base_offset)
        self.log.advance_high_watermark(self.log.log_end)
        self.flusher.note_appended(self.log, sum(map(len, batches)), self.now)
        return offsets

    def checkpoint(self) -> None:
        """Until the notes say where the log ends."""
        while True:
            self.later(CHECKPOINT_INTERVAL)
            for _ in range(6):
                self.flusher.task(self.now)
                self.hands.work_all()
            if not self.log.dirty:
                break

    def expire(self) -> None:
        """As retention does it: what a snapshot has to tell of first goes after a checkpoint."""
        for _ in range(3):
            self.retention.task(self.now)
            self.hands.work_all()
        self.checkpoint()
        self.retention.task(self.now)
        self.hands.work_all()

    def compacted(self) -> CleanerCheckpoint:
        """How far the log is compacted."""
        return self.cleaner.checkpoints.get(self.log, CleanerCheckpoint())

    def step(self) -> float:
        """The cleaner's task, and one job that waits."""
        pause = self.cleaner.task(self.now)
        if self.hands.jobs:
            self.hands.work()
            return 0.0
        return pause

    def compact(self) -> None:
        """Until there is nothing left to compact; after a start it is the second checkpoint that has a
        snapshot of producers on disk, since compaction has asked for it."""
        self.checkpoint()
        self.cleaner.task(self.now)
        self.hands.work_all()
        self.cleaner.task(self.now)
        self.hands.work_all()
        self.checkpoint()
        for _ in range(10_000):
            if self.step() >= COMPACTION_INTERVAL:
                return
        raise AssertionError("compaction does not end")


def records_in(log: Log, offset: int | None = None, max_bytes: int = 1500) -> list[Record]:
    """All records from an offset on, read as a consumer would."""
    found: list[Record] = []
    position = log.log_start if offset is None else offset
    while position < log.log_end:
        chunk = log.read(position, max_bytes)
        assert chunk, f"nothing at {position} of {log.log_end}"
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
