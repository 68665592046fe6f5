"""Signals that ask a consumer to end."""

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Final

from folkmoot.protocol.errors import ConcurrentUse

_USUAL: Final[Sequence[signal.Signals]] = (signal.SIGTERM, signal.SIGINT)


class Signalled:
    """What `leave_on_signals` yields: true once a signal came. Called, it says which came first, or None."""

    def __init__(self) -> None:
        self.came: list[signal.Signals] = []

    def __call__(self) -> signal.Signals | None:
        return self.came[0] if self.came else None

    def __bool__(self) -> bool:
        return bool(self.came)


class SignalHandlers:
    """The handlers that were there before `leave_on_signals`, until they are put back. Main thread only."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._undo = ExitStack()

    @contextmanager
    def handled(
        self, signals: Sequence[signal.Signals], is_closed: Callable[[], bool]
    ) -> Iterator[Signalled]:
        """Have the first of these signals call `stop`. Raises ConcurrentUse off the main thread."""
        if threading.current_thread() is not threading.main_thread():
            raise ConcurrentUse(
                "only the main thread may handle signals: call leave_on_signals() there, or stop() from a "
                "handler of your own"
            )
        signalled = Signalled()

        def handle(number: int, frame: FrameType | None) -> None:
            signalled.came.append(signal.Signals(number))
            if signal.SIGINT in before:
                signal.signal(signal.SIGINT, signal.default_int_handler)
            self._stop()

        before = {each: signal.getsignal(each) for each in signals or _USUAL}
        try:
            for each in before:
                signal.signal(each, handle)
            yield signalled
        finally:
            for each, handler in before.items():
                self._undo.callback(signal.signal, each, handler)
            # Some signal the process and then its group, as `timeout` does: that disturbs no close.
            if not signalled or is_closed():
                self._undo.close()

    def close(self) -> None:
        """Put back what was there before."""
        self._undo.close()
