"""The log of one partition: segments in order, and the offsets that the broker gives."""

import logging
from collections.abc import Sequence
from pathlib import Path

from folkmoot.brokers.storage import directories
from folkmoot.brokers.storage.compaction.compacted import Compacted
from folkmoot.brokers.storage.compaction.segment_swap import Replacement
from folkmoot.brokers.storage.config import MAX_SEGMENT_BYTES, LogConfig
from folkmoot.brokers.storage.flushing import (
    CleanEnd,
    Flushed,
    Flushing,
    end_of,
    later,
    lent,
    taken_back,
)
from folkmoot.brokers.storage.openfiles import OpenFiles
from folkmoot.brokers.storage.produced import Admitted, Duplicate, Fresh, admit, stamp
from folkmoot.brokers.storage.producer_memory import ProducerMemory
from folkmoot.brokers.storage.recovery import look, recover, skip_lost
from folkmoot.brokers.storage.retention import expired
from folkmoot.brokers.storage.segment import Segment
from folkmoot.brokers.storage.segments import Remove, Segments
from folkmoot.protocol.errors import BatchTooLarge, ClosedError, OffsetOutOfRange, StorageError
from folkmoot.protocol.records import TopicPartition

logger = logging.getLogger(__name__)

_NEVER_COMPACTED = Compacted()

_Bytes = bytes | bytearray | memoryview


class Log:
    """`<data>/<topic>-<partition>/` with its segments.

    Invariants. Offsets are given densely up to `end_offset` (exclusive) and, up to `durable`, never
    twice; what is left between `start_offset` and there is dense but where compaction has gone. Every
    batch was compared with its checksum when it came in. Only the last segment is appended to; it is
    never left while its end is in doubt.

    Append. `admit` looks at each batch (checksum, size, and by its header whether its producer sent
    it before, or too early). Those that are fresh are then stamped with offset, leader epoch and the
    append time `now` (ms; there is no clock here), and written by one call into one segment: all of
    them are in the log or none is. A call is never divided, so a segment may exceed `segment_bytes`
    by one call if that alone is larger. What is known of producers changes when a batch is in the
    log, never before (see Producers, ProducerMemory).

    Open. `start` lists the directory and, unless a CleanEnd proves that the log was closed in order,
    checks what lies behind `durable`: everything before was on disk when it was last flushed. Files
    are opened by the first append or read, and a log that was never written to has none: ten thousand
    idle partitions cost ten thousand directory listings.

    Owner: `Logs`, on the broker's reactor thread.
    """

    __slots__ = (
        "_begin",
        "_memory",
        "_open",
        "_remove",
        "_segments",
        "_unflushed",
        "compacted",
        "configured",
        "directory",
        "durable",
        "failure",
        "flush_due",
        "name",
        "noted",
        "topic_id",
    )

    def __init__(
        self,
        data: Path,
        name: TopicPartition,
        topic_id: str,
        config: LogConfig,
        files: OpenFiles | None = None,
        remove: Remove = directories.remove,
    ) -> None:
        self.directory = data / str(name)
        self.name = name
        self.topic_id = topic_id
        self._remove = remove
        self._begin = self._unflushed = 0
        self._open = self.configured = False
        self.failure: str | None = None  # why it is out of use
        self.flush_due = 0.0
        self._segments = Segments(
            self.directory, config, OpenFiles() if files is None else files, remove
        )
        self._memory = ProducerMemory(self.directory, self._segments)
        self.durable: CleanEnd | None = None
        # What a start would find in the file `durable`.
        self.noted: CleanEnd | None = None
        self.compacted = _NEVER_COMPACTED

    @property
    def config(self) -> LogConfig:
        """The topic's options over the broker's; they may change at any time."""
        return self._segments.config

    @config.setter
    def config(self, config: LogConfig) -> None:
        self._segments.config = config

    # -- opening and closing ------------------------------------------------------------------------

    def start(self, clean: CleanEnd | None = None, durable: CleanEnd | None = None) -> None:
        """Find the segments and make the last one whole.

        `clean` proves an orderly stop; without it, what lies behind `durable`, up to where the log
        was once known to be on disk, is checked. Raises StorageError.
        """
        self.noted = durable
        try:
            files, self._begin, self.compacted = look(self.directory, self.topic_id)
            self._remove(files.doomed)
        except OSError as error:
            raise StorageError(f"{self.directory} cannot be read: {error.strerror}") from error
        segments = self._segments
        segments.find(files.segments, files.damaged, self.compacted.sparse_before)
        if clean is not None and (clean.segment, clean.size) in files.segments[-1:]:
            segments[-1].end_offset = clean.end_offset
            self.durable = clean
        elif segments:
            self.durable = recover(segments, durable, self.directory)
        self._open = True
        known = max(self._begin, 0 if durable is None else durable.end_offset)
        skip_lost(segments, known, self.directory)
        self._memory.start(files.snapshots)

    def close(self) -> CleanEnd | None:
        """Flush and close all files. None if nothing was ever written. Raises StorageError, closed."""
        try:
            if self.failure is None:
                self.flush()
                self._memory.save(self.end_offset)
        finally:
            self.abandon()
        if self.failure is not None:
            raise StorageError(self.failure)
        return self.end()

    def fail(self, reason: str) -> None:
        """The log is of no use any more: whoever asks is told why. The next start looks again."""
        self.failure = (
            f"{self.name} is out of use: {reason}: restart the broker when the disk is well"
        )
        self.abandon()

    def durable_end(self) -> CleanEnd | None:
        """Up to where a start may believe it to be on disk; of one that failed, what was noted before."""
        return self.durable if self.failure is None else self.noted

    def end(self) -> CleanEnd | None:
        """Where the log ends now; None if nothing was ever written."""
        return end_of(self._segments[-1]) if self._segments else None

    def delete(self) -> None:
        """Close the log and take its directory out of use, to be removed. Raises StorageError."""
        self.abandon()
        try:
            doomed = directories.put_away(self.directory.parent, self.name, self.topic_id)
            self._remove((doomed,))
        except OSError as error:
            raise StorageError(f"{self.directory} cannot be deleted: {error}") from error

    def abandon(self) -> None:
        """Close all files as they are, without a flush and without vouching for them."""
        self._open = False
        for segment in self._segments:
            segment.close()

    def require_open(self) -> None:
        """Raises ClosedError, or StorageError if it has failed."""
        if self.failure is not None:
            raise StorageError(self.failure)
        if not self._open:
            raise ClosedError(f"the log of {self.name} is not open")

    # -- what it holds ------------------------------------------------------------------------------

    @property
    def start_offset(self) -> int:
        """The first offset that can be read."""
        return max(self._begin, self._segments[0].base_offset if self._segments else 0)

    @property
    def end_offset(self) -> int:
        """The offset that the next record gets; as long as nothing is replicated, the high watermark."""
        return self._segments.end_offset

    @property
    def is_open(self) -> bool:
        """Whether it is neither closed nor deleted."""
        return self._open

    @property
    def size(self) -> int:
        """Bytes of all segments, indexes left out."""
        return sum(segment.size for segment in self._segments)

    @property
    def segments(self) -> int:
        """How many segments there are."""
        return len(self._segments)

    def read(self, offset: int, max_bytes: int) -> memoryview:
        """Whole batches from the one that contains `offset` on, nothing at the log's end.

        If compaction has removed that one, the next that is left comes first. The first batch comes
        whole even if it is larger than `max_bytes`; the answer ends with the segment at the latest.
        Raises OffsetOutOfRange, CorruptBatch, StorageError.
        """
        self.require_open()
        start, end = self.start_offset, self.end_offset
        if not start <= offset <= end:
            raise OffsetOutOfRange(f"{self.name} has offsets {start} to {end}, not {offset}")
        return self._segments.read(offset, max_bytes)

    def offset_for_time(self, timestamp: int) -> int:
        """Base offset of the first batch with a record of `timestamp` (ms) or later, else the end.

        Each segment's highest timestamp is looked up in its index once and then known: no search
        in headers takes place but in the one segment that has the batch. Raises CorruptBatch,
        StorageError.
        """
        self.require_open()
        return max(self.start_offset, self._segments.find_time(timestamp))

    def containing(self, offset: int) -> Segment:
        """The segment that an offset of this log, which is open, belongs to."""
        return self._segments.containing(offset)

    def all_sealed(self) -> Sequence[Segment]:
        """The segments that never change again, the oldest first."""
        return self._segments[:-1]

    def sealed(self, base_offset: int) -> Segment | None:
        """The sealed segment that begins there, if it still exists."""
        return self._segments.sealed(base_offset) if self._open else None

    # -- writing ------------------------------------------------------------------------------------

    def admit(self, batches: Sequence[_Bytes]) -> list[Admitted]:
        """For each of a producer's batches: that it may be written, was before, or why it is refused.

        Refused are: CorruptBatch, BatchTooLarge, InvalidRequest, UnsupportedCodec,
        OutOfOrderSequence, ProducerFenced, UnknownProducer, Overloaded. Raises StorageError.
        """
        self.require_open()
        admitted = admit(batches, self.config.max_batch_bytes, self._memory.producers())
        if any(isinstance(each, Duplicate) for each in admitted):
            self._flush_by_count()  # if that is what failed after the original was written
        return admitted

    def write(self, batches: Sequence[Fresh], *, now: int, leader_epoch: int) -> list[int]:
        """Append batches that were just admitted; returns the base offset of each.

        Raises BatchTooLarge, StorageError; then nothing was appended, or it is not known to be on
        disk where `flush_records` asks for that.
        """
        if not batches:
            return []
        total = sum(fresh.header.length for fresh in batches)
        if total > MAX_SEGMENT_BYTES:
            raise BatchTooLarge(
                f"batches of {total} bytes exceed the {MAX_SEGMENT_BYTES} of a call"
            )
        begin = self.end_offset
        end = begin + sum(fresh.header.record_count for fresh in batches)
        segment = self._segments.for_append(total, now)
        if not segment.size:
            self._memory.save(self._durable_end)
        stamped = stamp(batches, begin, leader_epoch, now)
        segment.append(stamped, end, now)
        producers = self._memory.producers()
        for fresh, each in zip(batches, stamped, strict=True):
            producers.note(fresh.header, each.base_offset)
        self._memory.noted(len(batches))
        self._unflushed += end - begin
        self._flush_by_count()
        return [each.base_offset for each in stamped]

    def _flush_by_count(self) -> None:
        if self.config.flush_records is not None and self._unflushed >= self.config.flush_records:
            self.flush()

    def flush(self) -> None:
        """Return when all that was appended is on disk. Raises StorageError."""
        self._segments.flush()
        self.durable, self._unflushed = self.end(), 0

    @property
    def dirty(self) -> bool:
        """Whether anything is not on disk yet and a flush could change that."""
        segments = self._segments
        some = segments.new_names or segments.dirty() or self._memory.wants_flush
        return self._open and bool(some) and segments.sound()

    def lend(self, told_before: int = 0) -> Flushing:
        """What has to be flushed, for another thread; `flushed` takes it back. Raises StorageError.

        With a snapshot of what the headers before `told_before`, at least, tell of producers.
        """
        self._memory.save_if_due(self._durable_end, told_before)
        return lent(self._segments, self.directory, self.durable, self._memory.to_flush())

    def flushed(self, flushing: Flushing, outcome: Flushed) -> None:
        """The flush of what was lent has ended so."""
        if outcome.error is not None:
            self.durable = flushing.durable
        if taken_back(self._segments, flushing, outcome) and self._open:
            self.durable = later(self.durable, flushing.end)
            if flushing.snapshot is not None:
                offset = flushing.snapshot[0]
                self._memory.flushed(offset, outcome.snapshot_error, self._durable_end)

    @property
    def _durable_end(self) -> int:
        return 0 if self.durable is None else self.durable.end_offset

    def replace(self, old: Sequence[Segment], replacement: Replacement, size: int) -> list[Path]:
        """Put a compacted segment in the place of `old` ones, which are all there.

        → files to be removed when the directory is flushed. Raises StorageError: then some files have
        their new names and some have not, so that the log is of no more use; the next start finishes.
        """
        self.require_open()
        try:
            return self._segments.replace(old, replacement, size)
        except OSError as error:
            self.fail(f"a compaction could not put its files in their places: {error}")
            raise StorageError(self.failure) from error

    # -- deleting -----------------------------------------------------------------------------------

    def forget_producers(self, now: float) -> None:
        """Forget producers that were idle for `producer_id_expiry`; `now` is monotonic."""
        self._memory.expire(now)

    def expire(self, now: int) -> None:
        """Delete the oldest segments that retention no longer covers. Raises StorageError.

        The active one goes too once its last record is old enough; an empty one keeps the offset.
        """
        if not self._open:
            return  # deleted since somebody listed it; its files may be another topic's by now
        count = expired(self._segments, self.config, now)
        if count and count == len(self._segments):
            count = self._roll(count)
        self._drop(max(count, self._segments.below(self._begin)))

    def give_up(self, offset: int) -> None:
        """All records before `offset` are given up, and that is on disk: let go of their files.

        Segments with nothing else in them are deleted, as far as can be.
        """
        if not self._open or offset <= self.start_offset:
            return
        self._begin = offset
        count = self._segments.below(offset)
        if offset == self.end_offset and self._segments[-1].size:
            count = self._roll(count + 1)
        self._drop(count)

    def _roll(self, count: int) -> int:
        """Begin a new segment, that all before may go; → how many may, if so many were to."""
        try:
            self._segments.roll()
        except StorageError as error:
            logger.warning("%s: the last segment stays for now: %s", self.directory, error)
            return count - 1
        return count

    def _drop(self, count: int) -> None:
        """Delete the first segments: those of which a snapshot on disk tells what their headers tell
        of producers. Others go the next time."""
        while count and not self._memory.covers(self._segments[count].base_offset):
            count -= 1
        self._segments.drop(count)

    def dispensable(self, offset: int) -> int:
        """How far, up to `offset`, headers are not needed any more to know producers; all that way
        after the next checkpoint."""
        return offset if self._memory.covers(offset) else self._memory.on_disk
