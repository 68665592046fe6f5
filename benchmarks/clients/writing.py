"""A writer that goes on while brokers die: a few records to every partition, and when they were acknowledged.

Nothing but the standard library is imported here.
"""

import json
import sys
import time
from collections.abc import Callable, Iterable
from threading import Event, Thread
from typing import Final

from benchmarks.clients.program import tell

LOOK_EVERY: Final = 0.02

Acked = Callable[[int, float], None]
Send = Callable[[int, Acked, float], None]
"""Sends a record to a partition; once it is acknowledged the callback gets the partition and when it was
sent."""


class Writer:
    """Sends to each of some partitions in turn, a round every `interval` seconds, on a thread of its own."""

    def __init__(self, send: Send, partitions: int, interval: float) -> None:
        self._send = send
        self._partitions = partitions
        self._interval = interval
        self._acked: list[tuple[int, float, float]] = []
        self._stopping = Event()
        self._thread = Thread(target=self._run, daemon=True)

    def serve(self) -> None:
        """Answers questions, a line of JSON each, until there are no more.

        A question is a moment, partitions and patience: how long after that moment was the first record
        that was sent later acknowledged in each of them? The answer has the seconds until the first and the
        last of them, and how many there are in which none was.
        """
        self._thread.start()
        tell("ready")
        for line in sys.stdin:
            asked = json.loads(line)
            self._answer(asked["since"], asked["partitions"], asked["patience"])
        self._stopping.set()
        self._thread.join()

    def _answer(self, since: float, partitions: Iterable[int], patience: float) -> None:
        missing, found, looked = set(partitions), [0.0], 0
        while missing and time.monotonic() < since + patience:
            end = len(self._acked)
            for partition, sent, at in self._acked[looked:end]:
                if sent >= since and partition in missing:
                    missing.remove(partition)
                    found.append(at - since)
            looked = end
            time.sleep(LOOK_EVERY)
        # What is sent next may belong to the next question, never to an earlier one.
        del self._acked[:looked]
        tell("again", first=min(found[1:], default=patience), last=max(found), silent=len(missing))

    def _run(self) -> None:
        step = self._interval / self._partitions
        due, number = time.monotonic(), 0
        while not self._stopping.is_set():
            now = time.monotonic()
            while due <= now:
                self._send(number % self._partitions, self._acknowledged, time.monotonic())
                number, due = number + 1, due + step
            time.sleep(max(0.001, due - time.monotonic()))

    def _acknowledged(self, partition: int, sent: float) -> None:
        self._acked.append((partition, sent, time.monotonic()))
