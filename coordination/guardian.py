"""A session whose process has died is closed at once, not after its timeout.

A session timeout is what must pass when nobody can say whether a process lives. When a *process*
dies (SIGKILL, out of memory, a crash in C) its own machine knows at once: a tiny second process
(guardian_process.py) waits for that and closes the dead one's sessions in its name. It is an
accelerator and never needed for safety: fencing holds in any case.

One guardian per process, started with the first guarded session. It dies with the sessions: when it
was killed alone, the next guarded session starts another.

Where there cannot be one, or where something else ends it together with its process, a log line says
so once, and the session timeout decides.
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
_INITIAL_PID_NAMESPACE: Final = "pid:[4026531836]"  # the kernel's PROC_PID_INIT_INO


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
        self._started_by = -1
        self._surroundings_told = False
        self._guarded: dict[int, dict[str, Any]] = {}

    @property
    def pid(self) -> int | None:
        """The guardian's process id while it runs."""
        process = self._process
        return None if process is None or process.poll() is not None else process.pid

    def guard(self, session: KazooSession, zookeeper: str) -> None:
        """Have the session closed when this process dies; until the session itself is over."""
        if not self._is_possible():
            return
        session_id = session.session_id
        _, chroot, addresses = connect_string.parse(zookeeper)
        entry = {
            "guard": f"{session_id & (2**64 - 1):x}",
            "password": session.password.hex(),
            "servers": addresses,
            "timeout": session.session_timeout,
            "notes": [],
        }
        with self._lock:
            if os.getpid() != self._started_by:
                self._guarded.clear()  # a fork: the sessions belong to the parent
            self._guarded[session_id] = entry
            self._say(entry)

        def note_death(*paths: str) -> None:
            with self._lock:
                if session_id in self._guarded:
                    entry["notes"] = [f"{chroot}{path}" for path in paths]
                    self._say(entry)

        def release(state: SessionState) -> None:
            if state is SessionState.LOST:
                with self._lock:
                    if self._guarded.pop(session_id, None) and self.pid is not None:
                        self._say({"release": entry["guard"]})

        session.note_death = note_death
        session.listen(release)
        release(session.state)

    def _is_possible(self) -> bool:
        why = obstacle()
        if not self._surroundings_told:
            self._surroundings_told = True
            if why is not None:
                log.warning(
                    "no guardian, the session timeout decides when this process dies: %s", why
                )
            elif (weakness := limitation()) is not None:
                log.info("the session timeout may decide when this process dies: %s", weakness)
        return why is None

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


def obstacle() -> str | None:
    """Why this process cannot have a guardian, if so."""
    if sys.platform != "linux":
        return "it needs Linux"
    # Frozen or embedded, this is the application: it would be started once more.
    executable = sys.executable or "nothing"
    if getattr(sys, "frozen", False) or not _INTERPRETER.fullmatch(Path(executable).name):
        return f"{executable} is not a Python interpreter that could run it"
    if not _PROGRAM.is_file():
        return f"{_PROGRAM} is not a file that an interpreter could run"
    if os.getpid() == 1:
        return "every process of a container ends with its PID 1, which is this one"
    return None


def limitation() -> str | None:
    """What may end the guardian together with this process, if there is such a thing."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
        group = Path("/proc/self/cgroup").read_text().splitlines()[-1]
    except (OSError, IndexError):
        return None
    if os.getppid() == 1 and namespace != _INITIAL_PID_NAMESPACE:
        return "its parent is PID 1 of a container; if that ends with it, so do all other processes"
    if group.endswith(".service"):
        service = group.rsplit("/", 1)[1]
        return f"systemd may end the guardian with {service} (OOMPolicy, TimeoutStopSec)"
    return None


GUARDIAN: Final = Guardian()


def _forget_after_fork() -> None:
    GUARDIAN._lock = threading.Lock()  # a thread that is not here may hold the parent's for ever


os.register_at_fork(after_in_child=_forget_after_fork)
