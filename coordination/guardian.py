"""Closes the sessions of a process when it dies, not after their timeout.

A second, tiny process (guardian_process.py) waits for the death (SIGKILL, out of memory, a crash in C), and
closes the sessions. This saves time, and safety never needs it: fencing holds in any case.

The first guarded session starts the guardian. It ends with the sessions; if it was killed, the next guarded
session starts another. A process that cannot have one logs why, once.
"""

import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Final

from folkmoot.coordination.zookeeper import connect_string
from folkmoot.coordination.zookeeper.kazoo_adapter import KazooSession
from folkmoot.coordination.zookeeper.session import SessionState
from folkmoot.protocol.process.thread_log import thread_log

log = thread_log(__name__)

_PROGRAM: Final = Path(__file__).with_name("guardian_process.py")
_INTERPRETER: Final = re.compile(r"(python|pypy)[\d.]*[a-z]*")


class _Companion(subprocess.Popen[bytes]):
    """A process that outlives this one on purpose, which Popen would warn of."""

    def __del__(self) -> None:
        pass


class Guardian:
    """This process's guardian; any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: _Companion | None = None
        # Its input; a file object would complain that it is left open.
        self._pipe: int | None = None
        self._is_obstacle_logged = False
        self._guarded: dict[int, dict[str, Any]] = {}

    @property
    def pid(self) -> int | None:
        """The guardian's process id while it runs."""
        process = self._process
        return None if process is None or process.poll() is not None else process.pid

    def guard(self, session: KazooSession, zookeeper: str) -> None:
        """Have the session closed when this process dies; until the session itself is over."""
        if (why := obstacle()) is not None:
            if not self._is_obstacle_logged:
                self._is_obstacle_logged = True
                log.warning(
                    "no guardian, the session timeout decides when this process dies: %s", why
                )
            return
        session_id = session.session_id
        entry = {
            "guard": f"{session_id & (2**64 - 1):x}",
            "password": session.password.hex(),
            "servers": connect_string.parse(zookeeper).addresses,
            "timeout": session.session_timeout,
        }
        with self._lock:
            self._guarded[session_id] = entry
            self._send(entry)

        def release(state: SessionState) -> None:
            if state is SessionState.LOST:
                with self._lock:
                    if self._guarded.pop(session_id, None) and self.pid is not None:
                        self._send({"release": entry["guard"]})

        session.listen(release)
        release(session.state)

    def _send(self, message: dict[str, Any]) -> None:
        """Send a message to the guardian; if there is none, start one and send it all. Under the lock."""
        try:
            messages = [message]
            if self.pid is None:
                self._start()
                messages = [{"parent": os.getpid()}, *self._guarded.values()]
            assert self._pipe is not None
            for each in messages:
                os.write(self._pipe, json.dumps(each).encode() + b"\n")
        except OSError as error:
            log.warning("there is no guardian (%s): the session timeout decides", error)

    def _start(self) -> None:
        """Raises OSError; then the next session tries again."""
        self.forget()
        reader, writer = os.pipe()
        try:
            self._process = _Companion(
                [sys.executable, "-I", "-S", "-E", str(_PROGRAM)],
                stdin=reader,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is meant for this process alone
            )
        except BaseException:
            os.close(writer)
            raise
        finally:
            os.close(reader)
        self._pipe = writer

    def forget(self) -> None:
        self._process = None
        if self._pipe is not None:
            pipe, self._pipe = self._pipe, None
            os.close(pipe)


def obstacle() -> str | None:
    """Why this process cannot have a guardian, or None."""
    if sys.platform != "linux":
        return "it needs Linux"
    # In a frozen application, or one that embeds Python, this is the application itself.
    executable = sys.executable or "nothing"
    if getattr(sys, "frozen", False) or not _INTERPRETER.fullmatch(Path(executable).name):
        return f"{executable} is not a Python interpreter that could run it"
    if not _PROGRAM.is_file():
        return f"{_PROGRAM} is not a file that an interpreter could run"
    if os.getpid() == 1:
        return "every process of a container ends with its PID 1, which is this one"
    return None


GUARDIAN: Final = Guardian()


def _forget_after_fork() -> None:
    GUARDIAN._lock = threading.Lock()  # a thread of the parent's may hold the old one
    GUARDIAN._guarded.clear()  # the sessions are the parent's, as is its guardian
    GUARDIAN.forget()


os.register_at_fork(after_in_child=_forget_after_fork)
