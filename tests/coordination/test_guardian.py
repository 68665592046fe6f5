"""A dead process's session is closed at once; a stopped one's is not; a guardian can be missing."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from folkmoot.coordination.connect_string import addresses
from folkmoot.coordination.operations import Exists
from folkmoot.coordination.store import perform
from folkmoot.coordination.zookeeper import connect
from tests.waiting import eventually

SESSION = 20.0
AT_ONCE = SESSION / 2

# A process that holds an ephemeral node, and says who guards it.
HOLDER = f"""
import sys, time
from folkmoot.coordination.connector import connector
from folkmoot.coordination.guardian import GUARDIAN
from folkmoot.coordination.operations import Create
from folkmoot.coordination.store import perform
store = connector(sys.argv[1], guarded=True)({SESSION})
perform(store, Create("/here", ephemeral=True))
print(GUARDIAN.pid, flush=True)
if sys.stdin.readline() == "close\\n":
    store.close()
    print("closed", flush=True)
    sys.stdin.readline()
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


def is_running(pid: int) -> bool:
    """Whether a process of another parent still runs (a zombie does not)."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_killed_process_loses_its_ephemeral_nodes_at_once(chroot: str) -> None:
    store = connect(chroot, SESSION)
    with holder(chroot) as (process, guardian):
        assert perform(store, Exists("/here")) is not None
        process.kill()
        eventually(lambda: perform(store, Exists("/here")) is None, timeout=AT_ONCE)
        eventually(lambda: not is_running(guardian), timeout=AT_ONCE)
    store.close()


def test_a_stopped_process_keeps_its_session(chroot: str) -> None:
    store = connect(chroot, SESSION)
    with holder(chroot) as (process, guardian):
        process.send_signal(signal.SIGSTOP)
        assert is_running(guardian)
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            assert perform(store, Exists("/here")) is not None
        process.send_signal(signal.SIGCONT)
    store.close()


def test_a_guardian_killed_alone_leaves_the_session_to_its_timeout(chroot: str) -> None:
    store = connect(chroot, SESSION)
    with holder(chroot) as (_, guardian):
        os.kill(guardian, signal.SIGKILL)
        eventually(lambda: not is_running(guardian), timeout=AT_ONCE)
        assert perform(store, Exists("/here")) is not None
    store.close()


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
        eventually(lambda: not is_running(guardian), timeout=AT_ONCE)


def test_the_guardian_s_secrets_are_not_in_its_arguments(chroot: str) -> None:
    with holder(chroot) as (_, guardian):
        with open(f"/proc/{guardian}/cmdline") as arguments:
            said = arguments.read()
        assert "guardian_process.py" in said
        assert chroot.partition("/")[0] not in said


def test_addresses_of_a_connect_string() -> None:
    assert addresses("a:1,b,[::1]:3/x") == [("a", 1), ("b", 2181), ("::1", 3)]
