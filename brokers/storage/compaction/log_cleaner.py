"""Compaction: which log is next, and taking over what the background has written."""

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from folkmoot.brokers.jobs.jobs import Lane, Now, Submit
from folkmoot.brokers.storage.compaction.cleaning_pass import (
    CleanedSegment,
    CleanerCheckpoint,
    CleaningPass,
    CorruptSegment,
    Pause,
    load_checkpoint,
)
from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.log_manager import LogManager
from folkmoot.brokers.storage.recovery import (
    CLEANER_CHECKPOINT_FILE,
    load_compacted_for,
    note_compacted_for,
)
from folkmoot.brokers.storage.retention import last_append, unread_segments
from folkmoot.brokers.storage.segment import Segment, SegmentName, SummaryJob
from folkmoot.brokers.storage.segment_index import Summary
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
    """Keeps the last record of each key in logs that ask for it (`cleanup_policy`).

    Every COMPACTION_INTERVAL all logs are looked at, some at a time, and the one with the largest
    part not compacted yet is taken, if that is `min_cleanable_dirty_ratio` of it or older than
    `max_compaction_lag`, or if tombstones have had their time. One pass after another.

    Only what can never change or be lost is touched: sealed segments before the one that the noted
    recovery point names, if a record is there. So an unclean start never looks into a compacted
    segment, and behind every gap there is a record. Damaged segments stay as they are.

    The background does the work, one job for each new segment (CleaningPass); the event loop takes the
    segment over (segment_swap) if those it was made from are all still there: what deleted one
    meanwhile wins.

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
        self._submit = submit
        self._pause = pause
        self._memory_bytes = memory_bytes
        self._bytes_per_second = bytes_per_second
        self._now = Now(0.0, 0)
        self._round: deque[Log] = deque()
        self._best: tuple[float, Log] | None = None
        self._busy = False
        self._retry_at: dict[Log, float] = {}
        self.checkpoints: dict[Log, CleanerCheckpoint] = {}
        """How far each log is compacted, of those that ask for it."""

    def task(self, now: Now) -> float:
        """Look at some logs, or begin a pass; → when to be called again."""
        self._now = self._logs.passed_time.at(now)
        if self._busy:
            return _BUSY
        if not self._round:
            self._begin_round()
        some = [self._round.popleft() for _ in range(min(LOGS_AT_ONCE, len(self._round)))]
        some = [log for log in some if self._is_due(log)]
        new = [log for log in some if log not in self.checkpoints or unread_segments(log)]
        if new:
            self._busy = True
            summaries = SummaryJob(each for log in new for each in unread_segments(log))
            work = partial(_load_all, [log.directory for log in new], summaries)
            self._submit(Lane.COMPACTION, work, partial(self._loaded, some, new, summaries))
        else:
            self._look(some)
        if self._busy or self._round:
            return _MORE
        if self._best is None:
            return COMPACTION_INTERVAL
        self._begin(self._best[1])
        return _MORE

    # -- which log ----------------------------------------------------------------------------------

    def _begin_round(self) -> None:
        self._best = None
        self._round.extend(self._logs)
        for known in (self.checkpoints, self._retry_at):
            for gone in [log for log in known if not log.is_open]:
                del known[gone]
        for log, checkpoint in list(self.checkpoints.items()):
            if log.forgets_compaction or any(not _stays(log, each) for each in checkpoint.damaged):
                log.forgets_compaction = False
                del self.checkpoints[log]

    def _is_due(self, log: Log) -> bool:
        asks_for_it = log.configured and log.config.compacts and log.is_open
        return asks_for_it and self._retry_at.get(log, 0.0) <= self._now.monotonic

    def _loaded(
        self,
        some: list[Log],
        new: list[Log],
        summaries: SummaryJob,
        outcome: tuple[list[CleanerCheckpoint | None], list[Summary | None]] | Exception,
    ) -> None:
        """What could not be read is left for a while, and nobody else waits for it."""
        self._busy = False
        checkpoints: list[CleanerCheckpoint | None] = [None] * len(new)
        if isinstance(outcome, Exception):
            summaries.finish(outcome)
        else:
            checkpoints, found = outcome
            summaries.finish(found)
        for log, checkpoint in zip(new, checkpoints, strict=True):
            if checkpoint is not None:
                self.checkpoints.setdefault(log, checkpoint)
            if checkpoint is None or unread_segments(log):
                self._retry_at[log] = self._now.monotonic + RETRY_PAUSE
        self._look(log for log in some if log in self.checkpoints)

    def _look(self, logs: Iterable[Log]) -> None:
        """Whether one of these is more in need of it than what was found before."""
        for log in logs:
            ratio = self._dirty_ratio(log) if log.is_open else None
            if ratio is not None and (self._best is None or ratio > self._best[0]):
                self._best = ratio, log

    def _cleanable(self, log: Log) -> list[Segment]:
        """The segments of a log that may be compacted, the oldest first.

        They lie before the one that the noted recovery point names, which has a record: so they are
        sealed and on disk, no unclean start looks into them, and behind what compaction removes a
        record is left. What they tell of producers is in a snapshot on disk. They end where
        `min_compaction_lag` begins. What is not committed may still be cut, and stays as it is.
        """
        point = self._logs.noted.recovery_points.get(log.directory.name)
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
        """How much a log is in need of compaction; None: not at all.

        As a rule the part of its bytes that was not gone through yet, if the log's options find that
        enough; more if records have waited for too long; least if there are only tombstones to drop.
        """
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

    def _begin(self, log: Log) -> None:
        self._best = None
        if not log.queue.is_idle or self._logs.is_removing(log):
            return  # what an earlier pass has left is removed first: it may have the same names
        if log.forgets_compaction:
            return  # the next round begins with what is noted since
        config, checkpoint = log.config, self.checkpoints[log]
        segments = {each.base_offset: each for each in self._cleanable(log)}
        work = CleaningPass(
            directory=log.directory,
            checkpoint=checkpoint,
            sources=[each.reader() for each in segments.values()],
            segment_bytes=config.segment_bytes,
            droppable_before=checkpoint.droppable_before(config.delete_retention, self._now.wall),
            index_interval_bytes=config.index_interval_bytes,
            memory_bytes=self._memory_bytes,
            bytes_per_second=self._bytes_per_second,
            pause=self._pause,
        )
        logger.info("%s: compacting %d segments", log.name, len(segments))
        self._busy = True
        self._next_step(log, segments, work)

    def _next_step(self, log: Log, segments: dict[int, Segment], work: CleaningPass) -> None:
        step = partial(work.step, self._now.wall)
        self._submit(Lane.COMPACTION, step, partial(self._take, log, segments, work))

    async def _put_in_place(
        self, log: Log, segments: dict[int, Segment], work: CleaningPass, new: CleanedSegment
    ) -> None:
        """Within an operation of the log: have it take over a new segment (segment_swap)."""
        name, doomed = new.name, files_of(log.directory, new.name)
        old = [each for base, each in segments.items() if name.base <= base < name.end]
        is_taken = False
        try:
            if not log.forgets_compaction and _are_there(log, old):
                end = log.log_end if log.is_compacted else None
                await log.queue.job(partial(_commit, log.directory, name, work.clean_before, end))
                is_taken = _are_there(log, old)
        except (OSError, FolkmootError) as error:
            self._give_up(log, segments, error)
        if is_taken:
            doomed = log.replace_segments(old, name, new.size)
            self._next_step(log, segments, work)
        else:  # what was to be replaced has changed: begin again another time
            self._busy = False
        await self._logs.remove(log, doomed)

    def _take(
        self,
        log: Log,
        segments: dict[int, Segment],
        work: CleaningPass,
        outcome: CleanedSegment | CleanerCheckpoint | Exception,
    ) -> None:
        match outcome:
            case CleanedSegment():
                log.queue.add(self._put_in_place(log, segments, work, outcome))
                return
            case CleanerCheckpoint() if log.forgets_compaction or log.is_being_cut:
                log.queue.add(self._logs.remove(log, [log.directory / CLEANER_CHECKPOINT_FILE]))
            case CleanerCheckpoint():
                self.checkpoints[log] = outcome
                logger.info("%s: compacted up to offset %d", log.name, outcome.clean_before)
            case CorruptSegment():
                segment = segments[outcome.base_offset]
                if log.sealed(outcome.base_offset) is segment:
                    segment.mark(outcome.damage)
            case Exception():
                self._give_up(log, segments, outcome)
        self._busy = False

    def _give_up(self, log: Log, segments: dict[int, Segment], error: Exception) -> None:
        """Try again later."""
        # Else something was deleted meanwhile, or the broker is stopping.
        is_told = isinstance(error, ClosedError) or self._logs.room.is_missed(error)
        if _are_there(log, segments.values()) and not is_told:
            logger.error("%s: not compacted: %s", log.name, error)
        self._retry_at[log] = self._now.monotonic + RETRY_PAUSE


def _stays(log: Log, base_offset: int) -> bool:
    """Whether the segment there is damaged still."""
    segment = log.sealed(base_offset)
    return segment is not None and bool(segment.damage)


def _are_there(log: Log, segments: Iterable[Segment]) -> bool:
    return all(log.sealed(each.base_offset) is each and not each.damage for each in segments)


def _commit(directory: Path, name: SegmentName, clean_before: int, end: int | None) -> None:
    """Put a new segment in place, once it is noted for which records others were dropped.

    `end` is the log's if earlier passes have dropped some, too; where it is not known for which, none of
    those lies behind it. A death in between leaves a note that is too high. Raises OSError.
    """
    noted = None if end is None else load_compacted_for(directory)
    wanted = max(clean_before, noted if noted is not None else end or 0)
    if wanted != noted:
        note_compacted_for(directory, wanted)
    commit(directory, name)


def _load_all(
    directories: Sequence[Path], summaries: SummaryJob
) -> tuple[list[CleanerCheckpoint | None], list[Summary | None]]:
    """The background's part of a look at some logs."""
    return [_load(directory) for directory in directories], summaries.run()


def _load(directory: Path) -> CleanerCheckpoint | None:
    try:
        return load_checkpoint(directory)
    except OSError as error:
        logger.error("%s: how far it is compacted cannot be read: %s", directory, error)
        return None
