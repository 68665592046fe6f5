"""What a consumer does that takes time, as steps: who takes them decides how to wait.

A generator yields each wait in seconds, at most, for news of brokers or the group; each piece of work
that blocks as `Beside`; and what another thread answers as `Answer`. The sync face waits in its thread
and works there; the async face awaits all of it. So what a consumer does is written once, and a test takes
the steps without a thread.
"""

from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class Beside(NamedTuple):
    """Work that blocks: it is done where that disturbs no event loop, and its result is sent back."""

    work: Callable[[], Any]


class Answer(NamedTuple):
    """What another thread answers, waited for at most `timeout` seconds. → its result, or TimeoutError."""

    future: "Future[Any]"
    timeout: float


Steps = Generator["float | Beside | Answer", Any, T]
"""Steps to a result of type T. Ended early, they leave nothing half done."""
