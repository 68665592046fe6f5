"""Makes member processes by forking, so that the twentieth starts as fast as its imports are done: at once.

    python -m tests.chaos.nursery

A line of JSON per order on its input, one per answer on its output. It has one thread and has opened
nothing when it forks. Whoever is born here is signalled and waited for here only, so that no signal
goes to a process id that means somebody else by now. All of it ends with whoever holds the other end.
"""

import ctypes
import gc
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.tree import ROOT

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


class Nursery:
    """The other end: starts the nursery and gives its orders. One thread uses it."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self.ended: dict[int, int] = {}
        """Exit codes by process id, as far as `look` knows."""

    def __enter__(self) -> "Nursery":
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.nursery"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=ROOT,
                text=True,
                start_new_session=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # the end of its input ends it, and it everybody

    def start(self, program: str, output: Path, **settings: Any) -> int:
        """Fork a process that runs `program`; → its id."""
        answer = self._order({"start": program, "output": str(output), "settings": settings})
        return int(answer["pid"])

    def signal(self, pid: int, number: signal.Signals) -> bool:
        """False if it has ended."""
        return bool(self._order({"signal": int(number), "pid": pid})["sent"])

    def look(self) -> None:
        """Learn who has ended."""
        for pid, code in self._order({"look": True})["ended"].items():
            self.ended[int(pid)] = code

    def _order(self, order: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


def main() -> None:
    from tests.chaos import member, sender

    programs: dict[str, Callable[..., None]] = {"member": member.run, "sender": sender.run}
    living: set[int] = set()
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while line := sys.stdin.readline():
        order = json.loads(line)
        answer: dict[str, Any] = {}
        if "start" in order:
            pid = _born(programs[order["start"]], order)
            living.add(pid)
            answer["pid"] = pid
        elif "signal" in order:
            answer["sent"] = order["pid"] in living
            if answer["sent"]:
                os.kill(order["pid"], order["signal"])  # not waited for: it is still its own
        else:
            ended = {}
            for pid in tuple(living):
                found, status = os.waitpid(pid, os.WNOHANG)
                if found:
                    living.remove(pid)
                    ended[pid] = os.waitstatus_to_exitcode(status)
            answer["ended"] = ended
        print(json.dumps(answer), flush=True)
    for pid in living:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _born(program: Callable[..., None], order: dict[str, Any]) -> int:
    nursery = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != nursery:
            os._exit(1)
        output = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for target, source in ((0, nothing), (1, output), (2, output)):
            os.dup2(source, target)
        program(**order["settings"])
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
