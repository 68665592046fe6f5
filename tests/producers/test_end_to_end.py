"""The producer against real broker processes and a real ZooKeeper; the log is read back and compared."""

import random
from collections.abc import Callable, Iterator

import pytest

from folkmoot.console.processes import EmbeddedCluster
from folkmoot.coordination import brokers, topics
from folkmoot.coordination.connector import connector
from folkmoot.coordination.store import run
from folkmoot.network.client import Connections
from folkmoot.network.cluster import Cluster
from folkmoot.producers.deliveries import Delivery
from folkmoot.producers.producer import Producer
from folkmoot.protocol import batch as batch_format
from folkmoot.protocol.murmur2 import partition_for
from folkmoot.protocol.records import Record, TopicPartition
from folkmoot.protocol.requests import Api, FetchEntry, FetchRequest

StartCluster = Callable[..., EmbeddedCluster]
PARTITIONS = 6


def create_topic(zookeeper: str, name: str, partitions: int = PARTITIONS) -> None:
    store = connector(zookeeper)(6.0)
    try:
        run(store, topics.create(name, partitions, list(run(store, brokers.live()))))
    finally:
        store.close()


def read_all(cluster: EmbeddedCluster, topic: str) -> dict[int, list[Record]]:
    """Every record of the topic, by partition."""
    addresses = [broker.address for broker in cluster.brokers]
    with Cluster(Connections("reader"), lambda: addresses) as network:
        while not network.partitions(topic):
            network.poll(0.1)
        return {
            number: list(_read(network, TopicPartition(topic, number)))
            for number in network.partitions(topic)
        }


def _read(network: Cluster, partition: TopicPartition) -> Iterator[Record]:
    offset, end = 0, 1
    while offset < end:
        address = network.leader_address(partition)
        assert address is not None
        topic_id = network.topic_id(partition.topic) or ""
        entry = FetchEntry(partition.topic, topic_id, partition.partition, 0, offset, 1 << 20)
        network.send(address, Api.FETCH, FetchRequest(0.0, 1, 1 << 20, [entry]))
        while not (replies := network.poll(10.0)):
            continue
        (reply,) = replies
        assert reply.error is None
        (result,), (payload,) = reply.response.results, reply.payloads
        assert result.error == 0
        end = result.high_watermark
        for header, batch in batch_format.split(payload):
            yield from batch_format.records_of(*partition, header, batch)
            offset = header.next_offset


def check(log: dict[int, list[Record]], sent: list[tuple[bytes, bytes, Delivery]]) -> None:
    """Each delivery names the offset at which its record is."""
    for key, value, delivery in sent:
        place = delivery.result(0)
        record = log[place.partition][place.offset]
        assert (record.offset, record.key, record.value) == (place.offset, key, value)
        assert place.partition == partition_for(key, PARTITIONS)


@pytest.mark.parametrize("compression", ["none", "zstd", "lz4", "gzip", "snappy"])
def test_every_record_is_read_back_where_its_delivery_says(
    start_cluster: StartCluster, compression: str
) -> None:
    cluster = start_cluster(brokers=2)
    create_topic(cluster.zookeeper, "t")
    with Producer(zookeeper=cluster.zookeeper, compression=compression) as producer:
        sent = []
        for number in range(20_000):
            key, value = b"key %d" % (number % 500), b"value %d" % number
            sent.append((key, value, producer.send("t", value, key)))
    log = read_all(cluster, "t")
    assert sum(map(len, log.values())) == len(sent)
    check(log, sent)


def test_a_killed_broker_costs_no_acknowledged_record_and_no_order(
    start_cluster: StartCluster,
) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)
    cluster = start_cluster(brokers=2, session_timeout=1.0)
    create_topic(cluster.zookeeper, "t")
    kills = {chance.randrange(1_000, 30_000) for _ in range(2)}
    sent = []
    with Producer(zookeeper=cluster.zookeeper, linger=0.001, batch_bytes=10_000) as producer:
        for number in range(30_000):
            if number in kills:
                victim = chance.choice(cluster.brokers)
                victim.kill()
                victim.start()
            key, value = b"key %d" % (number % 50), b"%d" % number
            sent.append((key, value, producer.send("t", value, key)))
    log = read_all(cluster, "t")
    check(log, sent)
    for records in log.values():
        first_copies = list(dict.fromkeys(int(record.value or b"") for record in records))
        assert first_copies == sorted(first_copies)
