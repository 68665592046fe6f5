"""Child processes that end with their parent, and the waiting for their readiness."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import SystemRandom
from typing import Self, TypeVar

from folkmoot.protocol.errors import AddressTaken, FolkmootError

T = TypeVar("T")

POLL_INTERVAL = 0.01
LAST_LINES = 15
# Longer than a session of a broker that was killed may outlive it.
START_TIMEOUT = 60.0
STOP_TIMEOUT = 20.0
NAMES_AN_ERROR = re.compile(r"^folkmoot: |(Error|Exception): ")

# Ask the kernel to kill this process with its parent's thread, then become the command. The parent may have
# ended before that call: then getppid() is another process. 1 = PR_SET_PDEATHSIG.
TIED_TO_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execvp(sys.argv[2], sys.argv[2:])
"""


class StartFailed(FolkmootError):
    """A child process (ZooKeeper, a broker, a Spark app) did not come up."""


class _Spawner:
    """The one thread that makes all child processes of this process.

    Linux kills a child when the *thread* that made it ends (PR_SET_PDEATHSIG), so a child made by a
    short-lived thread would die with that thread. The signal is asked for by a tiny Python that then
    becomes the command, and not by `preexec_fn`, which may deadlock in a process with threads. Next
    to a watching process, this keeps the child's pid and exit code our own, and leaves no window:
    the kernel does it, even after SIGKILL. A forked copy of this process gets its own thread.
    """

    def __init__(self) -> None:
        self.thread = ThreadPoolExecutor(1, "folkmoot-spawner")


_spawner = _Spawner()
os.register_at_fork(after_in_child=_spawner.__init__)  # type: ignore[misc]


class ChildProcess:
    """A program run as a child process, its output appended to one file.

    `start` and `stop` may be called in turn, any number of times; `kill`, `pause` and `resume` do
    to it what faults do. Only the child's own pid is signalled, and only before it was waited for, so no
    other process with that pid is hit. One thread at a time uses it.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.command = tuple(command)
        self.log = log
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    @property
    def pid(self) -> int:
        if self._process is None:
            raise StartFailed(f"{self.name} was not started")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """None while it runs and before it was started."""
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        if self.is_running:
            raise StartFailed(f"{self.name} runs already")
        self.log.parent.mkdir(parents=True, exist_ok=True)
        argv = list(self.command)
        if sys.platform == "linux":
            argv = [sys.executable, "-I", "-S", "-c", TIED_TO_PARENT, str(os.getpid()), *argv]
        with self.log.open("ab") as output:
            self._log_start = output.tell()

            def start_process() -> subprocess.Popen[bytes]:
                return subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **self._environment},
                    # Ctrl-C on the terminal is for the parent, which then stops its children in order.
                    start_new_session=True,
                )

            self._process = _spawner.thread.submit(start_process).result()

    def wait_until(self, probe: Callable[[], T | None], timeout: float) -> T:
        """Return the result of `probe` as soon as it is not None; StartFailed if the child ends before."""
        deadline = time.monotonic() + timeout
        while True:
            expired = time.monotonic() >= deadline
            # Looked at first: an answer may come from another process, of whose port ours died.
            alive = self.is_running
            result = probe()
            if result is not None and alive:
                return result
            if not alive:
                raise self.failure(self.ending())
            if expired:
                raise self.failure(f"was not ready within {timeout:g} s")
            time.sleep(POLL_INTERVAL)

    def output(self) -> str:
        """Return its output since its last start."""
        try:
            with self.log.open("rb") as file:
                file.seek(self._log_start)
                return file.read().decode("utf-8", "replace")
        except FileNotFoundError:
            return ""

    def ending(self) -> str:
        """How it has ended, as the end of a sentence about it."""
        code = self.exit_code
        if code is not None and code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"

    def failure(self, ending: str) -> StartFailed:
        """One line with what it said last, or the last error if it named one; notes tell more."""
        lines = [line.rstrip() for line in self.output().splitlines() if line.strip()]
        # The frames of a Java stack trace push out of sight what stands above them.
        lines = [line for line in lines if not line.startswith("\tat ")]
        error_lines = (
            [line for line in lines if NAMES_AN_ERROR.search(line)] or lines or ["nothing"]
        )
        # Its output before the kill does not explain it.
        last_output = "" if (self.exit_code or 0) < 0 else f", it said: {error_lines[-1].strip()}"
        error = StartFailed(f"{self.name} {ending}{last_output} (log: {self.log})")
        for line in lines[-LAST_LINES:]:
            error.add_note(line)
        return error

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def pause(self) -> None:
        """Returns when all its threads stand still, or it has ended."""
        self._signal(signal.SIGSTOP)
        if self._process is not None and self._process.returncode is None:
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def terminate(self) -> None:
        """Ask it to end, without waiting; a paused one is woken to hear it."""
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)

    def stop(self, timeout: float = STOP_TIMEOUT) -> int | None:
        """SIGTERM, then SIGKILL after `timeout`. Returns the exit code, or None if never started."""
        if self._process is None:
            return None
        self.terminate()
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            return self._process.returncode

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)


class Server(ChildProcess, ABC):
    """A server as a child process; `start` returns when it is ready. The exit code of an end is ignored."""

    @abstractmethod
    def is_ready(self) -> bool: ...

    def launch(self) -> None:
        """Start the process and do not wait."""
        super().start()

    def start(self) -> None:
        self.launch()
        self.wait_until_ready()

    def wait_until_ready(self, timeout: float = START_TIMEOUT) -> None:
        self.wait_until(lambda: self.is_ready() or None, timeout)

    def restart(self) -> None:
        """Start it again on the same data, after a kill or not."""
        self.stop()
        self.start()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.stop()
        else:
            self.kill()


_recent_ports: deque[int] = deque(maxlen=1000)
"""No process listens there yet, and no other caller may get them."""


def free_port() -> int:
    """Return a free port of 127.0.0.1, below those that the kernel hands out.

    Of the kernel's own a stopped server would not be sure to get its port back: an outgoing
    connection may take it, even one that a client makes to this very port and thereby to itself.
    """
    random = SystemRandom()
    for _ in range(100):
        port = random.randrange(10_240, 32_000)
        if port not in _recent_ports and port_is_free(port):
            _recent_ports.append(port)
            return port
    raise AddressTaken("found no free port on 127.0.0.1: stop some of the servers here")


def port_is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
