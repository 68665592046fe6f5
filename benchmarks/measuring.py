"""What processes use, as the kernel tells it in /proc."""

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

LOOK_EVERY: Final = 0.05
_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Memory:
    """Bytes of RAM of one process: of its own (anonymous), and with the files that it maps."""

    anonymous: int = 0
    resident: int = 0

    def largest(self, other: "Memory") -> "Memory":
        return Memory(
            max(self.anonymous, other.anonymous),
            max(self.resident, other.resident),
        )


def memory(pid: int) -> Memory:
    """Zeros for a process that is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return Memory()
    told = {name: rest for name, _, rest in (line.partition(":") for line in lines)}
    if "VmRSS" not in told:
        return Memory()  # a zombie has none
    return Memory(_kib(told["RssAnon"]), _kib(told["VmRSS"]))


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and of its children that have ended; 0 if it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    # The name, in parentheses, may contain anything; the fields are counted behind it.
    fields = text.rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / _TICKS


def _kib(text: str) -> int:
    return int(text.split()[0]) * 1024


class Usage:
    """CPU seconds and peak memory of named processes between `start` and `stop`, or in a `with`.

    A thread looks at the memory 20 times a second, which costs about a thousandth of one core; peaks
    between two looks are missed. The caller reads `cpu` and `peaks` after `stop`.
    """

    def __init__(self, pids: Mapping[str, int]) -> None:
        self.cpu: dict[str, float] = {}
        self.peaks: dict[str, Memory] = {}
        self.first: dict[str, Memory] = {}
        self._pids = dict(pids)
        self._before: dict[str, float] = {}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="usage", daemon=True)

    def start(self) -> None:
        self.first = {name: memory(pid) for name, pid in self._pids.items()}
        self.peaks = dict(self.first)
        self._thread.start()
        self._before = {name: cpu_seconds(pid) for name, pid in self._pids.items()}

    def stop(self) -> None:
        if self._done.is_set():
            return
        for name, pid in self._pids.items():
            self.cpu[name] = cpu_seconds(pid) - self._before[name]
        self._done.set()
        self._thread.join()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _watch(self) -> None:
        while True:
            ended = self._done.wait(LOOK_EVERY)
            for name, pid in self._pids.items():
                self.peaks[name] = self.peaks[name].largest(memory(pid))
            if ended:
                return
