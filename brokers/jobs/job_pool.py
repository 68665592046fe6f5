"""Threads beside the event loop, for work that waits for a disk or for ZooKeeper."""

import logging
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, Final, TypeVar

from folkmoot.brokers.jobs.jobs import Lane, result_of
from folkmoot.protocol.errors import ConfigError, Overloaded

logger = logging.getLogger(__name__)

MAX_WAITING: Final = 100_000
REMIND_AFTER: Final = 10.0

_T = TypeVar("_T")
_Job = tuple[Callable[[], Any], Callable[[Any], None]]
_Waiting = SimpleQueue[_Job | None]


class JobPool:
    """A few threads for each lane (`jobs.Submit`).

    A job touches nothing that the event loop owns. It gets descriptors, paths and bytes that never change
    again, and its result goes to `callback` on the event loop. So there are no locks.
    Jobs of one lane begin in order, and never wait for another lane's: a compaction that runs for minutes
    does not hold up the flush that a producer waits for.

    The event loop's thread submits. The thread that stops the broker calls `close`, after the loop has
    ended.
    """

    def __init__(self) -> None:
        self._lanes: dict[Lane, _Waiting] = {lane: SimpleQueue() for lane in Lane}
        self._threads: list[Thread] = []
        self._closing = Event()

    def start(self, post: Callable[[Callable[[], None]], None]) -> None:
        """Start all threads; `post` has a callback done on the event loop. Raises ConfigError."""
        for lane, waiting in self._lanes.items():
            name, threads = lane.value
            for number in range(threads):
                work = partial(self._run, waiting, post)
                thread = Thread(target=work, name=f"{name}-{number}", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:
                    raise ConfigError(
                        f"no thread can be started for jobs ({name}): {error}: raise the limit of "
                        "processes and threads (ulimit -u, or the container's)"
                    ) from error
                self._threads.append(thread)

    def submit(
        self, lane: Lane, work: Callable[[], _T], callback: Callable[[_T | Exception], None]
    ) -> None:
        """Have `work` done, and then `callback` on the event loop with its result or the exception."""
        self._lanes[lane].put((work, callback))

    def submit_for_request(
        self, lane: Lane, work: Callable[[], _T], callback: Callable[[_T | Exception], None]
    ) -> None:
        """As `submit`. Raises Overloaded if too many jobs wait; then this one is never begun."""
        if self._lanes[lane].qsize() >= MAX_WAITING:
            raise Overloaded(f"{MAX_WAITING} jobs ({lane.value[0]}) wait already: retry later")
        self.submit(lane, work, callback)

    def pause(self, seconds: float) -> bool:
        """Let a job sleep. True: the broker stops, and the job must end."""
        return self._closing.wait(seconds)

    def close(self) -> None:
        """Return when all threads have ended; jobs that have not begun are dropped.

        A log that is closed beside a running job may lose what the job writes.
        """
        self._closing.set()
        for lane, waiting in self._lanes.items():
            for _ in range(lane.threads):
                waiting.put(None)
        for thread in self._threads:
            while thread.is_alive():
                thread.join(REMIND_AFTER)
                if thread.is_alive():
                    logger.warning("stopping waits for a job that has not ended: %s", thread.name)

    def _run(self, waiting: _Waiting, post: Callable[[Callable[[], None]], None]) -> None:
        while (job := waiting.get()) is not None and not self._closing.is_set():
            work, callback = job
            post(partial(callback, result_of(work)))
