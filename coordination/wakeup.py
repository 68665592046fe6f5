"""Wakes a loop: anything may do so, from any thread, as often as it likes; its one owner waits for it.

The only thing that a watch, a listener or a foreign thread does to an owner's loop. Several wakes
before the owner looks count once: it reads the whole current state and acts on it, so that lost or
doubled wakes do no harm.
"""

import os
import select
from contextlib import suppress
from threading import RLock
from typing import Final
from weakref import WeakSet

_MAX_WAIT: Final = 86_400.0
"""Seconds; `poll` takes no more than 24 days."""


class Wakeup:
    """Wakes a loop that waits on `fileno()`, by itself or in a poller of sockets.

    A forked child has one of its own: of a pipe that two processes share, each would read what was
    written for the other's loop.
    """

    _open = False

    def __init__(self) -> None:
        # A late wake must not write to a closed, perhaps reused, descriptor. Reentrant, since a signal
        # handler may wake while the thread that it interrupts does.
        self._lock = RLock()
        self._awake = False  # there is a byte in the pipe that nobody has read
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._open = True
        _all.add(self)

    def fileno(self) -> int:
        return self._reader

    def wake(self) -> None:
        """Wake the owner. Does nothing after close, so that late watches are harmless."""
        with self._lock:
            if self._open and not self._awake:  # a write would cost the interpreter's lock
                with suppress(BlockingIOError):  # who finds the pipe full has woken the owner
                    os.write(self._writer, b"!")
                self._awake = True

    def wait(self, timeout: float | None) -> bool:
        """Wait until it is woken, at most `timeout` seconds (a day), and clear it. True if it was woken."""
        poll = select.poll()  # `select` refuses a process that has more than a thousand descriptors
        poll.register(self._reader, select.POLLIN)
        most = None if timeout is None else max(0.0, min(timeout, _MAX_WAIT)) * 1000
        if not poll.poll(most):
            return False
        self.clear()
        return True

    def clear(self) -> None:
        """Forget the wakes so far. After close, what has the descriptor's number now is not read."""
        with self._lock:
            if not self._open:
                return
            try:
                with suppress(BlockingIOError):
                    os.read(self._reader, 4096)
            finally:  # whatever interrupts: one byte too many wakes once, one too few never
                self._awake = False

    def close(self) -> None:
        with self._lock:
            if self._open:
                self._open = False
                os.close(self._writer)
                os.close(self._reader)

    def __del__(self) -> None:
        """Whoever could not start, and so was never closed, must not keep descriptors for ever."""
        if self._open:
            self.close()

    def _forked(self) -> None:
        """This is a child process: the pipe is the parent's, and the lock may be held for ever."""
        self._lock, self._awake = RLock(), False
        if self._open:
            for mine, shared in zip(
                os.pipe2(os.O_NONBLOCK), (self._reader, self._writer), strict=True
            ):
                os.dup2(mine, shared, inheritable=False)
                os.close(mine)


_all: WeakSet[Wakeup] = WeakSet()


def _forget_after_fork() -> None:
    for wakeup in list(_all):
        wakeup._forked()


os.register_at_fork(after_in_child=_forget_after_fork)
