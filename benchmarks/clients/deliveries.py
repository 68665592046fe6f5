"""What a member of a group was given, and when: a file that outlives its process.

An entry is the time (CLOCK_MONOTONIC, the same in all processes of a machine, in ns), the partition
and the offset. Each poll's entries are one write into the page cache, so a SIGKILL loses none that a
poll had returned before it. Nothing but the standard library is imported here.
"""

import os
import select
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

ENTRY: Final = Struct("<qii")


class Delivery(NamedTuple):
    """`at` in seconds."""

    at: float
    partition: int
    offset: int


class DeliveryLog:
    """Written by the thread that polls."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def add(self, deliveries: Iterable[tuple[int, int]]) -> None:
        """Partitions and offsets that a poll has just returned."""
        now = time.monotonic_ns()
        entries = b"".join(ENTRY.pack(now, partition, offset) for partition, offset in deliveries)
        if entries:
            os.write(self._file, entries)


class DeliveryReader:
    """Follows a member's log from another process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0

    def read_new(self) -> Iterator[Delivery]:
        """What was added since the last time."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        complete_size = len(data) - len(data) % ENTRY.size
        self._read += complete_size
        for at, partition, offset in ENTRY.iter_unpack(data[:complete_size]):
            yield Delivery(at / 1e9, partition, offset)


def has_input() -> bool:
    """Whether a line, or the end, is waiting on standard input."""
    poller = select.poll()
    poller.register(sys.stdin, select.POLLIN)
    return bool(poller.poll(0))


def every(seconds: float) -> Iterator[None]:
    """Once in each interval, late ones at once, until there is something on standard input."""
    due = time.monotonic()
    while not has_input():
        yield
        due += seconds
        time.sleep(max(0.0, due - time.monotonic()))
