"""One scenario for both spellings of a client: `with` and plain calls, or `async with` and `await`.

A scenario is written in the asynchronous words. `Awaited` gives a synchronous client those words, so
that the same lines are run against both.
"""

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, Self, get_origin

import pytest

SLOW_CALLBACK = 100.0  # synchronous clients block it; that the others do not has tests of its own

# What needs no `await` with either client.
PLAIN = {
    *(
        "config",
        "stop",
        "done",
        "revoking",
        "metrics",
        "unacknowledged",
        "assignment",
        "fencing_token",
        "health",
        "leave_on_signals",
    ),
    *("batches", "arrow"),
}


class Awaited:
    """A synchronous client, or what its calls return, under the asynchronous words."""

    def __init__(self, client: Any) -> None:
        self.client = client

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.client, name)
        if name in ("batches", "arrow"):
            return lambda *args, **options: _steps(found(*args, **options))
        if name in PLAIN:
            return found

        async def call(*args: Any, **options: Any) -> Any:
            outcome = found(*args, **options)
            return Awaited(outcome) if hasattr(outcome, "result") else outcome

        return call

    def __len__(self) -> int:
        return len(self.client)

    def __await__(self) -> Generator[Any, None, Any]:
        return self.result(20.0).__await__()  # type: ignore[no-any-return]

    def __aiter__(self) -> AsyncIterator[Any]:
        return _steps(self.client)

    async def __aenter__(self) -> Self:
        self.client.__enter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.client.__exit__(kind, error, trace)


async def _steps(iterable: Any) -> AsyncIterator[Any]:
    for each in iterable:
        yield each


def run(scenario: Callable[[], Coroutine[Any, Any, Any]], timeout: float = 120.0) -> Any:
    """Run it in a loop in debug mode. What asyncio complains about is an error."""
    complaints: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            complaints.append(record.getMessage())

    async def bounded() -> Any:
        asyncio.get_running_loop().slow_callback_duration = SLOW_CALLBACK
        return await asyncio.wait_for(scenario(), timeout)

    collector = Collector(logging.WARNING)
    logger = logging.getLogger("asyncio")
    logger.addHandler(collector)
    try:
        outcome = asyncio.run(bounded(), debug=True)
    finally:
        logger.removeHandler(collector)
    assert complaints == []
    return outcome


async def eventually(condition: Callable[[], Any | Awaitable[Any]], timeout: float = 30.0) -> Any:
    """As `tests.waiting.eventually`, while the loop runs."""
    deadline = asyncio.get_running_loop().time() + timeout
    while True:
        expired = asyncio.get_running_loop().time() >= deadline
        outcome = condition()
        if inspect.isawaitable(outcome):
            outcome = await outcome
        if outcome:
            return outcome
        if expired:
            raise AssertionError(f"not within {timeout:g} s (last seen: {outcome!r})")
        await asyncio.sleep(0.01)


def both(synchronous: type, asynchronous: type) -> pytest.MarkDecorator:
    """Parameters of a test: `client` makes one of either kind, to be used with `await`."""

    def make_synchronous(**options: Any) -> Awaited:
        return Awaited(synchronous(**options))

    return pytest.mark.parametrize(
        "client", [make_synchronous, asynchronous], ids=["synchronous", "asynchronous"]
    )


def differences(synchronous: type, asynchronous: type) -> list[str]:
    """Where the public words of the two differ: names, parameters, what can be awaited."""
    wrong = []
    renamed = {"__enter__": "__aenter__", "__exit__": "__aexit__", "__iter__": "__aiter__"}
    words = {name for name in dir(synchronous) if not name.startswith("_")} | {
        name for name in renamed if hasattr(synchronous, name)
    }
    others = {name for name in dir(asynchronous) if not name.startswith("_")}
    wrong += [f"only asynchronous: {name}" for name in sorted(others - words)]
    for name in sorted(words):
        theirs = getattr(asynchronous, renamed.get(name, name), None)
        ours = getattr(synchronous, name)
        if theirs is None:
            wrong.append(f"only synchronous: {name}")
        elif callable(ours):
            parameters = [list(inspect.signature(each).parameters) for each in (ours, theirs)]
            defaults = [
                [each.default for each in inspect.signature(method).parameters.values()]
                for method in (ours, theirs)
            ]
            if parameters[0] != parameters[1] or defaults[0] != defaults[1]:
                wrong.append(f"other parameters: {name} {parameters}")
            plain = name in PLAIN or name == "__iter__"
            if inspect.iscoroutinefunction(theirs) == plain and name not in ("batches", "arrow"):
                wrong.append(f"{name} is to be {'plain' if plain else 'awaited'}")
            returned = get_origin(inspect.signature(theirs).return_annotation)
            if name in ("batches", "arrow") and returned is not AsyncGenerator:
                wrong.append(f"{name} is no asynchronous iteration")
    return wrong
