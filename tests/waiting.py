"""Waiting for what another thread or process brings about."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PAUSE = 0.01


def eventually(condition: Callable[[], T], timeout: float = 30.0) -> T:
    """Calls the condition until what it returns is true, and returns that.

    What it raises is raised here, at once: a condition that may fail for a while says so by
    returning something false.
    """
    deadline = time.monotonic() + timeout
    while True:
        # The deadline is read first, so that a slow machine gets one look after it has passed.
        expired = time.monotonic() >= deadline
        outcome = condition()
        if outcome:
            return outcome
        if expired:
            name = getattr(condition, "__qualname__", repr(condition))
            raise AssertionError(f"not within {timeout:g} s: {name} (last seen: {outcome!r})")
        time.sleep(PAUSE)
