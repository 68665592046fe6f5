"""How the storage is handed its work: a moment, a periodic task, a job on another thread."""

import logging
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from threading import Lock
from typing import Any, Final, NamedTuple, Protocol, TypeVar

logger = logging.getLogger(__name__)

_SLEW: Final = 60_000
"""So many ms off a clock may be from one look to the next: nobody has set it."""
_T = TypeVar("_T")


class Now(NamedTuple):
    """One moment in both clocks: `monotonic` seconds for deadlines, `wall` in ms for stamps."""

    monotonic: float
    wall: int


class PassedTime:
    """The wall clock, as far as time has passed: what is deleted by its age is deleted by this.

    A clock that is set forward makes nothing old: this one stays behind it, by as much, until the clock is
    put right or the broker starts again. One that goes back is followed, and so is one that goes a little
    too fast or too slowly. What was appended meanwhile has a stamp that is still to come.

    Owner: the event loop.
    """

    def __init__(self) -> None:
        self._ahead: int | None = None
        self._is_behind = False

    def at(self, now: Now) -> Now:
        """The moment, with no more of the wall clock than has passed."""
        passed = round(now.monotonic * 1000)
        ahead = now.wall - passed
        if self._ahead is None or abs(ahead - self._ahead) <= _SLEW:
            self._ahead = ahead
        is_behind = ahead > self._ahead
        if is_behind and not self._is_behind:
            logger.error(
                "the wall clock was set forward by %d s, or the machine stood still: nothing is deleted for "
                "its age before as much time has passed; if the clock is right, restart the broker",
                (ahead - self._ahead) // 1000,
            )
        elif self._is_behind and not is_behind:
            logger.warning("the wall clock is right again: records are deleted by their age")
        self._is_behind = is_behind
        return now._replace(wall=min(now.wall, passed + self._ahead))


Task = Callable[[Now], float]
"""A bounded piece of work on the event loop; returns the seconds after which it is wanted again."""


class Job(Protocol):
    """Work that is done in the background before something can be done on the event loop.

    `run` there, then `finish` on the event loop with what it returned or raised. Several may wait for
    the same one, and run and finish it in turn (SharedJob). What does not wait for a disk names a
    `lane` of its own.
    """

    def run(self) -> Any: ...

    def finish(self, outcome: Any, /) -> None: ...


class SharedJob:
    """A job for which several may wait: each run after the first gets what was found before.

    Each end puts what was found, or the exception, in `outcome`, and calls `done` with both.
    """

    def __init__(
        self,
        work: Callable[[], Any],
        done: Callable[["SharedJob", Any], None] = lambda job, outcome: None,
        lane: "Lane | None" = None,
    ) -> None:
        self.lane = Lane.INDEX if lane is None else lane
        self.outcome: Any = None
        self._running = Lock()
        self._work = work
        self._done = done
        self._found: list[Any] = []

    def run(self) -> Any:
        """Any thread."""
        with self._running:
            if not self._found:
                self._found.append(self._work())
            return self._found[0]

    def finish(self, outcome: Any) -> None:
        self.outcome = outcome
        self._done(self, outcome)


class JobGroup:
    """Jobs that are carried out by one trip to the background, each of which fails by itself."""

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
    """Which threads do a job, and how many they are: jobs of one lane never wait for those of another.

    Only a lane of one thread keeps an order. Jobs that change files and need one are awaited by the
    operations of a SerialQueue.
    """

    DISK = "disk", 4
    """Flushes, and other writes that end soon."""
    NOTES = "notes", 1
    """The files of the data directory itself."""
    FACTS = "facts", 1
    """What the cluster says of topics, noted in the directories of their partitions."""
    READ = "read", 8
    """Reads of segments, each of which may wait for a slow disk."""
    INDEX = "index", 1
    """What a first read or append of a segment needs."""
    COMPACTION = "compaction", 1
    """Passes that take minutes."""
    SCRUB = "scrub", 1
    ZOOKEEPER = "zookeeper", 1
    """Questions to ZooKeeper, each of which may wait for its time-out."""
    SCHEMAS = "schemas", 1
    SUBJECTS = "subjects", 1
    UNKNOWN_IDS = "unknown ids", 1
    """Pauses of requests that ask for schema ids which do not exist."""

    @property
    def threads(self) -> int:
        """The most that are started."""
        return self.value[1]


class Submit(Protocol):
    """Has `work` done on a background thread and its result given to `done` on the event loop.

    `work` touches only what it was given: descriptors, paths, bytes that never change. An Exception
    that `work` raises is given to `done` in place of the result.
    """

    def __call__(
        self,
        lane: Lane,
        work: Callable[[], _T],
        done: Callable[[_T | Exception], None],
        /,
    ) -> None: ...


def at_once(lane: Lane, work: Callable[[], _T], done: Callable[[_T | Exception], None], /) -> None:
    """Do a job here and now: for starts, stops and tests, where nobody else waits."""
    done(result_of(work))


def result_of(work: Callable[[], _T]) -> _T | Exception:
    """What a job has found, or the exception that it has raised."""
    try:
        return work()
    except Exception as error:
        return error


def call_guarded(what: object, callback: Callable[..., _T], *arguments: Any) -> _T | None:
    """Call one of several callbacks that must not harm each other → its result, None if it has raised."""
    try:
        return callback(*arguments)
    except Exception:
        logger.exception("%s: a fault of this broker's own", what)
        return None


def log_failure(what: str, outcome: object) -> None:
    """The `done` of jobs whose failure is said in the log and does no more harm."""
    if isinstance(outcome, Exception):
        logger.error("%s: %s", what, outcome)
