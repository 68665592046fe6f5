"""Flights on their way: each an Avro record keyed by tail number, at its scheduled departure."""

import time
from collections.abc import Iterator
from itertools import islice
from types import TracebackType
from typing import Final, Self

from folkmoot.console.demo import flights
from folkmoot.console.demo.flights import Flight
from folkmoot.producers.producer import Producer
from folkmoot.schemas.avro import AvroSerializer
from folkmoot.schemas.registry import SchemaRegistry

LINGER: Final = 0.02


class Pace:
    """How many records should have been sent by now: evenly over `duration` seconds.

    The last tenth is stretched: until `release` only half of what is left may go every
    `duration` / 10, so that there is work as long as somebody wants to show something. Pure.
    """

    def __init__(self, total: int, duration: float, start: float) -> None:
        self._total = total
        self._duration = duration
        self._start = start
        self._held = True

    def release(self) -> None:
        self._held = False

    def due(self, now: float) -> int:
        elapsed = (now - self._start) / self._duration
        if not self._held:
            return min(self._total, int(self._total * elapsed))
        if elapsed <= 0.9:
            return int(self._total * elapsed)
        return int(self._total * (1 - 0.1 * 0.5 ** ((elapsed - 0.9) * 10)))


class Feed:
    """Sends flights to a topic; the schema is registered with the first one. One thread uses it."""

    def __init__(self, zookeeper: str, topic: str, source: Iterator[Flight]) -> None:
        self.topic = topic
        self.sent = 0
        self.seconds = 0.0
        """From the first record sent to the last one acknowledged, once `finish` has returned."""
        self._source = source
        self._started: float | None = None
        self._registry = SchemaRegistry(zookeeper)
        self._serialize = AvroSerializer(self._registry, flights.SUBJECT, flights.schema())
        self._producer = Producer(zookeeper=zookeeper, client_id="flights", linger=LINGER)

    @property
    def schema_id(self) -> int:
        return self._serialize.schema_id

    def send(self, most: int) -> int:
        """Send up to `most` more flights. → how many there were."""
        if self._started is None:
            self._started = time.monotonic()
        send, serialize, topic = self._producer.send, self._serialize, self.topic
        count = 0
        for flight in islice(self._source, max(0, most)):
            send(topic, serialize(flight.value), flight.key, timestamp=flight.timestamp)
            count += 1
        self.sent += count
        return count

    def finish(self) -> None:
        """Wait until every flight is acknowledged. Raises what kept one from being."""
        self._producer.flush()
        if self._started is not None:
            self.seconds = time.monotonic() - self._started

    def __enter__(self) -> Self:
        self._producer.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._producer.__exit__(kind, error, trace)
        finally:
            self._registry.close()
