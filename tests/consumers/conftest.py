"""A topic and a group for each test of consumers, on the shared cluster."""

from collections.abc import Callable, Iterator

import pytest

from folkmoot.console.running.processes import EmbeddedCluster
from folkmoot.producers.producer import Producer
from tests.consumers.parts import Bench


@pytest.fixture(scope="package")
def producer(shared_cluster: EmbeddedCluster) -> Iterator[Producer]:
    with Producer(zookeeper=shared_cluster.zookeeper, linger=0.0) as producer:
        yield producer


@pytest.fixture
def bench(shared_cluster: EmbeddedCluster, producer: Producer) -> Bench:
    """A topic of three partitions and a group, both of this test's own."""
    return Bench(shared_cluster.zookeeper, producer)


@pytest.fixture
def bench_on() -> Iterator[Callable[[str], Bench]]:
    """The same on another cluster, given by its connect string, with a producer of its own."""
    producers = []

    def make(zookeeper: str) -> Bench:
        producer = Producer(zookeeper=zookeeper, linger=0.0)
        producer.start()
        producers.append(producer)
        return Bench(zookeeper, producer)

    yield make
    for producer in producers:
        producer.close(5.0)
