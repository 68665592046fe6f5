"""Threads beside the one that calls: what may hang, and what an event loop must not wait for."""

import asyncio
import contextvars
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable
from typing import Any, Final, TypeVar

from folkmoot.protocol.errors import ClosedError, ConcurrentUse, RequestTimeout

T = TypeVar("T")

LOOK: Final = 0.5
NOT_OPEN: Final = "the consumer is not open: use it in an async with block"

_calling_back: contextvars.ContextVar[object] = contextvars.ContextVar("calling back", default=None)


def call_aside(function: Callable[[], T], deadline: float) -> T:
    """What `function` returns or raises, in a thread of its own.

    Raises RequestTimeout if it has not ended by `deadline` (monotonic); the thread is left to itself.
    """
    outcome: Future[T] = Future()

    def call() -> None:
        try:
            outcome.set_result(function())
        except BaseException as error:
            outcome.set_exception(error)

    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(call,), name="folkmoot-callback")
    thread.daemon = True
    thread.start()
    thread.join(max(0.0, deadline - time.monotonic()))
    if not outcome.done():
        raise RequestTimeout("a callback did not end before the consumer had to be closed")
    return outcome.result()


@dataclass(slots=True, eq=False)
class _Job:
    """Something asked for, and the future of who asked; None if nobody waits for it."""

    call: Callable[[], Any]
    future: "asyncio.Future[Any] | None"
    alone: bool

    @property
    def is_unwanted(self) -> bool:
        return self.future is not None and self.future.cancelled()


class Worker:
    """Owns what blocks, for the loop that runs when it is made, which may not.

    Tasks `ask`; the thread does it and hands the outcome back. A task that is cancelled meanwhile
    takes nothing with it: a job not begun is not done, one in progress ends as soon as it can
    (`is_abandoned`), and what it raised is kept in `undelivered_errors` if it was to be `alone`.

    Jobs that are `alone` are in progress one at a time; while one waits, it has the others done
    (`do_waiting`).

    `call_back` goes the other way: the thread has the loop call something, and waits. What it calls
    may ask the thread for something in turn, which is done within the wait, unless it is to be done
    alone; a coroutine is awaited. A loop that is closed ends the wait, and so does `stop`.

    `wake` is what ends a wait of the thread's that is not here, such as one for a broker's answer.
    """

    def __init__(self, name: str, wake: Callable[[], None]) -> None:
        self.undelivered_errors: deque[BaseException] = deque()
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._process = os.getpid()
        self._changed = threading.Condition()
        self._jobs: deque[_Job] = deque()
        self._in_progress: _Job | None = None
        self._stopped = False
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    # -- the loop's side --------------------------------------------------------------------------

    @property
    def is_calling_back(self) -> bool:
        """Whether the task that asks was called by this thread, or belongs to one that was."""
        return _calling_back.get() is self

    @property
    def is_forked(self) -> bool:
        """This is a child process, where the thread is not."""
        return self._process != os.getpid()

    def check_usable(self) -> None:
        """Raises ClosedError, ConcurrentUse in another loop than its own: it would wait for ever."""
        if self._stopped:
            raise ClosedError(NOT_OPEN)
        if self.is_forked:
            raise ClosedError("the consumer was made before a fork: make one in each process")
        if self._loop is not asyncio.get_running_loop():
            raise ConcurrentUse("a consumer belongs to the event loop that started it")

    async def ask(self, call: Callable[[], T], *, alone: bool = False) -> T:
        """What `call` returns or raises, in the thread, when its turn has come."""
        future = self.submit(call, alone=alone)
        try:
            return await future
        except asyncio.CancelledError:
            if alone and future.done() and not future.cancelled():
                self._keep(future.exception())  # it came at the very moment
            self._hurry()
            raise

    def submit(self, call: Callable[[], T], *, alone: bool = False) -> "asyncio.Future[T]":
        """The future of what `call` returns or raises. Raises ClosedError, ConcurrentUse."""
        self.check_usable()
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        with self._changed:
            self._jobs.append(_Job(call, future, alone))
        self._hurry()
        return future

    def post(self, call: Callable[[], object]) -> None:
        """Have something done that nobody waits for: next, and alone."""
        with self._changed:
            self._jobs.appendleft(_Job(call, None, alone=True))
        self._hurry()

    def stop(self) -> None:
        """End the thread when it has done what it was asked."""
        self._stopped = True
        self._notify()

    def _hurry(self) -> None:
        self._notify()
        if self._in_progress is not None:
            self._wake()

    def _keep(self, error: BaseException | None) -> None:
        """A job failed, and who asked for it is not there any more: whoever asks next is told."""
        if error is not None:
            self.undelivered_errors.append(error)

    def _deliver(self, job: _Job, result: Any, error: BaseException | None) -> None:
        future = job.future
        if future is None or future.done():
            self._keep(error if job.alone else None)
        elif error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    # -- the thread -------------------------------------------------------------------------------

    def is_abandoned(self) -> bool:
        """Whether nobody waits for what is in progress, or the next is waiting to be alone."""
        with self._changed:
            waiting = any(job.alone for job in self._jobs)
        return waiting or (self._in_progress is not None and self._in_progress.is_unwanted)

    def do_waiting(self) -> None:
        """Do what others ask for, within what is in progress."""
        while (job := self._next(nested=True)) is not None:
            self._do(job)

    def call_back(self, function: Callable[[], Any]) -> Any:
        """Have the loop call `function`, await what can be awaited; → its result. Raises its error."""

        async def call() -> Any:
            _calling_back.set(self)  # for this task, and for those that it makes
            outcome = function()
            return await outcome if isawaitable(outcome) else outcome

        coroutine = call()
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError:
            coroutine.close()
            raise ClosedError("the event loop of this consumer is closed") from None

        def may_go_on() -> bool:
            return future.done() or self._stopped or any(not job.alone for job in self._jobs)

        future.add_done_callback(lambda _: self._notify())
        while not (future.done() or self._stopped or self._loop.is_closed()):
            with self._changed:
                self._changed.wait_for(may_go_on, LOOK)  # a loop that is closed says nothing
            self.do_waiting()
        if not future.done():
            future.cancel()
            raise ClosedError("a callback did not end before the consumer was closed")
        if future.cancelled():
            raise ClosedError("a callback was cancelled")
        return future.result()

    def _main(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._stopped)
            if (job := self._next(nested=False)) is None:
                return
            self._in_progress = job
            self._do(job)
            self._in_progress = None

    def _next(self, *, nested: bool) -> _Job | None:
        """The next job that may be begun; None if there is none."""
        with self._changed:
            for place, job in enumerate(self._jobs):
                if not (nested and job.alone):
                    del self._jobs[place]
                    return job
        return None

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _do(self, job: _Job) -> None:
        if job.is_unwanted:
            return
        result: Any = None
        error: BaseException | None = None
        try:
            result = job.call()
        except BaseException as raised:
            error = raised
        with suppress(RuntimeError):  # the loop is closed: nobody is there to be told
            self._loop.call_soon_threadsafe(partial(self._deliver, job, result, error))
