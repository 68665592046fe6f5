"""Operations on one partition, one after another, each of which may wait for a disk."""

import logging
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

from folkmoot.brokers.jobs.jobs import result_of

logger = logging.getLogger(__name__)

_T = TypeVar("_T")


class Pending(Generic[_T]):
    """The outcome that an operation awaits, of a job or of another operation.

    Owner: the event loop.
    """

    __slots__ = ("_outcome", "_resume")

    def __init__(self) -> None:
        self._outcome: list[_T | Exception] = []
        self._resume: Callable[[], None] | None = None

    def finish(self, outcome: _T | Exception) -> None:
        """Resume the operation with this result; an exception is raised in it."""
        self._outcome.append(outcome)
        if self._resume is not None:
            self._resume()

    def when_finished(self, resume: Callable[[], None]) -> None:
        """Call `resume` once, when there is an outcome."""
        if self._outcome:
            resume()
        else:
            self._resume = resume

    def __await__(self) -> "Generator[Pending[Any], None, _T]":
        if not self._outcome:
            yield self
        outcome = self._outcome[0]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


_Operation = tuple[Coroutine[Pending[Any], None, Any], Pending[Any] | None]

RunJob = Callable[[Callable[[], Any], Callable[[Any], None]], None]
"""Runs work on a thread of a pool, then gives its result or exception to the callback on the loop."""


def run_at_once(work: Callable[[], Any], callback: Callable[[Any], None]) -> None:
    """Run a job here and now: for starts, stops and tests, where no other request waits."""
    callback(result_of(work))


class SerialQueue:
    """Runs operations in the order in which they were added, one at a time.

    An operation is a coroutine on the event loop. It reads the state of its partition when its turn
    comes, never before. It awaits work on a disk by `await queue.job(work)`, which a pool of threads does.
    Meanwhile the event loop appends and reads, and no other operation of this queue runs.

    Crash story: a queue is memory. Each operation says what a death before and after each of its jobs
    leaves on disk.

    Owner: the event loop.
    """

    __slots__ = ("_current", "_run_job", "_waiting")

    def __init__(self, run_job: RunJob) -> None:
        self._run_job = run_job
        self._waiting: deque[_Operation] = deque()
        self._current: _Operation | None = None

    @property
    def is_idle(self) -> bool:
        """True while no operation runs or waits."""
        return self._current is None

    def add(
        self,
        operation: Coroutine[Pending[Any], None, _T],
        outcome: Pending[_T] | None = None,
    ) -> None:
        """Run an operation after those added before; at once, up to its first job, if there are none.

        `outcome` gets its result or exception. Without it an exception is a fault of this program: it is
        logged."""
        self._waiting.append((operation, outcome))
        if self._current is None:
            self._run()

    def run(self, operation: Coroutine[Pending[Any], None, _T]) -> Pending[_T]:
        """As `add`; → the outcome, for an operation of another queue."""
        outcome: Pending[_T] = Pending()
        self.add(operation, outcome)
        return outcome

    def job(self, work: Callable[[], _T]) -> Pending[_T]:
        """Have `work` done by the pool. It touches only its arguments."""
        pending: Pending[_T] = Pending()
        self._run_job(work, pending.finish)
        return pending

    async def outcome_of(self, work: Callable[[], _T]) -> _T | Exception:
        """As `job`, with what `work` raises in place of its result."""
        try:
            return await self.job(work)
        except Exception as error:
            return error

    def run_now(self, operation: Coroutine[Any, None, _T]) -> _T:
        """Run an operation here, its jobs too: at a stop, and in tests, where the queue is idle."""
        run_job, self._run_job = self._run_job, run_at_once
        try:
            operation.send(None)
        except StopIteration as ended:
            result: _T = ended.value
            return result
        finally:
            self._run_job = run_job
        raise RuntimeError("an operation that is run now may await nothing but its jobs")

    def close(self) -> None:
        """Drop the operations that have not begun. The current one ends with its next outcome."""
        for operation, _ in self._waiting:
            operation.close()
        self._waiting.clear()

    def _run(self) -> None:
        while self._waiting:
            self._current = self._waiting.popleft()
            if not self._step():
                return
        self._current = None

    def _step(self) -> bool:
        """Run the current operation until it waits. True: it has ended."""
        assert self._current is not None
        operation, outcome = self._current
        try:
            pending = operation.send(None)
        except StopIteration as ended:
            result: Any = ended.value
        except Exception as error:
            result = error
            if outcome is None:
                logger.exception("an operation on a partition failed")
        else:
            pending.when_finished(self._resume)
            return False
        if outcome is not None:
            outcome.finish(result)
        return True

    def _resume(self) -> None:
        if self._step():
            self._run()
