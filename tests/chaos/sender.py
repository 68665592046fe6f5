"""Sends numbered records to every partition, steadily, and notes what was acknowledged.

Its notes: `sent TOPIC PARTITION OFFSET`, an acknowledged record. Until SIGTERM; then all is flushed.
"""

import signal
import threading
from collections import deque
from itertools import count
from typing import Any

from folkmoot.producers.appender import Delivery
from folkmoot.producers.producer import Producer
from tests.chaos.notes import Notes

FLUSH_TIMEOUT = 30.0


def run(
    zookeeper: str, topics: list[str], partitions: int, pause: float, notes: str, **options: Any
) -> None:
    noted = Notes(notes)
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    waiting: deque[Delivery] = deque()
    with Producer(zookeeper=zookeeper, **options) as producer:
        for number in count():
            if over.wait(pause):
                break
            for topic in topics:
                for partition in range(partitions):
                    waiting.append(producer.send(topic, b"%d" % number, partition=partition))
            while waiting and waiting[0].done():
                _note(waiting.popleft(), noted)
        producer.flush(FLUSH_TIMEOUT)
        for delivery in waiting:
            _note(delivery, noted)


def _note(delivery: Delivery, notes: Notes) -> None:
    place = delivery.result(0.0)
    notes.write("sent", place.topic, place.partition, place.offset)
