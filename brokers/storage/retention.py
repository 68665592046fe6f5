"""Deleting old segments, and records before an offset that a client has named."""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from folkmoot.brokers.jobs.jobs import Lane, Now, Submit
from folkmoot.brokers.storage.files.atomic_file import disk_error
from folkmoot.brokers.storage.flusher import Flusher
from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.log_manager import LogManager
from folkmoot.brokers.storage.recovery import save_log_start
from folkmoot.brokers.storage.segment import Segment, SummaryJob
from folkmoot.brokers.storage.segment_index import Summary
from folkmoot.coordination.topic_config import LogConfig
from folkmoot.protocol.errors import (
    FolkmootError,
    Overloaded,
    StorageError,
    UnknownTopicOrPartition,
)

logger = logging.getLogger(__name__)

RETENTION_INTERVAL: Final = 60.0
LOGS_AT_ONCE: Final = 10
MOST_WAITING: Final = 50_000
_MORE = 0.01

Callback = Callable[[FolkmootError | None], None]


def last_append(segments: Sequence[Segment], now: int) -> int | None:
    """When the first of these neighbours was last appended to, in ms; None: not known.

    A time after `now` is from a clock that was ahead. Then the next segment's first append counts, which
    was later. A segment that compaction has emptied has the time of the next.
    """
    for number, segment in enumerate(segments):
        summary = segment.summary
        if summary is None:
            return None
        if number and summary.first_append is not None and summary.first_append <= now:
            return summary.first_append
        if summary.last_append is not None and summary.last_append <= now:
            return summary.last_append
    return None


def count_expired(segments: Sequence[Segment], config: LogConfig, now: int) -> int:
    """How many of the oldest segments are older than `retention`, or surplus to `retention_bytes`.

    Age counts from the append: the timestamps of old flights lie far back on the day when they are
    written. The active segment is never surplus.
    """
    if not config.deletes:
        return 0
    excess = 0
    if config.retention_bytes is not None:
        excess = sum(segment.size for segment in segments) - config.retention_bytes
    for number, segment in enumerate(segments):
        surplus = segment.size <= excess and excess > 0 and segment is not segments[-1]
        if not surplus and not _is_older(segments[number:], config.retention, now):
            return number
        excess -= segment.size
    return len(segments)


def _is_older(segments: Sequence[Segment], retention: float | None, now: int) -> bool:
    ended = last_append(segments, now)
    if retention is None or ended is None or ended > now - retention * 1000:
        return False
    # After a clock went back and forth a segment may seem to have ended before it began.
    summary = segments[0].summary
    began = None if summary is None else summary.first_append
    return began is None or not now - retention * 1000 < began <= now


class Retention:
    """Goes through all logs every RETENTION_INTERVAL, some at a time, and deletes records on request.

    It also forgets producers that were idle for long, and reads the summaries of segments that are not in
    memory (times of appends) in the background. A log whose topic's options are not known yet keeps all.

    Crash story of `delete_records`: (1) the log is flushed, with a snapshot of the producers in what is
    deleted; (2) the new log start is noted on disk; (3) it moves in memory, and segments before it are
    removed. Before 2 nothing has happened. After 2 the records are gone, answered or not, and a later round
    removes segments that are left.

    Owner: the event loop.
    """

    def __init__(self, logs: LogManager, flusher: Flusher, submit: Submit) -> None:
        self._logs = logs
        self._flusher = flusher
        self._submit = submit
        self._logs_to_check: deque[Log] = deque()
        self._expiring: set[Log] = set()
        """Logs whose queues have an operation of a round."""
        self._reading = False
        self._count = 0
        """How many deletions of records are under way."""

    # -- by age and size ----------------------------------------------------------------------------

    def task(self, now: Now) -> float:
        """Look after some logs; → seconds until the next call."""
        now = self._logs.passed_time.at(now)
        if self._reading:
            return _MORE
        if not self._logs_to_check:
            self._logs_to_check.extend(self._logs)
        some = [
            self._logs_to_check.popleft()
            for _ in range(min(LOGS_AT_ONCE, len(self._logs_to_check)))
        ]
        unread = [segment for log in some for segment in log.segments if segment.summary is None]
        if not unread:
            self._expire(some, now)
            return _MORE if self._logs_to_check else RETENTION_INTERVAL
        job = SummaryJob(unread)

        def read(outcome: list[Summary | None] | Exception) -> None:
            job.finish(outcome)
            self._reading = False
            self._expire(some, now)

        self._reading = True
        self._submit(Lane.READ, job.run, read)
        return _MORE

    def _expire(self, logs: Iterable[Log], now: Now) -> None:
        for log in logs:
            if log not in self._expiring:  # that of an earlier round may wait for a slow disk
                self._expiring.add(log)
                log.queue.add(self._expire_log(log, now))

    async def _expire_log(self, log: Log, now: Now) -> None:
        """Delete segments that are known to be old, and those that a deletion of records has left."""
        self._expiring.discard(log)
        if log.configured and log.is_open:
            log.expire_producers(now.monotonic)
            files = log.delete_segments(_count_deletable(log, now))
            if log.dirty:
                self._logs.dirty[log] = None  # the rest goes when a snapshot is on disk
            await self._logs.remove(log, files)

    # -- by offset ----------------------------------------------------------------------------------

    def delete_records(self, log: Log, offset: int, callback: Callback) -> None:
        """Delete all records of `log` before `offset`, which is at most its end.

        `callback` is called once, with the error, if any. Raises Overloaded.
        """
        if offset <= log.deleted_before:  # not `log_start`: a crash may set that back
            callback(None)
            return
        if self._count >= MOST_WAITING:
            raise Overloaded("too many partitions wait for records to be deleted: retry later")
        self._count += 1
        log.queue.add(self._delete(log, offset, callback))

    async def _delete(self, log: Log, offset: int, callback: Callback) -> None:
        failure: FolkmootError | None = None
        try:
            await self.delete_before(log, offset)
        except FolkmootError as error:
            failure = error if log.is_open else _why_closed(log)
        self._count -= 1
        callback(failure)

    async def delete_before(self, log: Log, offset: int) -> None:
        """Within an operation on the log: delete its records before `offset`, durably.

        Raises StorageError, DiskFull, UnknownTopicOrPartition.
        """
        if offset <= log.deleted_before:
            return
        try:
            if offset == log.log_end and log.is_open and log.segments[-1].size:
                log.roll()  # so that the segments before can go
        except StorageError as error:
            if not self._logs.room.is_missed(error):
                logger.warning("%s: the last segment stays for now: %s", log.name, error)
        log.snapshot_covers(offset)
        await self._flusher.put_on_disk(log)
        try:
            await log.queue.job(partial(save_log_start, log.directory, offset))
        except OSError as error:
            raise disk_error(f"{log.directory}: nothing was deleted", error) from error
        if not log.is_open:
            raise _why_closed(log)
        self._logs.remove_later(log, log.advance_log_start(offset))


def _count_deletable(log: Log, now: Now) -> int:
    """How many segments of a log may go: committed ones, where the leader decides."""
    count = count_expired(log.segments, log.config, now.wall) if log.is_led else 0
    while count and log.segments[count - 1].end_offset > log.high_watermark:
        count -= 1
    return count


def _why_closed(log: Log) -> FolkmootError:
    if log.failed is not None:
        return StorageError(log.failed)
    return UnknownTopicOrPartition(f"{log.name} was deleted meanwhile")
