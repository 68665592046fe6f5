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
def interruptible() -> Iterator[None]:
    """Within it, each of the signals interrupts.

    SIGINT even where a shell had it ignored, as it does for what it starts in the background; but
    not SIGHUP under nohup, which is somebody's wish.
    """
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    heard = SIGNALS[:-1] if ignored else SIGNALS
    before = {number: signal.signal(number, _interrupt) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Signals wait until its end. Only in the main thread."""
    waiting: list[int] = []
    heard = [each for each in SIGNALS if signal.getsignal(each) is not signal.SIG_IGN]
    before = {
        number: signal.signal(number, lambda number, _frame: waiting.append(number))
        for number in heard
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
