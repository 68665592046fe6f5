"""Signals that stop a consumer."""

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Final

from folkmoot.protocol.errors import ConcurrentUse

_USUAL: Final[Sequence[signal.Signals]] = (signal.SIGTERM, signal.SIGINT)


class Signalled:
    """The result of `leave_on_signals`: true once a signal came. A call returns the first one, or None."""

    def __init__(self) -> None:
        self.came: list[signal.Signals] = []

    def __call__(self) -> signal.Signals | None:
        return self.came[0] if self.came else None

    def __bool__(self) -> bool:
        return bool(self.came)


class SignalHandlers:
    """Replaces signal handlers, and restores them later. Main thread only."""

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

        before = {signum: signal.getsignal(signum) for signum in signals or _USUAL}
        try:
            for signum in before:
                signal.signal(signum, handle)
            yield signalled
        finally:
            for signum, handler in before.items():
                self._undo.callback(signal.signal, signum, handler)
            # A second signal, as `timeout` sends it to process and group, must not disturb the close.
            if not signalled or is_closed():
                self._undo.close()

    def close(self) -> None:
        """Restore the handlers."""
        self._undo.close()
