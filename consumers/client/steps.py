"""A consumer's waiting work as steps: each face decides how to wait.

A generator yields each wait for news as seconds, blocking work as `BlockingWork`, and another thread's
answer as `Answer`. The sync face waits and works in its thread; the async face awaits. So each operation is
written once, and tests take the steps without a thread.
"""

from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class BlockingWork(NamedTuple):
    """Blocking work, off the event loop; its result is sent back."""

    work: Callable[[], Any]


class Answer(NamedTuple):
    """Another thread's answer, within `timeout` seconds; its result is sent back. Raises TimeoutError."""

    future: "Future[Any]"
    timeout: float


Steps = Generator["float | BlockingWork | Answer", Any, T]
"""Steps to a result of type T. If they end early, nothing is left half done."""
