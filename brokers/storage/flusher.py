"""Flushing logs, for requests and from time to time, and noting how far they are on disk."""

import errno
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from folkmoot.brokers.jobs.jobs import Now, call_guarded
from folkmoot.brokers.jobs.serial_queue import Pending, SerialQueue
from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.log_manager import LogManager
from folkmoot.brokers.storage.notes import NOTES_FILE, save_notes
from folkmoot.protocol.errors import DiskFailed, FolkmootError
from folkmoot.protocol.histogram import Histogram

logger = logging.getLogger(__name__)

CHECKPOINT_INTERVAL: Final = 30.0
CHECKPOINT_BYTES: Final = 512 * 1024 * 1024
"""Appends of this size begin the next checkpoint earlier: a start checks about a gigabyte in a second."""

SHORTEST_INTERVAL: Final = 2.0
NOTE_AFTER: Final = 1.0
LOGS_AT_ONCE: Final = 32
"""The most logs of a checkpoint that are flushed side by side."""
FLUSHES_AT_ONCE: Final = 128
"""The most flushes under way: each holds a few descriptors."""

_TICK = 0.1
_BUSY = 0.02

Callback = Callable[[FolkmootError | None], None]
NotesCallback = Callable[[Exception | None], None]


class Flusher:
    """Puts logs on disk (group commit), and notes their recovery points.

    A flush is an operation in its log's queue, so a log has one flush at a time, and its outcome is always
    taken. The kernel reports an error once for all descriptors of an open file: a second flush beside it
    could succeed and prove nothing. A failed flush ends the log and, by `failed`, the broker, so that it
    acknowledges nothing more.

    Logs that a request waits for (`flush`) are flushed at once, others when their `flush_interval` is over.
    The next flush has what is appended while one is under way. Every CHECKPOINT_INTERVAL, or after
    CHECKPOINT_BYTES, a checkpoint flushes all others, LOGS_AT_ONCE side by side, and notes recovery points.
    These may be old, which costs the next start time, and are never ahead of the disk.

    Crash story: a death before the end of a flush leaves what the page cache kept. The next start checks it
    from the recovery point on; no waiting request was answered. After a death between flush and note the
    start checks more than it has to.

    Owner: the event loop.
    """

    def __init__(
        self, logs: LogManager, failed: Callable[[Exception], None] = lambda error: None
    ) -> None:
        self._logs = logs
        self.failed = failed
        """Ends the broker: what the disk holds is not known any more."""
        self.durations = Histogram()
        """Seconds of single flushes."""
        self._waiting: dict[Log, dict[Callback, None]] = {}
        """Callbacks of the next flush of each log."""
        self._due: dict[Log, float] = {}
        """When to flush logs with a `flush_interval`."""
        self._running = 0
        self._waiting_flushes: deque[Pending[None]] = deque()
        """Flushes that wait until fewer are under way."""
        self._is_resuming = False
        self._notes = SerialQueue(logs.run_note)
        self._note_callbacks: list[NotesCallback] = []
        """Callbacks of the next write of the notes."""
        self._next_note = 0.0
        self._checkpoint_logs: deque[Log] | None = None
        self._checkpoint_flushes = 0
        self._next_checkpoint = self._soonest = self._next_relief = 0.0
        self.appended_bytes = self._appended_before = 0

    def note_appended(self, log: Log, size: int, now: Now) -> None:
        """`size` bytes were appended to a log."""
        self.appended_bytes += size
        self._logs.dirty[log] = None
        interval = log.config.flush_interval
        if interval is not None and log not in self._due:
            # A checkpoint comes before a longer one, which would stay when the topic asks for less.
            self._due[log] = now.monotonic + min(interval, CHECKPOINT_INTERVAL)

    def flush(self, log: Log, callback: Callback = lambda error: None) -> None:
        """Put on disk what the log has now, then call `callback` with the error, if any.

        The same `callback` is called once, however often it is passed until then."""
        waiting = self._waiting.get(log)
        if waiting is None:
            self._waiting[log] = {callback: None}
            log.queue.add(self._flush(log))
        else:
            waiting[callback] = None

    def task(self, now: Now) -> float:
        """Begin the flushes that are due; → seconds until the next call."""
        logs = self._logs
        due = [log for log, time in self._due.items() if time <= now.monotonic]
        for log in due[:LOGS_AT_ONCE]:
            del self._due[log]
            self.flush(log)
        if logs.files.is_crowded and now.monotonic >= self._next_relief:
            self._next_relief = now.monotonic + SHORTEST_INTERVAL
            for log in list(logs.dirty):
                self.flush(log)
        has_news = logs.has_stale_points or logs.notes.ids != logs.saved_notes.ids
        if has_news and now.monotonic >= self._next_note:
            self._next_note = now.monotonic + NOTE_AFTER
            self.note()
        if self._checkpoint_logs is not None:
            self._continue_checkpoint(self._checkpoint_logs)
        elif now.monotonic >= self._next_checkpoint or (
            # A start would take long to check what came since the last checkpoint.
            now.monotonic >= self._soonest
            and self.appended_bytes - self._appended_before >= CHECKPOINT_BYTES
        ):
            self._next_checkpoint = now.monotonic + CHECKPOINT_INTERVAL
            self._soonest = now.monotonic + SHORTEST_INTERVAL
            self._appended_before = self.appended_bytes
            self._checkpoint_logs = deque(logs.dirty)
        return _TICK if self._checkpoint_logs is None else _BUSY

    def _continue_checkpoint(self, left: deque[Log]) -> None:
        """Flush the next logs of a checkpoint; after the last of them note the recovery points."""

        def flushed(error: FolkmootError | None) -> None:
            self._checkpoint_flushes -= 1

        while left and self._checkpoint_flushes < LOGS_AT_ONCE:
            self._checkpoint_flushes += 1
            self.flush(left.popleft(), flushed)
        if not (left or self._checkpoint_flushes):
            self._checkpoint_logs = None
            if self._logs.notes != self._logs.saved_notes:
                self.note()

    # -- flushing -----------------------------------------------------------------------------------

    async def _flush(self, log: Log) -> None:
        waiting = self._waiting.pop(log)  # later callbacks belong to the next flush
        failure: FolkmootError | None = None
        try:
            await self.put_on_disk(log)
        except FolkmootError as error:
            failure = error
            if log.is_open and log.failed is None:
                if not self._logs.room.is_missed(error):
                    logger.warning("%s: not flushed: %s", log.name, error)
                self._logs.dirty[log] = None
        for callback in waiting:
            call_guarded(log.name, callback, failure)

    async def put_on_disk(self, log: Log) -> None:
        """Within an operation on the log: return when all that it has now is on disk.

        Raises ClosedError, DiskFailed, DiskFull, StorageError.
        """
        end = log.log_end
        self._logs.dirty.pop(log, None)
        while log.recovery_point_offset < end or log.dirty:
            log.require_writable()
            if self._running >= FLUSHES_AT_ONCE:
                slot: Pending[None] = Pending()
                self._waiting_flushes.append(slot)
                await slot
            self._running += 1
            try:
                seconds = await log.flush_some()
            except DiskFailed as error:
                self.disk_failed(error)
                raise
            finally:
                self._running -= 1
                self._resume_waiting()
            if seconds is None:
                return
            self.durations.observe(seconds)
            if log.is_open:
                if (point := log.point_to_note) is not None:
                    self._logs.notes.recovery_points[log.directory.name] = point
                if log.dirty:
                    self._logs.dirty[log] = None
            if log.recovery_point_offset >= end:
                return

    def _resume_waiting(self) -> None:
        """Resume flushes that wait. One that ends within this call starts none itself: else
        many logs of a deleted topic would nest until the stack is full."""
        if self._is_resuming:
            return
        self._is_resuming = True
        while self._waiting_flushes and self._running < FLUSHES_AT_ONCE:
            call_guarded("a flush that waits", self._waiting_flushes.popleft().finish, None)
        self._is_resuming = False

    def disk_failed(self, error: FolkmootError) -> None:
        """End the broker: the kernel may have dropped what it could not write, of any log."""
        self._logs.distrust()
        self.failed(error)

    # -- notes --------------------------------------------------------------------------------------

    def note(self, callback: NotesCallback = lambda outcome: None) -> None:
        """Put the notes on disk as they are now, then call `callback` with the error, if any.

        Calls during a write share the next one.
        """
        self._note_callbacks.append(callback)
        if self._notes.is_idle:
            self._notes.add(self._write_all_notes())

    async def _write_all_notes(self) -> None:
        while self._note_callbacks:
            await self._write_notes()

    async def _write_notes(self) -> None:
        logs, waiting, self._note_callbacks = self._logs, self._note_callbacks, []
        notes = logs.notes.copy()
        outcome = await self._notes.outcome_of(partial(save_notes, logs.data, notes))
        error = outcome if isinstance(outcome, Exception) else None
        if error is None:
            call_guarded(NOTES_FILE, logs.set_saved_notes, notes)
        elif not logs.room.is_missed(error):
            logger.error("%s: %s could not be written: %s", logs.data, NOTES_FILE, error)
        for callback in waiting:
            call_guarded(NOTES_FILE, callback, error)
        if isinstance(error, OSError) and error.errno in (errno.EIO, errno.EROFS):
            self.disk_failed(DiskFailed(f"{NOTES_FILE} could not be written: {error}"))
