"""Topics grown and records given up, on real brokers and a real ZooKeeper."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Any, Literal
from uuid import uuid4

import pytest

from folkmoot.admin.admin import Admin
from folkmoot.console.running.processes import EmbeddedCluster
from folkmoot.consumers.client.consumer import Consumer
from folkmoot.coordination import brokers, topics
from folkmoot.coordination.brokers import Registration
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.producers.producer import Producer
from folkmoot.protocol.errors import (
    BrokerUnreachable,
    ClosedError,
    ConfigError,
    InvalidName,
    OffsetOutOfRange,
    RecordsNotDeleted,
    TopicExists,
    UnknownTopicOrPartition,
    ZooKeeperUnreachable,
)
from folkmoot.protocol.records import TopicPartition
from tests.consumers.parts import PARTITIONS, Bench, take, until, values
from tests.memory_zookeeper import MemorySession, MemoryZooKeeper, Request
from tests.waiting import eventually


def test_topics_are_created_found_and_deleted(bench: Bench) -> None:
    name = f"topic-{uuid4().hex[:8]}"
    with Admin(zookeeper=bench.zookeeper) as admin:
        admin.create_topic(name, partitions=2)
        assert name in admin.topics()
        assert admin.partitions_of(name) == [TopicPartition(name, 0), TopicPartition(name, 1)]
        with pytest.raises(TopicExists):
            admin.create_topic(name)
        admin.delete_topic(name)
        assert name not in admin.topics()
        for gone in (admin.delete_topic, admin.partitions_of):
            with pytest.raises(UnknownTopicOrPartition):
                gone(name)
    with pytest.raises(ClosedError, match="not open"):
        Admin(zookeeper=bench.zookeeper).topics()


def test_an_admin_that_was_closed_is_not_open_and_can_be_started_again(bench: Bench) -> None:
    with Admin(zookeeper=bench.zookeeper) as admin:
        pass
    for call in (admin.topics, admin.groups, lambda: admin.partitions_of(bench.topic)):
        with pytest.raises(ClosedError, match="not open"):
            call()
    admin.close()
    with admin:
        assert len(admin.partitions_of(bench.topic)) == PARTITIONS


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "no name"])
def test_a_name_that_no_topic_can_have_is_refused(bench: Bench, name: str) -> None:
    partition = TopicPartition(name, 0)
    with Admin(zookeeper=bench.zookeeper) as admin:
        for call in (
            lambda: admin.create_topic(name),
            lambda: admin.add_partitions(name, 2),
            lambda: admin.delete_topic(name),
            lambda: admin.partitions_of(name),
            lambda: admin.offsets(name, "latest"),
            lambda: admin.offsets_for_times({partition: datetime.now(UTC)}),
            lambda: admin.delete_records({partition: 0}),
            lambda: admin.reset_offsets(bench.group, {partition: 0}),
            lambda: admin.plan_reset(bench.group, "earliest", [name]),
            lambda: admin.topic_ids([name]),
        ):
            with pytest.raises(InvalidName, match="topic name"):
                call()


def test_offsets_are_the_earliest_or_the_latest_and_nothing_else(bench: Bench) -> None:
    with Admin(zookeeper=bench.zookeeper) as admin:
        for wrong in ("middle", "", "end", None):
            with pytest.raises(ConfigError, match="give 'earliest' or 'latest'"):
                admin.offsets(bench.topic, wrong)  # type: ignore[arg-type]


def test_without_a_broker_it_is_said_that_there_is_none() -> None:
    connect = Unreliable()
    partition = TopicPartition("t", 0)
    with Admin(zookeeper=connect) as admin:
        execute(connect.sessions[0], topics.create("t", 1, [1]))
        for call in (
            lambda: admin.offsets("t", "latest", timeout=0.3),
            lambda: admin.delete_records({partition: "latest"}, timeout=0.3),
            lambda: admin.plan_reset("g", "earliest", ["t"], timeout=0.3),
            lambda: admin.reset_offsets("g", {partition: 0}, timeout=0.3),
        ):
            with pytest.raises(BrokerUnreachable, match="no broker is registered: is one running"):
                call()


def test_records_before_an_offset_are_gone_for_every_reader(bench: Bench) -> None:
    bench.send(range(100))
    first, second = bench.partition(0), bench.partition(1)
    with Admin(zookeeper=bench.zookeeper) as admin:
        assert admin.delete_records({first: 60, second: "latest"}) == {first: 60, second: 0}
        assert admin.offsets(bench.topic, "earliest") == {
            first: 60,
            second: 0,
            bench.partition(2): 0,
        }
        with bench.reader() as consumer:
            assert take(consumer, 40) == list(range(60, 100))
        assert admin.delete_records({first: 10}) == {first: 60}  # nothing comes back
        assert admin.delete_records({first: "latest"}) == {first: 100}
        bench.send([100])
        with bench.reader() as consumer:
            assert take(consumer, 1) == [100]


def test_a_member_that_is_further_back_goes_on_at_the_new_beginning(bench: Bench) -> None:
    bench.send(range(100))
    with bench.member() as consumer:
        assert take(consumer, 5) == list(range(5))
    with Admin(zookeeper=bench.zookeeper) as admin:
        admin.delete_records({bench.partition(0): 50})
    with bench.member() as consumer:
        assert take(consumer, 50) == list(range(50, 100))


def test_nothing_is_deleted_when_one_offset_cannot_be(bench: Bench) -> None:
    bench.send(range(10))
    first = bench.partition(0)
    with Admin(zookeeper=bench.zookeeper) as admin:
        for wrong, error in (
            ({bench.partition(1): 1}, OffsetOutOfRange),
            ({bench.partition(PARTITIONS): 0}, UnknownTopicOrPartition),
            ({TopicPartition("no-such-topic", 0): 0}, UnknownTopicOrPartition),
            *(
                ({bench.partition(1): no_offset}, ConfigError)
                for no_offset in (-1, 1.5, True, None, 2**70, "earliest")
            ),
        ):
            with pytest.raises(error):
                admin.delete_records({first: 5, **wrong})  # type: ignore[dict-item]
        assert admin.offsets(bench.topic, "earliest")[first] == 0


def test_a_topic_that_is_created_anew_after_the_check_keeps_its_records(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.send(range(10))
    first = bench.partition(0)
    with Admin(zookeeper=bench.zookeeper) as admin:
        checked = admin._deletion_offsets

        def then_it_is_created_anew(
            ids: Mapping[TopicPartition, str],
            before: Mapping[TopicPartition, int | Literal["latest"]],
            timeout: float,
        ) -> dict[TopicPartition, int]:
            found = checked(ids, before, timeout)
            admin.delete_topic(bench.topic)
            admin.create_topic(bench.topic, partitions=PARTITIONS)
            with Producer(zookeeper=bench.zookeeper) as producer:
                new = [producer.send(bench.topic, b"new", partition=0) for _ in range(10)]
                eventually(lambda: all(each.done() for each in new), 20.0)
            return found

        monkeypatch.setattr(admin, "_deletion_offsets", then_it_is_created_anew)
        with pytest.raises(RecordsNotDeleted, match="created anew"):
            admin.delete_records({first: 7}, timeout=10.0)
        assert admin.offsets(bench.topic, "earliest")[first] == 0


def test_a_time_is_the_offset_of_its_first_record(bench: Bench) -> None:
    now = time.time()
    for number in range(10):
        moment = round((now - 100 + 10 * number) * 1000)
        bench.producer.send(bench.topic, b"v", partition=0, timestamp=moment)
    bench.producer.flush()
    half = datetime.fromtimestamp(now - 55, UTC)
    with Admin(zookeeper=bench.zookeeper) as admin:
        times = {bench.partition(number): half for number in range(PARTITIONS)}
        times[bench.partition(2)] = half + timedelta(days=1)
        found = admin.offsets_for_times(times)
        assert found == {each: 5 if each.partition == 0 else None for each in times}
        assert admin.offsets_for_times({bench.partition(0): half + timedelta(days=1)}) == {
            bench.partition(0): None
        }
        with bench.reader() as consumer:
            assert consumer.offsets_for_times(times) == found
        with pytest.raises(UnknownTopicOrPartition):
            admin.offsets_for_times({bench.partition(PARTITIONS): half})


def test_partitions_of_a_dead_leader_are_named_and_asking_again_completes(
    start_cluster: Callable[..., EmbeddedCluster],
) -> None:
    cluster = start_cluster(brokers=2)
    with (
        Admin(zookeeper=cluster.zookeeper) as admin,
        Producer(zookeeper=cluster.zookeeper) as producer,
    ):
        admin.create_topic("t", partitions=2)
        for partition in (0, 1):
            producer.send_batch("t", [b"v"] * 10, partition=partition).result(10.0)
        both = [TopicPartition("t", number) for number in (0, 1)]
        offsets = admin.plan_delete_records(dict.fromkeys(both, 7))
        checked = admin._deletion_offsets
        admin._deletion_offsets = lambda *_: offsets  # type: ignore[method-assign]
        cluster.brokers[0].kill()

        def by_who_lives() -> RecordsNotDeleted | None:
            """What is told as soon as the other broker answers in time."""
            with pytest.raises(RecordsNotDeleted, match="t-") as raised:
                admin.delete_records(offsets, timeout=2.0)
            return raised.value if raised.value.starts else None

        told = eventually(by_who_lives)
        assert told is not None
        (dead,), (alive,) = told.failed, told.starts
        assert {dead, alive} == set(both)
        assert told.starts[alive] == 7
        cluster.brokers[0].start()
        admin._deletion_offsets = checked  # type: ignore[method-assign]
        assert admin.delete_records(offsets) == dict.fromkeys(both, 7)


def knows_them_all(address: str, topic: str) -> bool:
    with Producer(bootstrap=address) as producer:
        return len(producer.partitions_of(topic)) == 6


def test_partitions_are_added_under_members_that_take_them_and_producers_that_find_them(
    bench: Bench, shared_cluster: EmbeddedCluster
) -> None:
    addresses = [each.address for each in shared_cluster.brokers]
    bench.send(range(9), partition=None)
    with Admin(zookeeper=bench.zookeeper) as admin, bench.member() as consumer:
        assert sorted(take(consumer, 9)) == list(range(9))
        admin.add_partitions(bench.topic, 6)
        assert len(admin.partitions_of(bench.topic)) == 6
        # Every broker hears of it a moment later, and a producer asks any of them, and seldom again.
        eventually(lambda: all(knows_them_all(each, bench.topic) for each in addresses), 20.0)
        with Producer(zookeeper=bench.zookeeper) as producer:
            assert len(producer.partitions_of(bench.topic)) == 6
            producer.send(bench.topic, b"77", partition=5).result(10.0)
        got: list[int] = []

        def has_it() -> bool:
            got.extend(values(consumer.poll(0.1)))
            return 77 in got and len(consumer.assignment()) == 6

        eventually(has_it, 20.0)
        for wrong in (6, 3, 0, 100_000):
            with pytest.raises(ConfigError, match="6 partitions"):
                admin.add_partitions(bench.topic, wrong)
        with pytest.raises(ConfigError, match=r"number of partitions is 7\.5"):
            admin.add_partitions(bench.topic, 7.5)  # type: ignore[arg-type]
        with pytest.raises(UnknownTopicOrPartition):
            admin.add_partitions("no-such-topic", 9)


def test_a_reader_finds_a_partition_that_was_added_after_it_had_looked(bench: Bench) -> None:
    with Consumer(zookeeper=bench.zookeeper) as consumer:
        assert len(consumer.partitions_of(bench.topic)) == PARTITIONS
        with Admin(zookeeper=bench.zookeeper) as admin:
            admin.add_partitions(bench.topic, PARTITIONS + 1)
        added = bench.partition(PARTITIONS)
        consumer.assign([bench.partition(0)])
        assert consumer._core.cluster.leader_address(added) is None
        until(consumer, lambda: consumer._core.cluster.leader_address(added) is not None)


class Unreliable:
    """Opens sessions with a ZooKeeper in memory that may stop answering."""

    def __init__(self) -> None:
        self.zookeeper = MemoryZooKeeper()
        self.sessions: list[MemorySession] = []

    def __call__(self, session_timeout: float) -> MemorySession:
        self.sessions.append(self.zookeeper.connect(session_timeout))
        return self.sessions[-1]


@contextmanager
def given(admin: Admin, timeout: float) -> Iterator[None]:
    """So many seconds for each call, of one that has time enough for all others."""
    patience, admin._timeout = admin._timeout, timeout
    yield
    admin._timeout = patience


def test_without_zookeeper_every_call_ends_in_time_with_an_error_and_the_next_one_connects_anew() -> (
    None
):
    connect = Unreliable()
    partition = TopicPartition("t", 0)
    with Admin(zookeeper=connect) as admin:
        execute(connect.sessions[0], topics.create("t", 1, [1]))
        calls: list[Callable[[], object]] = [
            admin.topics,
            lambda: admin.create_topic("u"),
            lambda: admin.add_partitions("t", 2),
            lambda: admin.delete_topic("t"),
            lambda: admin.partitions_of("t"),
            lambda: admin.offsets("t", "latest"),
            lambda: admin.delete_records({partition: 0}),
            admin.groups,
            lambda: admin.describe_group("g"),
            lambda: admin.group_offsets("g"),
            lambda: admin.group_events("g"),
            lambda: admin.plan_reset("g", 0, partitions=[partition]),
            lambda: admin.reset_offsets("g", {partition: 0}),
            lambda: admin.delete_group("g"),
        ]
        for number, call in enumerate(calls):
            connect.zookeeper.suspend(connect.sessions[-1])
            unreachable = pytest.raises(ZooKeeperUnreachable, match=r"within 0\.05 s")
            with given(admin, 0.05), unreachable:
                call()
            assert admin.topics() == ["t"]
            assert len(connect.sessions) == number + 2


@pytest.mark.timeout(30)
@pytest.mark.parametrize("call", ["drain", "cancel_drain"])
def test_a_call_of_many_steps_ends_in_time_at_whichever_of_them_zookeeper_falls_silent(
    call: str,
) -> None:
    connect, left = Unreliable(), inf

    def deliver(request: Request) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            connect.zookeeper.suspend(request.session)
        else:
            request.execute()
            request.reply()

    connect.zookeeper.deliver = deliver
    with Admin(zookeeper=connect) as admin:
        mine = Registration({"client": "127.0.0.1:9"}, "nonce")
        execute(connect.zookeeper.connect(), brokers.register(1, mine))
        for steps in range(100):
            left = steps
            with given(admin, 0.02), suppress(ZooKeeperUnreachable):
                getattr(admin, call)(1)
                break
            left = inf
            assert admin.topics() == []
        assert steps > 3


def test_what_was_not_sent_when_an_admin_gave_up_is_not_done_later() -> None:
    connect = Unreliable()
    with Admin(zookeeper=connect) as admin:
        execute(connect.sessions[0], topics.create("t", 1, [1]))
        connect.zookeeper.suspend(connect.sessions[0])
        with given(admin, 0.05), pytest.raises(ZooKeeperUnreachable):
            admin.delete_topic("t")
        connect.zookeeper.resume(connect.sessions[0])
        assert admin.topics() == ["t"]


def test_pairs_of_any_kind_name_partitions_and_what_names_nothing_is_refused() -> None:
    connect = Unreliable()
    pairs: Any = [("t", 0)]
    wrong: list[Any] = [["t"], [5], [("t", True)], [("t", "0")]]
    with Admin(zookeeper=connect, timeout=5.0) as admin:
        execute(connect.sessions[0], topics.create("t", 1, [1]))
        with pytest.raises(BrokerUnreachable):
            admin.offsets(pairs, "latest", timeout=0.5)
        assert admin.known_offsets(pairs, "latest", timeout=0.05) == ({("t", 0): None}, {})
        for each in wrong:
            with pytest.raises(TypeError, match=r"a partition is a topic and a number, as in"):
                admin.offsets(each, "latest")
            with pytest.raises(TypeError, match=r"a partition is a topic and a number, as in"):
                admin.delete_records(dict.fromkeys(each, 0))
        for call in (admin.groups, admin.reassignments, admin.describe_topics):
            with pytest.raises(InvalidName):
                call(["a/b"])
        no_id: Any = ""
        for drain in (admin.plan_drain, admin.drain, admin.cancel_drain):
            with pytest.raises(ConfigError, match="broker id is ''"):
                drain(no_id)


def test_an_admin_whose_session_is_over_opens_another() -> None:
    connect = Unreliable()
    with Admin(zookeeper=connect) as admin:
        connect.zookeeper.expire(connect.sessions[0])
        assert admin.topics() == []
        assert len(connect.sessions) == 2
