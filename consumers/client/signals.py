"""An orderly end by a signal, for applications that ask for it: nothing else here touches signals."""

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Final

USUAL: Final = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stopped_by_signals(
    stop: Callable[[], None], signals: Sequence[signal.Signals] = ()
) -> Iterator[Callable[[], signal.Signals | None]]:
    """While it lasts, each of these signals (SIGTERM and SIGINT) calls `stop`.

    A second Ctrl-C interrupts at once. For the main thread; what handled the signals before does so
    again afterwards. Yields what tells which signal came first, if any.
    """
    came: list[signal.Signals] = []

    def handle(number: int, frame: FrameType | None) -> None:
        came.append(signal.Signals(number))
        if signal.SIGINT in before:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        stop()

    before = {each: signal.getsignal(each) for each in signals or USUAL}
    try:
        for each in before:
            signal.signal(each, handle)
        yield lambda: came[0] if came else None
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
