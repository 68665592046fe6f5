"""What waits for a disk, done on threads beside the event loop, in order for each kind of job."""

import logging
from collections.abc import Callable, Hashable
from functools import partial
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, Final, NamedTuple, TypeVar

from folkmoot.brokers.storage.jobs import result_of
from folkmoot.protocol.errors import Overloaded

logger = logging.getLogger(__name__)

MAX_WAITING: Final = 100_000
REMIND_AFTER: Final = 10.0

_T = TypeVar("_T")


class _Job(NamedTuple):
    work: Callable[[], Any]
    done: Callable[[Any], None]


class JobQueue:
    """A queue with a key (`storage.jobs.Submit`): a thread for each key, started with its first job.

    A job touches nothing that the event loop owns: it gets descriptors, paths and bytes that never
    change again, and what it has found is handed to `done` on the event loop. So there are no locks.
    Jobs of one key are done in order, one at a time, and never wait for those of another: a compaction
    that runs for minutes does not hold up the flush that a producer waits for. The keys are kinds of
    jobs, a handful.

    The event loop's thread submits; whoever stops the broker calls `close`, after the loop has ended.
    """

    def __init__(self) -> None:
        self._post: Callable[[Callable[[], None]], None] | None = None
        self._queues: dict[Hashable, SimpleQueue[_Job | None]] = {}
        self._threads: list[Thread] = []
        self._closing = Event()

    def start(self, post: Callable[[Callable[[], None]], None]) -> None:
        """Begin; `post` has a callback done on the event loop."""
        self._post = post
        for key in self._queues:
            self._start_thread(key)

    def submit(
        self, key: Hashable, work: Callable[[], _T], done: Callable[[_T | Exception], None]
    ) -> None:
        """Have `work` done, and then `done` on the event loop with its result or the exception.

        Raises Overloaded when too many jobs of this kind wait.
        """
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = SimpleQueue()
            if self._post is not None:
                self._start_thread(key)
        if queue.qsize() >= MAX_WAITING:
            raise Overloaded(f"{MAX_WAITING} jobs ({key}) wait already: come again later")
        queue.put(_Job(work, done))

    def pause(self, seconds: float) -> bool:
        """For a job that keeps to a pace: wait so long. True: the broker stops, the job is to end."""
        return self._closing.wait(seconds)

    def close(self) -> None:
        """Return when no thread works any more; jobs that were not begun are left out.

        Not before: who closes the logs beside a job that still works on them risks what is in them.
        """
        self._closing.set()
        for queue in self._queues.values():
            queue.put(None)
        for thread in self._threads:
            while thread.is_alive():
                thread.join(REMIND_AFTER)
                if thread.is_alive():
                    logger.warning("stopping waits for a job that has not ended: %s", thread.name)

    def _start_thread(self, key: Hashable) -> None:
        thread = Thread(target=self._run, args=(self._queues[key],), name=str(key), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self, queue: "SimpleQueue[_Job | None]") -> None:
        assert self._post is not None
        while (job := queue.get()) is not None and not self._closing.is_set():
            self._post(partial(job.done, result_of(job.work)))
