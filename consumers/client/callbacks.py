"""Calls of the application's callbacks: one that has ended, and one that goes on beside the consumer."""

import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

from folkmoot.protocol.errors import RequestTimeout


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


class _Call(NamedTuple):
    """A callback that was called; `then` gets what gives its result, once it has ended.

    `holds`: nothing is read meanwhile.
    """

    run: CallbackRun
    then: Callable[[Callable[[], Any]], None]
    holds: bool


class Callbacks:
    """Calls of the application's callbacks, one after the other. Owner: the thread that polls."""

    def __init__(self, call_back: Callable[[str, Any], CallbackRun]) -> None:
        self._call_back = call_back
        self._call: _Call | None = None
        self._error: Exception | None = None
        """What `then` raised between two calls of `serve`, which raises it."""

    @property
    def is_busy(self) -> bool:
        return self._call is not None

    @property
    def is_held(self) -> bool:
        """A callback runs during which nothing is read."""
        return self._call is not None and self._call.holds

    def call(
        self,
        name: str,
        notice: Any,
        then: Callable[[Callable[[], Any]], None],
        *,
        holds: bool = True,
    ) -> None:
        self._call = _Call(self._call_back(name, notice), then, holds)
        self.end()

    def end(self) -> None:
        """Go on behind the call, if it has ended. Raises what `then` raises."""
        call = self._call
        if call is not None and call.run.done():
            self._call = None
            call.then(call.run.result)

    def ended(self) -> None:
        """Go on at once: what it was called for is not to wait for the next `serve`."""
        try:
            self.end()
        except Exception as error:
            self._error = error

    def serve(self) -> None:
        """Raises what `then` raised, now or since the last time."""
        if (error := self._error) is not None:
            self._error = None
            raise error
        self.end()

    def abandon(self) -> None:
        """Go on without its end, by RequestTimeout: the rest of the time is the member's."""
        call, self._call = self._call, None
        if call is not None:
            call.then(_not_ended)


def _not_ended() -> None:
    raise RequestTimeout("a callback did not end before the consumer had to be closed")
