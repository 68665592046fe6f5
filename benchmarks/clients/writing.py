"""A writer that continues while brokers die: it notes when records to every partition are acknowledged."""

import json
import sys
import time
from collections.abc import Iterable
from functools import partial
from threading import Event, Thread
from typing import Any, Final

from benchmarks.clients.program import report_event

POLL_INTERVAL: Final = 0.02
VALUE: Final = b"x" * 100


class Writer:
    """Sends to each of some partitions in turn, a round every `interval` seconds, on a thread of its own."""

    def __init__(self, sender: Any, partitions: int, interval: float) -> None:
        self._send = sender.send
        self._delivered = sender.on_delivery(self._acknowledged)
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
        report_event("ready")
        for line in sys.stdin:
            query = json.loads(line)
            self._answer(query["since"], query["partitions"], query["patience"])
        self._stopping.set()
        self._thread.join()

    def _answer(self, since: float, partitions: Iterable[int], patience: float) -> None:
        missing, lags, next_index = set(partitions), [0.0], 0
        while missing and time.monotonic() < since + patience:
            end = len(self._acked)
            for partition, sent, at in self._acked[next_index:end]:
                if sent >= since and partition in missing:
                    missing.remove(partition)
                    lags.append(at - since)
            next_index = end
            time.sleep(POLL_INTERVAL)
        # What is sent next may belong to the next question, never to an earlier one.
        del self._acked[:next_index]
        report_event(
            "again", first=min(lags[1:], default=patience), last=max(lags), silent=len(missing)
        )

    def _run(self) -> None:
        step = self._interval / self._partitions
        due, number = time.monotonic(), 0
        while not self._stopping.is_set():
            now = time.monotonic()
            while due <= now:
                partition = number % self._partitions
                delivered = partial(self._delivered, (partition, time.monotonic()))
                self._send(VALUE, partition=partition, on_delivery=delivered)
                number, due = number + 1, due + step
            time.sleep(max(0.001, due - time.monotonic()))

    def _acknowledged(self, sent_record: tuple[int, float]) -> None:
        partition, sent = sent_record
        self._acked.append((partition, sent, time.monotonic()))
