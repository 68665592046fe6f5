"""A client's view of the cluster over real sockets."""

import random
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from math import inf
from typing import Any

import pytest

from folkmoot.coordination.zookeeper.recipes import Malformed
from folkmoot.network import broker_choice as choice_module
from folkmoot.network import cluster as cluster_module
from folkmoot.network.broker_choice import SILENCE
from folkmoot.network.client import Connections, Reply, SupportsFileno
from folkmoot.network.cluster import LOOK_PAUSE, Cluster
from folkmoot.protocol.errors import (
    BrokerUnreachable,
    ConfigError,
    FolkmootError,
    NoCluster,
    NoProducerId,
    NotLeader,
    ResponseTooLarge,
    UnknownTopicOrPartition,
    ZooKeeperUnreachable,
)
from folkmoot.protocol.messages import (
    Api,
    BrokerInfo,
    FetchEntry,
    FetchRequest,
    InitProducerIdRequest,
    InitProducerIdResponse,
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


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that does not answer at once is not taken for one that stands still."""
    monkeypatch.setattr(cluster_module, "SILENCE", 60.0)
    monkeypatch.setattr(choice_module, "SILENCE", 60.0)


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
        self.described = 0
        self.ids: list[int] = []

    def has_described(self, count: int) -> bool:
        return self.described >= count

    def describe(self) -> MetadataResponse:
        self.described += 1
        partitions = [PartitionMetadata(0, self.leader, self.leader, [1, 2])]
        topic = TopicMetadata("t", 0, "id", partitions)
        if not self.exists:
            topic = TopicMetadata("t", UnknownTopicOrPartition.code, "", [])
        brokers = [BrokerInfo(number, {"client": where}) for number, where in self.brokers.items()]
        return MetadataResponse(brokers, [topic])

    def broker(self, number: int) -> StubBroker:
        def handle(envelope: Any, body: Any, payloads: list[bytes]) -> Any:
            if envelope.api == Api.METADATA:
                return self.describe()
            if envelope.api == Api.INIT_PRODUCER_ID:
                if not self.ids:
                    raise NoProducerId("the broker has no producer id left")
                return InitProducerIdResponse(self.ids.pop(0))
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
            assert cluster.version > 0


def test_a_dead_address_is_passed_over() -> None:
    world, dead = World(), unused_address()
    with world.broker(1) as one:
        world.brokers = {1: one.address}
        with Cluster(Connections("me"), lambda: [dead, one.address]) as cluster:
            poll_until(cluster, lambda: cluster.leader_address(T0))


@pytest.mark.usefixtures("patience")
def test_the_leader_that_a_result_names_counts_at_once() -> None:
    world = World()
    with world.broker(1) as one, world.broker(2) as two:
        world.brokers = {1: one.address, 2: two.address}
        with Cluster(Connections("me"), lambda: [one.address]) as cluster:
            poll_until(cluster, lambda: cluster.leader_address(T0) == one.address)
            before, asked = cluster.version, world.described
            world.leader = 2
            cluster.send(one.address, Api.LIST_OFFSETS, ASK)
            reply = one_reply(cluster)
            assert reply.response.results[0].error == NotLeader.code
            assert cluster.leader_address(T0) == two.address
            assert cluster.version == before + 1
            cluster.send(two.address, Api.LIST_OFFSETS, ASK)
            assert one_reply(cluster).response.results[0].offset == 42
            poll_until(cluster, lambda: world.described > asked)


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
        poll_until(cluster, lambda: cluster.metadata_error)
        assert isinstance(cluster.metadata_error, BrokerUnreachable)
        with world.broker(1) as one:
            world.brokers = {1: one.address}
            found[:] = [one.address]
            poll_until(cluster, lambda: cluster.leader_address(T0))
            assert cluster.metadata_error is None


def test_brokers_that_have_all_moved_are_discovered_however_many_there_were() -> None:
    world = World()
    found = [unused_address() for _ in range(5)]
    now = 0.0
    with Cluster(Connections("me"), lambda: found, clock=lambda: now) as cluster:
        with world.broker(1) as one:
            world.brokers = {1: one.address, **dict(enumerate(found, 2))}
            found.append(one.address)
            while cluster.leader_address(T0) is None:
                now += 1.0
                cluster.poll(0.05)
        tries: set[int] = set()

        def is_found() -> bool:
            nonlocal now
            if cluster._asking < 0 or cluster._asking not in tries:
                now += 1.0  # a try a second, while each address is avoided for two
            tries.add(cluster._asking)
            return cluster.leader_address(T0) == again.address

        with world.broker(1) as again:
            world.brokers = {1: again.address}
            found[:] = [again.address]
            cluster.refresh()
            poll_until(cluster, is_found)
        assert len(tries) < 20


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


@pytest.mark.parametrize("error", [ConfigError("no listener"), NoCluster("none"), Malformed("bad")])
@pytest.mark.parametrize("started", [[], None])
def test_trouble_of_the_cluster_is_waited_for_and_a_mistake_at_the_start_is_raised(
    error: FolkmootError, started: list[str] | None
) -> None:
    """`started`: what was found before the first look, None if nothing was looked for."""
    world, now = World(), 0.0
    with world.broker(1) as one:
        world.brokers = {1: one.address}
        errors: list[FolkmootError] = [error] * (1 if started is None else 3)

        def discover() -> list[str]:
            if errors:
                raise errors.pop()
            return [one.address]

        connections = Connections("me")
        with Cluster(connections, discover, clock=lambda: now, discovered=started) as cluster:
            cluster.want("t")
            if started is None:
                with pytest.raises(type(error)):
                    cluster.poll(0.05)
            while cluster.leader_address(T0) is None:
                now += 1.0
                cluster.poll(0.05)
            one.stop()
            errors[:] = [error] * 3
            cluster.refresh()
            while errors:
                now += 1.0
                cluster.poll(0.05)
            assert cluster.metadata_error is error


def test_brokers_without_the_listener_asked_for_are_the_trouble_and_not_leaders_that_are_missing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    with world.broker(1) as one:
        world.brokers = {1: one.address}
        with Cluster(Connections("me"), lambda: [one.address], listener="outer") as cluster:
            cluster.want("t")
            poll_until(cluster, lambda: cluster.metadata_error)
            said = "no broker has a listener 'outer': they have client"
            assert (str(cluster.metadata_error), cluster.leaderless) == (said, {})
            poll_until(cluster, lambda: world.has_described(3))
    assert [each.message for each in caplog.records] == [f"no metadata: {said}"]


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
        assert cluster.metadata_error is None


def one_producer_id(cluster: Cluster) -> int:
    found: list[int | None] = [None]

    def has_come() -> bool:
        found[0] = cluster.producer_id()
        return found[0] is not None

    poll_until(cluster, has_come)
    assert found[0] is not None
    return found[0]


def test_a_producer_id_is_asked_of_any_broker_and_each_is_given_out_once() -> None:
    world = World()
    with world.broker(1) as one:
        world.brokers, world.ids = {1: one.address}, [7, 8, 9]
        with Cluster(Connections("me"), lambda: [one.address]) as cluster:
            assert one_producer_id(cluster) == 7
            assert one_producer_id(cluster) == 8
            for _ in range(3):
                cluster.poll(0.02)
            assert world.ids == [9], "nobody has asked for it"


def test_a_broker_without_producer_ids_is_asked_again_and_named_as_the_trouble() -> None:
    world = World()
    with world.broker(1) as one:
        world.brokers = {1: one.address}
        with Cluster(Connections("me"), lambda: [one.address]) as cluster:
            poll_until(cluster, lambda: cluster.producer_id() or cluster.producer_id_error)
            assert "has no producer id left" in str(cluster.producer_id_error)
            world.ids = [3]
            assert one_producer_id(cluster) == 3
            assert cluster.producer_id_error is None


def test_brokers_that_metadata_has_named_are_found_again_when_all_given_addresses_are_gone() -> (
    None
):
    """As with `bootstrap`: the addresses given never change, the brokers do."""
    world, now = World(), 0.0
    with world.broker(2) as two:
        with world.broker(1) as one:
            given = [one.address]
            world.brokers = {1: one.address, 2: two.address}
            cluster = Cluster(Connections("me"), lambda: given, clock=lambda: now)
            poll_until(cluster, lambda: cluster.leader_address(T0) == one.address)
        port = two.port

    def later() -> None:
        nonlocal now
        now += 1.0

    def both_are_named() -> bool:
        later()
        return all(each.address in str(cluster.metadata_error) for each in (one, two))

    def two_leads() -> bool:
        later()
        return cluster.leader_address(T0) == two.address

    with cluster:
        cluster.refresh()
        poll_until(cluster, both_are_named)  # both are down for a while
        world.leader = 2
        with StubBroker(two.handler, port=port):
            poll_until(cluster, two_leads)


def test_a_dead_address_among_those_given_is_not_asked_once_brokers_are_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing answers there, as on a machine that is gone: to ask it costs seconds each time."""
    world, now = World(), 0.0
    with world.broker(1) as one, socket.create_server(("127.0.0.1", 0)) as mute:
        mute.setblocking(False)
        dead = f"127.0.0.1:{mute.getsockname()[1]}"
        world.brokers = {1: one.address}

        def choose(wanted: str) -> None:
            monkeypatch.setattr(
                random, "choice", lambda some: wanted if wanted in some else some[0]
            )

        choose(one.address)
        given = [dead, one.address]
        with Cluster(Connections("me"), lambda: given, clock=lambda: now) as cluster:
            poll_until(cluster, lambda: cluster.leader_address(T0) == one.address)
            choose(dead)

            def is_told(count: int) -> bool:
                return world.has_described(count) and cluster._asking < 0

            for count in range(world.described + 1, world.described + 4):
                now += 10.0
                cluster.refresh()
                poll_until(cluster, partial(is_told, count))
        with pytest.raises(BlockingIOError):
            mute.accept()


def test_while_no_broker_answers_the_trouble_names_all_of_them_all_the_time() -> None:
    now = 0.0
    both = [unused_address(), unused_address()]
    with Cluster(Connections("me"), lambda: both, clock=lambda: now) as cluster:
        cluster.want("t")
        seen: list[str] = []

        def rounds(count: int) -> bool:
            nonlocal now
            now += 1.0
            seen.append(str(cluster.metadata_error))
            return sum("no broker answers" in each for each in seen) >= count

        poll_until(cluster, lambda: rounds(1))
        seen.clear()
        poll_until(cluster, lambda: rounds(20))
        assert len(seen) == 20
        assert all(each in said for said in seen for each in both)


@pytest.mark.parametrize("error", [OSError("not foreseen"), KeyboardInterrupt()])
def test_a_discovery_that_is_interrupted_is_begun_again(error: BaseException) -> None:
    """What interrupts the look for brokers, like Ctrl-C, is raised, and left nothing to wait for."""
    world, now = World(), 0.0
    with world.broker(1) as one:
        world.brokers = {1: one.address}
        errors = [error]

        def discover() -> list[str]:
            if errors:
                raise errors.pop()
            return [one.address]

        with Cluster(Connections("me"), discover, clock=lambda: now) as cluster:
            cluster.want("t")
            with pytest.raises(type(error)):
                cluster.poll(0.05)
            now += 2.0
            poll_until(cluster, lambda: cluster.leader_address(T0) == one.address)


def test_metadata_whose_answer_an_interruption_took_is_asked_for_again() -> None:
    class Interrupted(Connections):
        times = 0

        def poll(self, timeout: float, wake: SupportsFileno | None = None) -> list[Reply]:
            replies = super().poll(timeout, wake)
            self.times += len(replies)
            if self.times == len(replies) == 1:
                raise KeyboardInterrupt
            return replies

    world = World()
    with world.broker(1) as one:
        world.brokers = {1: one.address}
        with Cluster(Interrupted("me"), lambda: [one.address]) as cluster:
            cluster.want("t")
            with pytest.raises(KeyboardInterrupt):
                poll_until(cluster, lambda: False)
            poll_until(cluster, lambda: cluster.leader_address(T0) == one.address)


@pytest.mark.parametrize("count", [1, 2])
def test_where_all_brokers_that_were_found_are_slow_they_are_waited_for(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(cluster_module, "SILENCE", 0.02)
    monkeypatch.setattr(choice_module, "SILENCE", 0.02)
    monkeypatch.setattr(cluster_module, "LOOK_PAUSE", 0.02)
    world = World()

    def slowed(handle: Callable[..., Any]) -> Callable[..., Any]:
        def slowly(*request: Any) -> Any:
            time.sleep(0.1)
            return handle(*request)

        return slowly

    with ExitStack() as stack:
        brokers = [stack.enter_context(world.broker(1 + number)) for number in range(count)]
        for broker in brokers:
            broker.handler = slowed(broker.handler)
        world.brokers = {1 + number: each.address for number, each in enumerate(brokers)}
        with Cluster(Connections("me"), lambda: [*world.brokers.values()]) as cluster:
            poll_until(cluster, lambda: cluster.leader_address(T0) is not None)


@pytest.mark.parametrize("slow", [1, 2])
def test_a_broker_that_is_slow_is_warned_of_only_where_no_other_answers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, slow: int
) -> None:
    monkeypatch.setattr(cluster_module, "SILENCE", 0.02)
    monkeypatch.setattr(choice_module, "SILENCE", 0.02)
    monkeypatch.setattr(cluster_module, "LOOK_PAUSE", 0.02)
    world = World()
    with world.broker(1) as one, world.broker(2) as two:
        world.brokers, world.leader = {1: one.address, 2: two.address}, 2
        for broker in [one, two][:slow]:
            broker.handler = lambda envelope, body, payloads: None
        found = [one.address, two.address]
        monkeypatch.setattr("random.choice", lambda some: min(some, key=found.index))
        with Cluster(Connections("me"), lambda: found) as cluster:
            poll_until(cluster, lambda: one.address in cluster._choice.failed)
            if slow == 1:
                poll_until(cluster, lambda: cluster.leader_address(T0) == two.address)
            else:
                poll_until(cluster, lambda: "no broker answers" in str(cluster.metadata_error))
    assert bool(caplog.records) == (slow == 2)


def test_what_is_under_way_to_a_broker_that_stands_still_ends_when_another_one_leads() -> None:
    world = World()
    with world.broker(2) as two, world.broker(1) as one:
        world.brokers = {1: one.address, 2: two.address}
        with Cluster(Connections("me"), lambda: [one.address]) as cluster:
            poll_until(cluster, lambda: cluster.leader_address(T0) == one.address)
            one.handler = lambda envelope, body, payloads: None  # as a stopped process
            asked = cluster.send(one.address, Api.LIST_OFFSETS, ASK)
            before = world.described
            assert not poll_until(cluster, lambda: world.has_described(before + 2)), "it waits"
            world.leader = 2
            reply = one_reply(cluster)
            assert (reply.correlation_id, type(reply.error)) == (asked, BrokerUnreachable)
            assert reply.sent
            assert cluster.leader_address(T0) == two.address
            assert one.address not in cluster._connections.late(inf)


def test_if_the_only_broker_known_stands_still_others_are_discovered() -> None:
    world = World()
    with world.broker(2) as two, world.broker(1) as one:
        world.brokers = {1: one.address}
        found = [one.address]
        with Cluster(Connections("me"), lambda: found) as cluster:
            poll_until(cluster, lambda: cluster.leader_address(T0) == one.address)
            one.handler = lambda envelope, body, payloads: None
            cluster.send(one.address, Api.LIST_OFFSETS, ASK)
            found.append(two.address)
            world.brokers, world.leader = {2: two.address}, 2
            assert isinstance(one_reply(cluster).error, BrokerUnreachable)
            assert cluster.leader_address(T0) == two.address


def test_any_of_several_brokers_is_asked_but_one_that_owes_an_answer() -> None:
    world = World()
    with world.broker(2) as two, world.broker(1) as one:
        world.brokers = {1: one.address, 2: two.address}
        with Cluster(Connections("me"), lambda: [one.address]) as cluster:
            poll_until(cluster, lambda: cluster.leader_address(T0) == one.address)
            one.handler = lambda envelope, body, payloads: None
            cluster.send(one.address, Api.LIST_OFFSETS, ASK)
            poll_until(cluster, lambda: one.address in cluster._choice.late)
            assert {cluster._choice.reachable() for _ in range(50)} == {two.address}


def test_a_broker_that_holds_a_fetch_owes_nothing_yet() -> None:
    world = World()
    with world.broker(2) as two, world.broker(1) as one:
        world.brokers = {1: one.address, 2: two.address}
        with Cluster(Connections("me"), lambda: [one.address]) as cluster:
            poll_until(cluster, lambda: cluster.leader_address(T0) == one.address)
            one.handler = lambda envelope, body, payloads: None
            fetch = FetchRequest(20.0, 1, 1, [FetchEntry("t", "id", 0, 0, 0, 1)])
            cluster.send(one.address, Api.FETCH, fetch)
            asked, end = world.described, time.monotonic() + SILENCE + 2 * LOOK_PAUSE
            while time.monotonic() < end:
                assert not cluster.poll(LOOK_PAUSE)
            assert world.described == asked


def test_one_that_stands_still_is_found_out_though_the_others_owe_answers_as_well() -> None:
    """They wait for it to have their records, it may be; metadata they do tell."""
    world = World()

    def busy(envelope: Any, body: Any, payloads: list[bytes]) -> Any:
        return world.describe() if envelope.api == Api.METADATA else None

    with world.broker(2) as two, world.broker(1) as one:
        world.brokers = {1: one.address, 2: two.address}
        with Cluster(Connections("me"), lambda: [one.address]) as cluster:
            poll_until(cluster, lambda: cluster.leader_address(T0) == one.address)
            one.handler, two.handler = (lambda envelope, body, payloads: None), busy
            for number, broker in enumerate((one, two), 1):
                asked = FetchRequest(0.0, 1, 1, [FetchEntry("t", "id", 0, number, 0, 1)])
                cluster.send(broker.address, Api.FETCH, asked)
            world.leader = 2
            began = time.monotonic()
            reply = one_reply(cluster)
            assert (reply.address, type(reply.error)) == (one.address, BrokerUnreachable)
            print(f"after {time.monotonic() - began:.2f} s")
            assert two.address in cluster._connections.late(inf), (
                "the other one leads, and is waited for"
            )


def test_a_broker_that_owes_one_answer_is_found_out_though_it_gives_others() -> None:
    """Its followers have left it, it may be: what needs none of them it still answers."""
    world = World()

    def zombie(envelope: Any, body: Any, payloads: list[bytes]) -> Any:
        if envelope.api == Api.METADATA:
            return before
        return None if envelope.api == Api.FETCH else InitProducerIdResponse(1)

    with world.broker(2) as two, world.broker(1) as one:
        world.brokers = {1: one.address, 2: two.address}
        before = world.describe()
        with Cluster(Connections("me"), lambda: [one.address]) as cluster:
            poll_until(cluster, lambda: cluster.leader_address(T0) == one.address)
            one.handler = zombie
            late = cluster.send(
                *(one.address, Api.FETCH),
                FetchRequest(0.0, 1, 1, [FetchEntry("t", "id", 0, 1, 0, 1)]),
            )
            world.leader, answers, ended = 2, 0, False
            end = time.monotonic() + 10.0
            while not ended:
                assert time.monotonic() < end, "it was waited for"
                cluster.send(one.address, Api.INIT_PRODUCER_ID, InitProducerIdRequest())
                replies = cluster.poll(LOOK_PAUSE)
                answers += sum(each.error is None for each in replies)
                ended = late in [each.correlation_id for each in replies]
            assert answers > 2
            assert cluster.leader_address(T0) == two.address


def test_a_replaced_leader_that_answers_metadata_does_not_hide_a_broker_that_was_away() -> None:
    """`two` was restarted. `one` is cut off from ZooKeeper and other brokers, and says what it knows."""
    world = World()
    with world.broker(2) as two, world.broker(1) as one:
        world.brokers = {1: one.address, 2: two.address}
        with Cluster(Connections("me"), lambda: [one.address, two.address]) as cluster:
            poll_until(cluster, lambda: cluster.leader_address(T0) == one.address)
            cluster._choice.fail(two.address, BrokerUnreachable("a restart"))
            for _ in range(2):
                answers = cluster.answers
                cluster.refresh()
                poll_until(cluster, lambda: cluster.answers > answers)  # noqa: B023
            brokers = [BrokerInfo(each, {"client": at}) for each, at in world.brokers.items()]
            partition = PartitionMetadata(0, 1, 1, [1, 2])
            stale = MetadataResponse(brokers, [TopicMetadata("t", 0, "id", [partition])])
            one.handler = lambda envelope, body, payloads: (
                stale if envelope.api == Api.METADATA else None
            )
            world.leader = 2
            cluster.send(one.address, Api.LIST_OFFSETS, ASK)
            assert isinstance(one_reply(cluster).error, BrokerUnreachable)
            assert cluster.leader_address(T0) == two.address
