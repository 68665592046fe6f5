"""A broker's second pair of hands: what waits for the disk, done beside the reactor."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Final, TypeVar

from folkmoot.brokers.storage import directories
from folkmoot.protocol.errors import FolkmootError, StorageError

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT: Final = 10.0

_T = TypeVar("_T")
Post = Callable[[Callable[[], None]], None]


class Background:
    """One thread that does one job after another and reports each to the reactor.

    A job touches nothing that the reactor owns: it gets descriptors and sizes, reads only bytes that
    never change again (sealed segments, and what lies before a size that was reached), and what it
    found is taken over on the reactor's thread. So there are no locks. Who submits waits for the
    report before submitting again, so that the queue is as long as there are kinds of jobs; removing
    files is the exception, for which nobody waits.

    A broker has two: one does what clients wait for and takes little, directories of new partitions
    (Newcomers) and the first look-ups of times (TimeLookups); the other does all else.
    """

    def __init__(self, failed: Callable[[Exception], None], name: str = "background") -> None:
        self._failed = failed
        self._post: Post = lambda work: work()
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name=name, daemon=True)

    def start(self, post: Post) -> None:
        """Begin; reports go to `post`, which has them done on the reactor's thread."""
        self._post = post
        self._thread.start()

    def submit(self, job: Callable[[], _T], report: Callable[[_T | StorageError], None]) -> None:
        """Have `job` done; what it returns is reported, or, as a StorageError, what it ends with."""

        def carry_out() -> None:
            try:
                result: _T | StorageError = job()
            except StorageError as error:
                result = error
            except (OSError, FolkmootError) as error:
                result = StorageError(str(error))
            self._post(lambda: report(result))

        self._jobs.put(carry_out)

    def remove(self, paths: Sequence[Path]) -> None:
        """Have files and directories removed. What is left is removed by a later start."""

        def removed(outcome: StorageError | None) -> None:
            if outcome is not None:
                logger.error("files are left behind: %s", outcome)

        self.submit(partial(directories.remove, paths), removed)

    def run_all(self) -> None:
        """Do what is waiting now, on this thread: for tests, and without a start."""
        while not self._jobs.empty():
            job = self._jobs.get()
            if job is not None:
                job()

    def close(self) -> None:
        """End after the job under way and those before it. Without a start nothing happens."""
        if self._thread.is_alive():
            self._jobs.put(None)
            self._thread.join(CLOSE_TIMEOUT)

    def _run(self) -> None:
        try:
            while (job := self._jobs.get()) is not None:
                job()
        except Exception as error:
            logger.exception("a job in the background failed")
            self._failed(error)
