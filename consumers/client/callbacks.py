"""Calls of the application's callbacks: one that has ended, and one that goes on beside the consumer."""

import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol


class CallbackRun(Protocol):
    """One call of a callback."""

    def done(self) -> bool: ...

    def result(self) -> Any:
        """What it returned. Raises what it raised. Only once it is done."""
        ...


class Called:
    """A callback that was called here, and has ended."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._result: Any = None
        self._error: BaseException | None = None
        try:
            self._result = call()
        except BaseException as error:  # raised where its result is asked for
            self._error = error

    def done(self) -> bool:
        return True

    def result(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._result


def call_in_thread(call: Callable[[], Any], ended: Callable[[], None]) -> "Future[Any]":
    """Call it in a thread of its own, with the caller's context; `ended` is called there afterwards."""
    outcome = Future[Any]()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:
            outcome.set_exception(error)
        ended()

    here = contextvars.copy_context()
    threading.Thread(target=here.run, args=(run,), name="folkmoot-callback", daemon=True).start()
    return outcome
