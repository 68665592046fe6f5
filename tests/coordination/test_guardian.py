"""A dead process's session is closed at once; a stopped one's is not; a guardian can be missing."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from folkmoot.coordination.guardian import Guardian
from folkmoot.coordination.zookeeper.connect_string import addresses
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.kazoo_adapter import connect
from folkmoot.coordination.zookeeper.operations import Exists, Get
from folkmoot.coordination.zookeeper.session import SessionState
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
session.note_death("/left", "/left/me")
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


def test_a_guardian_says_that_the_process_died_before_it_closes_the_session(chroot: str) -> None:
    """Whoever sees the ephemeral node go finds it said."""
    session = connect(chroot, SESSION)
    with holder(chroot) as (process, _):
        assert process.stdin is not None
        process.stdin.write("die\n")
        process.stdin.flush()
        process.wait(AT_ONCE)
        eventually(lambda: execute(session, Exists("/here")) is None, timeout=AT_ONCE)
        assert execute(session, Get("/left/me")).data == b"its process died"
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


def test_the_guardian_s_secrets_are_not_in_its_arguments(chroot: str) -> None:
    with holder(chroot) as (_, guardian):
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

    def guarded_by(self, note: Callable[..., None]) -> None:
        self.note_death = note


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
        timeout=AT_ONCE,
        cwd=ROOT,
    )
    os.kill(int(ended.stdout), signal.SIGKILL)  # it would look for the servers of session 2
    assert ended.stderr == ""
    assert ended.returncode == 0


def test_addresses_of_a_connect_string() -> None:
    assert addresses("a:1,b,[::1]:3/x") == [("a", 1), ("b", 2181), ("::1", 3)]
