"""Flushing logs: when somebody waits for it, from time to time, and noting how far they are on disk."""

import heapq
import logging
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Final

from folkmoot.brokers.storage.jobs import Now, Submit
from folkmoot.brokers.storage.log import FlushResult, FlushTask, Log
from folkmoot.brokers.storage.log_manager import LogManager
from folkmoot.brokers.storage.recovery import RecoveryPoint
from folkmoot.protocol.errors import DiskFailed, FolkmootError
from folkmoot.protocol.histogram import Histogram

logger = logging.getLogger(__name__)

CHECKPOINT_INTERVAL: Final = 30.0
CHECKPOINT_BYTES: Final = 512 * 1024 * 1024
"""After so much the next round begins earlier: a start checks about a gigabyte in a second."""

SHORTEST_INTERVAL: Final = 2.0
LOGS_AT_ONCE: Final = 32
"""Each has a few descriptors on loan to the background meanwhile."""
_FLUSHES: Final = ("flush", "flush 2", "flush 3", "flush 4")
"""Jobs side by side: a file system writes its journal once for files that are flushed together."""

_TICK = 0.1
_BUSY = 0.02

Done = Callable[[FolkmootError | None], None]


class Flusher:
    """The one that puts logs on disk (group commit), and notes their recovery points.

    A log is flushed by one job at a time, and its outcome is always taken: the kernel tells of an
    error once for all descriptors of an open file, so a second flush beside it could succeed and prove
    nothing. A failed flush ends the log and, by `failed`, the broker: nothing is acknowledged behind it.

    Flushed at once are logs for which somebody waits (`wait_for`, `flush`) and those whose
    `flush_interval` is over, a few jobs side by side, or all if many files wait for that; what is
    appended to a log while its job is under way is in the next one. Every
    CHECKPOINT_INTERVAL, or after CHECKPOINT_BYTES, all others follow in jobs of their own, and then
    `recovery-points` is written. It may be old, which costs the next start time, and it is never ahead
    of the disk.

    Crash story: a death before a flush has ended leaves what the page cache kept, which the next start
    checks behind the recovery point; nobody who waits was answered. A death between flush and note:
    the start checks more than it has to.

    Owner: the event loop.
    """

    def __init__(
        self,
        logs: LogManager,
        submit: Submit,
        failed: Callable[[Exception], None] = lambda error: None,
    ) -> None:
        self._logs = logs
        self._submit = submit
        self.advanced: Callable[[Log], None] = lambda log: None
        """A log's recovery point has moved, or the log has failed."""
        self.failed = failed
        """What the disk holds is not known any more: the broker ends."""
        self.durations = Histogram()
        """Of the jobs, each of which flushes some logs."""
        self._wanted: dict[Log, list[tuple[int, Done | None]]] = {}
        self._timers: list[tuple[float, int, Log]] = []
        self._timed: set[Log] = set()
        self._under_way: set[Log] = set()
        self._busy: set[Hashable] = set()
        self._round: list[Log] | None = None
        self._next_round = self._soonest = self._next_relief = self._looked_at = 0.0
        self._appended_before = 0

    def appended(self, log: Log, size: int, now: Now) -> None:
        """So many bytes were just appended to a log."""
        self._logs.appended_bytes += size
        self._logs.dirty[log] = None
        interval = log.config.flush_interval
        if interval is not None and log not in self._timed:
            self._timed.add(log)
            # A longer one comes to nothing, and would stay in force when the topic asks for less.
            due = now.monotonic + min(interval, CHECKPOINT_INTERVAL)
            heapq.heappush(self._timers, (due, id(log), log))

    def flush(self, log: Log, done: Done | None = None) -> None:
        """Put on disk what the log has now. `done` is called once, with what went wrong if it did;
        `advanced` tells of its end, too."""
        self._wanted.setdefault(log, []).append((log.log_end, done))
        self._begin_wanted()

    def task(self, now: Now) -> float:
        """Begin the flushes that are due; → when to look again."""
        self._looked_at = now.monotonic
        for _ in range(LOGS_AT_ONCE):
            if not self._timers or self._timers[0][0] > now.monotonic:
                break
            log = heapq.heappop(self._timers)[2]
            self._timed.discard(log)
            self._wanted.setdefault(log, []).append((log.log_end, None))
        if self._logs.files.is_crowded and now.monotonic >= self._next_relief:
            self._next_relief = now.monotonic + SHORTEST_INTERVAL
            for log in self._logs.dirty:
                self._wanted.setdefault(log, []).append((log.log_end, None))
        self._begin_wanted()
        if "checkpoint" in self._busy:
            return _BUSY
        if self._round:
            some, self._round = self._round[:LOGS_AT_ONCE], self._round[LOGS_AT_ONCE:]
            self._begin("checkpoint", some)
        elif self._round is not None:
            self._round = None
            self._note()
        elif self._logs.has_stale_points and now.monotonic >= self._soonest:
            self._soonest = now.monotonic + SHORTEST_INTERVAL
            self._note()
        elif now.monotonic >= self._next_round or self._is_much(now):
            self._next_round = now.monotonic + CHECKPOINT_INTERVAL
            self._soonest = now.monotonic + SHORTEST_INTERVAL
            self._appended_before = self._logs.appended_bytes
            self._round = list(self._logs.dirty)
        return _TICK if self._round is None else _BUSY

    def _is_much(self, now: Now) -> bool:
        """Whether so much has come since the last round that a start would take long to check it."""
        much = self._logs.appended_bytes - self._appended_before >= CHECKPOINT_BYTES
        return much and now.monotonic >= self._soonest

    # -- flushing -----------------------------------------------------------------------------------

    def _begin_wanted(self) -> None:
        free = [key for key in _FLUSHES if key not in self._busy]
        waiting = (log for log in self._wanted if log not in self._under_way)
        some = list(islice(waiting, LOGS_AT_ONCE * len(free)))
        for number, key in enumerate(free):
            if key not in self._busy:  # who was answered further down may have asked for more
                self._begin(key, some[number :: len(free)])

    def _begin(self, key: Hashable, logs: Iterable[Log]) -> None:
        """Have some logs flushed by one job."""
        tasks: list[tuple[Log, FlushTask]] = []
        for log in logs:
            if log in self._under_way:
                continue  # by who was answered further down, and asked for more
            self._logs.dirty.pop(log, None)
            try:
                log.require_writable()
                task = log.begin_flush()
            except FolkmootError as error:
                if log.is_open and log.failed is None:
                    if not self._logs.room.is_missed(error):
                        logger.warning("%s: not flushed: %s", log.name, error)
                    self._logs.dirty[log] = None
                    if log.flushes and log not in self._timed:  # somebody may wait until `advanced`
                        self._timed.add(log)
                        again = self._looked_at + SHORTEST_INTERVAL
                        heapq.heappush(self._timers, (again, id(log), log))
                self._answer(log, error)
                continue
            if task is None:
                self._answer(log, None)
            else:
                tasks.append((log, task))
        if tasks:
            self._busy.add(key)
            self._under_way.update(log for log, _ in tasks)
            work = partial(run_all, [task for _, task in tasks])
            self._submit(key, work, partial(self._flushed, key, tasks))

    def _flushed(
        self,
        key: Hashable,
        tasks: Sequence[tuple[Log, FlushTask]],
        outcome: tuple[list[FlushResult], float] | Exception,
    ) -> None:
        self._busy.discard(key)
        if not isinstance(outcome, Exception):
            self.durations.observe(outcome[1])
        for number, (log, task) in enumerate(tasks):
            if isinstance(outcome, Exception):
                result = FlushResult(OSError(str(outcome)), None)
            else:
                result = outcome[0][number]
            self._under_way.discard(log)
            log.finish_flush(task, result)
            failure: FolkmootError | None = None
            if result.error is not None:
                failure = DiskFailed(
                    f"{log.directory} could not be flushed: {result.error.strerror or result.error}"
                )
                self.disk_failed(failure)
            elif log.is_open:
                if (point := log.point_to_note) is not None:
                    self._logs.recovery_points[log.directory.name] = point
                if log.dirty:
                    self._logs.dirty[log] = None
            self.advanced(log)
            self._answer(log, failure)
        self._begin_wanted()

    def _answer(self, log: Log, error: FolkmootError | None) -> None:
        """Tell those that waited for as much as is on disk now, or all of them what went wrong."""
        waiting = self._wanted.pop(log, [])
        flushed = log.recovery_point_offset
        late = [each for each in waiting if each[0] > flushed]
        if late and error is None:
            try:
                log.require_writable()
            except FolkmootError as closed:
                error = closed
        if late and error is None and log.dirty:
            self._wanted[log] = late  # its next segments follow
            waiting = [each for each in waiting if each[0] <= flushed]
        for _, done in waiting:
            if done is not None:
                done(error)

    def disk_failed(self, error: FolkmootError) -> None:
        """The broker is to end: the kernel may have given up what it could not write, of any log."""
        self._logs.distrust()
        self.failed(error)

    # -- recovery points ----------------------------------------------------------------------------

    def _note(self) -> None:
        if self._logs.recovery_points == self._logs.checkpointed:
            return
        self._busy.add("checkpoint")
        points = dict(self._logs.recovery_points)
        work = partial(self._logs.save_recovery_points, points)
        self._submit("checkpoint", work, partial(self._noted, points))

    def _noted(self, points: dict[str, RecoveryPoint], outcome: Exception | None) -> None:
        self._busy.discard("checkpoint")
        if outcome is None:
            self._logs.checkpointed = points
            self._logs.has_stale_points = bool(points.keys() - self._logs.recovery_points.keys())
        elif not self._logs.room.is_missed(outcome):
            logger.warning("the logs' recovery points were not noted: %s", outcome)


def run_all(tasks: Sequence[FlushTask]) -> tuple[list[FlushResult], float]:
    """The background's part → and the seconds that it took."""
    began = time.monotonic()
    return [task.run() for task in tasks], time.monotonic() - began
