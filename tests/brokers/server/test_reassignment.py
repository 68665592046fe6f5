"""Broker processes and a real ZooKeeper: replicas are moved under load, and brokers killed meanwhile."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from folkmoot.admin.admin import Admin
from folkmoot.console.main import main
from folkmoot.console.running.processes import EmbeddedCluster
from folkmoot.consumers.client.consumer import Consumer
from folkmoot.coordination import topics
from folkmoot.coordination.cluster import controllers
from folkmoot.coordination.connector import connect
from folkmoot.coordination.topics import TopicInfo
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.session import Session
from folkmoot.producers.producer import Producer
from tests.replicated_load import Load, StateWatch, finish
from tests.waiting import eventually

SLOW = 2_000
"""Bytes a second: what was written before takes minutes, far longer than the brokers' restarts."""


class Scene:
    """A cluster of four."""

    def __init__(self, cluster: EmbeddedCluster, session: Session) -> None:
        self.cluster = cluster
        self.session = session

    def topic(self) -> TopicInfo:
        found = execute(self.session, topics.read("t"))
        assert found is not None
        return found

    def command(self, *words: str) -> int:
        return main([*words, "--zookeeper", self.cluster.zookeeper])

    def logs(self, broker: int) -> list[Path]:
        """The partitions' directories of a broker."""
        return list(self.cluster.brokers[broker - 1].data.glob("*-[0-9]*"))

    def controller(self) -> int:
        found = execute(self.session, controllers.current())
        return 0 if found is None else found.broker

    def kill_and_restart(self, number: int) -> None:
        self.cluster.brokers[number - 1].kill()
        self.cluster.brokers[number - 1].start()


@pytest.fixture
def scene(start_cluster: Callable[..., EmbeddedCluster], chroot: str) -> Iterator[Scene]:
    session = connect(chroot, 10.0)
    yield Scene(start_cluster(brokers=4, session_timeout=4.0), session)
    session.close()


@pytest.mark.chaos
@pytest.mark.timeout(0)
def test_a_drain_under_load_loses_nothing_though_controller_and_leader_are_killed_meanwhile(
    scene: Scene, chroot: str
) -> None:
    topic = execute(scene.session, topics.create("t", 3, [1, 2, 3], replicas=3))
    load = Load(chroot, 3)
    watch = StateWatch(chroot, topic.topic_id, 3, load)
    eventually(watch.all_in_sync, 30.0)
    # Compressed, the zeros are so few bytes that the throttle does not hold them up.
    with Producer(zookeeper=chroot, acks="all", compression="none") as producer:
        for number in range(600):  # all values are numbers; what `load` writes is not negative
            producer.send("t", b"-%d" % (number + 1) + b"0" * 1000, partition=number % 3)
    load.start()
    await_records(load)
    assert scene.command("broker", "drain", "1", "--execute", "--throttle", str(SLOW)) == 0
    assert set(scene.topic().reassignments) == {0, 1, 2}
    eventually(lambda: len(scene.logs(4)) == 3, 30.0)
    for victim in {scene.controller(), watch.leads(0) or 2, 4}:
        scene.kill_and_restart(victim)
        await_records(load)
    there = len(scene.logs(1))
    under_way = len(scene.topic().reassignments)
    assert under_way, "all ended too early to be disturbed"
    assert there >= under_way, "nothing goes before its reassignment has ended"
    with Admin(zookeeper=chroot) as admin:
        assert set(admin.throttle_reassignments("t", 0)) <= {0, 1, 2}
        eventually(lambda: not admin.reassignments(), 90.0)
        sizes = admin.log_sizes(["t"])
    assert {each.broker for each in sizes} <= {1, 2, 3, 4}
    assert all(set(each) == {2, 3, 4} for each in scene.topic().partitions)
    eventually(lambda: not scene.logs(1), 30.0)
    eventually(watch.all_in_sync, 30.0)
    await_records(load)
    watch.close()
    assert not finish(load, chroot, 3)
    scene.kill_and_restart(1)
    assert not scene.logs(1)


@pytest.mark.timeout(0)
def test_a_broker_that_was_away_when_its_replica_was_moved_deletes_it_when_it_is_back(
    scene: Scene, chroot: str
) -> None:
    execute(scene.session, topics.create("t", 1, [1, 2, 3], replicas=2))
    first, second = scene.topic().partitions[0]
    free = sorted({1, 2, 3, 4} - {first, second})
    with Producer(zookeeper=chroot, acks="all") as producer:
        producer.send("t", b"1")
    scene.cluster.brokers[second - 1].kill()
    listed = f"{free[0]},{free[1]}"
    command = ("topic", "reassign", "t", "--partition", "0", "--brokers", listed)
    assert scene.command(*command, "--execute", "--wait") == 0
    assert scene.topic().partitions == [free]
    eventually(lambda: not scene.logs(first), 30.0)
    assert scene.logs(second)
    scene.cluster.brokers[second - 1].start()
    eventually(lambda: not scene.logs(second), 30.0)
    assert read(chroot) == [b"1"]


@pytest.mark.timeout(0)
def test_a_single_replica_becomes_several_and_then_one_elsewhere_with_its_records(
    scene: Scene, chroot: str
) -> None:
    execute(scene.session, topics.create("t", 1, [1]))
    with Producer(zookeeper=chroot, acks="all") as producer:
        expected = []
        for step, target in enumerate(["1,2,3", "3", "4", "1,4"]):
            expected.append(b"%d" % step)
            producer.send("t", expected[-1]).result(30.0)
            command = ("topic", "reassign", "t", "--brokers", target, "--execute", "--wait")
            assert scene.command(*command) == 0
            assert scene.topic().partitions == [[int(each) for each in target.split(",")]]
            assert read(chroot, len(expected)) == expected
        producer.send("t", b"last").result(30.0)
    eventually(lambda: [each for each in (1, 2, 3, 4) if scene.logs(each)] == [1, 4], 30.0)
    assert read(chroot, 5) == [*expected, b"last"]


def await_records(load: Load) -> None:
    before = load.acknowledged
    eventually(lambda: load.acknowledged > before + 100, 60.0)


def read(zookeeper: str, count: int = 1) -> list[bytes | None]:
    found: list[bytes | None] = []
    with Consumer(zookeeper=zookeeper, auto_offset_reset="earliest") as consumer:
        consumer.assign([("t", 0)])

        def all_read() -> bool:
            found.extend(record.value for record in consumer.poll(timeout=0.5))
            return len(found) >= count

        eventually(all_read, 30.0)
    return found
