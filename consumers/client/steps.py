"""What a consumer does that takes time, as steps: who takes them decides how to wait.

A generator yields each wait in seconds, at most, for news of brokers or the group, and each piece of work
that blocks as `Beside`. The sync face waits in its thread and works there; the async face awaits both. So
all that a consumer does is written once, and a test takes the steps without a thread.
"""

from collections.abc import Callable, Generator
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class Beside(NamedTuple):
    """Work that blocks: it is done where that disturbs no event loop, and its result is sent back."""

    work: Callable[[], Any]


Steps = Generator["float | Beside", Any, T]
"""Steps to a result of type T. Ended early, they leave nothing half done."""
