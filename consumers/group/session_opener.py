"""Opens ZooKeeper sessions beside the thread that needs them: it may take long."""

from collections.abc import Callable
from threading import Lock, Thread
from typing import Any

from folkmoot.coordination.zookeeper.session import Connect, Session


class Opener:
    """One attempt at a time. What comes after `close` is for nobody, and is closed.

    `report` gets the session, or why there is none; on the thread of the attempt.
    """

    def __init__(self, connect: Connect, report: Callable[[Session | Exception], Any]) -> None:
        self._connect = connect
        self._report = report
        self._lock = Lock()
        self._closed = False

    def begin(self, session_timeout: float, *, aside: bool) -> None:
        """Start an attempt, on a thread of its own or (`aside` False) here and now."""
        if aside:
            arguments = (session_timeout,)
            Thread(target=self._open, args=arguments, name="folkmoot-connect", daemon=True).start()
        else:
            self._open(session_timeout)

    def close(self) -> None:
        """Nothing is reported any more."""
        with self._lock:
            self._closed = True

    def _open(self, session_timeout: float) -> None:
        try:
            found: Session | Exception = self._connect(session_timeout)
        except Exception as error:
            found = error
        with self._lock:
            if not self._closed:
                self._report(found)
                return
        if not isinstance(found, Exception):
            found.close()
