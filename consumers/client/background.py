"""A thread that does what the tasks of one event loop ask of it, one thing after the other."""

import asyncio
import contextvars
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from inspect import isawaitable
from math import inf
from typing import Any, Final, TypeVar

from folkmoot.protocol.errors import ClosedError, ConcurrentUse, RequestTimeout

T = TypeVar("T")

LOOK: Final = 0.5

_calling_back: contextvars.ContextVar[object] = contextvars.ContextVar("calling back", default=None)


class _Job:
    """Something asked for, and the future of who asked; None if nobody waits for it.

    One that is `alone` is not begun while another one waits for the loop.
    """

    __slots__ = ("alone", "call", "future")

    def __init__(
        self, call: Callable[[], Any], future: "asyncio.Future[Any] | None", alone: bool
    ) -> None:
        self.call = call
        self.future = future
        self.alone = alone

    @property
    def is_unwanted(self) -> bool:
        return self.future is not None and self.future.cancelled()


class Worker:
    """Owns what blocks, for a loop that may not.

    Tasks `ask`; the thread does it and hands the outcome back. A task that is cancelled meanwhile
    takes nothing with it: a job not begun is not done, one under way ends as soon as it can
    (`is_wanted`), and what it raised is kept in `untold` if it was to be `alone`.

    `call_back` goes the other way: the thread has the loop call something, and waits. What it calls
    may ask the thread for something in turn, which is done within the wait, unless it is to be done
    alone; a coroutine is awaited. A loop that is closed ends the wait, and so does `give_up_at`.

    `wake` is what ends a wait of the thread's that is not here, such as one for a broker's answer.
    """

    def __init__(self, name: str, wake: Callable[[], None]) -> None:
        self.untold: deque[BaseException] = deque()
        self.give_up_at = inf
        self._wake = wake
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = os.getpid()
        self._changed = threading.Condition()
        self._jobs: deque[_Job] = deque()
        self._under_way: _Job | None = None
        self._stopped = False
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)

    # -- the loop's side --------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to work for the loop that runs."""
        self._loop = asyncio.get_running_loop()
        self._process = os.getpid()
        self._thread.start()

    @property
    def has_started(self) -> bool:
        return self._loop is not None

    @property
    def is_calling_back(self) -> bool:
        """Whether the task that asks was called by this thread, or belongs to one that was."""
        return _calling_back.get() is self

    @property
    def is_forked(self) -> bool:
        """This is a child process, where the thread is not."""
        return self.has_started and self._process != os.getpid()

    def check_usable(self) -> None:
        """Raises ClosedError, ConcurrentUse in another loop than that of `start`: it would wait for ever."""
        if self._loop is None or self._stopped:
            raise ClosedError("the consumer is not open: use it in an async with block")
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
            if future.done() and not future.cancelled():
                self._keep(future.exception(), alone)  # it came at the very moment
            self._hurry()
            raise

    def submit(self, call: Callable[[], T], *, alone: bool = False) -> "asyncio.Future[T]":
        """The future of what `call` returns or raises. Raises ClosedError, ConcurrentUse."""
        self.check_usable()
        assert self._loop is not None
        future: asyncio.Future[T] = self._loop.create_future()
        self._append(_Job(call, future, alone))
        return future

    def post(self, call: Callable[[], object], *, first: bool = False) -> None:
        """Have something done that nobody waits for, before everything else if it is the `first`."""
        self._append(_Job(call, None, False), first=first)

    def stop(self) -> None:
        """End the thread when it has done what it was asked."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _append(self, job: _Job, *, first: bool = False) -> None:
        with self._changed:
            if first:
                self._jobs.appendleft(job)
            else:
                self._jobs.append(job)
            self._changed.notify_all()
        self._hurry()

    def _hurry(self) -> None:
        if self._under_way is not None:
            self._wake()

    def _keep(self, error: BaseException | None, alone: bool) -> None:
        """Something failed, and who asked for it is not there any more."""
        if error is not None and alone:
            self.untold.append(error)

    def _tell(self, job: _Job, result: Any, error: BaseException | None) -> None:
        future = job.future
        if future is None or future.done():
            self._keep(error, job.alone)
        elif error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    # -- the thread -------------------------------------------------------------------------------

    def is_wanted(self) -> bool:
        """Whether what is under way had better end: there is more to do, or nobody waits for it."""
        return bool(self._jobs) or (self._under_way is not None and self._under_way.is_unwanted)

    def call_back(self, function: Callable[[], Any]) -> Any:
        """Have the loop call `function`, await what can be awaited; → its result. Raises its error."""
        assert self._loop is not None
        call = _CallBack(function, self)
        self._on_loop(call.begin)
        while not call.has_ended():
            job = self._next(lambda: call.has_ended() or self._is_late(), nested=True)
            if job is not None:
                self._do(job)
            elif not call.has_ended() and self._is_late():
                self._on_loop(call.cancel)
                raise RequestTimeout("a callback did not end before the consumer had to be closed")
        if call.error is not None:
            raise call.error
        return call.result

    def notice(self) -> None:
        """A callback has ended."""
        with self._changed:
            self._changed.notify_all()

    def _is_late(self) -> bool:
        assert self._loop is not None
        return time.monotonic() >= self.give_up_at or self._loop.is_closed()

    def _main(self) -> None:
        while (job := self._next(lambda: self._stopped, nested=False)) is not None:
            self._under_way = job
            self._do(job)
            self._under_way = None

    def _next(self, is_over: Callable[[], bool], *, nested: bool) -> _Job | None:
        """The next job; None if there is none and the wait for one is over."""
        with self._changed:
            while True:
                for place, job in enumerate(self._jobs):
                    if not (nested and job.alone):
                        del self._jobs[place]
                        return job
                if is_over():
                    return None
                # Idle, it is woken; within a call back the time and the loop's end count, too.
                self._changed.wait(LOOK if nested else None)

    def _do(self, job: _Job) -> None:
        if job.is_unwanted:
            return
        result: Any = None
        error: BaseException | None = None
        try:
            result = job.call()
        except BaseException as raised:
            error = raised
        try:
            self._on_loop(partial(self._tell, job, result, error))
        except ClosedError:
            return  # nobody is there to be told

    def _on_loop(self, call: Callable[[], None]) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:
            raise ClosedError("the event loop of this consumer is closed") from None


class _CallBack:
    """Something that the loop is to call, or to await, as a task of its own."""

    def __init__(self, function: Callable[[], Any], worker: Worker) -> None:
        self.error: BaseException | None = None
        self.result: Any = None
        self._function = function
        self._worker = worker
        self._task: asyncio.Task[None] | None = None
        self._is_over = False

    def has_ended(self) -> bool:
        return self._is_over

    def begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(self._end)

    def cancel(self) -> None:
        assert self._task is not None  # what a loop is told to do, it does in order
        self._task.cancel()

    async def _run(self) -> None:
        _calling_back.set(self._worker)  # for this task, and for those that it makes
        outcome = self._function()
        self.result = await outcome if isawaitable(outcome) else outcome

    def _end(self, task: "asyncio.Task[None]") -> None:
        if task.cancelled():
            self.error = ClosedError("a callback was cancelled")
        else:
            self.error = task.exception()
        self._is_over = True
        self._worker.notice()
