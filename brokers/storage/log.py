"""The log of one partition: its segments in order, its appends, flushes and cuts."""

import logging
import os
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from folkmoot.brokers.jobs.jobs import SharedJob, result_of
from folkmoot.brokers.jobs.serial_queue import Pending, RunJob, SerialQueue, run_at_once
from folkmoot.brokers.storage.files.atomic_file import (
    disk_error,
    is_full,
    is_out_of_descriptors,
    shorten,
    sync_directory,
    write_checked,
)
from folkmoot.brokers.storage.files.cluster_facts import HighestIds
from folkmoot.brokers.storage.leader_epochs import NO_EPOCH, EpochStarts, save_epoch_starts
from folkmoot.brokers.storage.producer_state import (
    SNAPSHOT_SUFFIX,
    ProducerSnapshots,
    ProducerState,
)
from folkmoot.brokers.storage.recovery import (
    CLEANER_CHECKPOINT_FILE,
    LOG_START_FILE,
    Listing,
    RecoveryPoint,
    list_segments,
    load_log_start,
    note_incomplete,
    open_again,
    recover,
    save_log_start,
)
from folkmoot.brokers.storage.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    Damage,
    NotCached,
    OpenSegments,
    Segment,
    SegmentName,
    SegmentReader,
    Stamped,
    SummaryJob,
    headers_from,
)
from folkmoot.brokers.storage.segment_index import largest_timestamp
from folkmoot.coordination.topic_config import FSYNC, MAX_SEGMENT_BYTES, LogConfig
from folkmoot.protocol import batch_header
from folkmoot.protocol.batch_header import CODEC_BITS, LEADER_BYTES, BatchHeader
from folkmoot.protocol.compression import Codec
from folkmoot.protocol.errors import (
    BatchTooLarge,
    ClosedError,
    CorruptBatch,
    DiskFailed,
    FolkmootError,
    InvalidRequest,
    OffsetNotAvailable,
    OffsetOutOfRange,
    StorageError,
    UnsupportedCodec,
)
from folkmoot.protocol.records import TopicPartition

logger = logging.getLogger(__name__)

SEGMENTS_AT_ONCE: Final = 50
"""Segments of one log that a flush takes: an unclean start may leave more than descriptors are left."""

_MAX_RELATIVE_OFFSET: Final = 2**32 - 1
_NOTHING: Final = memoryview(b"")
_KNOWN_CODECS: Final = frozenset(Codec)
_CONTROL: Final = 1 << 4
_NONE_REFUSED: Final[Mapping[int, FolkmootError]] = {}

_T = TypeVar("_T")
_Bytes = bytes | bytearray | memoryview
Pause = Callable[[], Pending[None]]
_Snapshot = tuple[Path, bytes, Sequence[Path]]
"""A snapshot's file and content, and the files that it replaces."""


class Appended(NamedTuple):
    """A batch that is in the log."""

    base_offset: int
    is_duplicate: bool = False
    """True if it was there before this append."""


class FlushResult(NamedTuple):
    """A flush that has succeeded."""

    seconds: float
    note_error: OSError | None = None
    """Why the snapshot of producers is not on disk."""
    epochs_saved: bool = True
    """False: so are the leader epochs' starts. All else is on disk."""


class Log:
    """The directory of a partition with its segments.

    Invariants. `log_start <= high_watermark <= log_end`, and the first two never fall, but where damage
    or an unclean election has lost something, or a replica out of sync is cut. Offsets rise up
    to `log_end` and, up to the recovery point, are never given twice; they are dense but for what
    compaction has left out. Every batch was compared with its checksum when it came in. Only the last
    segment is appended to. Records below the high watermark are never cut and may be read.

    Append. The leader checks each batch of a call: checksum, size, and whether its sequence follows.
    Batches are stamped with offset, leader epoch and append time (ms), and written by one call into one
    segment: all of them are in the log or none. So a segment exceeds `segment_bytes` if a call
    alone is larger. The state of producers changes once a batch is in the log.

    Flush. It is an operation of `queue`, as a cut is: one at a time, and nothing else flushes these files,
    since the kernel reports an error once. A flush that failed ends the log for good (`failed`): the kernel
    may have dropped the pages, so that a second one would succeed and prove nothing.

    Start. The directory is listed, and what lies behind the recovery point is checked: everything
    before was on disk when it was last flushed. Files are opened by the first append or read.

    Replica. A log knows where each leader epoch begins in it (`epoch_starts`). Records behind the high
    watermark may be cut, so a start sets it to the log's start. A log that has lost offsets lacks
    what it has acked (`is_incomplete`, on disk before anything follows): they are fetched again, or given
    again in a later leader epoch by a replica that is the only one.

    Owner: the LogManager, on the broker's event loop.
    """

    def __init__(
        self,
        directory: Path,
        name: TopicPartition,
        topic_id: str,
        config: LogConfig,
        files: OpenSegments | None = None,
        run_job: RunJob = run_at_once,
    ) -> None:
        self.directory = directory
        self.name = name
        self.topic_id = topic_id
        self.config = config
        """The topic's options over the broker's; they may change at any time."""
        self.configured = False
        """True if the topic's own options are known."""
        self.segments: list[Segment] = []
        """The oldest first; every one ends where the next one begins, the last one is active."""
        self.failed: str | None = None
        """Why nothing is written any more."""
        self.recovery_point: RecoveryPoint | None = None
        self.is_open = False
        self.high_watermark = 0
        self.log_start = 0
        """The first offset that can be read."""
        self.log_end = 0
        """The offset that the next record gets."""
        self.deleted_before = 0
        """Records before this offset were deleted, and that is on disk."""
        self.leader_epoch = NO_EPOCH
        """The highest leader epoch in which this replica has followed or led, and that is on disk."""
        self.is_alone = True
        """True if no other broker has a replica, as far as this one knows: it may be an old view."""
        self.epoch_starts = EpochStarts()
        self.is_led = False
        """True if the leader is this broker, whose log start counts."""
        self.is_incomplete = False
        """True if this replica may lack records that it has acked. That is on disk (Partition)."""
        self.is_uncommit_pending = False
        """The leader lacks what was committed, and it is still to be cut."""
        self.is_lost = False
        """No other replica is known to have what is damaged here."""
        self.forgets_compaction = False
        """The compacted part was cut, and its replacement is not compacted (LogCleaner)."""
        self.ids = HighestIds()
        """The sum of all logs of the broker, once it serves this one."""
        self.queue = SerialQueue(run_job)
        """All that waits for a disk to change this log: flushes, cuts, deletions of records and of files."""
        self._files = OpenSegments() if files is None else files
        self._snapshots = ProducerSnapshots(directory)
        self._new_names = False

    # -- opening and closing ------------------------------------------------------------------------

    def start(self, recovery_point: RecoveryPoint | None = None) -> None:
        """Find the segments and check what lies behind the recovery point. Raises StorageError."""
        try:
            found = list_segments(self.directory)
            self.is_incomplete = found.is_incomplete
            if self._load_log_start():
                delete_all(self.directory, self.deleted_before)
                found = Listing([], [], found.is_incomplete)
            if found.segments:  # appends to a compacted one would go past the end in its name
                newest, size = found.segments[-1]
                found.segments[-1] = open_again(self.directory, newest), size
        except OSError as error:
            raise StorageError(f"{self.directory} cannot be read: {error.strerror}") from error
        ends = [name.base for name, _ in found.segments[1:]]
        for (name, size), end in zip_longest(found.segments, ends):
            self.segments.append(self._segment(name, size, end))
            if end is not None and name.base < name.end < end:
                # A compacted segment may have gaps: nothing else would find these missing.
                self.segments[-1].mark(Damage(name.end, end, size, size))
        self._note_bounds()
        point = recovery_point
        if point is not None and point.segment < self.deleted_before >= point.end_offset:
            point = None  # the log may have begun anew, with another segment of that name
        if self.segments:
            # A snapshot is written once the log is on disk up to its offset.
            flushed = max(found.snapshots, default=0)
            self.recovery_point = recover(
                *(self.segments, point, self.directory, self.may_lack_acked, flushed),
                self._files,
            )
            self._note_bounds()
            # An earlier start may have made files, and died with their names not on disk.
            self._new_names = self.recovery_point is None or (
                self.recovery_point.segment < self.segments[-1].base_offset
            )
        self.is_open = True
        known_end = max(
            self.deleted_before, 0 if recovery_point is None else recovery_point.end_offset
        )
        found_end = max(self.deleted_before, self.log_end)
        if known_end > found_end:
            logger.error("%s: lost offsets %d to %d", self.directory, found_end, known_end - 1)
            self.may_lack_acked()
        obsolete = self.segments if self.deleted_before > self.log_end else []
        if obsolete:  # what it has was deleted, and the offsets behind are not given again
            self.release()
            self.segments = []
            self._note_bounds()
        self._snapshots.offsets = list(found.snapshots)
        try:
            newer = self._snapshots.go_back_to(self.log_end)
            for path in (*newer, *(path for segment in obsolete for path in segment.files())):
                path.unlink(missing_ok=True)
            if (
                newer or obsolete
            ):  # a power cut must not bring one back when the log has grown past it
                sync_directory(self.directory)
        except OSError as error:
            raise StorageError(f"{self.directory} cannot be used: {error}") from error
        self.high_watermark = self.log_start
        self._load_epoch_starts()
        if self.segments and self._snapshots.newest != self.log_end:
            self.producers()
            for segment in self.segments:
                segment.close_if_flushed()

    def _load_log_start(self) -> bool:
        """Load it → whether the log was to begin anew there. If the file has rotted, a replica learns it
        from others again. Raises OSError, StorageError."""
        is_anew = False
        try:
            self.deleted_before, is_anew = load_log_start(self.directory)
        except StorageError as error:
            if self.is_alone:
                raise
            logger.error("%s", error)
            self.may_lack_acked()
            (self.directory / LOG_START_FILE).unlink()
        return is_anew

    def may_lack_acked(self) -> None:
        """Note on disk that this replica may lack acknowledged records, before it gives them up.

        Raises StorageError.
        """
        if self.is_incomplete:
            return
        try:
            note_incomplete(self.directory)
        except OSError as error:
            raise StorageError(f"{self.directory} cannot be used: {error}") from error
        self.is_incomplete = True

    def _load_epoch_starts(self) -> None:
        """Believe the file up to the recovery point, and read the headers behind it."""
        try:
            self.epoch_starts = EpochStarts.load(self.directory)
        except OSError as error:
            raise StorageError(f"{self.directory} cannot be read: {error}") from error
        known = self.recovery_point_offset if self.epoch_starts.latest != NO_EPOCH else 0
        known = max(self.log_start, min(known, self.log_end))
        self.epoch_starts.cut(known)
        if known < self.log_end:
            self._read_epoch_starts(known)
            self.epoch_starts.forget_before(self.log_start)

    def _read_epoch_starts(self, known: int) -> None:
        starts, earliest, is_intact = self.epoch_starts, known, True
        first = max(0, bisect_right(self.segments, known, key=_base_offset) - 1)
        for segment in self.segments[first:]:
            # Without the marked damage: the header of a damaged body has its epoch.
            reader = SegmentReader(
                *(segment.directory, segment.name, segment.size, segment.end_offset)
            )
            for found in reader.walk(reader.start_near(known), bodies=False):
                if isinstance(found, Damage):
                    segment.mark(found)
                    is_intact = False
                    continue
                header, _ = found
                if header.next_offset > known:
                    if header.leader_epoch > starts.latest and not is_intact:
                        starts.may_begin(earliest, header.base_offset)
                    starts.note_batch(header.leader_epoch, header.base_offset)
                    earliest = header.base_offset + 1
                is_intact = True
            reader.close()
            is_intact &= all(each.position < segment.size for each in segment.damage)
        if not is_intact:
            starts.may_begin(earliest, self.log_end)

    def _segment(self, name: SegmentName, size: int, end: int | None) -> Segment:
        interval = self.config.index_interval_bytes
        return Segment(self.directory, name, interval, self._files, size=size, end_offset=end)

    def close(self) -> RecoveryPoint | None:
        """Flush and close all files; → the recovery point, None if nothing was ever written.

        While an operation is under way it is the one from before. Raises StorageError, closed.
        """
        try:
            if self.is_open and self.failed is None and self.queue.is_idle:
                self.queue.run_now(self.flush_last())
                for last in self.segments[-1:]:
                    last.save_index()
        finally:
            self.abandon()
        if self.failed is not None:
            raise StorageError(self.failed)
        return self.point_to_note

    def abandon(self) -> None:
        """Close all files as they are, without a flush."""
        self.is_open = False
        self.release()

    def release(self) -> None:
        """Close all files; they are opened again when needed."""
        for segment in self.segments:
            segment.release()

    def fail(self, reason: str, *, readable: bool = False) -> None:
        """Refuse all writes from here on with `reason`, and reads unless `readable`."""
        self.failed = (
            f"{self.name} is out of use: {reason}: restart the broker when the disk is well"
        )
        logger.error("%s", self.failed)
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

    def _note_bounds(self) -> None:
        """Follow a change of `deleted_before`, or of the first or last segment."""
        if self.segments:
            self.log_start = max(self.deleted_before, self.segments[0].base_offset)
            self.log_end = self.segments[-1].end_offset
        else:
            self.log_start = self.log_end = self.deleted_before

    @property
    def flushes(self) -> bool:
        """Return whether its records count only when they are on disk."""
        chosen = self.config.durability
        return not self.is_alone if chosen is None else chosen == FSYNC

    @property
    def recovery_point_offset(self) -> int:
        """Up to where all is on disk."""
        point = self.recovery_point
        return self.deleted_before if point is None else max(self.deleted_before, point.end_offset)

    @property
    def point_to_note(self) -> RecoveryPoint | None:
        """The facts for the next start; None while the leader epochs' starts are not on disk."""
        return None if self.epoch_starts.changed else self.recovery_point

    @property
    def size(self) -> int:
        """Bytes of all segments, indexes left out."""
        return sum(segment.size for segment in self.segments)

    @property
    def is_compacted(self) -> bool:
        """Return whether a segment is compacted."""
        return any(segment.sparse for segment in self.segments)

    @property
    def is_damaged(self) -> bool:
        """Return whether damage is known."""
        return bool(self.damaged_at)

    @property
    def damaged_at(self) -> list[int]:
        """The offsets where known damage begins, none before the log's start; in order."""
        start = self.log_start
        return [
            max(each.offset, start)
            for segment in self.segments
            for each in segment.damage
            if each.next_offset > start
        ]

    @property
    def sealed_segments(self) -> Sequence[Segment]:
        """All but the active segment, the oldest first."""
        return self.segments[:-1]

    def segment_at(self, offset: int) -> Segment:
        """Return the segment that an offset of this log belongs to."""
        last = self.segments[-1]
        if offset >= last.base_offset:  # most often
            return last
        return self.segments[bisect_right(self.segments, offset, key=_base_offset) - 1]

    def find_sealed(self, base_offset: int) -> Segment | None:
        """Return the sealed segment that begins there, if it exists."""
        number = bisect_left(self.segments, base_offset, key=_base_offset)
        is_sealed = number < len(self.segments) - 1
        found = self.segments[number] if self.is_open and is_sealed else None
        return found if found is not None and found.base_offset == base_offset else None

    def _readers(self, offset: int) -> list[SegmentReader]:
        """Return readers of the segments from `offset` on."""
        first = max(0, bisect_right(self.segments, offset, key=_base_offset) - 1)
        return [segment.reader() for segment in self.segments[first:]]

    # -- reading ------------------------------------------------------------------------------------

    def read(
        self, offset: int, max_bytes: int, *, at_least_one: bool = True, committed: bool = True
    ) -> memoryview:
        """Read whole batches from the one that contains `offset` on, up to the high watermark, or up to
        the log's end if not `committed`.

        If compaction has removed that one, the next that is left comes first. With `at_least_one` the
        first batch comes whole even if it is larger than `max_bytes`; without, nothing is read then.
        The answer ends with the segment at the latest. Raises OffsetOutOfRange, CorruptBatch,
        OffsetNotAvailable where another replica may have it, NotCached if it would wait for the disk,
        StorageError.
        """
        if not self.is_open:
            self.require_open()
        end = self.log_end
        if not self.log_start <= offset <= end:
            raise OffsetOutOfRange(
                f"{self.name} has offsets {self.log_start} to {end}, not {offset}"
            )
        if committed:
            end = self.high_watermark
        while offset < end:
            segment = self.segments[-1]
            if offset < segment.base_offset:
                segment = self.segment_at(offset)
            segment.read_ahead = max_bytes
            try:
                found = segment.fetch(offset, max_bytes, end, at_least_one=at_least_one)
            except CorruptBatch as error:
                if self.is_alone or self.is_lost:
                    raise
                raise OffsetNotAvailable(f"{error}; it is about to be copied anew") from error
            finally:
                segment.read_ahead = None
            if segment.read_jobs:
                segment.forget_ended_jobs()
            if found is not None:
                return found
            offset = segment.end_offset
        return _NOTHING

    def offset_for_time(self, timestamp: int) -> int:
        """Return the base offset of the first batch with a record of `timestamp` (ms) or later, or the end.

        The summary of each segment has its largest timestamp; one index and one stretch of headers are
        searched. Raises NotCached if that would wait for the disk, OffsetNotAvailable if a record of that
        time may lie in damage that another replica may have, StorageError.
        """
        self.require_open()
        unread = [each for each in self.sealed_segments if each.is_unread]
        if unread and not self._files.may_wait:  # one job for all, and no index stays in memory
            summaries = SummaryJob(unread)
            raise NotCached(SharedJob(summaries.run, lambda _, found: summaries.finish(found)))
        offset = self.high_watermark
        for segment in self.segments:
            if not segment.size:
                continue
            segment.read_ahead = 0
            try:
                found = segment.find_time(timestamp, self.log_start)
            finally:
                segment.read_ahead = None
            segment.forget_ended_jobs()
            if found is not None:
                offset = min(max(self.log_start, found), offset)
                break
        damaged_at = [] if self.is_alone or self.is_lost else self.damaged_at
        if damaged_at and damaged_at[0] < offset:
            raise OffsetNotAvailable(
                f"{self.name} is damaged from offset {damaged_at[0]} on, and about to be copied anew"
            )
        return offset

    def prepare_append(self) -> SharedJob | None:
        """Return a job to do before the first append since the start; ask again until it is None."""
        if not self.is_open or not self.segments:
            return None
        last = self.segments[-1]
        if last.index is not None and self._snapshots.state is not None:  # nearly always
            return None
        return last.index_job() or self._producers_job()

    # -- writing ------------------------------------------------------------------------------------

    def append_as_leader(
        self,
        batches: Sequence[_Bytes],
        now_ms: int,
        leader_epoch: int,
        refusals: Mapping[int, FolkmootError] = _NONE_REFUSED,
    ) -> list[Appended | FolkmootError]:
        """Append what producers have sent; → for each batch where it is, or why it is refused.

        Reasons are CorruptBatch, BatchTooLarge, InvalidRequest, UnsupportedCodec, OutOfOrderSequence,
        ProducerFenced, UnknownProducer, and those in `refusals`, by their place in `batches`, unless
        the batch is in the log already. If the write fails, nothing was appended, and all other batches
        are answered with the StorageError. Raises ClosedError, StorageError if the log takes nothing.
        """
        if self.failed is not None or not self.is_open:
            self.require_writable()
        state = self._snapshots.state
        if state is None:
            state = self.producers()
        state.limit = self.config.max_producers
        before: dict[int, BatchHeader] = {}
        results: list[Appended | FolkmootError] = []
        stamped: list[Stamped] = []
        headers: list[BatchHeader] = []
        offset = self.log_end
        for number, data in enumerate(batches):
            try:
                header = check_produced(data, self.config.max_batch_bytes)
                original = state.check(header, before, refusals.get(number))
            except FolkmootError as error:
                results.append(error)
                continue
            if original is not None:
                results.append(Appended(original, is_duplicate=True))
                continue
            results.append(Appended(offset))
            leader = batch_header.leader_part(offset, header.length, leader_epoch, now_ms)
            producer_part = memoryview(data)[LEADER_BYTES:]
            stamped.append(Stamped(offset, header.max_timestamp, leader, producer_part))
            headers.append(header)
            offset += header.record_count
        if not stamped:
            return results
        try:
            self._write(stamped, headers, offset, now_ms)
        except (StorageError, BatchTooLarge) as error:
            return [
                error if isinstance(each, Appended) and not each.is_duplicate else each
                for each in results
            ]
        if leader_epoch > self.epoch_starts.latest:
            self.epoch_starts.note_batch(leader_epoch, stamped[0].base_offset)
        return results

    def append_as_follower(self, chunk: _Bytes) -> None:
        """Append whole batches, back to back, as the leader has stamped them; all or none.

        Their offsets rise from the log's end on, and may have gaps; only the first batch of an empty log
        may begin before. Raises CorruptBatch, InvalidRequest, StorageError.
        """
        self.require_writable()
        self.producers()
        stamped: list[Stamped] = []
        headers: list[BatchHeader] = []
        offset = self.log_end
        for header, data in batch_header.split(chunk):
            is_first = not stamped and self._may_begin(header)
            if header.base_offset < offset and not is_first:
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
            self._write(stamped, headers, offset, headers[-1].append_time)
            for header in headers:
                self.epoch_starts.note_batch(header.leader_epoch, header.base_offset)

    def _may_begin(self, header: BatchHeader) -> bool:
        """Return whether an empty log may begin with this batch, in which the log's start may lie."""
        is_within = self.log_start == self.log_end < header.next_offset
        # There is a segment where an earlier append has found no room.
        first = self.segments[0] if self.segments else None
        return is_within and (first is None or first.base_offset == header.base_offset)

    def _write(
        self,
        stamped: Sequence[Stamped],
        headers: Sequence[BatchHeader],
        end: int,
        now_ms: int,
    ) -> None:
        """Write into the active segment, or into a new one if that is full or old; all or nothing."""
        total = sum(header.length for header in headers)
        if total > MAX_SEGMENT_BYTES:
            raise BatchTooLarge(
                f"batches of {total} bytes exceed the {MAX_SEGMENT_BYTES} of a call"
            )
        config, active = self.config, self.segments[-1] if self.segments else None
        longest = config.segment_age
        if config.max_compaction_lag is not None and config.compacts:
            longest = min(longest, config.max_compaction_lag)  # the active segment is not compacted
        try:
            if active is None:
                active = self._roll_at(min(stamped[0].base_offset, self.log_end))
            elif active.size:
                index = active.index or active.use_index()
                began = index.first_append
                if (
                    active.size + total > config.segment_bytes
                    or active.end_offset - active.base_offset > _MAX_RELATIVE_OFFSET
                    # Or begun while the clock was far ahead.
                    or (began is not None and abs(now_ms - began) >= longest * 1000)
                ):
                    active = self.roll()
            active.append(stamped, end, now_ms)
        except StorageError as error:
            self._files.room.is_missed(error)
            if active is not None and active.torn is not None:
                self.fail(active.torn, readable=True)
            raise
        self.log_end = end
        snapshots, ids = self._snapshots, self.ids
        snapshots.appended_batches += len(headers)
        for header, each in zip(headers, stamped, strict=True):
            if snapshots.state is not None:
                snapshots.state.update(header, each.base_offset)
            if header.producer_id > ids.producer or header.schema_id > ids.schema:
                ids.note_ids(header.producer_id, header.schema_id)

    def roll(self) -> Segment:
        """Begin a new segment at the log's end. Raises StorageError."""
        return self._roll_at(self.log_end)

    def _roll_at(self, base_offset: int) -> Segment:
        segment = Segment.create(
            self.directory, base_offset, self.config.index_interval_bytes, self._files
        )
        segment.end_offset = self.log_end
        self._new_names = True
        for last in self.segments[-1:]:
            last.seal()
        self.segments.append(segment)
        return segment

    def advance_high_watermark(self, offset: int) -> None:
        """Records before `offset` are committed: they may be read, and are never cut."""
        if not offset <= self.log_end:
            raise ValueError(f"{self.name} ends at {self.log_end}: {offset} cannot be committed")
        if offset > self.high_watermark:
            self.high_watermark = offset

    def uncommit(self, offset: int, reason: str) -> None:
        """Allow a cut of what was committed from `offset` on; `reason` says what has lost it."""
        self.is_uncommit_pending = True  # whether a start has forgotten what was committed or not
        if self.log_start < self.high_watermark > offset:
            logger.error(
                "%s: %s what was committed from offset %d to %d",
                *(self.name, reason, offset, self.high_watermark),
            )
        self.high_watermark = min(self.high_watermark, offset)

    async def cut(self, offset: int, pause: Pause | None = None) -> None:
        """Within an operation of `queue`: give up the records from `offset` on, which the leader does not
        have. Until it has ended nothing is appended.

        If `offset` lies within a batch, that goes as well; producers go back, too. A log that begins
        behind `offset` has nothing that its leader has: all of it goes, its start, too. If the recovery
        point goes back, that must be noted first, else the next start would call the log incomplete.
        If the disk is full, or no descriptor is free, the job is done again after a `pause`.

        Crash story: the newest files go first, so a death in the job leaves a log that is still too long,
        and the follower cuts it again.
        Raises ValueError below the high watermark; StorageError: the log is not to be used any more.
        """
        self.require_writable()
        if offset < self.high_watermark:
            raise ValueError(f"{self.name} is committed up to {self.high_watermark}, not {offset}")
        if offset >= self.log_end:
            return
        left = max(1, bisect_left(self.segments, offset, key=_base_offset))
        if offset < self.log_start:  # an unclean election: else that is committed
            left = offset = 0
        if self.recovery_point_offset > offset:
            base = self.segments[left - 1].base_offset if left else 0
            self.recovery_point = RecoveryPoint(base, base, 0)
        last = self.segments[left - 1] if left else None
        work = partial(
            cut_files,
            self.directory,
            # Without the marked damage: none of it may stay in front of what is appended.
            last and SegmentReader(self.directory, last.name, last.size, last.end_offset),
            offset,
            [path for each in reversed(self.segments[left:]) for path in each.files()],
            [(each, self._snapshots.path(each)) for each in self._snapshots.offsets],
            log_start=self.log_start,
            high_watermark=self.high_watermark,
            # Only what is committed is compacted: an unclean election has it cut, and so has damage.
            forgets_compaction=self.is_uncommit_pending,
            is_mapped=last is not None and last.stop_mapping(),
        )
        position, end, forgets_compaction = await self._job_of_cut(work, pause)
        if self.is_open:
            self.forgets_compaction |= forgets_compaction
            if last is None:
                self.deleted_before = 0
            self.note_cut(0 if position is None else left, position or 0, end)

    async def _job_of_cut(self, work: Callable[[], _T], pause: Pause | None) -> _T:
        """Its result. Raises StorageError."""
        while True:
            outcome = await self.queue.outcome_of(work)
            if not isinstance(outcome, Exception):
                return outcome
            cause = outcome.__cause__ if isinstance(outcome, StorageError) else outcome
            may_pass = isinstance(cause, OSError) and (
                is_full(cause) or is_out_of_descriptors(cause)
            )
            if pause is None or not (may_pass and self.is_open):
                raise StorageError(f"{self.directory} cannot be cut: {outcome}") from outcome
            if not self._files.room.is_missed(cause):
                logger.warning("%s is not cut yet: %s", self.directory, outcome)
            await pause()

    def note_cut(self, left: int, position: int, end_offset: int) -> None:
        """Note that `left` segments are left, the last of which ends at `position` and `end_offset`.

        Committed records that went with it come again from the leader (`is_incomplete`)."""
        self.is_uncommit_pending = False
        self._snapshots.go_back_to(end_offset)
        removed, self.segments = self.segments[left:], self.segments[:left]
        for segment in removed:
            segment.release()
        base = 0
        if self.segments:
            base = self.segments[-1].base_offset
            self.segments[-1] = self.segments[-1].cut_to(position, end_offset)
        if self.recovery_point_offset > end_offset:  # damage in front of the cut went, too
            self.recovery_point = RecoveryPoint(base, base, 0)
        self._note_bounds()
        self.epoch_starts.cut(end_offset)
        self._new_names = True
        if end_offset < self.high_watermark:
            logger.error("%s: lost committed records from offset %d on", self.name, end_offset)
            self.high_watermark, self.is_incomplete = end_offset, True

    # -- flush --------------------------------------------------------------------------------------

    @property
    def dirty(self) -> bool:
        """Return whether a flush would do something."""
        if not self.is_open or self.failed is not None or not self.segments:
            return False
        if self._new_names or self._snapshots.is_wanted:
            return True
        return self.epoch_starts.changed or bool(self._dirty_segments())

    def _dirty_segments(self) -> list[Segment]:
        """Return what is not flushed yet: segments at the end, at most with an empty one behind."""
        end = len(self.segments)
        if end and not self.segments[-1].size:
            end -= 1
        first = end
        while first and self.segments[first - 1].dirty:
            first -= 1
        return self.segments[first:end]

    async def flush_some(self, *, snapshot: bool = False) -> float | None:
        """Within an operation of `queue`: flush SEGMENTS_AT_ONCE at most, with a snapshot of producers if
        one is due or asked for → the seconds that it took; None: there was nothing to flush.

        Raises ClosedError, StorageError; DiskFailed: the log has failed.
        """
        self.require_writable()
        if not (self.dirty or (snapshot and self.segments)):
            return None
        dirty = self._dirty_segments()
        some = [(each, each.size) for each in dirty[:SEGMENTS_AT_ONCE]]
        last = self.segments[-1] if len(some) == len(dirty) else some[-1][0]
        point = RecoveryPoint(last.end_offset, last.base_offset, last.size)
        offset, stale = self.log_end, list[int]()
        snapshot_files: _Snapshot | None = None
        if last is self.segments[-1] and (snapshot or self._snapshots.is_due(last.base_offset)):
            stale = self._snapshots.stale(offset, self.high_watermark)
            files = [self._snapshots.path(each) for each in (offset, *stale)]
            snapshot_files = files[0], self.producers().encode(), files[1:]
        has_names = self._new_names or self.epoch_starts.changed
        descriptors: list[int] = []
        try:
            for segment, _ in some:
                descriptors.append(segment.descriptor_to_flush())
            if has_names:
                descriptors.append(_open_directory(self.directory))
        except StorageError:
            for fd in descriptors:
                os.close(fd)
            raise
        epoch_starts = self.epoch_starts.encode() if self.epoch_starts.changed else None
        if snapshot_files is not None:
            self._snapshots.appended_batches = 0
        self._new_names = False
        names = descriptors[-1] if has_names else None
        work = partial(
            put_on_disk, self.directory, descriptors, names, epoch_starts, snapshot_files
        )
        try:
            result = await self.queue.job(work)
        except OSError as error:
            self.fail(f"it could not be flushed: {error}", readable=self.is_open)
            why = error.strerror or error
            raise DiskFailed(f"{self.directory} could not be flushed: {why}") from error
        self.epoch_starts.changed |= not result.epochs_saved
        if self.is_open:
            for segment, size in some:
                segment.note_flushed(size)
            self.recovery_point = point
            if snapshot_files is not None and result.note_error is None:
                self._snapshots.note_written(offset, stale)
        if result.note_error is not None and not self._files.room.is_missed(result.note_error):
            logger.warning(
                "%s: epochs or producers are not noted: %s", self.directory, result.note_error
            )
        return result.seconds

    async def flush_last(self) -> None:
        """Flush all that was appended, with a snapshot of all producers. Raises as `flush_some`."""
        await self.flush_some(snapshot=self._snapshots.newest != self.log_end)
        while self._dirty_segments():
            await self.flush_some(snapshot=True)

    # -- giving up records, and producers -----------------------------------------------------------

    def advance_log_start(self, offset: int) -> list[Path]:
        """Delete all records before `offset`, which is noted on disk; → files to be removed, in order."""
        if not self.is_open or offset <= self.deleted_before:
            return []
        self.deleted_before = offset
        self._note_bounds()
        self.high_watermark = max(self.high_watermark, offset)
        self.epoch_starts.forget_before(self.log_start)
        return self.delete_segments(0)

    async def begin_anew(self, offset: int, pause: Pause | None = None) -> None:
        """Within an operation of `queue`: delete everything and continue at `offset`, where the leader's
        log begins, which is not before this log's end.

        That start is on disk already (`save_log_start`, `anew`): a death leaves some of what was there,
        which the next start removes. The log has no segment then: the first batch makes it, which may begin
        before `offset`. As with a cut, what may pass is done again after a `pause`. Raises StorageError:
        the log is out of use.
        """
        self.require_writable()
        try:
            await self._job_of_cut(partial(delete_all, self.directory, offset), pause)
        except StorageError as error:
            if self.is_open:
                self.fail(f"it could not begin anew: {error}")
            raise
        self.release()
        self.segments = []
        self._snapshots = ProducerSnapshots(self.directory)
        self.epoch_starts.cut(0)
        self.deleted_before = self.high_watermark = offset
        self._note_bounds()
        self.recovery_point = None

    def delete_segments(self, count: int) -> list[Path]:
        """Drop the oldest `count` segments, and those before the log's start; → files to be removed.

        They are in order, so that a crash leaves the newer ones. Segments stay whose headers no snapshot
        of producers covers: the next flush takes one. If all go, a new one is begun, which keeps the
        offset.
        """
        if not self.is_open or not self.segments:
            return []
        count = max(count, bisect_right(self.segments, self.deleted_before, key=_base_offset) - 1)
        emptied = self.deleted_before == self.log_end and self.segments[-1].size > 0
        if emptied or count >= len(self.segments):
            try:
                if self.segments[-1].size:
                    self.roll()
            except StorageError as error:
                if not self._files.room.is_missed(error):
                    logger.warning("%s: the last segment stays for now: %s", self.directory, error)
            count = len(self.segments) - 1
        while count and not self.snapshot_covers(self.segments[count].base_offset):
            count -= 1
        dropped, self.segments = self.segments[:count], self.segments[count:]
        self._note_bounds()
        if dropped:
            logger.info(
                "%s: deleting %d segments, up to offset %d", self.directory, count, self.log_start
            )
        for segment in dropped:
            segment.release()
        return [path for segment in dropped for path in segment.files()]

    def replace_segments(self, old: Sequence[Segment], name: SegmentName, size: int) -> list[Path]:
        """Replace `old` segments by a compacted one, which is on disk; → their files."""
        first = self.segments.index(old[0])
        new = self._segment(name, size, name.end)
        self.segments[first : first + len(old)] = [new]
        for segment in old:
            segment.release()
        return [path for segment in old for path in segment.files()]

    def snapshot_covers(self, offset: int) -> bool:
        """Return whether a snapshot of producers replaces the headers before `offset`; the next flush
        takes one
        if not."""
        return self._snapshots.covers(offset, self.high_watermark)

    def expire_producers(self, now: float) -> None:
        """Forget producers that were idle for `producer_id_expiry`; `now` is monotonic."""
        if self._snapshots.state is not None:
            self._snapshots.state.expire(now, self.config.producer_id_expiry)

    def producers(self) -> ProducerState:
        """Return the state of producers as of the log's end. Raises StorageError."""
        while (job := self._producers_job()) is not None:
            job.finish(result_of(job.run))
        failure, self._snapshots.failure = self._snapshots.failure, None
        if failure is not None:
            raise failure
        state = self._snapshots.state
        assert state is not None
        return state

    def _producers_job(self) -> SharedJob | None:
        """Return the job that loads the state of producers; None: it is there, or could not be loaded."""
        known = self._snapshots
        if known.state is not None or known.failure is not None:
            return None
        end, begin = self.log_end, known.newest
        readers = self._readers(begin) if begin < end else []
        headers = partial(headers_from, readers, begin)
        return known.job(self.config.max_producers, headers)


_base_offset = attrgetter("base_offset")


def _open_directory(path: Path) -> int:
    """Return a descriptor for a flush's job to flush and close. Raises StorageError.

    The job opens nothing that it must flush: what fails there is a write that the disk has lost.
    """
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise disk_error(f"{path} cannot be opened", error) from error


def put_on_disk(
    directory: Path,
    descriptors: Sequence[int],
    names: int | None,
    epoch_starts: bytes | None,
    snapshot: _Snapshot | None,
) -> FlushResult:
    """Write where leader epochs begin, flush and close `descriptors` (`names` is the directory's), and
    write a snapshot of producers: a flush's job. A death in between leaves the log flushed and the
    older snapshot, or both snapshots. Raises OSError: the disk has lost a write.
    """
    began = time.monotonic()
    failure: OSError | None = None
    note_error: OSError | None = None
    try:
        if epoch_starts is not None:
            save_epoch_starts(directory, epoch_starts)
    except FileNotFoundError:
        pass  # the partition was deleted meanwhile
    except OSError as error:
        if is_full(error) or is_out_of_descriptors(error):
            note_error = error
        else:
            failure = error
    for fd in descriptors:
        try:
            if fd == names:
                os.fsync(fd)
            else:
                os.fdatasync(fd)
        except OSError as error:
            failure = error
        finally:
            os.close(fd)
    if failure is not None:
        raise failure
    epochs_saved = note_error is None
    if snapshot is not None and epochs_saved:
        try:
            path, content, stale = snapshot
            write_checked(path, content)
            for each in stale:
                each.unlink(missing_ok=True)
        except OSError as error:
            note_error = error
    return FlushResult(time.monotonic() - began, note_error, epochs_saved)


def delete_all(directory: Path, log_start: int) -> None:
    """Delete what a log has that begins anew at `log_start`, and note that. Raises OSError."""
    _delete(directory, (LOG_SUFFIX, INDEX_SUFFIX, SNAPSHOT_SUFFIX))
    sync_directory(directory)
    save_log_start(directory, log_start)


def _delete(directory: Path, suffixes: Sequence[str]) -> None:
    for path in sorted(
        directory.iterdir()
    ):  # the last segment last: without it a cut is not done again
        if path.suffix in suffixes:
            path.unlink(missing_ok=True)


def cut_files(
    directory: Path,
    last: SegmentReader | None,
    offset: int,
    doomed: Sequence[Path],
    snapshots: Sequence[tuple[int, Path]],
    *,
    log_start: int,
    high_watermark: int,
    forgets_compaction: bool,
    is_mapped: bool,
) -> tuple[int | None, int, bool]:
    """Cut `last` in front of the batch that holds `offset`; None: remove all, the log's start, too.

    → where the last file and the log end, and whether compaction is forgotten. No file is left, and no
    position, if nothing is left behind the log's start: the batch that comes next may begin before it.
    Damage in front of the cut goes as well, noted first. `last` gets the name that it is appended to
    by. After an exception it may be done again. Raises StorageError, OSError.
    """
    position: int | None = None
    end = 0 if last is None else log_start
    # Without any segment it is done again.
    if last is not None and any(path.suffix == LOG_SUFFIX for path in directory.iterdir()):
        position, end = last.end_before(offset)
        if end < log_start:
            position, end = None, log_start
        forgets_compaction |= end < offset
    if end < high_watermark:
        note_incomplete(directory)
    if last is None:
        save_log_start(directory, 0)
    if forgets_compaction:
        (directory / CLEANER_CHECKPOINT_FILE).unlink(missing_ok=True)
    ahead = [path for each, path in snapshots if each > end]
    for path in (*doomed, *ahead):
        path.unlink(missing_ok=True)
    if position is None:
        _delete(directory, (LOG_SUFFIX, INDEX_SUFFIX))
    elif last is not None:
        last.name = open_again(directory, last.name)
    # On disk before anything is appended, which files that come back would follow.
    sync_directory(directory)
    if position is not None and last is not None:
        shorten(last.path, position, is_mapped=is_mapped)
    return position, end, forgets_compaction


def check_produced(data: _Bytes, max_batch_bytes: int) -> BatchHeader:
    """Return the header of a producer's batch if it may be appended.

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
    if header.attributes & CODEC_BITS not in _KNOWN_CODECS:
        raise UnsupportedCodec(f"codec number {header.codec} is not known here")
    return header
