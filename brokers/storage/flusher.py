"""Flushing logs: when somebody waits for it, from time to time, and noting how far they are on disk."""

import errno
import heapq
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from folkmoot.brokers.jobs.jobs import Now, call_guarded
from folkmoot.brokers.jobs.serial_queue import Pending
from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.log_manager import LogManager
from folkmoot.brokers.storage.notes import NOTES_FILE, Notes, save_notes
from folkmoot.protocol.errors import DiskFailed, FolkmootError
from folkmoot.protocol.histogram import Histogram

logger = logging.getLogger(__name__)

CHECKPOINT_INTERVAL: Final = 30.0
CHECKPOINT_BYTES: Final = 512 * 1024 * 1024
"""After so much the next round begins earlier: a start checks about a gigabyte in a second."""

SHORTEST_INTERVAL: Final = 2.0
NOTE_AFTER: Final = 1.0
LOGS_AT_ONCE: Final = 32
"""So many of a round are flushed side by side."""
FLUSHES_AT_ONCE: Final = 128
"""Each has a few descriptors open that its job closes."""

_TICK = 0.1
_BUSY = 0.02

Done = Callable[[FolkmootError | None], None]
Noted = Callable[[Exception | None], None]


class Flusher:
    """The one that puts logs on disk (group commit), and notes their recovery points.

    A flush is an operation in its log's queue, so a log has one flush at a time, and its outcome is
    always taken: the kernel reports an error once for all descriptors of an open file. A second flush
    beside it could succeed and prove nothing. A failed flush ends the log and, by `failed`, the broker:
    nothing is acknowledged behind it.

    Flushed at once are logs for which a request waits (`wait_for`, `flush`), and those whose
    `flush_interval` is over. What is appended while a flush is under way is in the next one. Every
    CHECKPOINT_INTERVAL, or after CHECKPOINT_BYTES, all others follow, LOGS_AT_ONCE side by side, and then
    their recovery points are noted. They may be old, which costs the next start time, and they are never
    ahead of the disk.

    Crash story: a death before a flush has ended leaves what the page cache kept, which the next start
    checks behind the recovery point; no request that waits was answered. A death between flush and note:
    the start checks more than it has to.

    Owner: the event loop.
    """

    def __init__(
        self, logs: LogManager, failed: Callable[[Exception], None] = lambda error: None
    ) -> None:
        self._logs = logs
        self.failed = failed
        """What the disk holds is not known any more: the broker ends."""
        self.durations = Histogram()
        """Of single flushes, in seconds."""
        self._waiting: dict[Log, dict[Done, None]] = {}
        self._timers: list[tuple[float, int, Log]] = []
        self._timed: set[Log] = set()
        self._under_way = 0
        self._unnoted: list[Noted] = []
        self._is_noting = False
        self._next_note = 0.0
        self._turns: deque[Pending[None]] = deque()
        self._is_giving_turns = False
        self._round: deque[Log] | None = None
        self._round_under_way = 0
        self._next_round = self._soonest = self._next_relief = 0.0
        self._appended_before = 0

    def appended(self, log: Log, size: int, now: Now) -> None:
        """So many bytes were just appended to a log."""
        self._logs.appended_bytes += size
        self._logs.dirty[log] = None
        interval = log.config.flush_interval
        if interval is not None:
            # A longer one comes to nothing, and would stay in force when the topic asks for less.
            self._flush_at(log, now.monotonic + min(interval, CHECKPOINT_INTERVAL))

    def flush(self, log: Log, done: Done = lambda error: None) -> None:
        """Put on disk what the log has now. `done` is called once for each flush that it waits for, with
        what went wrong if it did."""
        waiting = self._waiting.get(log)
        if waiting is None:
            self._waiting[log] = {done: None}
            log.queue.add(self._flush(log))
        else:
            waiting[done] = None

    def task(self, now: Now) -> float:
        """Begin the flushes that are due; → when to look again."""
        for _ in range(LOGS_AT_ONCE):
            if not self._timers or self._timers[0][0] > now.monotonic:
                break
            log = heapq.heappop(self._timers)[2]
            self._timed.discard(log)
            self.flush(log)
        if self._logs.files.is_crowded and now.monotonic >= self._next_relief:
            self._next_relief = now.monotonic + SHORTEST_INTERVAL
            for log in list(self._logs.dirty):
                self.flush(log)
        logs = self._logs
        has_news = logs.has_stale_points or logs.notes.ids != logs.noted.ids
        if has_news and now.monotonic >= self._next_note:
            self._next_note = now.monotonic + NOTE_AFTER
            self.note()
        if self._round is not None:
            self._go_round(self._round)
        elif now.monotonic >= self._next_round or self._is_much(now):
            self._next_round = now.monotonic + CHECKPOINT_INTERVAL
            self._soonest = now.monotonic + SHORTEST_INTERVAL
            self._appended_before = self._logs.appended_bytes
            self._round = deque(self._logs.dirty)
        return _TICK if self._round is None else _BUSY

    def _is_much(self, now: Now) -> bool:
        """Whether so much has come since the last round that a start would take long to check it."""
        much = self._logs.appended_bytes - self._appended_before >= CHECKPOINT_BYTES
        return much and now.monotonic >= self._soonest

    def _go_round(self, left: deque[Log]) -> None:
        """Flush the next logs of a round; behind the last of them the recovery points are noted."""

        def flushed(error: FolkmootError | None) -> None:
            self._round_under_way -= 1

        while left and self._round_under_way < LOGS_AT_ONCE:
            self._round_under_way += 1
            self.flush(left.popleft(), flushed)
        if not (left or self._round_under_way):
            self._round = None
            if self._logs.notes != self._logs.noted:
                self.note()

    def _flush_at(self, log: Log, due: float) -> None:
        if log not in self._timed:
            self._timed.add(log)
            heapq.heappush(self._timers, (due, id(log), log))

    # -- flushing -----------------------------------------------------------------------------------

    async def _flush(self, log: Log) -> None:
        waiting = self._waiting.pop(log)  # those that come from here on are in the next one
        failure: FolkmootError | None = None
        try:
            await self.put_on_disk(log)
        except FolkmootError as error:
            failure = error
            if log.is_open and log.failed is None:
                if not self._logs.room.is_missed(error):
                    logger.warning("%s: not flushed: %s", log.name, error)
                self._logs.dirty[log] = None
        for done in waiting:
            call_guarded(log.name, done, failure)

    async def put_on_disk(self, log: Log) -> None:
        """Within an operation on the log: return when all that it has now is on disk.

        Raises what makes that impossible: ClosedError, DiskFailed, DiskFull, StorageError.
        """
        end = log.log_end
        self._logs.dirty.pop(log, None)
        while log.recovery_point_offset < end or log.dirty:
            log.require_writable()
            if self._under_way >= FLUSHES_AT_ONCE:
                turn: Pending[None] = Pending()
                self._turns.append(turn)
                await turn
            self._under_way += 1
            try:
                seconds = await log.flush_some()
            except DiskFailed as error:
                self.disk_failed(error)
                raise
            finally:
                self._under_way -= 1
                self._give_turns()
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

    def _give_turns(self) -> None:
        """Resume flushes that wait for their turn. One that ends within it gives none itself: with many
        logs of a deleted topic each would run within the one before, until the stack is full."""
        if self._is_giving_turns:
            return
        self._is_giving_turns = True
        while self._turns and self._under_way < FLUSHES_AT_ONCE:
            call_guarded("a flush that waits", self._turns.popleft().finish, None)
        self._is_giving_turns = False

    def disk_failed(self, error: FolkmootError) -> None:
        """The broker is to end: the kernel may have given up what it could not write, of any log."""
        self._logs.distrust()
        self.failed(error)

    # -- notes --------------------------------------------------------------------------------------

    def note(self, done: Noted = lambda outcome: None) -> None:
        """Put the notes on disk as they are now. `done` is called once, with what went wrong if it did.

        What is asked for while they are written is in the next write, which is one for all of it.
        """
        self._unnoted.append(done)
        if not self._is_noting:
            self._write_notes()

    def _write_notes(self) -> None:
        self._is_noting = True
        waiting, self._unnoted = self._unnoted, []
        notes = self._logs.notes.copy()
        work = partial(save_notes, self._logs.data, notes)
        self._logs.run_note(work, partial(self._noted, notes, waiting))

    def _noted(self, notes: Notes, waiting: list[Noted], outcome: Exception | None) -> None:
        if outcome is None:
            call_guarded(NOTES_FILE, self._logs.are_noted, notes)
        elif not self._logs.room.is_missed(outcome):
            logger.error("%s: %s could not be written: %s", self._logs.data, NOTES_FILE, outcome)
        for done in waiting:
            call_guarded(NOTES_FILE, done, outcome)
        self._is_noting = False
        if isinstance(outcome, OSError) and outcome.errno in (errno.EIO, errno.EROFS):
            self.disk_failed(DiskFailed(f"{NOTES_FILE} could not be written: {outcome}"))
        if self._unnoted:
            self._write_notes()
