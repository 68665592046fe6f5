"""Compaction: which log is next, and how a log takes over what the background has written."""

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from folkmoot.brokers.jobs.jobs import Lane, Now, Submit
from folkmoot.brokers.jobs.serial_queue import SerialQueue
from folkmoot.brokers.storage.compaction.cleaning_pass import (
    CleanedSegment,
    CleanerCheckpoint,
    CleaningPass,
    CorruptSegment,
    Pause,
    load_checkpoint,
)
from folkmoot.brokers.storage.files.atomic_file import save_json
from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.log_manager import LogManager
from folkmoot.brokers.storage.recovery import (
    CLEANER_CHECKPOINT_FILE,
    load_compacted_for,
    note_compacted_for,
)
from folkmoot.brokers.storage.retention import last_append
from folkmoot.brokers.storage.segment import Segment, SegmentName
from folkmoot.brokers.storage.segment_swap import commit, files_of
from folkmoot.protocol.errors import ClosedError, FolkmootError

logger = logging.getLogger(__name__)

COMPACTION_INTERVAL: Final = 15.0
LOGS_AT_ONCE: Final = 200
RETRY_PAUSE: Final = 600.0
OVERDUE: Final = 2.0
TOMBSTONES: Final = 0.0
_BUSY = 0.5
_MORE = 0.05


class LogCleaner:
    """Keeps the last record of each key in logs with the `cleanup_policy` compact.

    Every COMPACTION_INTERVAL it looks at all logs, some at a time, and compacts the one with the largest
    dirty ratio (the share of its bytes that no pass has seen). A log is due if that ratio is at least
    `min_cleanable_dirty_ratio`, if a record is older than `max_compaction_lag`, or if tombstones are old
    enough to be dropped. One pass runs at a time.

    It rewrites only what never changes or gets lost: sealed segments before the one of the noted recovery
    point, if that has a record. So an unclean start never checks a compacted segment, and a record follows
    each gap. Damaged segments stay as they are.

    A job writes each new segment (CleaningPass). Then an operation of the log puts it in place
    (segment_swap), if the segments that it was made from are all still there. If one was deleted
    meanwhile, the new segment is removed.

    Owner: the event loop.
    """

    def __init__(
        self,
        logs: LogManager,
        submit: Submit,
        pause: Pause,
        memory_bytes: int,
        bytes_per_second: int,
    ) -> None:
        self._logs = logs
        self._new_pass = partial(
            CleaningPass,
            memory_bytes=memory_bytes,
            bytes_per_second=bytes_per_second,
            pause=pause,
        )
        self._now = Now(0.0, 0)
        self._queue = SerialQueue(partial(submit, Lane.COMPACTION))
        self._logs_to_check: deque[Log] = deque()
        self._best: tuple[float, Log] | None = None
        self._retry_at: dict[Log, float] = {}
        self.checkpoints: dict[Log, CleanerCheckpoint] = {}
        """How far each log with this policy is compacted."""

    def task(self, now: Now) -> float:
        """Look at some logs, or begin a pass; → seconds until the next call."""
        self._now = self._logs.passed_time.at(now)
        if not self._queue.is_idle:
            return _BUSY
        if not self._logs_to_check:
            self._list_logs()
        some = [
            self._logs_to_check.popleft()
            for _ in range(min(LOGS_AT_ONCE, len(self._logs_to_check)))
        ]
        self._queue.add(self._look([log for log in some if self._is_due(log)]))
        if self._logs_to_check or not self._queue.is_idle:
            return _MORE
        if self._best is None:
            return COMPACTION_INTERVAL
        (_, log), self._best = self._best, None
        self._queue.add(self._compact(log))
        return _MORE

    # -- which log ----------------------------------------------------------------------------------

    def _list_logs(self) -> None:
        self._best = None
        self._logs_to_check.extend(self._logs)
        for known in (self.checkpoints, self._retry_at):
            for closed in [log for log in known if not log.is_open]:
                del known[closed]
        for log in [log for log in self.checkpoints if log.forgets_compaction]:
            log.forgets_compaction = False
            del self.checkpoints[log]

    def _is_due(self, log: Log) -> bool:
        asks_for_it = log.configured and log.config.compacts and log.is_open
        return asks_for_it and self._retry_at.get(log, 0.0) <= self._now.monotonic

    async def _look(self, logs: Sequence[Log]) -> None:
        """Find the log that needs compaction most: one of these, or the best so far."""
        new = [log for log in logs if log not in self.checkpoints]
        if new:
            found = await self._queue.job(partial(_load_all, [log.directory for log in new]))
            for log, checkpoint in zip(new, found, strict=True):
                if checkpoint is None:
                    self._retry_at[log] = self._now.monotonic + RETRY_PAUSE
                else:
                    self.checkpoints[log] = checkpoint
        for log in logs:
            is_known = log.is_open and log in self.checkpoints
            ratio = self._dirty_ratio(log) if is_known else None
            if ratio is not None and (self._best is None or ratio > self._best[0]):
                self._best = ratio, log

    def _cleanable(self, log: Log) -> list[Segment]:
        """The segments of a log that may be compacted, the oldest first (see the class).

        A snapshot on disk covers the producers in them. They end where `min_compaction_lag` begins, and
        at the high watermark.
        """
        point = self._logs.saved_notes.recovery_points.get(log.directory.name)
        if point is None or point.end_offset <= point.segment:
            return []
        if not log.snapshot_covers(point.segment):
            self._logs.dirty[log] = None  # the next flush takes one
            return []
        found: list[Segment] = []
        youngest = self._now.wall - log.config.min_compaction_lag * 1000
        sealed = log.sealed_segments
        for number, segment in enumerate(sealed):
            if segment.end_offset > min(point.segment, log.high_watermark):
                break
            dirty = segment.end_offset > self.checkpoints[log].clean_before
            if log.config.min_compaction_lag and dirty:
                ended = last_append(sealed[number:], self._now.wall)
                if ended is None or ended > youngest:
                    break
            found.append(segment)
        return found

    def _dirty_ratio(self, log: Log) -> float | None:
        """How much a log needs compaction: its dirty ratio, more if it is overdue, TOMBSTONES if it has
        only these to drop; None: not at all."""
        segments, now = self._cleanable(log), self._now.wall
        config, checkpoint = log.config, self.checkpoints[log]
        dirty = [each for each in segments if each.end_offset > checkpoint.clean_before]
        dirty_bytes = sum(segment.size for segment in dirty)
        if dirty_bytes:
            ratio = dirty_bytes / sum(segment.size for segment in segments)
            if config.max_compaction_lag is not None and dirty[0].summary is not None:
                began = dirty[0].summary.first_append
                if began is not None and abs(now - began) >= config.max_compaction_lag * 1000:
                    return OVERDUE + ratio
            if ratio >= config.min_cleanable_dirty_ratio:
                return ratio
        droppable = checkpoint.droppable_before(config.delete_retention, now)
        if segments and checkpoint.tombstones and droppable:
            return TOMBSTONES
        return None

    # -- a pass -------------------------------------------------------------------------------------

    async def _compact(self, log: Log) -> None:
        if not log.queue.is_idle or self._logs.is_removing(log):
            return  # files that an earlier pass has left are removed first: new ones may have their names
        if log.forgets_compaction:
            return  # the next round loads the checkpoint again
        config, checkpoint = log.config, self.checkpoints[log]
        segments = {each.base_offset: each for each in self._cleanable(log)}
        work = self._new_pass(
            directory=log.directory,
            config=config,
            checkpoint=checkpoint,
            sources=[each.reader() for each in segments.values()],
            droppable_before=checkpoint.droppable_before(config.delete_retention, self._now.wall),
        )
        logger.info("%s: compacting %d segments", log.name, len(segments))
        try:
            while True:
                new = await self._queue.job(partial(work.step, self._now.wall))
                if isinstance(new, CleanerCheckpoint):
                    await log.queue.run(self._note(log, new))
                    return
                name = new.name
                old = [each for base, each in segments.items() if name.base <= base < name.end]
                if not await log.queue.run(self._put_in_place(log, old, new, work.clean_before)):
                    return  # the old segments have changed: a later round begins again
        except CorruptSegment as error:
            segment = segments[error.base_offset]
            if log.find_sealed(error.base_offset) is segment:
                segment.mark(error.damage)
        except Exception as error:
            # Without a log line where records were deleted meanwhile, or the broker stops.
            is_known = isinstance(error, ClosedError) or self._logs.room.is_missed(error)
            if _are_there(log, segments.values()) and not is_known:
                logger.error("%s: not compacted: %s", log.name, error)
            self._retry_at[log] = self._now.monotonic + RETRY_PAUSE

    async def _put_in_place(
        self, log: Log, old: Sequence[Segment], new: CleanedSegment, clean_before: int
    ) -> bool:
        """Within an operation of the log: replace segments by a new one, if they are still there."""
        doomed, is_unchanged = files_of(log.directory, new.name), False
        try:
            if not log.forgets_compaction and _are_there(log, old):
                end = log.log_end if log.is_compacted else None
                await log.queue.job(partial(_commit, log.directory, new.name, clean_before, end))
                is_unchanged = _are_there(log, old)
            if is_unchanged:
                doomed = log.replace_segments(old, new.name, new.size)
        except (OSError, FolkmootError):
            await self._logs.remove(log, doomed)
            raise
        await self._logs.remove(log, doomed)
        return is_unchanged

    async def _note(self, log: Log, checkpoint: CleanerCheckpoint) -> None:
        """Within an operation of the log: note how far it is compacted, unless it was cut meanwhile."""
        if log.is_open and not log.forgets_compaction:
            path = log.directory / CLEANER_CHECKPOINT_FILE
            await log.queue.job(partial(save_json, path, checkpoint))
            self.checkpoints[log] = checkpoint
            logger.info("%s: compacted up to offset %d", log.name, checkpoint.clean_before)


def _are_there(log: Log, segments: Iterable[Segment]) -> bool:
    return all(log.find_sealed(each.base_offset) is each and not each.damage for each in segments)


def _commit(directory: Path, name: SegmentName, clean_before: int, end: int | None) -> None:
    """Put a new segment in place, once it is noted for which later records others were dropped.

    `end` is the log's if earlier passes have dropped some, too: without a note of these, it is assumed.
    A death in between leaves a note that is too high. Raises OSError.
    """
    known = None if end is None else load_compacted_for(directory)
    wanted = max(clean_before, known if known is not None else end or 0)
    if wanted != known:
        note_compacted_for(directory, wanted)
    commit(directory, name)


def _load_all(directories: Sequence[Path]) -> list[CleanerCheckpoint | None]:
    return [_load(directory) for directory in directories]


def _load(directory: Path) -> CleanerCheckpoint | None:
    try:
        return load_checkpoint(directory)
    except OSError as error:
        logger.error("%s: its checkpoint of compaction cannot be read: %s", directory, error)
        return None
