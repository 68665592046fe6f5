"""A dead process's session is closed at once; a stopped one's is not; a guardian can be missing."""

import errno
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from folkmoot.coordination import guardian as guardian_module
from folkmoot.coordination import guardian_process
from folkmoot.coordination.guardian import GUARDIAN, Guardian, obstacle
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.kazoo_adapter import connect
from folkmoot.coordination.zookeeper.operations import Exists
from folkmoot.coordination.zookeeper.session import SessionState
from tests.consumers.test_forks import in_child
from tests.processes import state, told
from tests.tree import ROOT
from tests.waiting import eventually

SESSION = 20.0
AT_ONCE = SESSION / 2

# A process that holds an ephemeral node, and says who guards it.
HOLDER = f"""
import os, sys, time
from folkmoot.coordination.connector import connector
from folkmoot.coordination.guardian import GUARDIAN
from folkmoot.coordination.zookeeper.operations import Create
from folkmoot.coordination.zookeeper.execute import execute
session = connector(sys.argv[1], guarded=True)({SESSION})
execute(session, Create("/here", ephemeral=True))
print(GUARDIAN.pid, flush=True)
if sys.stdin.readline() == "close\\n":
    session.close()
    print("closed", flush=True)
    sys.stdin.readline()
else:
    os._exit(1)
"""


@contextmanager
def holder(chroot: str) -> Iterator[tuple["subprocess.Popen[str]", int]]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, chroot],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())
        process.kill()


def test_a_killed_process_loses_its_ephemeral_nodes_at_once(chroot: str) -> None:
    session = connect(chroot, SESSION)
    with holder(chroot) as (process, guardian):
        assert execute(session, Exists("/here")) is not None
        process.kill()
        eventually(lambda: execute(session, Exists("/here")) is None, timeout=AT_ONCE)
        eventually(lambda: state(guardian) == "X", timeout=AT_ONCE)
    session.close()


def test_a_stopped_process_keeps_its_session(chroot: str) -> None:
    session = connect(chroot, SESSION)
    with holder(chroot) as (process, guardian):
        process.send_signal(signal.SIGSTOP)
        assert state(guardian) != "X"
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            assert execute(session, Exists("/here")) is not None
        process.send_signal(signal.SIGCONT)
    session.close()


def test_a_guardian_killed_alone_leaves_the_session_to_its_timeout(chroot: str) -> None:
    session = connect(chroot, SESSION)
    with holder(chroot) as (_, guardian):
        os.kill(guardian, signal.SIGKILL)
        eventually(lambda: state(guardian) == "X", timeout=AT_ONCE)
        assert execute(session, Exists("/here")) is not None
    session.close()


def test_a_closed_session_is_no_longer_guarded_and_the_guardian_ends_with_its_process(
    chroot: str,
) -> None:
    with holder(chroot) as (process, guardian):
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("close\n")
        process.stdin.flush()
        assert process.stdout.readline() == "closed\n"
        process.stdin.close()
        process.wait(AT_ONCE)
        eventually(lambda: state(guardian) == "X", timeout=AT_ONCE)


def test_a_guardian_is_in_a_session_of_its_own_and_its_secrets_are_not_in_its_arguments(
    chroot: str,
) -> None:
    with holder(chroot) as (_, guardian):
        assert (
            os.getsid(guardian) == guardian
        )  # what a terminal sends is meant for its process alone
        # There are none while the program is being loaded.
        said = eventually(lambda: told(guardian, "cmdline"))
        assert "guardian_process.py" in said
        assert chroot.partition("/")[0] not in said


class FakeSession:
    """As much of a session as a guardian looks at."""

    password = b"secret"
    session_timeout = SESSION
    state = SessionState.CONNECTED

    def __init__(self, session_id: int) -> None:
        self.session_id = session_id
        self.listeners: list[Callable[[SessionState], None]] = []

    def listen(self, listener: Callable[[SessionState], None]) -> None:
        self.listeners.append(listener)


def guard(guardian: Guardian, *session_ids: int) -> None:
    for session_id in session_ids:
        session: Any = FakeSession(session_id)
        guardian.guard(session, "localhost:1")


def end(guardian: Guardian) -> None:
    process, pipe = guardian._process, guardian._pipe
    assert process is not None
    assert pipe is not None
    process.kill()
    process.wait(AT_ONCE)
    os.close(pipe)


def test_a_session_whose_guardian_cannot_be_started_goes_on_and_the_next_one_tries_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    guardian = Guardian()
    with monkeypatch.context() as patch:

        def full(*_: object) -> None:
            raise OSError(errno.EMFILE, "Too many open files")

        patch.setattr(subprocess.Popen, "_execute_child", full)
        guard(guardian, 1)
    assert "Too many open files" in caplog.text
    assert guardian._guarded.keys() == {1}
    guard(guardian, 2)
    assert guardian.pid is not None
    end(guardian)


def test_sessions_that_begin_at_the_same_time_start_one_guardian(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    guardian = Guardian()
    starts = []
    start = guardian._start

    def slow_start() -> None:
        starts.append(threading.current_thread())
        time.sleep(0.05)
        start()

    monkeypatch.setattr(guardian, "_start", slow_start)
    threads = [threading.Thread(target=guard, args=(guardian, number)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(starts) == 1
    assert len(guardian._guarded) == 8
    end(guardian)


def test_a_child_that_is_forked_while_a_thread_guards_a_session_can_guard_its_own() -> None:
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with GUARDIAN._lock:
            held.set()
            over.wait(30.0)

    def work() -> None:
        guard(GUARDIAN, 1)
        end(GUARDIAN)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert held.wait(30.0)
        assert in_child(work) == 0
    finally:
        over.set()
        thread.join()


def test_a_guardian_that_outlives_its_process_is_not_warned_of() -> None:
    program = (
        "from tests.coordination.test_guardian import guard\n"
        "from folkmoot.coordination.guardian import GUARDIAN\n"
        "import gc, os, time\n"
        "guard(GUARDIAN, 1)\n"
        "os.kill(GUARDIAN.pid, 9)\n"
        "while GUARDIAN.pid is not None: time.sleep(0.01)\n"
        "guard(GUARDIAN, 2)\n"
        "print(GUARDIAN.pid)\n"
        "gc.collect()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        timeout=60.0,
        cwd=ROOT,
    )
    os.kill(int(ended.stdout), signal.SIGKILL)  # it would look for the servers of session 2
    assert ended.stderr == ""
    assert ended.returncode == 0


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Its log lines; threads of other tests' sessions may log as well."""
    return [each.message for each in caplog.records if each.name == guardian_module.__name__]


def no_guardian(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Guards two sessions where there can be no guardian → the log lines."""
    guardian = Guardian()
    guard(guardian, 1, 2)
    assert guardian.pid is None
    assert guardian._process is None
    assert not guardian._guarded
    return said(caplog)


@pytest.mark.parametrize("executable", ["/usr/bin/uwsgi", "/opt/app/flights", "", None])
def test_an_application_that_embeds_python_is_not_started_once_more(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, executable: str | None
) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    (line,) = no_guardian(caplog)
    assert f"{executable or 'nothing'} is not a Python interpreter" in line
    assert "session timeout" in line


def test_a_frozen_application_is_not_started_once_more(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    (line,) = no_guardian(caplog)
    assert "is not a Python interpreter" in line


def test_a_program_inside_of_an_archive_is_not_started(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(guardian_module, "_PROGRAM", ROOT / "app.pyz" / "guardian_process.py")
    (line,) = no_guardian(caplog)
    assert "app.pyz" in line


def test_pid_1_of_a_container_has_no_guardian_since_it_would_end_with_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 1)
    (line,) = no_guardian(caplog)
    assert "PID 1" in line


@pytest.mark.parametrize(
    "name", ["python", "python3", "python3.13", "python3.13t", "python3.12d", "pypy3", "pypy3.11"]
)
def test_every_interpreter_can_run_a_guardian(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(sys, "executable", f"/venv/bin/{name}")
    assert obstacle() is None


def ignores(pid: int, number: signal.Signals) -> bool:
    (mask,) = re.findall(r"^SigIgn:\s*(\w+)", told(pid, "status"), re.MULTILINE)
    return bool(int(mask, 16) >> number - 1 & 1)


def test_a_sigterm_to_all_that_is_left_of_a_service_does_not_keep_it_from_its_work(
    chroot: str,
) -> None:
    """systemd sends one to the whole control group when the main process has died."""
    session = connect(chroot, SESSION)
    with holder(chroot) as (process, guardian):
        eventually(lambda: ignores(guardian, signal.SIGTERM))  # none while it is being loaded
        os.kill(guardian, signal.SIGTERM)
        process.kill()
        eventually(lambda: execute(session, Exists("/here")) is None, timeout=AT_ONCE)
        eventually(lambda: state(guardian) == "X", timeout=AT_ONCE)
    session.close()


def test_a_server_that_hangs_up_without_a_word_has_not_closed_the_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has no quorum for now, or too many connections from there: another one is asked."""
    asked: list[str] = []

    class Connection:
        def __init__(self, address: tuple[str, int], timeout: float) -> None:
            asked.append(address[0])
            self._answers = iter([b""] if address[0] == "busy" else [b"closed", b""])

        def __enter__(self) -> "Connection":
            return self

        def __exit__(self, *_: object) -> None:
            """Nothing is open."""

        def sendall(self, data: bytes) -> None:
            assert data

        def recv(self, size: int) -> bytes:
            return next(self._answers)

    monkeypatch.setattr(socket, "create_connection", Connection)
    servers = [("busy", 1), ("able", 2), ("third", 3)]
    session = {"guard": "7", "password": "", "servers": servers, "timeout": SESSION}
    guardian_process._close(session)
    assert asked == ["busy", "able"]
