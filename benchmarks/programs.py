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
from typing import Any, Final, Self

from benchmarks.measuring import Usage, cpu_seconds
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
    facts: Mapping[str, float] = field(default_factory=dict)
    """The side measures of a cell; CPU in seconds per million records, memory in bytes."""
    reported: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        return self.records / self.seconds

    @classmethod
    def of(cls, report: Mapping[str, Any], usage: Usage) -> "Outcome":
        """`usage` has the program's process as "client"."""
        cpu, peaks = dict(usage.cpu), dict(usage.peaks)
        client, millions = peaks.pop("client"), report["records"] / 1e6
        # A program's own clock leaves out its start and end; a tool without one counts whole.
        client_cpu = cpu.pop("client")
        facts = {
            "client CPU": report.get("cpu", client_cpu) / millions,
            "server CPU": sum(cpu.values()) / millions,
            # What it had when it was ready is mostly the records themselves.
            "client growth": client.resident - usage.first["client"].resident,
            **{f"{name} RssAnon": peak.anonymous for name, peak in peaks.items()},
            **{f"{name} RSS": peak.resident for name, peak in peaks.items()},
        }
        return cls(
            records=report["records"], seconds=report["seconds"], facts=facts, reported=report
        )


class Program:
    """One client process, in a `with`: `wait_ready`, `go`, `wait_done`; or `run`, which is all of it.

    It speaks the lines of `clients/program.py` on its standard output and dies with this process.
    What it writes to standard error goes to `log`. Only the thread that made it uses it, and that
    must be the main one: Linux kills the child when the thread that made it ends.
    """

    def __init__(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.log = log
        self._command = command
        self._environment = environment or {}
        self._process: subprocess.Popen[bytes]
        self._received = b""

    @property
    def pid(self) -> int:
        return self._process.pid

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
        stdin = self._process.stdin
        assert stdin is not None
        try:
            stdin.write(f"{word}\n".encode())
            stdin.flush()
        except BrokenPipeError as error:
            raise self._failure("ended before its start") from error

    def wait_done(self, timeout: float = DONE_TIMEOUT) -> dict[str, Any]:
        return self.wait_for_event("done", timeout)

    def run(self, servers: Mapping[str, int]) -> Outcome:
        """From the start to the end; `servers` are the processes whose use is counted, too."""
        with self:
            self.wait_ready()
            with Usage({**servers, "client": self.pid}) as usage:
                self.go()
                report = self.wait_done()
            return Outcome.of(report, usage)

    def run_tool(self, servers: Mapping[str, int], records: int) -> tuple[str, Outcome]:
        """Run a program that reports nothing as JSON; → its output, and the use of all of its life."""
        with self:
            process = self._process
            assert process.stdout is not None
            with Usage({**servers, "client": process.pid}) as usage:
                output = process.stdout.read().decode(errors="replace")
            cpu = cpu_seconds(process.pid)  # it was not waited for: the kernel still knows it
            if process.wait() != 0:
                raise self._failure(f"failed: {output.strip()[-500:]}")
        return output, Outcome.of({"records": records, "seconds": 1.0, "cpu": cpu}, usage)

    def __enter__(self) -> Self:
        argv = [sys.executable, "-I", "-S", "-c", TIED_TO_PARENT, str(os.getpid()), *self._command]
        with self.log.open("ab") as errors:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=ROOT,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **self._environment},
                # Ctrl-C on the terminal is for this process.
                start_new_session=True,
            )
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Wait a little for it to end by itself, which it does when its standard input ends."""
        process = self._process
        if error is not None:
            process.kill()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()
        try:
            process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _line(self, deadline: float, event: str) -> bytes:
        stdout = self._process.stdout
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
        name = " ".join(self._command)[-300:]
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
