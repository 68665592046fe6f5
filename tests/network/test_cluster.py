"""A client's view of the cluster over real sockets."""

import time
from collections.abc import Callable
from typing import Any

from folkmoot.network.client import Connections, Reply
from folkmoot.network.cluster import Cluster
from folkmoot.protocol.errors import (
    BrokerUnreachable,
    NotLeader,
    ResponseTooLarge,
    UnknownTopicOrPartition,
    ZooKeeperUnreachable,
)
from folkmoot.protocol.messages import (
    Api,
    BrokerInfo,
    ListOffsetsEntry,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsResult,
    MetadataResponse,
    PartitionMetadata,
    TopicMetadata,
)
from folkmoot.protocol.records import TopicPartition
from tests.network.stub import StubBroker
from tests.network.test_client import unused_address

T0 = TopicPartition("t", 0)
ASK = ListOffsetsRequest([ListOffsetsEntry("t", "id", 0, -1)])


def poll_until(cluster: Cluster, condition: Callable[[], object]) -> list[Reply]:
    replies: list[Reply] = []
    end = time.monotonic() + 10.0
    while not condition():
        assert time.monotonic() < end
        replies += cluster.poll(0.05)
    return replies


def one_reply(cluster: Cluster) -> Reply:
    replies: list[Reply] = []
    end = time.monotonic() + 10.0
    while not replies:
        assert time.monotonic() < end
        replies = cluster.poll(0.05)
    (reply,) = replies
    return reply


class World:
    """Leads `t-0` wherever the test says."""

    def __init__(self) -> None:
        self.brokers: dict[int, str] = {}
        self.leader = 1
        self.exists = True

    def describe(self) -> MetadataResponse:
        topic = TopicMetadata("t", 0, "id", [PartitionMetadata(0, self.leader, 0, [1, 2])])
        if not self.exists:
            topic = TopicMetadata("t", UnknownTopicOrPartition.code, "", [])
        brokers = [BrokerInfo(number, {"client": where}) for number, where in self.brokers.items()]
        return MetadataResponse(brokers, [topic])

    def broker(self, number: int) -> StubBroker:
        def handle(envelope: Any, body: Any, payloads: list[bytes]) -> Any:
            if envelope.api == Api.METADATA:
                return self.describe()
            error, leader = 0, None
            if self.leader != number:
                error = NotLeader.code
                leader = BrokerInfo(self.leader, {"client": self.brokers[self.leader]})
            return ListOffsetsResponse([ListOffsetsResult("t", 0, error, "", 42, leader)])

        return StubBroker(handle)


def test_a_look_up_brings_the_metadata_in() -> None:
    world = World()
    with world.broker(1) as one:
        world.brokers = {1: one.address}
        with Cluster(Connections("me"), lambda: [one.address]) as cluster:
            assert cluster.leader_address(T0) is None
            assert poll_until(cluster, lambda: cluster.leader_address(T0)) == []
            assert cluster.leader_address(T0) == one.address
            assert (cluster.topic_id("t"), cluster.partitions("t")) == ("id", range(1))
            assert cluster.version == 1


def test_a_dead_address_is_passed_over() -> None:
    world, dead = World(), unused_address()
    with world.broker(1) as one:
        world.brokers = {1: one.address}
        with Cluster(Connections("me"), lambda: [dead, one.address]) as cluster:
            poll_until(cluster, lambda: cluster.leader_address(T0))


def test_the_leader_that_a_result_names_counts_at_once() -> None:
    world = World()
    with world.broker(1) as one, world.broker(2) as two:
        world.brokers = {1: one.address, 2: two.address}
        with Cluster(Connections("me"), lambda: [one.address]) as cluster:
            poll_until(cluster, lambda: cluster.leader_address(T0) == one.address)
            world.leader = 2
            cluster.send(one.address, Api.LIST_OFFSETS, ASK)
            reply = one_reply(cluster)
            assert reply.response.results[0].error == NotLeader.code
            assert cluster.leader_address(T0) == two.address
            assert cluster.version == 2
            cluster.send(two.address, Api.LIST_OFFSETS, ASK)
            assert one_reply(cluster).response.results[0].offset == 42
            poll_until(cluster, lambda: cluster.version == 3)


def test_a_lost_broker_makes_it_ask_another_one() -> None:
    world = World()
    with world.broker(2) as two:
        with world.broker(1) as one:
            world.brokers = {1: one.address, 2: two.address}
            cluster = Cluster(Connections("me"), lambda: [one.address])
            poll_until(cluster, lambda: cluster.leader_address(T0) == one.address)
        with cluster:
            world.leader = 2
            cluster.send(one.address, Api.LIST_OFFSETS, ASK)
            assert isinstance(one_reply(cluster).error, BrokerUnreachable)
            poll_until(cluster, lambda: cluster.leader_address(T0) == two.address)


def test_all_brokers_gone_means_that_they_are_discovered_again() -> None:
    world, found = World(), [unused_address()]
    with Cluster(Connections("me"), lambda: found) as cluster:
        cluster.want("t")
        poll_until(cluster, lambda: cluster.trouble)
        assert isinstance(cluster.trouble, BrokerUnreachable)
        with world.broker(1) as one:
            world.brokers = {1: one.address}
            found[:] = [one.address]
            poll_until(cluster, lambda: cluster.leader_address(T0))
            assert cluster.trouble is None


def test_brokers_that_have_all_moved_are_discovered_however_many_there_were() -> None:
    world = World()
    found = [unused_address() for _ in range(5)]
    now = 1000.0
    with Cluster(Connections("me"), lambda: found, clock=lambda: now) as cluster:
        with world.broker(1) as one:
            world.brokers = {1: one.address, **dict(enumerate(found, 2))}
            found.append(one.address)
            while cluster.leader_address(T0) is None:
                now += 1.0
                cluster.poll(0.05)
        with world.broker(1) as again:
            world.brokers = {1: again.address}
            found[:] = [again.address]
            cluster.refresh()
            for _ in range(20):  # a try a second, while each address is avoided for two
                now += 1.0
                cluster.poll(0.05)
            assert cluster.leader_address(T0) == again.address


def test_a_discovery_that_fails_is_trouble_and_is_tried_again() -> None:
    world, calls = World(), []

    with world.broker(1) as one:
        world.brokers = {1: one.address}

        def discover() -> list[str]:
            calls.append(1)
            if len(calls) < 3:
                raise ZooKeeperUnreachable("no server answers")
            return [one.address]

        with Cluster(Connections("me"), discover) as cluster:
            poll_until(cluster, lambda: cluster.leader_address(T0))
            assert len(calls) == 3


def test_a_topic_that_comes_later_is_found_without_asking_for_it() -> None:
    world = World()
    with world.broker(1) as one:
        world.brokers = {1: one.address}
        world.exists = False
        with Cluster(Connections("me"), lambda: [one.address]) as cluster:
            cluster.want("t")
            poll_until(cluster, lambda: cluster.is_missing("t"))
            world.exists = True
            poll_until(cluster, lambda: cluster.leader_address(T0))
            assert not cluster.is_missing("t")


def test_an_answer_too_large_makes_it_ask_for_fewer_topics_of_the_same_broker() -> None:
    def handle(envelope: Any, body: Any, payloads: list[bytes]) -> Any:
        if len(body.topics) > 3:
            raise ResponseTooLarge("ask for less at a time")
        partitions = [PartitionMetadata(0, 1, 0, [1])]
        topics = [TopicMetadata(name, 0, "id", partitions) for name in body.topics]
        return MetadataResponse([BrokerInfo(1, {"client": one.address})], topics)

    with StubBroker(handle) as one, Cluster(Connections("me"), lambda: [one.address]) as cluster:
        wanted = [TopicPartition(f"t{number}", 0) for number in range(10)]
        for partition in wanted:
            cluster.want(partition.topic)
        poll_until(cluster, lambda: all(cluster.leader_address(each) for each in wanted))
        assert cluster.trouble is None
