"""Flights on their way: each an Avro record keyed by tail number, at its scheduled departure."""

import time
from collections.abc import Iterator
from itertools import islice
from types import TracebackType
from typing import Final, Self

from folkmoot.console.demo import flights
from folkmoot.console.demo.flights import Flight
from folkmoot.producers.producer import Producer
from folkmoot.schemas.registry.schema_registry import SchemaRegistry
from folkmoot.schemas.values.serializer import AvroSerializer

LINGER: Final = 0.02
STRETCHED: Final = 4.0
"""How many times slower it goes beyond the limit, at first."""


class Pace:
    """How many records should have been sent by now: evenly over `duration` seconds, up to a limit.

    The limit is the share of all records that may be sent at that pace for now. Beyond it the rest
    goes more and more slowly and never quite, so that there is work for as long as somebody waits
    for something to happen. Pure.
    """

    def __init__(self, total: int, duration: float, start: float) -> None:
        self._total = total
        self._duration = duration
        self._last = start
        self._share = 0.0

    def due(self, now: float, limit: float) -> int:
        passed = (now - self._last) / self._duration
        self._last = now
        even = min(passed, max(0.0, limit - self._share))
        self._share += even
        self._share += (1 - self._share) * min(1.0, (passed - even) / STRETCHED)
        done = self._share > 1 - 1e-9
        return self._total if done else int(self._total * self._share)


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
        self._serializer = AvroSerializer(self._registry, flights.schema(), subject=flights.SUBJECT)
        self._producer = Producer(
            zookeeper=zookeeper,
            client_id="flights",
            linger=LINGER,
            value_serializer=self._serializer,
        )

    @property
    def schema_id(self) -> int:
        return self._serializer.prepare(self.topic)

    def send(self, most: int) -> int:
        """Send up to `most` more flights. → how many there were."""
        if self._started is None:
            self._started = time.monotonic()
        send, topic = self._producer.send, self.topic
        count = 0
        for flight in islice(self._source, max(0, most)):
            send(topic, flight.value, flight.key, timestamp=flight.timestamp)
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
