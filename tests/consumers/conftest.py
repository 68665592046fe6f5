"""One cluster of real processes for all tests of consumers; each test makes its own topics and groups."""

from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest
from kazoo.client import KazooClient

from folkmoot.console.embedded import EmbeddedZooKeeper
from folkmoot.console.processes import EmbeddedCluster
from folkmoot.producers.producer import Producer
from tests.consumers.parts import Bench


@pytest.fixture(scope="package")
def cluster(
    zookeeper: EmbeddedZooKeeper,
    zookeeper_root: KazooClient,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[EmbeddedCluster]:
    """Two brokers on the shared ZooKeeper: do them no harm."""
    chroot = f"/consumers-{uuid4().hex[:12]}"
    directory = tmp_path_factory.mktemp("consumers")
    with EmbeddedCluster(directory, 2, f"{zookeeper.address}{chroot}") as cluster:
        yield cluster


@pytest.fixture(scope="package")
def producer(cluster: EmbeddedCluster) -> Iterator[Producer]:
    with Producer(zookeeper=cluster.zookeeper, linger=0.0) as producer:
        yield producer


@pytest.fixture
def bench(cluster: EmbeddedCluster, producer: Producer) -> Bench:
    """A topic of three partitions and a group, both of this test's own."""
    return Bench(cluster.zookeeper, producer)


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
