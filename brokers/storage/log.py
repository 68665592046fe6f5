"""The log of one partition: segments in order, and the offsets that the broker gives."""

import logging
import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, zip_longest
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple

from folkmoot.brokers.storage.atomic_file import sync_directory, write_checked
from folkmoot.brokers.storage.config import MAX_SEGMENT_BYTES, LogConfig
from folkmoot.brokers.storage.producer_state import ProducerSnapshots, ProducerState
from folkmoot.brokers.storage.recovery import (
    RecoveryPoint,
    list_segments,
    load_log_start,
    recover,
)
from folkmoot.brokers.storage.segment import (
    IndexJob,
    OpenSegments,
    Segment,
    SegmentName,
    Stamped,
    summary_job,
)
from folkmoot.brokers.storage.segment_index import largest_timestamp
from folkmoot.protocol import batch_header
from folkmoot.protocol.batch_header import LEADER_BYTES, BatchHeader
from folkmoot.protocol.compression import Codec
from folkmoot.protocol.errors import (
    BatchTooLarge,
    ClosedError,
    CorruptBatch,
    FolkmootError,
    InvalidRequest,
    OffsetOutOfRange,
    StorageError,
    UnsupportedCodec,
)
from folkmoot.protocol.records import TopicPartition

logger = logging.getLogger(__name__)

SEGMENTS_AT_ONCE: Final = 50
"""As many are flushed of one log at a time, however many an unclean start has left unflushed."""

_MAX_RELATIVE_OFFSET: Final = 2**32 - 1
_NOTHING: Final = memoryview(b"")
_KNOWN_CODECS: Final = frozenset(Codec)
_CONTROL: Final = 1 << 4

_Bytes = bytes | bytearray | memoryview


class Appended(NamedTuple):
    """A batch that is in the log."""

    base_offset: int
    is_duplicate: bool = False
    """Whether it was before."""


class FlushResult(NamedTuple):
    """What went wrong, with the log or with the snapshot alone."""

    error: OSError | None
    snapshot_error: OSError | None


@dataclass(slots=True)
class FlushTask:
    """What a background job is to flush: descriptors of segments, the directory's names, and behind
    them a snapshot of producers (its offset and content).

    `point` is up to where the log is on disk once that has succeeded.
    """

    directory: Path
    segments: Sequence[tuple[Segment, int]]
    descriptors: Sequence[int]
    point: RecoveryPoint
    new_names: bool
    snapshot: tuple[int, Path, bytes] | None = None
    stale: Sequence[tuple[int, Path]] = ()
    """Older snapshots, to be removed when that one is there."""
    cut_to: int | None = None
    """Where the log ended after it was cut meanwhile (`truncate_to`); the background does not look."""

    def run(self) -> FlushResult:
        """Flush, once, and close the descriptors. On any thread.

        A death in between leaves the log flushed and the older snapshot, or both snapshots.
        """
        error = snapshot_error = None
        for fd in self.descriptors:
            try:
                os.fdatasync(fd)
            except OSError as failed:
                error = failed
            finally:
                os.close(fd)
        try:
            if self.new_names:
                sync_directory(self.directory)
        except FileNotFoundError:
            pass  # the partition was deleted meanwhile
        except OSError as failed:
            error = failed
        if self.snapshot is not None and error is None:
            try:
                write_checked(self.snapshot[1], self.snapshot[2])
                for _, path in self.stale:
                    path.unlink(missing_ok=True)
            except OSError as failed:
                snapshot_error = failed
        return FlushResult(error, snapshot_error)


class Log:
    """The directory of a partition with its segments.

    Invariants. `log_start <= high_watermark <= log_end`, and the first two never fall. Offsets rise up
    to `log_end` and, up to the recovery point, are never given twice; what is left is dense but where
    compaction has gone. Every batch was compared with its checksum when it came in. Only the last
    segment is appended to. What lies below the high watermark is never cut and may be read; the leader
    of a single replica moves it to the log's end after each append.

    Append. The leader looks at each batch of a call (checksum, size, and by its header whether its
    producer sent it before, or too early). Those that may be are stamped with offset, leader epoch and
    append time (ms; there is no clock here), and written by one call into one segment: all of them are
    in the log or none is. A call is never divided, so a segment may exceed `segment_bytes` by one call
    if that alone is larger. What is known of producers changes when a batch is in the log, never before.

    Flush. `begin_flush` gives a task, which a background job runs, and `finish_flush` takes its result;
    one at a time, and nobody else flushes these files: the kernel tells of an error once. A flush that
    failed ends the log for good (`failed`): the kernel may have dropped the pages, so that a second one
    would succeed and prove nothing.

    Start. The directory is listed, and what lies behind the recovery point is checked: everything
    before was on disk when it was last flushed. Files are opened by the first append or read, and a log
    that was never written to has none: ten thousand idle partitions cost ten thousand listings.

    `version` grows with every change that a waiting request may care about.

    Owner: the LogManager, on the broker's event loop.
    """

    def __init__(
        self,
        directory: Path,
        name: TopicPartition,
        topic_id: str,
        config: LogConfig,
        files: OpenSegments | None = None,
    ) -> None:
        self.directory = directory
        self.name = name
        self.topic_id = topic_id
        self.config = config
        """The topic's options over the broker's; they may change at any time."""
        self.configured = False
        """Whether the topic's own options are known."""
        self.segments: list[Segment] = []
        """The oldest first; every one ends where the next one begins, the last one is active."""
        self.failed: str | None = None
        """Why nothing is written any more."""
        self.recovery_point: RecoveryPoint | None = None
        self.is_open = False
        self.high_watermark = 0
        self.version = 0
        self.given_up = 0
        """Records before this offset were given up, and that is on disk."""
        self._files = OpenSegments() if files is None else files
        self._snapshots = ProducerSnapshots(directory)
        self._new_names = False
        self._flushing: FlushTask | None = None
        self._largest_timestamps: list[int] | None = None

    # -- opening and closing ------------------------------------------------------------------------

    def start(self, recovery_point: RecoveryPoint | None = None) -> None:
        """Find the segments and make the last one whole; what lies behind the point is checked.

        Raises StorageError.
        """
        try:
            found = list_segments(self.directory)
            self.given_up = load_log_start(self.directory)
        except OSError as error:
            raise StorageError(f"{self.directory} cannot be read: {error.strerror}") from error
        ends = [name.base for name, _ in found.segments[1:]]
        for (name, size), end in zip_longest(found.segments, ends):
            self.segments.append(self._segment(name, size, end))
        if self.segments:
            self.recovery_point = recover(self.segments, recovery_point, self.directory)
            # A life before has made files, and may have died with their names not on disk.
            self._new_names = self.recovery_point is None or (
                self.recovery_point.segment < self.segments[-1].base_offset
            )
        self.is_open = True
        known_end = max(self.given_up, 0 if recovery_point is None else recovery_point.end_offset)
        if known_end > self.log_end:  # its offsets are not given again
            logger.error("%s: lost offsets %d to %d", self.directory, self.log_end, known_end - 1)
            for last in self.segments[-1:]:
                last.end_offset = known_end
            self._roll_at(known_end)
        self._snapshots.offsets = list(found.snapshots)
        try:
            self._remove_snapshots_behind_end()
        except OSError as error:
            raise StorageError(f"{self.directory} cannot be used: {error}") from error
        self.high_watermark = self.log_start
        if self.segments and self._snapshots.newest != self.log_end:
            self.producers()
            self.release()

    def _segment(self, name: SegmentName, size: int, end: int | None) -> Segment:
        interval = self.config.index_interval_bytes
        return Segment(self.directory, name, interval, self._files, size=size, end_offset=end)

    def close(self) -> RecoveryPoint | None:
        """Flush and close all files; → where the log ends, None if nothing was ever written.

        While a flush is under way nothing is vouched for but what was before. Raises StorageError,
        closed.
        """
        try:
            if self.is_open and self.failed is None and self._flushing is None:
                self.flush(snapshot=self._snapshots.newest != self.log_end)
                for last in self.segments[-1:]:
                    last.seal_index()
        finally:
            self.abandon()
        if self.failed is not None:
            raise StorageError(self.failed)
        return self.recovery_point

    def abandon(self) -> None:
        """Close all files as they are, without a flush."""
        self.is_open = False
        self.version += 1
        self.release()

    def release(self) -> None:
        """Close all files; they are opened again when needed."""
        for segment in self.segments:
            segment.release()

    def fail(self, reason: str, *, readable: bool = False) -> None:
        """Nothing is written any more: whoever asks is told why. The next start looks again."""
        self.failed = (
            f"{self.name} is out of use: {reason}: restart the broker when the disk is well"
        )
        logger.error("%s", self.failed)
        self.version += 1
        if not readable:
            self.abandon()

    def require_open(self) -> None:
        """Raises ClosedError, or StorageError if that is because it failed."""
        if not self.is_open:
            if self.failed is not None:
                raise StorageError(self.failed)
            raise ClosedError(f"the log of {self.name} is not open")

    def require_writable(self) -> None:
        """Raises ClosedError, or StorageError if it has failed."""
        self.require_open()
        if self.failed is not None:
            raise StorageError(self.failed)

    # -- what it holds ------------------------------------------------------------------------------

    @property
    def log_start(self) -> int:
        """The first offset that can be read."""
        return max(self.given_up, self.segments[0].base_offset if self.segments else 0)

    @property
    def log_end(self) -> int:
        """The offset that the next record gets."""
        return self.segments[-1].end_offset if self.segments else 0

    @property
    def recovery_point_offset(self) -> int:
        """Up to where all is on disk."""
        return 0 if self.recovery_point is None else self.recovery_point.end_offset

    @property
    def size(self) -> int:
        """Bytes of all segments, indexes left out."""
        return sum(segment.size for segment in self.segments)

    @property
    def sealed_segments(self) -> Sequence[Segment]:
        """The segments that are not appended to any more, the oldest first."""
        return self.segments[:-1]

    def segment_at(self, offset: int) -> Segment:
        """The segment that an offset of this log belongs to."""
        last = self.segments[-1]
        if offset >= last.base_offset:  # most often
            return last
        return self.segments[bisect_right(self.segments, offset, key=_base_offset) - 1]

    def sealed(self, base_offset: int) -> Segment | None:
        """The sealed segment that begins there, if it still exists."""
        number = bisect_left(self.segments, base_offset, key=_base_offset)
        found = self.segments[number] if self.is_open and number < len(self.segments) - 1 else None
        return found if found is not None and found.base_offset == base_offset else None

    def headers(self, offset: int) -> Iterator[BatchHeader]:
        """The headers of the batches from `offset` on, as far as they can be read. Raises StorageError."""
        for segment in self.segments:
            if segment.end_offset > offset:
                start = segment.position_near(offset)[0] if offset > segment.base_offset else 0
                while start < segment.size:
                    try:
                        for header, at in segment.headers(start):
                            start = at + header.length
                            if header.base_offset >= offset:
                                yield header
                        break
                    except CorruptBatch:
                        start = segment.past_damage(start)
                        start = segment.damage_at(start, segment.base_offset).end
                segment.release()

    # -- reading ------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, *, at_least_one: bool = True) -> memoryview:
        """Whole batches from the one that contains `offset` on, nothing at the high watermark.

        If compaction has removed that one, the next that is left comes first. With `at_least_one` the
        first batch comes whole even if it is larger than `max_bytes`; without, nothing is read then.
        The answer ends with the segment at the latest. Raises OffsetOutOfRange, CorruptBatch,
        StorageError.
        """
        self.require_open()
        start, end = self.log_start, self.log_end
        if not start <= offset <= end:
            raise OffsetOutOfRange(f"{self.name} has offsets {start} to {end}, not {offset}")
        while offset < self.high_watermark:
            segment = self.segment_at(offset)
            found = segment.fetch(offset, max_bytes, self.high_watermark, at_least_one=at_least_one)
            if found is not None:
                return found
            offset = segment.end_offset
        return _NOTHING

    def offset_for_time(self, timestamp: int) -> int:
        """Base offset of the first batch with a record of `timestamp` (ms) or later, else the end.

        The largest timestamp of each sealed segment is known by its summary; one index and one stretch
        of headers are searched. Raises StorageError.
        """
        self.require_open()
        number = self._segment_for_time(timestamp)
        found = self.high_watermark
        for segment in self.segments[number:]:
            if segment.size and segment.load_summary().largest_timestamp >= timestamp:
                batch = segment.find_time(timestamp, self.log_start)
                if batch is not None:
                    found = batch
                    break
        return min(max(self.log_start, found), self.high_watermark)

    def prepare_read(self, offset: int) -> IndexJob | None:
        """The background's work before a read at `offset`; None: no index has to be loaded for it."""
        if not self.is_open or not self.log_start <= offset < self.log_end:
            return None
        return self.segment_at(offset).index_job()

    def prepare_append(self) -> IndexJob | None:
        """The background's work before the first append of a life; None: it can be done now."""
        return self.segments[-1].index_job() if self.is_open and self.segments else None

    def prepare_time(self, timestamp: int) -> IndexJob | None:
        """The background's work before a look-up of a time; ask again until there is none."""
        if not self.is_open:
            return None
        job = summary_job(self.sealed_segments) if self._largest_timestamps is None else None
        if job is not None or not self.segments:
            return job
        return self.segments[self._segment_for_time(timestamp)].index_job()

    def _segment_for_time(self, timestamp: int) -> int:
        """The number of the first segment with a record of `timestamp` or later, or of the active one."""
        if self._largest_timestamps is None:
            largest = (each.load_summary().largest_timestamp for each in self.sealed_segments)
            self._largest_timestamps = list(accumulate(largest, max))
        return bisect_left(self._largest_timestamps, timestamp)

    # -- writing ------------------------------------------------------------------------------------

    def append_as_leader(
        self, batches: Sequence[_Bytes], now_ms: int, leader_epoch: int
    ) -> list[Appended | FolkmootError]:
        """Append what producers have sent, but for what is refused; → what became of each batch.

        Refused are: CorruptBatch, BatchTooLarge, InvalidRequest, UnsupportedCodec, OutOfOrderSequence,
        ProducerFenced, UnknownProducer. If the write fails, nothing was appended, and every batch that
        might have been is answered with the StorageError. Raises ClosedError, StorageError if the log
        takes nothing.
        """
        self.require_writable()
        state = self.producers()
        before: dict[int, BatchHeader] = {}
        results: list[Appended | FolkmootError] = []
        accepted: list[tuple[BatchHeader, _Bytes]] = []
        offset = self.log_end
        for data in batches:
            try:
                header = check_produced(data, self.config.max_batch_bytes)
                original = state.check(header, before)
            except FolkmootError as error:
                results.append(error)
                continue
            if original is not None:
                results.append(Appended(original, is_duplicate=True))
                continue
            results.append(Appended(offset))
            accepted.append((header, data))
            offset += header.record_count
        try:
            self._append_accepted(accepted, now_ms, leader_epoch)
        except (StorageError, BatchTooLarge) as error:
            return [
                error if isinstance(each, Appended) and not each.is_duplicate else each
                for each in results
            ]
        return results

    def _append_accepted(
        self, accepted: Sequence[tuple[BatchHeader, _Bytes]], now_ms: int, leader_epoch: int
    ) -> None:
        if not accepted:
            return
        offset = self.log_end
        stamped, offsets = [], []
        for header, data in accepted:
            leader = batch_header.leader_part(offset, header.length, leader_epoch, now_ms)
            rest = memoryview(data)[LEADER_BYTES:]
            stamped.append(Stamped(offset, header.max_timestamp, leader, rest))
            offsets.append(offset)
            offset += header.record_count
        self._write(stamped, [header for header, _ in accepted], offsets, offset, now_ms)

    def append_as_follower(self, chunk: _Bytes) -> None:
        """Append whole batches, back to back, as the leader has stamped them; all or none.

        Their offsets rise from the log's end on, and may have gaps. Raises CorruptBatch,
        InvalidRequest, StorageError.
        """
        self.require_writable()
        self.producers()
        stamped, headers, offset = [], [], self.log_end
        for header, data in batch_header.split(chunk):
            if header.base_offset < offset:
                raise InvalidRequest(
                    f"{self.name} ends at {self.log_end}: a batch of offset {header.base_offset} "
                    "does not follow"
                )
            stamped.append(
                Stamped(
                    header.base_offset,
                    largest_timestamp(header),
                    *(data[:LEADER_BYTES], data[LEADER_BYTES:]),
                )
            )
            headers.append(header)
            offset = header.next_offset
        if headers:
            offsets = [header.base_offset for header in headers]
            self._write(stamped, headers, offsets, offset, headers[-1].append_time)

    def _write(
        self,
        stamped: Sequence[Stamped],
        headers: Sequence[BatchHeader],
        offsets: Sequence[int],
        end: int,
        now_ms: int,
    ) -> None:
        total = sum(header.length for header in headers)
        if total > MAX_SEGMENT_BYTES:
            raise BatchTooLarge(
                f"batches of {total} bytes exceed the {MAX_SEGMENT_BYTES} of a call"
            )
        segment = self._segment_for(total, now_ms)
        try:
            segment.append(stamped, end, now_ms)
        except StorageError:
            if segment.torn is not None:
                self.fail(segment.torn, readable=True)
            raise
        self._snapshots.appended(headers, offsets)
        self.version += 1

    def _segment_for(self, total: int, now_ms: int) -> Segment:
        """The segment for an append of so many bytes: the active one, or a new one after it."""
        if not self.segments:
            return self.roll()
        active = self.segments[-1]
        if not active.size:
            return active
        too_long = active.size + total > self.config.segment_bytes
        too_far = active.end_offset - active.base_offset > _MAX_RELATIVE_OFFSET
        began = active.load_summary().first_append
        # Or begun while the clock was far ahead: it would not grow old for as long.
        too_old = began is not None and abs(now_ms - began) >= self.config.longest_active * 1000
        return self.roll() if too_long or too_far or too_old else active

    def roll(self) -> Segment:
        """Begin a new segment at the log's end. Raises StorageError."""
        return self._roll_at(self.log_end)

    def _roll_at(self, base_offset: int) -> Segment:
        segment = Segment.create(
            self.directory, base_offset, self.config.index_interval_bytes, self._files
        )
        self._new_names = True
        for last in self.segments[-1:]:
            last.seal()
        self.segments.append(segment)
        self._largest_timestamps = None
        return segment

    def advance_high_watermark(self, offset: int) -> None:
        """Records before `offset` are committed: they may be read, and are never cut."""
        if not offset <= self.log_end:
            raise ValueError(f"{self.name} ends at {self.log_end}: {offset} cannot be committed")
        if offset > self.high_watermark:
            self.high_watermark = offset
            self.version += 1

    def truncate_to(self, offset: int) -> None:
        """Give up the records from `offset` on, which the leader does not have; producers go back, too.

        If `offset` lies within a batch, that goes as well. The newest segments go first: a crash in
        between leaves a log that is still too long, and the follower cuts it again. If the recovery point
        goes back, it is to be noted before the log takes more, else the next start would keep the
        offsets free. Raises ValueError below the high watermark, StorageError.
        """
        self.require_writable()
        if offset < self.high_watermark:
            raise ValueError(f"{self.name} is committed up to {self.high_watermark}, not {offset}")
        if offset >= self.log_end:
            return
        try:
            while len(self.segments) > 1 and self.segments[-1].base_offset >= offset:
                last = self.segments.pop()
                last.release()
                for path in last.files():
                    path.unlink(missing_ok=True)
            self.segments[-1].truncate(offset)
            self._remove_snapshots_behind_end()
        except OSError as error:
            raise StorageError(f"{self.directory} cannot be cut: {error}") from error
        if self._flushing is not None:
            cut_to = self._flushing.cut_to
            self._flushing.cut_to = self.log_end if cut_to is None else min(cut_to, self.log_end)
        if self.recovery_point_offset > self.log_end:
            last = self.segments[-1]
            self.recovery_point = RecoveryPoint(last.end_offset, last.base_offset, last.size)
        self._new_names, self._largest_timestamps = True, None
        self.version += 1

    def _remove_snapshots_behind_end(self) -> None:
        for path in self._snapshots.go_back_to(self.log_end):
            path.unlink(missing_ok=True)

    # -- flush --------------------------------------------------------------------------------------

    @property
    def dirty(self) -> bool:
        """Whether a flush would do something, and none is under way."""
        if not self.is_open or self.failed is not None or self._flushing is not None:
            return False
        return self._new_names or self._snapshots.is_wanted or bool(self._dirty_segments())

    def _dirty_segments(self) -> list[Segment]:
        """Those that are not flushed yet. They lie at the end, at most with an empty one behind."""
        end = len(self.segments)
        if end and not self.segments[-1].size:
            end -= 1
        first = end
        while first and self.segments[first - 1].dirty:
            first -= 1
        return self.segments[first:end]

    def begin_flush(self, *, snapshot: bool = False) -> FlushTask | None:
        """What a background job is to flush; None: nothing, or a flush is under way.

        With a snapshot of producers if one is due, or asked for. Raises StorageError.
        """
        if not self.segments or not (self.dirty or (snapshot and self._flushing is None)):
            return None
        snapshot = snapshot or self._snapshots.is_due(self.segments[-1].base_offset)
        dirty = self._dirty_segments()
        some = dirty[:SEGMENTS_AT_ONCE]
        last = self.segments[-1] if len(some) == len(dirty) else some[-1]
        descriptors: list[int] = []
        try:
            for segment in some:
                descriptors.append(segment.descriptor_to_flush())
        except StorageError:
            for fd in descriptors:
                os.close(fd)
            raise
        task = FlushTask(
            self.directory,
            [(segment, segment.size) for segment in some],
            descriptors,
            RecoveryPoint(last.end_offset, last.base_offset, last.size),
            self._new_names,
        )
        if snapshot and last is self.segments[-1]:
            offset = self.log_end
            task.snapshot = offset, self._snapshots.path(offset), self.producers().encode()
            stale = self._snapshots.stale(offset, self.high_watermark)
            task.stale = [(each, self._snapshots.path(each)) for each in stale]
            self._snapshots.taken(offset)
        self._flushing, self._new_names = task, False
        return task

    def finish_flush(self, task: FlushTask, result: FlushResult) -> None:
        """The flush that was begun has ended so. If it failed, the log has."""
        self._flushing = None
        if result.error is not None:
            self.fail(f"it could not be flushed: {result.error}", readable=self.is_open)
        elif self.is_open:
            if task.cut_to is None:
                for segment, size in task.segments:
                    segment.durable_size = max(segment.durable_size, size)
                self.recovery_point = task.point
            if task.snapshot is not None and result.snapshot_error is None:
                offset, path, _ = task.snapshot
                self._snapshots.written(offset, [stale for stale, _ in task.stale])
                if task.cut_to is not None and offset > task.cut_to:
                    # It tells of what was cut: the log may grow past it before the next start.
                    self._snapshots.offsets.remove(offset)
                    try:
                        path.unlink(missing_ok=True)
                    except OSError as error:
                        self.fail(f"{path} cannot be removed: {error}", readable=True)
        if result.snapshot_error is not None:
            logger.warning("%s: producers are not noted: %s", self.directory, result.snapshot_error)
        self.version += 1

    def flush(self, *, snapshot: bool = False) -> None:
        """Return when all that was appended is on disk. Raises StorageError."""
        self.require_writable()
        task = self.begin_flush(snapshot=snapshot)
        while task is not None:
            result = task.run()
            self.finish_flush(task, result)
            self.require_writable()
            # A snapshot that finds no room now would find none at once: the log itself is on disk.
            task = self.begin_flush() if result.snapshot_error is None else None

    # -- giving up records, and producers -----------------------------------------------------------

    def advance_log_start(self, offset: int) -> list[Path]:
        """All records before `offset` are given up, and that is on disk; → files to be removed, in order.

        Segments with nothing else in them go, as far as can be.
        """
        if not self.is_open or offset <= self.given_up:
            return []
        self.given_up = offset
        self.high_watermark = max(self.high_watermark, offset)
        self.version += 1
        return self.delete_segments(0)

    def delete_segments(self, count: int) -> list[Path]:
        """Let go of the oldest segments, and of those before the log's start; → files to be removed.

        In their order, so that a crash leaves the newer ones. Those stay whose headers are still needed
        to know producers: the next flush takes a snapshot, and they can go then. If all are to go, a new
        one is begun, which keeps the offset.
        """
        if not self.is_open or not self.segments:
            return []
        count = max(count, bisect_right(self.segments, self.given_up, key=_base_offset) - 1)
        emptied = self.given_up == self.log_end and self.segments[-1].size > 0
        if emptied or count >= len(self.segments):
            try:
                self.roll()
            except StorageError as error:
                logger.warning("%s: the last segment stays for now: %s", self.directory, error)
            count = len(self.segments) - 1
        while count and not self._snapshots.covers(self.segments[count].base_offset):
            count -= 1
        dropped, self.segments = self.segments[:count], self.segments[count:]
        if dropped:
            logger.info(
                "%s: deleting %d segments, up to offset %d", self.directory, count, self.log_start
            )
            self._largest_timestamps = None
            self.version += 1
        for segment in dropped:
            segment.release()
        return [path for segment in dropped for path in segment.files()]

    def replace_segments(self, old: Sequence[Segment], name: SegmentName, size: int) -> list[Path]:
        """Put a compacted segment, which is on disk, in the place of `old` ones; → their files."""
        first = self.segments.index(old[0])
        self.segments[first : first + len(old)] = [self._segment(name, size, name.end)]
        self._largest_timestamps = None
        self.version += 1
        for segment in old:
            segment.release()
        return [path for segment in old for path in segment.files()]

    def snapshot_covers(self, offset: int) -> bool:
        """Whether headers before `offset` are not needed any more to know producers; if they are, the
        next flush takes a snapshot."""
        return self._snapshots.covers(offset)

    def expire_producers(self, now: float) -> None:
        """Forget producers that were idle for `producer_id_expiry`; `now` is monotonic."""
        if self._snapshots.state is not None:
            self._snapshots.state.expire(now, self.config.producer_id_expiry)

    def producers(self) -> ProducerState:
        """What is known of producers as of the log's end. Raises StorageError."""
        state = self._snapshots.state
        if state is None:
            state = self._snapshots.load(self.config.max_producers, self.log_end, self.headers)
        state.limit = self.config.max_producers
        return state


_base_offset = attrgetter("base_offset")


def check_produced(data: _Bytes, max_batch_bytes: int) -> BatchHeader:
    """The header of a producer's batch that may be appended.

    Raises CorruptBatch, BatchTooLarge, InvalidRequest, UnsupportedCodec.
    """
    if len(data) > max_batch_bytes:
        raise BatchTooLarge(f"a batch of {len(data)} bytes exceeds the limit of {max_batch_bytes}")
    header = batch_header.check(data)
    if header.length != len(data):
        raise CorruptBatch(f"{len(data) - header.length} bytes follow a batch of {header.length}")
    if header.attributes & _CONTROL:
        raise InvalidRequest("a control batch came from a producer: only brokers write them")
    if header.record_count != header.last_offset_delta + 1:
        raise InvalidRequest(
            f"a producer's batch of {header.record_count} records spans "
            f"{header.last_offset_delta + 1} offsets: it may have no gaps"
        )
    if header.codec not in _KNOWN_CODECS:
        raise UnsupportedCodec(f"codec number {header.codec} is not known here")
    return header
