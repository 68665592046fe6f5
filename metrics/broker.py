"""A broker's and a controller's metrics and health pages."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Final

from folkmoot.brokers.controller.thread import ControllerThread
from folkmoot.brokers.server.broker import SNAPSHOT_TIMEOUT, Broker
from folkmoot.brokers.server.snapshots import BrokerSnapshot
from folkmoot.metrics import names
from folkmoot.metrics.families import Metric, family, histogram, singles
from folkmoot.metrics.pages import Page

MOST_PARTITIONS: Final = 1_000
"""Replicas of one broker with metrics of their own, the first by topic and partition. Totals count all.
Each takes about 40 microseconds to write, beside the event loop."""


class BrokerMetrics:
    """Collect a broker's metrics at the moment of a scrape.

    `collect` raises RequestTimeout if the broker's event loop stands still: then there is no answer,
    and `up` is 0.
    """

    def __init__(self, broker: Broker, timeout: float = SNAPSHOT_TIMEOUT) -> None:
        """`timeout` are the seconds for which the event loop may stand still."""
        self._broker = broker
        self._timeout = timeout

    def collect(self) -> Iterator[Metric]:
        snapshot = self._broker.snapshot(self._timeout)
        yield from singles(names.BROKER, snapshot.values)
        apis = snapshot.apis.items()
        yield family(names.REQUESTS, (((api,), each.received) for api, each in apis))
        yield family(names.REQUEST_BYTES, (((api,), each.request_bytes) for api, each in apis))
        yield family(names.RESPONSE_BYTES, (((api,), each.response_bytes) for api, each in apis))
        yield histogram(names.REQUEST_SECONDS, (((api,), each.durations) for api, each in apis))
        yield family(names.ERRORS, (((kind,), count) for kind, count in snapshot.errors.items()))
        yield family(
            names.PURGATORY,
            (((operation,), count) for operation, count in snapshot.waiting.items()),
        )
        yield histogram(names.FLUSH_SECONDS, [((), snapshot.flushes)])
        yield from _partition_families(snapshot)

    def alive(self) -> Page:
        """The process lives, and its event loop moves."""
        health = self._broker.health(self._timeout)
        return Page(health.event_loop, asdict(health))

    def ready(self) -> Page:
        """It is registered, ZooKeeper answers, and it knows its cluster."""
        health = self._broker.health(self._timeout)
        return Page(health.is_ready, asdict(health))


def _partition_families(snapshot: BrokerSnapshot) -> Iterator[Metric]:
    by_name = sorted(snapshot.replicas, key=lambda each: (each.topic, each.partition))
    listed = by_name[:MOST_PARTITIONS]
    yield family(names.LEFT_OUT, [((), len(by_name) - len(listed))])
    led = [each for each in listed if each.is_led]
    for table, replicas in ((names.LED, led), (names.REPLICA, listed)):
        for each in table:
            yield family(
                each,
                (
                    ((replica.topic, str(replica.partition)), float(getattr(replica, each.key)))
                    for replica in replicas
                ),
            )


class ControllerMetrics:
    """Collect the metrics of a controller that runs without a broker."""

    def __init__(self, controller: ControllerThread) -> None:
        self._controller = controller

    def collect(self) -> list[Metric]:
        return singles(
            names.CONTROLLER,
            {
                "controller": self._controller.is_elected,
                "zookeeper": self._controller.is_connected,
            },
        )

    def alive(self) -> Page:
        """The process lives: after an error its thread starts anew."""
        return Page(True, {"elected": self._controller.is_elected})

    def ready(self) -> Page:
        """It is a candidate: ZooKeeper answers."""
        connected = self._controller.is_connected
        return Page(connected, {"zookeeper": connected, "elected": self._controller.is_elected})
