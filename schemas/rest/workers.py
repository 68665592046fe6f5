"""Threads for what waits for ZooKeeper, so that the event loop does not."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import Any, Final, TypeVar

from folkmoot.protocol.errors import Overloaded, RequestTimeout

_T = TypeVar("_T")

MOST_WAITING: Final = 1_000
"""Calls that may wait for a thread; more are refused at once."""


class Workers:
    """Threads that end with the process, whatever they wait for.

    (Those of `concurrent.futures` are waited for: a process whose ZooKeeper is away would not end.)
    `run` is called on one event loop.
    """

    def __init__(self, count: int, timeout: float) -> None:
        """`timeout`: seconds that a call may take, with its waiting for a thread."""
        self._count = count
        self._timeout = timeout
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
        self._started = 0

    async def run(self, call: Callable[[], _T]) -> _T:
        """Return the result of `call` on one of the threads. Raises Overloaded, and RequestTimeout. After
        that a call that has not begun never begins, and others continue."""
        if self._calls.qsize() >= MOST_WAITING:
            raise Overloaded(f"{MOST_WAITING} calls wait already: try again later")
        future: Future[_T] = Future()
        self._calls.put((future, call))
        if self._started < self._count:
            self._started += 1
            Thread(target=self._work, name=f"registry-{self._started}", daemon=True).start()
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), self._timeout)
        except TimeoutError:
            raise RequestTimeout(
                f"not done within {self._timeout:g} s: what was asked for may be done later, or not"
            ) from None

    def _work(self) -> None:
        while True:
            future, call = self._calls.get()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:
                    future.set_exception(error)
