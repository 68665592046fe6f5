"""Two broker containers and a ZooKeeper container: clients here and beside them, and what they survive."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import pytest
from testcontainers.core.container import DockerContainer

from folkmoot.consumers.client.consumer import Consumer
from folkmoot.coordination import brokers, topics
from folkmoot.coordination.connector import connect
from folkmoot.coordination.groups import ownership
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.integration.cluster import ContainerCluster
from folkmoot.integration.containers import broker_image
from folkmoot.producers.appender import Delivery
from folkmoot.producers.producer import Producer
from folkmoot.protocol.records import Record, RecordMetadata, TopicPartition
from tests.waiting import eventually

pytestmark = pytest.mark.docker

PARTITIONS = 4
SESSION_TIMEOUT = 2.0
DELIVERED_WITHIN = 60.0

PartitionOffset = tuple[int, int]
"""Partition and offset."""

# Runs in a container that holds what users install, in the brokers' network.
SIBLING = """
import sys
from folkmoot.consumers.client.consumer import Consumer
from folkmoot.producers.producer import Producer

zookeeper, source, target, count = *sys.argv[1:4], int(sys.argv[4])
options = {"zookeeper": zookeeper, "listener": "internal"}
with Consumer(**options) as consumer, Producer(**options) as producer:
    consumer.assign(consumer.partitions_of(source))
    while count > 0:
        for record in consumer.poll(1.0):
            producer.send(target, record.value.upper(), record.key)
            count -= 1
"""


def create_topic(cluster: ContainerCluster) -> str:
    """A new topic with half of its partitions on each broker."""
    name = f"topic-{uuid4().hex[:8]}"
    session = connect(cluster.connect_string, 30.0)
    try:
        eventually(lambda: list(execute(session, brokers.live())) == [1, 2])
        info = execute(session, topics.create(name, PARTITIONS, [1, 2]))
        assert sorted(info.partitions) == [[1], [1], [2], [2]]
    finally:
        session.close()
    return name


def read_all(cluster: ContainerCluster, topic: str) -> dict[PartitionOffset, Record]:
    """Every record of a topic that nobody writes to any more."""
    found: dict[PartitionOffset, Record] = {}
    with Consumer(zookeeper=cluster.connect_string) as consumer:
        partitions = consumer.partitions_of(topic)
        consumer.assign(partitions)

        def read_to_the_end() -> bool:
            for record in consumer.poll(0.2):
                found[record.partition, record.offset] = record
            ends = [consumer.end_offset(partition) for partition in partitions]
            return None not in ends and ends == [consumer.position(each) for each in partitions]

        eventually(read_to_the_end, timeout=30.0)
    return found


def test_records_go_from_here_through_a_sibling_container_and_back(
    cluster: ContainerCluster,
) -> None:
    source, target = create_topic(cluster), create_topic(cluster)
    sent = {b"key-%d" % number: b"value-%d" % number for number in range(500)}
    with Producer(zookeeper=cluster.connect_string) as producer:
        for key, value in sent.items():
            producer.send(source, value, key)
    sibling = DockerContainer(broker_image(), network=cluster.network)
    sibling.with_kwargs(entrypoint=["python", "-c", SIBLING])
    sibling.with_command([cluster.internal_connect_string, source, target, str(len(sent))])
    with sibling:
        assert sibling.wait() == 0, sibling.get_logs()
    came_back = read_all(cluster, target)
    assert {record.key: record.value for record in came_back.values()} == {
        key: value.upper() for key, value in sent.items()
    }
    assert {partition for partition, _ in came_back} == set(range(PARTITIONS))


def test_a_broker_killed_and_started_again_has_all_that_it_acknowledged(
    cluster: ContainerCluster,
) -> None:
    topic = create_topic(cluster)
    victim = cluster.broker(1)
    address = victim.address
    sent: list[tuple[bytes, Delivery]] = []
    enough = threading.Event()

    with Producer(zookeeper=cluster.connect_string, request_timeout=2.0) as producer:

        def keep_sending() -> None:
            while not enough.wait(0.001):
                value = b"value-%d" % len(sent)
                sent.append((value, producer.send(topic, value, value)))

        def next_ones_arrive() -> bool:
            return sum(delivery.done() for _, delivery in sent[already:]) > 200

        sender = threading.Thread(target=keep_sending, daemon=True)
        sender.start()
        already = 0
        eventually(next_ones_arrive, DELIVERED_WITHIN)
        victim.kill()
        victim.start_again()
        already = len(sent)
        eventually(next_ones_arrive, DELIVERED_WITHIN)
        enough.set()
        sender.join()
        acknowledged = [(value, delivery.result(DELIVERED_WITHIN)) for value, delivery in sent]
    assert victim.address == address
    found = read_all(cluster, topic)
    for value, metadata in acknowledged:
        assert found[partition_offset(metadata)].value == value
    assert_dense(found)


class Worker:
    """A member of the group in a thread of its own, which notes where each record was that it got."""

    def __init__(self, cluster: ContainerCluster, topic: str) -> None:
        self.received: set[PartitionOffset] = set()
        self.owned: frozenset[TopicPartition] = frozenset()
        self.problem: BaseException | None = None
        self._zookeeper = cluster.connect_string
        self._topic = topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            with Consumer(
                zookeeper=self._zookeeper,
                group=self._topic,
                topics=[self._topic],
                session_timeout=SESSION_TIMEOUT,
                commit_interval=0.2,
            ) as consumer:
                while not self._stop.is_set():
                    for record in consumer.poll(0.1):
                        self.received.add((record.partition, record.offset))
                    self.owned = consumer.assignment()
        except BaseException as error:
            self.problem = error

    @contextmanager
    def running(self) -> Iterator["Worker"]:
        self._thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            self._thread.join(20.0)
        assert not self._thread.is_alive()
        assert self.problem is None, self.problem


def test_a_group_goes_on_after_zookeeper_was_paused_beyond_the_session_timeout(
    cluster: ContainerCluster,
) -> None:
    topic = create_topic(cluster)
    first, second = Worker(cluster, topic), Worker(cluster, topic)
    acknowledged: set[PartitionOffset] = set()
    with (
        Producer(zookeeper=cluster.connect_string, request_timeout=2.0) as producer,
        first.running(),
        second.running(),
    ):

        def send_and_note(count: int) -> None:
            sent = [producer.send(topic, b"x", b"%d" % number) for number in range(count)]
            acknowledged.update(partition_offset(each.result(DELIVERED_WITHIN)) for each in sent)

        def shared() -> bool:
            both = len(first.owned) == len(second.owned) == PARTITIONS // 2
            return both and not first.owned & second.owned

        def released() -> bool:
            return not first.owned | second.owned

        def all_arrived() -> bool:
            return first.received | second.received >= acknowledged

        eventually(shared, timeout=30.0)
        send_and_note(500)
        eventually(all_arrived, timeout=30.0)
        cluster.zookeeper.pause()
        try:
            paused_at = time.monotonic()
            send_and_note(500)
            # Nobody can tell them that their sessions live, so they must act as if those did not.
            eventually(released, timeout=30.0)
            # Not a wait for anything: this long is the fault, and ends every session for certain.
            time.sleep(max(0.0, paused_at + 2 * SESSION_TIMEOUT - time.monotonic()))
        finally:
            cluster.zookeeper.unpause()
        send_and_note(500)
        eventually(all_arrived, timeout=60.0)
        eventually(shared, timeout=30.0)
        ends = {partition: offset + 1 for partition, offset in sorted(read_all(cluster, topic))}
        assert sum(ends.values()) >= 1500
        eventually(lambda: committed_offsets(cluster, topic) == ends, timeout=30.0)


def committed_offsets(cluster: ContainerCluster, topic: str) -> dict[int, int | None]:
    """What the group of the topic's name has committed, by partition."""
    offsets: dict[int, int | None] = {}
    session = connect(cluster.connect_string, 30.0)
    try:
        for number in range(PARTITIONS):
            state = execute(session, ownership.committed(topic, TopicPartition(topic, number)))
            offsets[number] = None if state is None else state.offset
    finally:
        session.close()
    return offsets


def partition_offset(metadata: RecordMetadata) -> PartitionOffset:
    return metadata.partition, metadata.offset


def assert_dense(found: dict[PartitionOffset, Record]) -> None:
    for partition in range(PARTITIONS):
        offsets = sorted(offset for number, offset in found if number == partition)
        assert offsets == list(range(len(offsets)))
