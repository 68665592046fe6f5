"""Client programs as the harness sees them: it starts them, gives them the word, and reads their reports."""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

from benchmarks.measuring import Memory, Usage
from folkmoot.console.running.children import TIED_TO_PARENT

ROOT: Final = Path(__file__).parent.parent
READY_TIMEOUT: Final = 120.0
DONE_TIMEOUT: Final = 600.0
STOP_TIMEOUT: Final = 5.0
LAST_CHARACTERS: Final = 2000


class ProgramFailed(Exception):
    """A program ended early, or with an error."""


class ProgramTimeout(ProgramFailed):
    """It still runs, and did not report in time."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A program's report when it was done, and what it and the servers used meanwhile."""

    records: int
    seconds: float
    client_cpu: float
    client_memory: Memory
    client_first: Memory
    server_cpu: Mapping[str, float] = field(default_factory=dict)
    server_memory: Mapping[str, Memory] = field(default_factory=dict)
    reported: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        return self.records / self.seconds

    def facts(self) -> dict[str, float]:
        """The side measures of a cell; CPU in seconds per million records, memory in bytes."""
        millions = self.records / 1e6
        return {
            "client CPU": self.client_cpu / millions,
            "server CPU": sum(self.server_cpu.values()) / millions,
            "client memory": self.client_memory.resident,
            # What it had when it was ready is mostly the records themselves.
            "client growth": max(0, self.client_memory.resident - self.client_first.resident),
            **{f"{name} RssAnon": peak.anonymous for name, peak in self.server_memory.items()},
            **{f"{name} RSS": peak.resident for name, peak in self.server_memory.items()},
        }


class Program:
    """One client process: `start`, `wait_ready`, `go`, `wait_done`; or `run`, which is all of it.

    It speaks the lines of `clients/program.py` on its standard output and dies with this process.
    What it writes to standard error goes to `log`. Only the thread that made it uses it, and that
    must be the main one: Linux kills the child when the thread that made it ends.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.command = tuple(command)
        self.log = log
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._received = b""

    @property
    def pid(self) -> int:
        return self._running().pid

    def start(self) -> None:
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", **self._environment}
        self._process = _start_process(self.command, self.log, environment)

    def wait_for_event(self, event: str, timeout: float) -> dict[str, Any]:
        """The facts of the next line that reports `event`; other lines are passed over."""
        deadline = time.monotonic() + timeout
        while True:
            line = self._line(deadline, event)
            try:
                report = json.loads(line)
            except ValueError:
                continue
            if isinstance(report, dict) and report.get("event") == event:
                return report

    def wait_ready(self, timeout: float = READY_TIMEOUT) -> None:
        self.wait_for_event("ready", timeout)

    def go(self, word: str = "go") -> None:
        stdin = self._running().stdin
        assert stdin is not None
        try:
            stdin.write(f"{word}\n".encode())
            stdin.flush()
        except BrokenPipeError as error:
            raise self._failure("ended before its start") from error

    def wait_done(self, timeout: float = DONE_TIMEOUT) -> dict[str, Any]:
        return self.wait_for_event("done", timeout)

    def stop(self) -> None:
        """Waits a little for it to end by itself, which it does when its standard input ends."""
        process = self._process
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def run(self, servers: Mapping[str, int]) -> Outcome:
        """From the start to the end; `servers` are the processes whose use is counted, too."""
        with self:
            self.wait_ready()
            with Usage({**servers, "client": self.pid}) as usage:
                self.go()
                report = self.wait_done()
            return outcome(report, usage)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None and self._process is not None:
            self._process.kill()
        self.stop()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ProgramFailed(f"{self.command} was not started")
        return self._process

    def _line(self, deadline: float, event: str) -> bytes:
        stdout: IO[bytes] | None = self._running().stdout
        assert stdout is not None
        poller = select.poll()
        poller.register(stdout, select.POLLIN)
        while b"\n" not in self._received:
            remaining = deadline - time.monotonic()
            if remaining <= 0 or not poller.poll(remaining * 1000):
                raise ProgramTimeout(*self._failure(f"did not report {event!r} in time").args)
            more = os.read(stdout.fileno(), 65536)
            if not more:
                raise self._failure(f"ended before {event!r}")
            self._received += more
        line, _, self._received = self._received.partition(b"\n")
        return line

    def _failure(self, reason: str) -> ProgramFailed:
        end = self.log.read_text(errors="replace")[-LAST_CHARACTERS:].strip()
        name = " ".join(self.command)[-300:]
        return ProgramFailed(f"{name} {reason}; its log {self.log} ends:\n{end}")


@contextmanager
def all_ready(programs: Iterable[Program]) -> Iterator[list[Program]]:
    """Starts programs and waits until each is ready; at the end all are stopped."""
    with ExitStack() as stack:
        started = [stack.enter_context(program) for program in programs]
        for program in started:
            program.wait_ready()
        yield started


def go_together(programs: Sequence[Program]) -> list[dict[str, Any]]:
    """Gives all the word to go; → what each reports when it is done."""
    for program in programs:
        program.go()
    return [program.wait_done() for program in programs]


def _start_process(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """A process that dies with this one, and writes its errors to `log`."""
    argv = [sys.executable, "-I", "-S", "-c", TIED_TO_PARENT, str(os.getpid()), *command]
    with log.open("ab") as errors:
        return subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=ROOT,
            env=environment,
            # Ctrl-C on the terminal is for this process.
            start_new_session=True,
        )


def outcome(report: Mapping[str, Any], usage: Usage) -> Outcome:
    """A program's report, with what was used; `usage` has its process as "client"."""
    servers = [name for name in usage.cpu if name != "client"]
    return Outcome(
        records=report["records"],
        seconds=report["seconds"],
        # A program's own clock leaves out its start and end; a tool without one counts whole.
        client_cpu=report.get("cpu", usage.cpu["client"]),
        client_memory=usage.peaks["client"],
        client_first=usage.first["client"],
        server_cpu={name: usage.cpu[name] for name in servers},
        server_memory={name: usage.peaks[name] for name in servers},
        reported=report,
    )


def run_tool(
    command: Sequence[str], log: Path, servers: Mapping[str, int]
) -> tuple[str, Usage, float]:
    """Runs a program that reports nothing as JSON: its output, what was used, its CPU seconds.

    All of its life counts, also its start. Only from the main thread: see Program.
    """
    process = _start_process(command, log)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    try:
        with process.stdout, Usage({**servers, "client": process.pid}) as usage:
            output = process.stdout.read().decode(errors="replace")
    except BaseException:
        process.kill()
        process.wait()
        raise
    # Not Popen.wait, which does not return what the child has used.
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise ProgramFailed(f"{' '.join(command)[-300:]} failed: {output.strip()[-500:]}")
    return output, usage, used.ru_utime + used.ru_stime
