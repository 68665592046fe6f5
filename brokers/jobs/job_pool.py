"""What waits for a disk, or for ZooKeeper, done on threads beside the event loop."""

import logging
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, Final, NamedTuple, TypeVar

from folkmoot.brokers.jobs.jobs import Lane, Now, result_of
from folkmoot.protocol.errors import Overloaded

logger = logging.getLogger(__name__)

MAX_WAITING: Final = 100_000
REMIND_AFTER: Final = 10.0
START_AGAIN_AFTER: Final = 1.0

_T = TypeVar("_T")


class _Job(NamedTuple):
    work: Callable[[], Any]
    done: Callable[[Any], None]


class JobPool:
    """A few threads for each lane (`jobs.Submit`), started with its first jobs.

    A job touches nothing that the event loop owns: it gets descriptors, paths and bytes that never
    change again, and what it has found is handed to `done` on the event loop. So there are no locks.
    Jobs of one lane are begun in order, and never wait for those of another: a compaction that runs for
    minutes does not hold up the flush that a producer waits for.

    A thread that cannot be started is tried again, with the next job and by `task`. Until then jobs wait
    or are done by the lane's other threads. Only requests are refused: who asks for them asks again.

    The event loop's thread submits; the thread that stops the broker calls `close`, after the loop has
    ended.
    """

    def __init__(self) -> None:
        self._post: Callable[[Callable[[], None]], None] | None = None
        self._lanes: dict[Lane, SimpleQueue[_Job | None]] = {each: SimpleQueue() for each in Lane}
        self._threads: dict[Lane, list[Thread]] = {each: [] for each in Lane}
        self._closing = Event()
        self._lacks_threads = False

    def start(self, post: Callable[[Callable[[], None]], None]) -> None:
        """Begin; `post` has a callback done on the event loop."""
        self._post = post
        for lane, waiting in self._lanes.items():
            for _ in range(waiting.qsize()):
                self._start_thread(lane)

    def task(self, _now: Now) -> float:
        """Start threads for jobs that wait, where none could be started before."""
        for lane, waiting in self._lanes.items():
            if not waiting.empty():
                self._start_thread(lane)
        return START_AGAIN_AFTER

    def submit(
        self, lane: Lane, work: Callable[[], _T], done: Callable[[_T | Exception], None]
    ) -> None:
        """Have `work` done, and then `done` on the event loop with its result or the exception."""
        self._lanes[lane].put(_Job(work, done))
        self._start_thread(lane)

    def submit_for_request(
        self, lane: Lane, work: Callable[[], _T], done: Callable[[_T | Exception], None]
    ) -> None:
        """As `submit`. Raises Overloaded, and the job is never begun, where too many wait, or the lane has
        no thread."""
        name = lane.value[0]
        if self._lanes[lane].qsize() >= MAX_WAITING:
            raise Overloaded(f"{MAX_WAITING} jobs ({name}) wait already: come again later")
        self._start_thread(lane)
        if self._post is not None and not self._threads[lane]:
            raise Overloaded(f"no new thread can be started for jobs ({name}): come again later")
        self.submit(lane, work, done)

    def pause(self, seconds: float) -> bool:
        """For a job that keeps to a pace: wait so long. True: the broker stops, the job is to end."""
        return self._closing.wait(seconds)

    def close(self) -> None:
        """Return when no thread works any more; jobs that were not begun are left out.

        Not before: who closes the logs beside a job that still works on them risks what is in them.
        """
        self._closing.set()
        for lane, threads in self._threads.items():
            for _ in threads:
                self._lanes[lane].put(None)
        for thread in (each for threads in self._threads.values() for each in threads):
            while thread.is_alive():
                thread.join(REMIND_AFTER)
                if thread.is_alive():
                    logger.warning("stopping waits for a job that has not ended: %s", thread.name)

    def _start_thread(self, lane: Lane) -> None:
        """Start one more thread, up to the most that a lane may have. If that fails, `task` tries again."""
        threads = self._threads[lane]
        if self._post is None or len(threads) >= lane.threads:
            return
        name = f"{lane.value[0]}-{len(threads)}"
        thread = Thread(target=self._run, args=(self._lanes[lane],), name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            if not self._lacks_threads:
                logger.error("thread %s: %s: jobs wait longer, it is tried again", name, error)
            self._lacks_threads = True
        else:
            self._lacks_threads = False
            threads.append(thread)

    def _run(self, waiting: "SimpleQueue[_Job | None]") -> None:
        assert self._post is not None
        while (job := waiting.get()) is not None and not self._closing.is_set():
            self._post(partial(job.done, result_of(job.work)))
