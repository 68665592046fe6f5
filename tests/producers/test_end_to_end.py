"""The producer against real broker processes and a real ZooKeeper; the log is read back and compared."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from folkmoot.console.running.children import free_port
from folkmoot.console.running.processes import BrokerProcess, EmbeddedCluster
from folkmoot.coordination import brokers, topics
from folkmoot.coordination.connector import connector
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.network.client import Connections
from folkmoot.network.cluster import Cluster
from folkmoot.producers.appender import Delivery
from folkmoot.producers.producer import Producer
from folkmoot.protocol import batch_header, record_batch
from folkmoot.protocol.errors import BatchTooLarge, NotLeader
from folkmoot.protocol.messages import Api, FetchEntry, FetchRequest
from folkmoot.protocol.murmur2 import partition_for
from folkmoot.protocol.records import Record, TopicPartition
from tests.proxy import Proxy
from tests.seeds import new_seed
from tests.waiting import eventually

StartCluster = Callable[..., EmbeddedCluster]
PARTITIONS = 6


def create_topic(zookeeper: str, name: str, partitions: int = PARTITIONS, **config: str) -> None:
    session = connector(zookeeper)(6.0)
    try:
        live = list(execute(session, brokers.live()))
        execute(session, topics.create(name, partitions, live, config))
    finally:
        session.close()


def addresses(cluster: EmbeddedCluster) -> list[str]:
    return [broker.address for broker in cluster.brokers]


def read_all(addresses: Sequence[str], topic: str) -> dict[int, list[Record]]:
    """Every record of the topic, by partition."""
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
        while (address := network.leader_address(partition)) is None:
            network.poll(0.1)  # who was asked does not know yet that it is back
        topic_id = network.topic_id(partition.topic) or ""
        entry = FetchEntry(partition.topic, topic_id, partition.partition, -1, offset, 1 << 20)
        network.send(address, Api.FETCH, FetchRequest(0.0, 1, 1 << 20, [entry]))
        while not (replies := network.poll(10.0)):
            continue
        (reply,) = replies
        assert reply.error is None
        if not reply.response.results:
            return  # the log is empty
        (result,), (payload,) = reply.response.results, reply.payloads
        if result.error == NotLeader.code:
            network.refresh()  # it is back, and about to lead
            network.poll(0.1)
            continue
        assert result.error == 0
        end = result.high_watermark
        for header, batch in batch_header.split(payload):
            yield from record_batch.records_of(*partition, header, batch)
            offset = header.next_offset


def check(log: dict[int, list[Record]], sent: list[tuple[bytes, bytes, Delivery]]) -> None:
    """Each delivery names the offset at which its record is."""
    for key, value, delivery in sent:
        place = delivery.result(0)
        record = log[place.partition][place.offset]
        assert (record.offset, record.key, record.value) == (place.offset, key, value)
        assert place.partition == partition_for(key, PARTITIONS)


def check_once_and_in_order(
    log: dict[int, list[Record]], sent: list[tuple[bytes, bytes, Delivery]]
) -> None:
    for partition, records in log.items():
        mine = [value for key, value, _ in sent if partition_for(key, PARTITIONS) == partition]
        assert [record.value for record in records] == mine


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
    log = read_all(addresses(cluster), "t")
    assert sum(map(len, log.values())) == len(sent)
    check(log, sent)


def test_a_killed_broker_costs_no_record_and_no_order_and_writes_none_twice(
    start_cluster: StartCluster,
) -> None:
    seed = new_seed()
    chance = random.Random(seed)
    cluster = start_cluster(brokers=2, session_timeout=1.0)
    create_topic(cluster.zookeeper, "t")
    kills = {chance.randrange(1_000, 30_000) for _ in range(3)}
    sent = []
    with Producer(zookeeper=cluster.zookeeper, linger=0.001, batch_bytes=10_000) as producer:
        for number in range(30_000):
            if number in kills:
                victim = chance.choice(cluster.brokers)
                victim.kill()
                victim.start()
            key, value = b"key %d" % (number % 50), b"%d" % number
            sent.append((key, value, producer.send("t", value, key)))
    log = read_all(addresses(cluster), "t")
    check(log, sent)
    check_once_and_in_order(log, sent)


def lose_an_answer(proxy: Proxy, producer: Producer) -> None:
    before = proxy.lost_answers
    proxy.lose_answers()
    if producer.unacknowledged():
        eventually(lambda: proxy.lost_answers > before or not producer.unacknowledged())


def test_lost_answers_cut_connections_and_kills_write_nothing_twice(
    chroot: str, tmp_path: Path
) -> None:
    """A network that carries requests to the broker and not its answers back, then breaks; and kills."""
    seed = new_seed()
    chance = random.Random(seed)
    faults = {1 + chance.randrange(20_000): chance.choice(["cut", "kill"]) for _ in range(6)}
    port = free_port()
    options: dict[str, Any] = {"linger": 0.001, "batch_bytes": 3_000, "retry_backoff": 0.02}
    with Proxy(port) as proxy:
        listener = f"client=127.0.0.1:{port}@{proxy.address}"
        with BrokerProcess(1, tmp_path / "b", chroot, [listener], 1.0) as broker:
            create_topic(chroot, "t")
            sent = []
            with Producer(zookeeper=chroot, request_timeout=2.0, **options) as producer:
                for number in range(20_000):
                    key, value = b"key %d" % (number % 50), b"%d" % number
                    sent.append((key, value, producer.send("t", value, key)))
                    if not number:  # from here on the answers that are lost are those to records
                        sent[0][2].result(20.0)
                    fault = faults.get(number)
                    if fault is not None:
                        lose_an_answer(proxy, producer)
                        if fault == "kill":
                            broker.kill()
                            broker.start()
                        proxy.cut()
                        proxy.heal()
                counters = producer.metrics()
            log = read_all([f"127.0.0.1:{port}"], "t")
    assert counters["batches_retried"] > 0
    assert counters["epochs_begun"] == 0
    check(log, sent)
    check_once_and_in_order(log, sent)


@pytest.mark.parametrize("options", [{}, {"idempotent": False, "compression": "none"}])
def test_a_batch_that_is_too_large_is_sent_in_parts_and_only_records_too_large_alone_fail(
    shared_cluster: EmbeddedCluster, options: dict[str, Any]
) -> None:
    name = f"narrow-{len(options)}"
    address = shared_cluster.zookeeper
    create_topic(address, name, 1, max_batch_bytes="3000")
    chance = random.Random(1)
    large = {70, 255}
    values = [chance.randbytes(3000 if number in large else 80) for number in range(300)]
    called: list[Delivery] = []
    with Producer(zookeeper=address, linger=0.2, **options) as producer:
        sent = [
            producer.send(name, each, headers=[("h", b"x")], on_delivery=called.append)
            for each in values
        ]
        columns = producer.send_batch(name, values, keys=[b"%d" % each for each in range(300)])
        with suppress(BatchTooLarge):
            producer.flush()
        assert isinstance(columns.exception(0), BatchTooLarge)
        metrics = producer.metrics()
        assert metrics["batches_retried"] > 10
        for number, delivery in enumerate(sent):
            assert isinstance(delivery.exception(0), BatchTooLarge | None)
            assert (delivery.exception(0) is not None) == (number in large)
    assert len(called) == 300
    (records,) = read_all(addresses(shared_cluster), name).values()
    whole = [each for number, each in enumerate(values) if number not in large]
    assert [record.value for record in records] == whole * 2, "once, and in order"
    for number, delivery in enumerate(sent):
        if number not in large:
            assert records[delivery.result(0).offset].value == values[number]


def test_offsets_of_columns_that_were_sent_in_parts(shared_cluster: EmbeddedCluster) -> None:
    address = shared_cluster.zookeeper
    create_topic(address, "columns", 1, max_batch_bytes="3000")
    with Producer(zookeeper=address, linger=0.1, compression="none") as producer:
        found = producer.send_batch("columns", [bytes(100)] * 90).result(30.0)
    assert found == {0: [range(90)]}
