"""Somebody ends a run before its time: Ctrl-C, `kill`, or a terminal that is closed.

Each raises KeyboardInterrupt in the main thread, so that every `with` on the way out stops its servers
and removes its files. What tidies up is done `undisturbed`: the second Ctrl-C of somebody impatient
would leave gigabytes behind, and waits until then.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def heeded() -> Iterator[None]:
    """Within it, each of the signals interrupts, also where a shell had them ignored."""
    before = {number: signal.signal(number, _interrupt) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Signals wait until its end. Only in the main thread; others have nothing to wait for."""
    waiting: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _frame: waiting.append(number))
        for number in SIGNALS
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if waiting:
        signal.raise_signal(waiting[0])


def _interrupt(number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)
