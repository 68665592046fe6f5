"""Moments, periodic tasks, and jobs on other threads."""

import logging
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from threading import Lock
from typing import Any, Final, NamedTuple, Protocol, TypeVar

logger = logging.getLogger(__name__)

_SLEW: Final = 60_000
"""Milliseconds that a clock may be off since the last look; more means that it was set."""
_T = TypeVar("_T")


class Now(NamedTuple):
    """One moment in both clocks: `monotonic` seconds for deadlines, `wall` in ms for stamps."""

    monotonic: float
    wall: int


class PassedTime:
    """The wall clock for the age of records, no further ahead than time has passed.

    If the clock is set forward this one stays behind it, until the clock is put right or the broker starts
    again: else records would seem old. It follows a clock that is set back, or runs a little too fast or
    too slowly.

    Owner: the event loop.
    """

    def __init__(self) -> None:
        self._ahead: int | None = None
        self._is_behind = False

    def at(self, now: Now) -> Now:
        """Return the moment with this clock in place of the wall clock."""
        passed = round(now.monotonic * 1000)
        ahead = now.wall - passed
        if self._ahead is None or abs(ahead - self._ahead) <= _SLEW:
            self._ahead = ahead
        is_behind = ahead > self._ahead
        if is_behind and not self._is_behind:
            logger.error(
                "the wall clock was set forward by %d s, or the machine stood still. Records are deleted "
                "later by that time. If the clock is right, restart the broker",
                (ahead - self._ahead) // 1000,
            )
        elif self._is_behind and not is_behind:
            logger.warning("the wall clock is right again: records are deleted by their age")
        self._is_behind = is_behind
        return now._replace(wall=min(now.wall, passed + self._ahead))


Task = Callable[[Now], float]
"""A bounded piece of work on the event loop; returns the seconds until its next call."""


class Job(Protocol):
    """Work in the background (`run`), whose result or exception then goes to `finish` on the event loop.

    Several requests may wait for the same job, and run and finish it in turn (SharedJob). A job may name its
    `lane`; INDEX is the default.
    """

    def run(self) -> Any: ...

    def finish(self, outcome: Any, /) -> None: ...


class SharedJob:
    """A job for which several requests may wait: only the first `run` does the work.

    Each `finish` puts the result, or the exception, in `outcome`, and calls `callback` with both.
    """

    def __init__(
        self,
        work: Callable[[], Any],
        callback: Callable[["SharedJob", Any], None] = lambda job, outcome: None,
        lane: "Lane | None" = None,
    ) -> None:
        self.lane = lane or Lane.INDEX
        self.outcome: Any = None
        self._running = Lock()
        self._work = work
        self._callback = callback
        self._results: list[Any] = []

    def run(self) -> Any:
        """Any thread."""
        with self._running:
            if not self._results:
                self._results.append(self._work())
            return self._results[0]

    def finish(self, outcome: Any) -> None:
        self.outcome = outcome
        self._callback(self, outcome)


class JobGroup:
    """Several jobs for one thread; a failure of one does not stop the others."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self._jobs = list(jobs)
        self.lane: Lane = getattr(self._jobs[0], "lane", Lane.INDEX)

    def run(self) -> list[Any]:
        return [result_of(job.run) for job in self._jobs]

    def finish(self, outcome: Sequence[Any] | Exception) -> None:
        each_failed = [outcome] * len(self._jobs)
        results = each_failed if isinstance(outcome, Exception) else outcome
        for job, result in zip(self._jobs, results, strict=True):
            job.finish(result)


class Lane(Enum):
    """The threads of a kind of jobs. Jobs of one lane never wait for those of another.

    Only a lane of one thread keeps an order. Other jobs that change files and need one are awaited by the
    operations of a SerialQueue.
    """

    DISK = "disk", 4
    """Flushes, and other writes that end soon."""
    NOTES = "notes", 1
    """The files of the data directory itself."""
    FACTS = "facts", 1
    """Facts of topics, noted in the directories of their partitions."""
    READ = "read", 8
    """Reads of segments; a slow disk may hold each up."""
    REPORTS = "reports", 1
    """Batches that readers report as damaged, one at a time."""
    INDEX = "index", 1
    """Indexes, summaries and producers, for a first read or append."""
    COMPACTION = "compaction", 1
    """Passes that take minutes."""
    SCRUB = "scrub", 1
    ZOOKEEPER = "zookeeper", 1
    """Calls to ZooKeeper, each with a timeout."""
    SCHEMAS = "schemas", 1
    SUBJECTS = "subjects", 1
    UNKNOWN_IDS = "unknown ids", 1
    """Pauses of requests for schema ids that do not exist."""

    @property
    def threads(self) -> int:
        """How many threads the lane has."""
        return self.value[1]


class Submit(Protocol):
    """Has `work` done on a thread of the lane, then `callback` called on the event loop with its result.

    `work` touches only its arguments: descriptors, paths, bytes that never change. If it raises, `callback`
    gets the Exception.
    """

    def __call__(
        self,
        lane: Lane,
        work: Callable[[], _T],
        callback: Callable[[_T | Exception], None],
        /,
    ) -> None: ...


def at_once(
    lane: Lane, work: Callable[[], _T], callback: Callable[[_T | Exception], None], /
) -> None:
    """Do a job here and now: for starts, stops and tests, where no other request waits."""
    callback(result_of(work))


def result_of(work: Callable[[], _T]) -> _T | Exception:
    """Return the result of a job, or the Exception that it raised."""
    try:
        return work()
    except Exception as error:
        return error


def call_guarded(what: object, callback: Callable[..., _T], *arguments: Any) -> _T | None:
    """Call one of several independent callbacks → its result, None if it has raised (logged)."""
    try:
        return callback(*arguments)
    except Exception:
        logger.exception("%s: a fault of this broker's own", what)
        return None


def log_failure(what: str, outcome: object) -> None:
    """The `callback` of jobs whose failure only has to be logged."""
    if isinstance(outcome, Exception):
        logger.error("%s: %s", what, outcome)
