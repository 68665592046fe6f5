"""Three broker processes: the controller and leaders are killed or stopped, and others go on."""

import io
import time
from collections.abc import Callable, Iterator

import pytest

from folkmoot.console.main import main
from folkmoot.console.running.processes import BrokerProcess, EmbeddedCluster
from folkmoot.coordination import partition_states, topics
from folkmoot.coordination.cluster import controllers
from folkmoot.coordination.connector import connect
from folkmoot.coordination.partition_states import PartitionState, TopicIdPartition
from folkmoot.coordination.zookeeper.execute import execute, execute_all
from folkmoot.coordination.zookeeper.session import Session
from tests.waiting import eventually

PARTITIONS = 12
ALL = {1, 2, 3}


class Scene:
    """A cluster with a topic of three replicas, as ZooKeeper has it."""

    def __init__(self, cluster: EmbeddedCluster, session: Session) -> None:
        self.cluster = cluster
        self.session = session
        words = ["--partitions", str(PARTITIONS), "--replicas", "3"]
        assert main(["topic", "create", "t", *words, "--zookeeper", cluster.zookeeper]) == 0
        topic = execute(session, topics.read("t"))
        assert topic is not None
        self.partitions = [TopicIdPartition(topic.topic_id, each) for each in range(PARTITIONS)]

    def broker(self, number: int) -> BrokerProcess:
        return self.cluster.brokers[number - 1]

    def states(self) -> list[PartitionState]:
        """Of those that are active."""
        found = execute_all(self.session, map(partition_states.read, self.partitions))
        return [each.state for each in found if each is not None and each.state.active]

    def leaders(self) -> set[int]:
        """Who leads, once every partition is led."""
        states = self.states()
        return {each.leader for each in states} if len(states) == PARTITIONS else set()

    def leaders_of(self, number: int) -> list[int]:
        """The partitions that this broker leads."""
        found = execute_all(self.session, map(partition_states.read, self.partitions))
        return [
            partition
            for partition, each in enumerate(found)
            if each is not None and each.state.active and each.state.leader == number
        ]

    def is_whole(self) -> bool:
        return sum(set(each.isr) == ALL for each in self.states()) == PARTITIONS

    def controller(self) -> int:
        found = execute(self.session, controllers.current())
        return 0 if found is None else found.broker


@pytest.fixture
def scene(start_cluster: Callable[..., EmbeddedCluster], chroot: str) -> Iterator[Scene]:
    session = connect(chroot, 10.0)
    made = Scene(start_cluster(brokers=3), session)
    eventually(made.is_whole, 30.0)
    yield made
    session.close()


def test_the_controller_and_what_it_leads_are_taken_over_when_its_process_is_killed(
    scene: Scene,
) -> None:
    killed = scene.controller()
    assert killed in scene.leaders(), "it leads some partitions, too"
    epochs = {each.leader_epoch for each in scene.states() if each.leader != killed}
    began = time.monotonic()
    scene.broker(killed).kill()
    eventually(lambda: scene.leaders() == ALL - {killed}, 30.0)
    print(f"all partitions have a leader again after {time.monotonic() - began:.3f} s")
    assert scene.controller() in ALL - {killed}
    states = scene.states()
    assert all(set(each.isr) <= ALL for each in states)
    assert {each.leader_epoch for each in states} > epochs, "those that it led began an epoch"
    eventually(lambda: all(set(each.isr) == ALL - {killed} for each in scene.states()), 30.0)
    scene.broker(killed).start()
    eventually(scene.is_whole, 30.0)


def test_a_broker_that_is_stopped_hands_over_before_it_goes(scene: Scene) -> None:
    """Whoever it is; the controller has to be replaced as well, but after it has moved its partitions."""
    slow = 0
    for number in sorted(ALL):
        eventually(lambda: scene.leaders() and scene.is_whole(), 30.0)
        broker = scene.broker(number)
        broker.stop()
        if "partitions get other leaders only after" in broker.output():
            slow += 1  # that it waits for some seconds only is right, whoever stood still meanwhile
        else:
            left = scene.leaders()
            assert left, "every partition is led when it has ended"
            assert number not in left
        broker.start()
    assert slow < len(ALL)


def test_without_a_replica_in_sync_nobody_leads_until_it_is_back_or_an_unclean_election_is_asked_for(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    last, others = 1, (2, 3)
    for number in others:
        scene.broker(number).kill()
        eventually(lambda gone=number: all(gone not in each.isr for each in scene.states()), 30.0)  # type: ignore[misc]
    eventually(lambda: scene.leaders() == {last}, 30.0)
    scene.broker(last).kill()
    scene.broker(2).start()
    eventually(lambda: scene.controller() == 2, 30.0)
    address = scene.cluster.zookeeper
    assert main(["topic", "describe", "t", "--leaderless", "--zookeeper", address]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + PARTITIONS
    assert main(["cluster", "status", "--zookeeper", address]) == 5

    monkeypatch.setattr("sys.stdin", io.StringIO("t-0\n"))
    words = ["topic", "elect", "t", "--partition", "0", "--unclean", "2", "--zookeeper", address]
    assert main(words) == 0
    eventually(lambda: scene.leaders_of(2) == [0], 30.0)

    # As soon as it is there: half a minute after its own start broker 2 leads again what prefers it.
    scene.broker(last).launch()
    eventually(lambda: scene.leaders_of(last) == [*range(1, PARTITIONS)], 60.0)
    scene.broker(last).wait_until_ready()
    scene.broker(3).start()
    eventually(scene.is_whole, 60.0)
    eventually(lambda: main(["cluster", "status", "--zookeeper", address]) == 0, 60.0)
