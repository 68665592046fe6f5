"""A session whose process has died is closed at once, not after its timeout.

A session timeout is what must pass when nobody can say whether a process lives. When a *process*
dies (SIGKILL, out of memory, a crash in C) its own machine knows at once: a tiny second process
(guardian_process.py) waits for that and closes the dead one's sessions in its name. It is an
accelerator and never needed for safety: fencing holds in any case.

One guardian per process, started with the first guarded session. It dies with the sessions: when it
was killed alone, the next guarded session starts another.
"""

import json
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Final

from folkmoot.coordination.zookeeper import connect_string
from folkmoot.coordination.zookeeper.kazoo_adapter import KazooSession
from folkmoot.coordination.zookeeper.session import SessionState

log = logging.getLogger(__name__)

POSSIBLE: Final = sys.platform == "linux"
_PROGRAM: Final = Path(__file__).with_name("guardian_process.py")


class _Companion(subprocess.Popen[bytes]):
    """A process that outlives this one on purpose, which Popen would warn of."""

    def __del__(self) -> None:
        pass


class Guardian:
    """This process's guardian; any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: _Companion | None = None
        self._pipe: int | None = (
            None  # its input; a file object would complain that it is left open
        )
        self._started_by = -1
        self._guarded: dict[int, dict[str, Any]] = {}

    @property
    def pid(self) -> int | None:
        """The guardian's process id while it runs."""
        process = self._process
        return None if process is None or process.poll() is not None else process.pid

    @property
    def guarded(self) -> tuple[int, ...]:
        """The ids of the sessions that it would close."""
        with self._lock:
            return tuple(self._guarded)

    def guard(self, session: KazooSession, zookeeper: str) -> None:
        """Have the session closed when this process dies; until the session itself is over."""
        session_id = session.session_id
        entry = {
            "guard": f"{session_id & (2**64 - 1):x}",
            "password": session.password.hex(),
            "servers": connect_string.addresses(zookeeper),
            "chroot": connect_string.parse(zookeeper).chroot,
            "timeout": session.session_timeout,
            "notes": [],
        }
        with self._lock:
            if os.getpid() != self._started_by:
                self._guarded.clear()  # a fork: the sessions belong to the parent
            self._guarded[session_id] = entry
            self._say(entry)
        session.guarded_by(lambda *paths: self.note(session_id, *paths))
        session.listen(lambda state: self._release(session_id, state))
        if session.state is SessionState.LOST:
            self._release(session_id, session.state)

    def note(self, session_id: int, *paths: str) -> None:
        """If it closes this session, it first makes these nodes, which say that the process died."""
        with self._lock:
            entry = self._guarded.get(session_id)
            if entry is not None:
                entry["notes"] = [f"{entry['chroot']}{path}" for path in paths]
                self._say(entry)

    def _release(self, session_id: int, state: SessionState) -> None:
        if state is not SessionState.LOST:
            return
        with self._lock:
            entry = self._guarded.pop(session_id, None)
            if entry is not None and self.pid is not None:
                self._say({"release": entry["guard"]})

    def _say(self, what: dict[str, Any]) -> None:
        """Tell the guardian; one that is not there is started and told everything. Under the lock."""
        try:
            if self.pid is None or os.getpid() != self._started_by:
                self._start()
                said = [{"parent": os.getpid()}, *self._guarded.values()]
            else:
                said = [what]
            assert self._pipe is not None
            for each in said:
                os.write(self._pipe, json.dumps(each).encode() + b"\n")
        except OSError as error:
            log.warning("there is no guardian (%s): the session timeout decides", error)

    def _start(self) -> None:
        """Raises OSError; then the next session tries again."""
        self._started_by = os.getpid()
        self._process = None
        if self._pipe is not None:
            pipe, self._pipe = self._pipe, None
            os.close(pipe)
        heard, told = os.pipe()
        try:
            self._process = _Companion(
                [sys.executable, "-I", "-S", "-E", str(_PROGRAM)],
                stdin=heard,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # a Ctrl-C is meant for us; we say how it ends
            )
        except BaseException:
            os.close(told)
            raise
        finally:
            os.close(heard)
        self._pipe = told


GUARDIAN: Final = Guardian()
