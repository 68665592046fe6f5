"""Wakes a loop from any thread: the only thing that a watch, a listener or another thread does to it.

Several wakes before the owner looks count once: it reads the whole current state and acts on it.
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
    """Wakes a loop that waits in `wait`, or for `fileno()` in a poller of sockets. In a forked child it is
    closed: the pipe is the parent's."""

    _open = False

    def __init__(self) -> None:
        # A late wake must not write to a closed, perhaps reused, descriptor. Reentrant, since a signal
        # handler may wake while the thread that it interrupts does.
        self._lock = RLock()
        self._awake = False  # there is an unread byte in the pipe
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._open = True
        _all.add(self)

    def fileno(self) -> int:
        return self._reader

    def wake(self) -> None:
        """Wake the owner. Does nothing after close, so that late watches are harmless."""
        with self._lock:
            if self._open and not self._awake:  # a write would cost the interpreter's lock
                with suppress(BlockingIOError):  # the pipe is full: the owner is awake
                    os.write(self._writer, b"!")
                self._awake = True

    def wait(self, timeout: float | None) -> bool:
        """Wait for a wake, at most `timeout` seconds (a day), and clear it. True if there was one."""
        poll = select.poll()  # `select` refuses a process that has more than a thousand descriptors
        poll.register(self._reader, select.POLLIN)
        most = None if timeout is None else max(0.0, min(timeout, _MAX_WAIT)) * 1000
        if not poll.poll(most):
            return False
        self.clear()
        return True

    def clear(self) -> None:
        """Forget the wakes so far. After close, another file may have the descriptor: it is not read."""
        with self._lock:
            if not self._open:
                return
            try:
                with suppress(BlockingIOError):
                    os.read(self._reader, 4096)
            finally:  # even after Ctrl-C: a byte too many wakes once, one too few never
                self._awake = False

    def close(self) -> None:
        with self._lock:
            if self._open:
                self._open = False
                os.close(self._writer)
                os.close(self._reader)

    def __del__(self) -> None:
        """The owner may have failed to start, and never close it."""
        if self._open:
            self.close()

    def _forked(self) -> None:
        """In a child process: the pipe is the parent's, and a thread of the parent may hold the lock."""
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
