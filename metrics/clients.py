"""Metrics of an application's producers and consumers, for the registry of Prometheus' client library."""

from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

from folkmoot.consumers.client.async_consumer import AsyncConsumer
from folkmoot.consumers.client.consumer import Consumer
from folkmoot.consumers.client.health import State
from folkmoot.metrics import names
from folkmoot.metrics.families import Metric, family
from folkmoot.metrics.names import MetricDeclaration
from folkmoot.metrics.pages import Page
from folkmoot.producers.async_producer import AsyncProducer
from folkmoot.producers.producer import Producer
from folkmoot.protocol.errors import ConfigError

AnyConsumer: TypeAlias = Consumer | AsyncConsumer
Client: TypeAlias = Producer | AsyncProducer | AnyConsumer

MOST_PARTITIONS: Final = 2_000
"""Partitions of one consumer with a lag of their own, the first by name."""
_ENDED: Final = (State.CLOSED, State.FAILED, State.STALLED)


class ClientMetrics:
    """Collect the metrics of producers and consumers at the moment of a scrape.

    ```
    from prometheus_client import REGISTRY
    REGISTRY.register(ClientMetrics(producer, consumer))
    ```

    One for all clients of a process, which tell each other apart by `client_id`; `add` and `remove` may be
    called by any thread. It reads `metrics()` and `health()`, which count in any case.

    Raises ConfigError for two clients of one kind and `client_id`; its import raises MissingExtra.
    """

    def __init__(self, *clients: Client) -> None:
        self._clients: tuple[Client, ...] = ()
        for client in clients:
            self.add(client)

    def add(self, client: Client) -> None:
        """Add a client. Raises ConfigError for a second one with its `client_id`."""
        name, is_consumer = client.config.client_id, isinstance(client, AnyConsumer)
        for other in self._clients:
            if name == other.config.client_id and is_consumer == isinstance(other, AnyConsumer):
                kind = "consumers" if is_consumer else "producers"
                raise ConfigError(
                    f"two {kind} are called {name!r}: give each a client_id of its own"
                )
        self._clients = (*self._clients, client)

    def remove(self, client: Client) -> None:
        """Remove a client, as after its close."""
        self._clients = tuple(each for each in self._clients if each is not client)

    def collect(self) -> Iterator[Metric]:
        consumers = [each for each in self._clients if isinstance(each, AnyConsumer)]
        producers = [each for each in self._clients if not isinstance(each, AnyConsumer)]
        yield from _client_families(
            names.PRODUCER, ((_labels(each), each.metrics()) for each in producers)
        )
        yield from _client_families(
            names.CONSUMER, ((_labels(each), each.metrics()) for each in consumers)
        )
        health = [(_labels(each), each.health()) for each in consumers]
        yield family(names.WELL, ((labels, each.is_well) for labels, each in health))
        yield family(names.ALARMS, ((labels, len(each.alarms)) for labels, each in health))
        ages = ((labels, each.last_poll_age) for labels, each in health)
        yield family(names.POLL_AGE, ((labels, age) for labels, age in ages if age is not None))
        yield family(
            names.STATE,
            (
                ((*labels, state.value), each.state is state)
                for labels, each in health
                for state in State
            ),
        )
        yield family(
            names.LAG,
            (
                ((*labels, topic, str(number)), lag)
                for labels, each in health
                for (topic, number), lag in sorted(each.lag.items())[:MOST_PARTITIONS]
                if lag is not None  # without a leader its end is unknown
            ),
        )

    def alive(self) -> Page:
        """No consumer has ended, nor is its application stuck."""
        states = self._states()
        ended = {each.value for each in _ENDED}
        return Page(not ended.intersection(states.values()), {"consumers": states})

    def ready(self) -> Page:
        """Every consumer reads, or is about to."""
        consumers = (each for each in self._clients if isinstance(each, AnyConsumer))
        return Page(all(each.health().is_well for each in consumers), {"consumers": self._states()})

    def _states(self) -> dict[str, str]:
        return {
            each.config.client_id: each.health().state.value
            for each in self._clients
            if isinstance(each, AnyConsumer)
        }


def _labels(client: Client) -> tuple[str, ...]:
    name = client.config.client_id
    if isinstance(client, AnyConsumer):
        return name, client.config.group or ""
    return (name,)


def _client_families(
    table: Iterable[MetricDeclaration], clients: Iterable[tuple[tuple[str, ...], dict[str, float]]]
) -> Iterator[Metric]:
    snapshots = list(clients)
    for each in table:
        yield family(each, ((labels, values[each.key]) for labels, values in snapshots))
