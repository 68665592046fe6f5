"""What processes use, as the kernel reports it in /proc."""

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, Self

POLL_INTERVAL: Final = 0.05
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_CPUCLOCK_SCHED: Final = 2


class Memory(NamedTuple):
    """Bytes of RAM of one process: of its own (anonymous), and with the files that it maps."""

    anonymous: int
    resident: int


def memory(pid: int) -> Memory:
    """Zeros for a process that is gone."""
    status = _status(pid)
    return Memory(_kib(status, "RssAnon"), _kib(status, "VmRSS"))


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and of its children that have ended; 0 if it is gone."""
    try:
        children = _fields(pid)[13:15]
    except OSError:
        return 0.0
    return own_cpu(pid) + sum(map(int, children)) / _TICKS


def own_cpu(pid: int) -> float:
    """As `cpu_seconds` without children, by the process's clock, which has no ticks."""
    try:
        return time.clock_gettime((~pid << 3) | _CPUCLOCK_SCHED)  # clock_getcpuclockid(3)
    except OSError:
        return 0.0


def cpu_below(
    kinds: Mapping[str, str], cpu: Callable[[int], float] = cpu_seconds
) -> dict[str, float]:
    """CPU seconds of this process and all below it by kind: that whose text their command line has, or
    "application"."""
    used = dict.fromkeys([*kinds, "application"], 0.0)
    for pid, kind in _below(kinds):
        used[kind] += cpu(pid)
    return used


def forget_peaks(kinds: Mapping[str, str]) -> None:
    """`peak_resident` counts from now on (clear_refs of proc(5))."""
    for pid, _ in _below(kinds):
        with suppress(OSError):
            Path(f"/proc/{pid}/clear_refs").write_text("5")


def peak_resident(kinds: Mapping[str, str]) -> dict[str, int]:
    """The most bytes that a process of each kind below this one has had in RAM since `forget_peaks`, or
    in its life."""
    peaks: dict[str, int] = {}
    for pid, kind in _below(kinds):
        peaks[kind] = max(peaks.get(kind, 0), _kib(_status(pid), "VmHWM"))
    return peaks


def _below(kinds: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                children.setdefault(int(_fields(int(entry.name))[1]), []).append(int(entry.name))
    todo = [os.getpid()]
    yield todo[0], "application"
    while todo:
        pid = todo.pop()
        for child in children.get(pid, []):
            with suppress(OSError):
                command = Path(f"/proc/{child}/cmdline").read_text()
                found = (kind for kind, text in kinds.items() if text in command)
                yield child, next(found, "application")
            todo.append(child)


def _fields(pid: int) -> list[str]:
    """Of /proc/pid/stat, from the state on: the name before it, in parentheses, may contain anything."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _status(pid: int) -> dict[str, str]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    return {name: value for name, _, value in (line.partition(":") for line in lines)}


def _kib(status: Mapping[str, str], name: str) -> int:
    return int(status[name].split()[0]) * 1024 if name in status else 0  # a zombie has none


class Usage:
    """CPU seconds and memory of named processes in a `with`.

    A thread looks at the memory 20 times a second, which costs about a thousandth of one core; peaks
    between two looks are missed. The caller reads `cpu` and `peaks` after the `with`.
    """

    def __init__(self, pids: Mapping[str, int]) -> None:
        self.cpu: dict[str, float] = {}
        self.first = {name: memory(pid) for name, pid in pids.items()}
        self.peaks = dict(self.first)
        self._pids = dict(pids)
        self._before = {name: cpu_seconds(pid) for name, pid in pids.items()}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="usage", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for name, pid in self._pids.items():
            self.cpu[name] = cpu_seconds(pid) - self._before[name]
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        has_ended = False
        while not has_ended:
            has_ended = self._stopped.wait(POLL_INTERVAL)
            for name, pid in self._pids.items():
                self.peaks[name] = Memory(*map(max, self.peaks[name], memory(pid)))
