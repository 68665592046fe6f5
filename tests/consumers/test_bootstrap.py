"""Producers and consumers that know brokers and no ZooKeeper, which may be down."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from folkmoot.brokers.server.broker import Broker
from folkmoot.brokers.server.config import BrokerConfig, Listener
from folkmoot.console.running.children import free_port
from folkmoot.console.running.embedded import EmbeddedZooKeeper
from folkmoot.console.running.processes import EmbeddedCluster
from folkmoot.consumers.client.consumer import Consumer
from folkmoot.coordination import brokers, topics
from folkmoot.coordination.connector import connector
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.session import Connect
from folkmoot.network import bootstrap
from folkmoot.network.client import Connections
from folkmoot.network.cluster import Cluster as Network
from folkmoot.producers.producer import Producer
from folkmoot.protocol.errors import BrokerUnreachable, ConfigError, UnknownTopicOrPartition
from folkmoot.protocol.messages import (
    Api,
    BrokerInfo,
    MetadataRequest,
    MetadataResponse,
    PartitionMetadata,
    TopicMetadata,
)
from tests.brokers.parts import Peer
from tests.memory_zookeeper import MemoryZooKeeper
from tests.network.stub import StubBroker
from tests.network.test_client import unused_address
from tests.waiting import eventually


class Cluster:
    """Brokers in this process, over a ZooKeeper in memory that no client is told of."""

    def __init__(self, data: Path) -> None:
        self.zookeeper = MemoryZooKeeper()
        self.brokers: dict[int, Broker] = {}
        self._data = data

    def start(self, number: int, address: str = "127.0.0.1:0") -> str:
        config = BrokerConfig(
            broker_id=number,
            data=self._data / str(number),
            zookeeper="in.memory:1",
            listeners=(Listener.parse(f"client={address}"),),
            session_timeout=0.5,
        )
        broker = self.brokers[number] = Broker(config, self.zookeeper.connect)
        broker.start()
        return broker.listeners["client"]

    def stop(self, number: int) -> None:
        if number in self.brokers:
            self.brokers.pop(number).close()

    def create_topic(self, name: str, partitions: int) -> None:
        create_topic(self.zookeeper.connect, name, partitions)


def create_topic(connect: Connect, name: str, partitions: int) -> None:
    session = connect(6.0)
    try:
        execute(session, topics.create(name, partitions, list(execute(session, brokers.live()))))
    finally:
        session.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    with ExitStack() as stack:
        for number in range(1, 3):
            stack.callback(made.stop, number)
        yield made


def assigned(consumer: Consumer, partition: tuple[str, int]) -> bool:
    """Brokers hear of a partition a moment after it was added."""
    with suppress(UnknownTopicOrPartition):
        consumer.assign([partition])
        return True
    return False


def knows_four(client: Consumer | Producer) -> bool:
    """Brokers hear of a topic a moment after it was created."""
    with suppress(UnknownTopicOrPartition):
        return len(client.partitions_of("t")) == 4
    return False


def values_of(consumer: Consumer, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []

    def enough() -> bool:
        found.extend(record.value for record in consumer.poll(0.5))
        return len(found) >= count

    eventually(enough)
    return sorted(found, key=str)


def knows_leaders(address: str) -> bool:
    with Peer(address) as peer:
        [topic] = peer.call(Api.METADATA, MetadataRequest(["t"]))[0].topics
    return bool(topic.partitions) and all(each.leader > 0 for each in topic.partitions)


def test_producer_and_consumer_start_and_work_while_zookeeper_is_down(
    private_zookeeper: EmbeddedZooKeeper, start_cluster: Callable[..., EmbeddedCluster]
) -> None:
    cluster = start_cluster(2, zookeeper=private_zookeeper.address)
    create_topic(connector(private_zookeeper.address), "t", 4)
    addresses = ",".join(broker.address for broker in cluster.brokers)
    with Consumer(bootstrap=addresses) as early:
        eventually(lambda: knows_four(early))
    for broker in cluster.brokers:  # what it has not read of by then it cannot read later
        eventually(partial(knows_leaders, broker.address))
    with Producer(zookeeper=private_zookeeper.address) as before:
        before.send("t", b"0", partition=0).result(20)
        private_zookeeper.kill()
        with Producer(bootstrap=addresses) as producer, Consumer(bootstrap=addresses) as consumer:
            for number in range(1, 4):
                producer.send("t", b"%d" % number, partition=number).result(20)
            before.send("t", b"4", partition=3).result(20)
            consumer.assign(consumer.partitions_of("t"))
            assert values_of(consumer, 5) == [b"0", b"1", b"2", b"3", b"4"]
    private_zookeeper.restart()


def test_brokers_come_and_go_and_the_addresses_given_need_not_stay(cluster: Cluster) -> None:
    given = cluster.start(1)
    second = cluster.start(2, f"127.0.0.1:{free_port()}")
    cluster.create_topic("t", 4)
    with Producer(bootstrap=given, retry_backoff=0.02) as producer:
        eventually(lambda: knows_four(producer))
        for number in range(4):
            producer.send("t", b"%d" % number, partition=number).result(20)
        cluster.stop(1)  # for good: the producer learns of the others from the second
        led = [number for number in range(4) if _led_by(cluster, number) == 2]
        for number in led:
            producer.send("t", b"again", partition=number).result(20)
        cluster.stop(2)
        delivery = producer.send("t", b"later", partition=led[0])
        cluster.start(2, second)
        assert delivery.result(30).offset == 2


def _led_by(cluster: Cluster, partition: int) -> int:
    session = cluster.zookeeper.connect(6.0)
    try:
        topic = execute(session, topics.read("t"))
    finally:
        session.close()
    assert topic is not None
    return topic.partitions[partition][0]


def ids_from(address: str, count: int) -> list[int]:
    found: list[int] = []
    with Network(Connections("ids"), lambda: [address]) as network:
        while len(found) < count:
            network.poll(0.02)
            number = network.producer_id()
            found += [] if number is None else [number]
    return found


def test_ids_for_producers_are_nobody_elses_whichever_broker_gave_them_and_died(
    cluster: Cluster,
) -> None:
    found = ids_from(cluster.start(1), 30) + ids_from(cluster.start(2), 30)
    cluster.stop(1)
    found += ids_from(cluster.start(1), 30)
    assert len(set(found)) == 90


@pytest.mark.parametrize("client", [Producer, Consumer])
def test_where_no_broker_answers_a_client_does_not_start_and_names_them(
    client: type[Producer] | type[Consumer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap, "CONNECT_WAIT", 0.2)
    one, two = unused_address(), unused_address()
    made = client(bootstrap=f"{one},{two}")
    with pytest.raises(BrokerUnreachable, match=f"{one}.*{two}"):
        made.start()
    made.close()


def test_a_topic_that_no_broker_knows_is_none_after_a_while(cluster: Cluster) -> None:
    with (
        Consumer(bootstrap=cluster.start(1)) as consumer,
        pytest.raises(UnknownTopicOrPartition, match="topic nothing does not exist"),
    ):
        consumer.partitions_of("nothing")


def test_partitions_that_are_added_are_assigned_as_soon_as_brokers_know_them(
    cluster: Cluster,
) -> None:
    with Consumer(bootstrap=cluster.start(1)) as consumer:
        cluster.create_topic("t", 4)
        eventually(lambda: knows_four(consumer))
        session = cluster.zookeeper.connect(6.0)
        execute(session, topics.add_partitions("t", 5, {1: ""}))
        session.close()
        eventually(lambda: assigned(consumer, ("t", 4)))


def test_a_group_needs_zookeeper_and_says_why() -> None:
    with pytest.raises(ConfigError, match="a group's members find each other in ZooKeeper"):
        Consumer(bootstrap="b:1", group="g", topics=["t"])


@pytest.mark.parametrize("options", [{}, {"zookeeper": "z:1", "bootstrap": "b:1"}])
@pytest.mark.parametrize("client", [Producer, Consumer])
def test_a_client_is_told_one_way_to_its_cluster(
    client: type[Producer] | type[Consumer], options: dict[str, str]
) -> None:
    given: dict[str, Any] = options
    with pytest.raises(ConfigError, match="by zookeeper='HOST:PORT"):
        client(**given)


def test_a_partition_that_brokers_have_not_heard_of_yet_is_assigned_when_they_have() -> None:
    asked = 0

    def answer(_: object, body: Any, __: object) -> MetadataResponse | None:
        nonlocal asked
        if not isinstance(body, MetadataRequest):
            return None
        topics = []
        if body.topics:
            asked += 1
            count = 1 if asked <= 3 else 2
            partitions = [PartitionMetadata(number, 0, 0, [0]) for number in range(count)]
            topics = [TopicMetadata("flights", 0, "id", partitions)]
        return MetadataResponse([BrokerInfo(0, {"client": stub.address})], topics)

    with StubBroker(answer) as stub, Consumer(bootstrap=stub.address) as consumer:
        consumer.assign([("flights", 1)])
        assert consumer.assignment() == {("flights", 1)}
        assert asked > 3
        with pytest.raises(UnknownTopicOrPartition, match="flights has 2, numbered from 0"):
            consumer.assign([("flights", 2)])
