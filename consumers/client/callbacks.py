"""Calls of the application's callbacks: each is a future of its result."""

import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple

from folkmoot.protocol.errors import RequestTimeout

Result = Callable[[], Any]
"""Returns what the callback returned, or raises what it raised."""


def call_now(call: Callable[[], Any], outcome: "Future[Any] | None" = None) -> "Future[Any]":
    outcome = outcome or Future[Any]()
    try:
        result = call()
    except BaseException as error:
        outcome.set_exception(error)
    else:
        outcome.set_result(result)
    return outcome


def call_in_thread(call: Callable[[], Any], on_end: Callable[[], None]) -> "Future[Any]":
    """Call it, then `on_end`, in a thread of its own with the caller's context."""
    outcome = Future[Any]()

    def run() -> None:
        call_now(call, outcome)
        on_end()

    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(run,), name="folkmoot-callback", daemon=True).start()
    return outcome


class _Call(NamedTuple):
    """A call under way, and the function that takes its result. `holds`: nothing is read meanwhile."""

    outcome: "Future[Any]"
    then: Callable[[Result], None]
    holds: bool


class Callbacks:
    """Calls the application's callbacks, one after another. Owned by the polling thread."""

    def __init__(self, call_back: Callable[[str, Any], "Future[Any]"]) -> None:
        self._call_back = call_back
        self._call: _Call | None = None
        self._error: Exception | None = None
        """Raised by `then` between two calls of `serve`."""

    @property
    def is_busy(self) -> bool:
        return self._call is not None

    @property
    def is_held(self) -> bool:
        """Return whether a callback runs that stops reading."""
        return self._call is not None and self._call.holds

    def call(
        self, name: str, notice: Any, then: Callable[[Result], None], *, holds: bool = True
    ) -> None:
        self._call = _Call(self._call_back(name, notice), then, holds)
        self._end()

    def _end(self) -> None:
        """If the call has ended, give its result to `then`. Raises what `then` raises."""
        call = self._call
        if call is not None and call.outcome.done():
            self._call = None
            call.then(call.outcome.result)

    def ended(self) -> None:
        """The call has ended: continue now, without waiting for the next `serve`."""
        try:
            self._end()
        except Exception as error:
            self._error = error

    def serve(self) -> None:
        """Raises what `then` raised, now or since the last time."""
        if (error := self._error) is not None:
            self._error = None
            raise error
        self._end()

    def abandon(self) -> None:
        """Continue without the call's end: give RequestTimeout to `then`."""
        call, self._call = self._call, None
        if call is not None:
            call.then(_not_ended)


def _not_ended() -> None:
    raise RequestTimeout("a callback did not end before the consumer had to be closed")
