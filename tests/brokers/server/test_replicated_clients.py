"""Clients of replicated partitions: reading nearby, data that an unclean election has lost, leaders that
stand still."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from folkmoot.brokers.replication.partition import Partition
from folkmoot.brokers.server.broker import Broker
from folkmoot.brokers.server.config import BrokerConfig, Listener
from folkmoot.brokers.server.request_handlers import RequestHandlers
from folkmoot.console.running.processes import EmbeddedCluster
from folkmoot.consumers.client.consumer import Consumer
from folkmoot.coordination import partition_states, topics
from folkmoot.coordination.cluster import elections
from folkmoot.coordination.connector import connect
from folkmoot.coordination.partition_states import PartitionState, TopicIdPartition
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.producers.producer import Producer
from folkmoot.protocol.errors import LogTruncated, ZooKeeperUnreachable
from folkmoot.protocol.messages import PartitionMetadata
from folkmoot.protocol.records import Record, TopicPartition
from tests.memory_zookeeper import MemorySession, MemoryZooKeeper
from tests.waiting import eventually

T0 = TopicPartition("t", 0)
RACKS = {1: "a", 2: "b", 3: "c"}
REQUEST_TIMEOUT = 30.0


class Scene:
    """Brokers in this process, each in a rack of its own, and a topic of one partition on all of them."""

    def __init__(self, directory: Path, count: int) -> None:
        self.ensemble = MemoryZooKeeper()
        self.session = self.ensemble.connect()
        self.directory = directory
        self.brokers: dict[int, Broker] = {}
        self.sessions: dict[int, list[MemorySession]] = {}
        self.cut_off: set[int] = set()
        for number in range(1, count + 1):
            self.start(number)
        numbers = [*self.brokers]
        topic = execute(self.session, topics.create("t", 1, numbers, replicas=count))
        self.replicas = topic.partitions[0]
        self.partition = TopicIdPartition(topic.topic_id, 0)
        eventually(lambda: self.in_sync(*numbers), 30.0)

    def start(self, number: int) -> None:
        config = BrokerConfig(
            broker_id=number,
            data=self.directory / f"b{number}",
            zookeeper="in.memory:1",
            listeners=(Listener.parse("client=127.0.0.1:0"),),
            rack=RACKS[number],
        )
        self.brokers[number] = Broker(config, partial(self.connect, number))
        self.brokers[number].start()

    def connect(self, number: int, session_timeout: float) -> MemorySession:
        if number in self.cut_off:
            raise ZooKeeperUnreachable("ZooKeeper is out of reach")
        session = self.ensemble.connect(session_timeout)
        self.sessions.setdefault(number, []).append(session)
        return session

    def cut(self, *numbers: int) -> None:
        """No server of ZooKeeper answers these brokers any more, and their sessions end there."""
        self.cut_off.update(numbers)
        sessions = [session for number in numbers for session in self.sessions[number]]
        for session in sessions:
            self.ensemble.suspend(session)
        for session in sessions:
            self.ensemble.end_session(session)

    def heal(self, number: int) -> None:
        self.cut_off.discard(number)
        for session in self.sessions[number]:
            self.ensemble.resume(session)

    def stop(self, number: int) -> None:
        self.brokers.pop(number).close()

    @property
    def bootstrap(self) -> str:
        return ",".join(each.listeners["client"] for each in self.brokers.values())

    def state(self) -> PartitionState | None:
        found = execute(self.session, partition_states.read(self.partition))
        return found.state if found is not None and found.state.active else None

    def in_sync(self, *numbers: int) -> PartitionState | None:
        state = self.state()
        return state if state is not None and set(state.isr) == set(numbers) else None

    def leader(self) -> int:
        return eventually(self.state, 30.0).leader  # type: ignore[union-attr]

    def send(self, *values: bytes) -> None:
        with Producer(bootstrap=self.bootstrap, delivery_timeout=30.0) as producer:
            for each in [producer.send("t", value) for value in values]:
                each.result(30.0)

    def consumer(self, **options: Any) -> Consumer:
        consumer = Consumer(bootstrap=self.bootstrap, **options).start()
        consumer.assign([T0])
        return consumer


def read(consumer: Consumer, count: int) -> list[bytes | None]:
    found: list[Record] = []
    deadline = time.monotonic() + 30.0
    while len(found) < count:
        assert time.monotonic() < deadline, found
        found += consumer.poll(timeout=0.2)
    return [each.value for each in found]


@pytest.fixture
def make_scene(tmp_path: Path) -> Iterator[Callable[[int], Scene]]:
    made: list[Scene] = []

    def make(count: int) -> Scene:
        made.append(Scene(tmp_path, count))
        return made[-1]

    yield make
    for scene in made:
        for number in [*scene.brokers]:
            scene.stop(number)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The brokers that have given batches to consumers."""
    brokers: set[int] = set()
    original = RequestHandlers._read

    def noted(self: RequestHandlers, *given: Any) -> Any:
        answer = original(self, *given)
        if any(map(len, answer.chunks)):
            brokers.add(self.metadata.broker_id)
        return answer

    monkeypatch.setattr(RequestHandlers, "_read", noted)
    return brokers


def test_a_consumer_reads_from_the_in_sync_replica_of_its_rack_and_from_the_leader_when_that_is_gone(
    make_scene: Callable[[int], Scene], served: set[int]
) -> None:
    scene = make_scene(3)
    leader = scene.leader()
    near, other = (number for number in (1, 2, 3) if number != leader)
    with scene.consumer(rack=RACKS[near]) as consumer:
        values = [b"%d" % number for number in range(60)]
        scene.send(*values[:20])
        assert read(consumer, 20) == values[:20]
        scene.send(*values[20:30])
        assert read(consumer, 10) == values[20:30]
        assert served == {near}
        scene.stop(near)
        scene.send(*values[30:40])
        assert read(consumer, 10) == values[30:40], "nothing is skipped, nothing comes twice"
        assert served <= {near, scene.leader()}
        assert scene.leader() == leader
    with scene.consumer(rack="nowhere") as consumer:
        served.clear()
        assert read(consumer, 40) == values[:40]
        assert served == {leader}
    with scene.consumer(rack=RACKS[other]) as consumer:
        assert read(consumer, 40) == values[:40]
        scene.stop(leader)  # the new leader is the other one, perhaps in doubt what is committed
        scene.start(near)
        scene.send(*values[40:])
        assert read(consumer, 20) == values[40:]


def lose_five_of_fifteen(scene: Scene, *readers: Consumer) -> None:
    """The leader alone has offsets 10 to 14, readers have read them, and the other one is elected."""
    leader = scene.leader()
    (other,) = {1, 2} - {leader}
    scene.send(*[b"kept"] * 10)
    scene.stop(other)
    eventually(lambda: scene.in_sync(leader), 30.0)
    scene.send(*[b"lost"] * 5)
    for consumer in readers:
        assert read(consumer, 15)[-1] == b"lost"
    scene.stop(leader)
    scene.start(other)
    replicas = scene.replicas
    execute(scene.session, elections.elect_unclean(T0, scene.partition, replicas, other))
    eventually(lambda: scene.in_sync(other), 30.0)


@pytest.mark.parametrize("since", [3, 7])
def test_records_that_an_unclean_election_has_lost_are_told_of_and_nothing_is_passed_over(
    make_scene: Callable[[int], Scene], since: int
) -> None:
    """Whether the new log has not come to where was read yet, or is beyond it."""
    scene = make_scene(2)
    brokers = scene.bootstrap
    strict = scene.consumer(auto_offset_reset="error")
    lenient = scene.consumer()
    strict.seek(T0, 0)
    lose_five_of_fifteen(scene, strict, lenient)
    where = [each.listeners["client"] for each in scene.brokers.values()]
    assert not set(where) & set(brokers.split(",")), "it has another port by now"
    for consumer in (
        strict,
        lenient,
    ):  # in the tests' memory nobody tells them of a broker that moves
        consumer._core.cluster._choice.discover = lambda: where
    scene.send(*[b"new %d" % number for number in range(since)])
    with lenient:
        assert read(lenient, since) == [b"new %d" % number for number in range(since)]
        assert lenient.metrics()["offset_resets"] == 1
    with strict:
        with pytest.raises(LogTruncated, match=r"t-0.*unclean") as told:
            read(strict, 1)
        error = told.value
        assert (error.topic, error.partition) == T0
        assert (error.offset, error.diverging_offset) == (15, 10)
        strict.seek(T0, error.diverging_offset)
        assert read(strict, 1)[0] == b"new 0"


@pytest.mark.parametrize("rack", ["", "of the zombie"])
@pytest.mark.parametrize("is_leader", [True, False])
def test_clients_leave_a_broker_that_is_cut_from_zookeeper_alone(
    make_scene: Callable[[int], Scene], is_leader: bool, rack: str
) -> None:
    """It goes on answering them, and believes what it read last; a partition it has alone is its own."""
    scene = make_scene(3)
    former = scene.leader()
    zombie = former if is_leader else former % 3 + 1
    execute(scene.session, topics.create("sole", 1, [zombie], replicas=1))
    bootstrap = scene.bootstrap
    with (
        scene.consumer(rack=rack and RACKS[zombie]) as consumer,
        scene.consumer(rack=rack and RACKS[zombie]) as idle,
        Producer(bootstrap=bootstrap, delivery_timeout=60.0) as producer,
    ):
        values = [b"%d" % number for number in range(60)]
        for value in values[:20]:
            producer.send("t", value).result(30.0)
        assert read(consumer, 20) == read(idle, 20) == values[:20]
        scene.cut(zombie)
        began = time.monotonic()
        handles = [producer.send("t", value) for value in values[20:40]]
        sole = []
        while not all(each.done() for each in handles):
            assert time.monotonic() - began < 25.0, (
                "what it answers otherwise hides that it is silent"
            )
            time.sleep(0.05)
            sole.append(producer.send("sole", b"hers"))
        assert [each.result().offset for each in handles] == list(range(20, 40))
        written = time.monotonic() - began
        assert read(consumer, 20) == values[20:40]
        passed = time.monotonic() - began
        assert read(idle, 20) == values[20:40]
        print(f"acknowledged after {written:.1f} s, read after {passed:.1f} s")
        for value in values[40:]:
            producer.send("t", value).result(30.0)
        assert read(consumer, 20) == read(idle, 20) == values[40:]
        assert scene.leader() != zombie
        scene.heal(zombie)
        eventually(lambda: scene.in_sync(1, 2, 3), 30.0)
        assert all(each.result(30.0) for each in sole)


def test_while_zookeeper_is_down_nobody_was_replaced_and_all_goes_on(
    make_scene: Callable[[int], Scene], monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = make_scene(3)
    leader = scene.leader()
    values = [b"%d" % number for number in range(40)]
    scene.send(*values[:20])
    scene.cut(*scene.brokers)
    asked, real = Counter[int](), Partition.observe_metadata

    def noted(partition: Partition, known: PartitionMetadata) -> None:
        real(partition, known)
        asked[partition.state.broker_id] += 1

    monkeypatch.setattr(Partition, "observe_metadata", noted)
    with scene.consumer() as consumer, scene.consumer(rack=RACKS[leader % 3 + 1]) as near:
        assert read(consumer, 20) == read(near, 20) == values[:20]
        eventually(lambda: all(asked[number] > 2 for number in scene.brokers), 30.0)
        scene.send(*values[20:])  # a producer that starts now, too
        assert read(consumer, 20) == read(near, 20) == values[20:]


def test_clients_go_to_the_next_leader_when_the_last_one_stands_still(
    start_cluster: Callable[..., EmbeddedCluster], chroot: str
) -> None:
    timeout = 2.0
    cluster = start_cluster(brokers=3, session_timeout=timeout)
    session = connect(chroot, 10.0)
    topic = execute(session, topics.create("t", 1, [1, 2, 3], replicas=3))

    def leader(in_sync: int) -> int | None:
        found = execute(session, partition_states.read(TopicIdPartition(topic.topic_id, 0)))
        if found is None or not found.state.active or len(found.state.isr) < in_sync:
            return None
        return found.state.leader

    stopped = eventually(lambda: leader(3), 30.0)
    assert stopped is not None
    with (
        Consumer(zookeeper=chroot, fetch_max_wait=0.3, request_timeout=REQUEST_TIMEOUT) as consumer,
        Producer(
            zookeeper=chroot, delivery_timeout=60.0, request_timeout=REQUEST_TIMEOUT
        ) as producer,
    ):
        consumer.assign([T0])
        values = [b"%d" % number for number in range(60)]
        for value in values[:20]:
            producer.send("t", value).result(30.0)
        assert read(consumer, 20) == values[:20]
        cluster.brokers[stopped - 1].pause()
        began = time.monotonic()
        try:
            handles = [producer.send("t", value) for value in values[20:40]]
            offsets = [each.result(60.0).offset for each in handles]
            written = time.monotonic() - began
            assert read(consumer, 20) == values[20:40]
            passed = time.monotonic() - began
            assert eventually(lambda: leader(1), 30.0) != stopped
        finally:
            cluster.brokers[stopped - 1].resume()
        print(f"acknowledged after {written:.2f} s, read after {passed:.2f} s; session {timeout} s")
        assert offsets == list(range(20, 40)), "once, and in order"
        assert passed < REQUEST_TIMEOUT / 2, "they waited for the connection to break"
        for value in values[40:]:
            producer.send("t", value).result(30.0)
        assert read(consumer, 20) == values[40:]
    session.close()
