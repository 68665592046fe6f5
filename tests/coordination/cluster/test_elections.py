"""Elections that somebody asks for, on both ZooKeepers."""

import msgspec
import pytest

from folkmoot.coordination import brokers, partition_states, paths
from folkmoot.coordination.brokers import Registration
from folkmoot.coordination.cluster.elections import elect_preferred, elect_unclean
from folkmoot.coordination.partition_states import (
    MISSING,
    PartitionState,
    StateWrite,
    TopicIdPartition,
)
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.operations import ConnectionLost, Create
from folkmoot.coordination.zookeeper.session import Session
from folkmoot.protocol.errors import ElectionImpossible
from folkmoot.protocol.records import TopicPartition
from tests.contracts.backends import Backend
from tests.coordination.losses import LaggingZooKeeper
from tests.coordination.steps import ENOUGH, Steps

T0, P0 = TopicPartition("t", 0), TopicIdPartition("id", 0)
REPLICAS = [1, 2, 3]


class Scene:
    """Brokers that are registered, and a partition."""

    def __init__(self, backend: Backend, *alive: int) -> None:
        self.session = backend.open()
        for number in alive:
            mine = Registration({}, f"n{number}", f"d{number}")
            execute(backend.open(), brokers.register(number, mine))

    def has(self, state: PartitionState, partition: TopicIdPartition = P0) -> None:
        writes = {partition: StateWrite(state, MISSING)}
        execute(self.session, partition_states.write(writes))

    def state(self, partition: TopicIdPartition = P0) -> PartitionState:
        found = execute(self.session, partition_states.read(partition))
        assert found is not None
        return found.state


def led_by(leader: int, *isr: int) -> PartitionState:
    return PartitionState(leader, 4, isr, 7, active=True)


def test_the_preferred_leader_is_designated_once(backend: Backend) -> None:
    scene = Scene(backend, 1, 2)
    scene.has(led_by(2, 2, 3, 1))
    assert execute(scene.session, elect_preferred(T0, P0, REPLICAS))
    assert scene.state() == PartitionState(1, 4, (2, 3, 1), 7)
    assert not execute(scene.session, elect_preferred(T0, P0, REPLICAS))


@pytest.mark.parametrize(
    ("alive", "isr", "why"),
    [
        ((2, 3), (1, 2, 3), "t-0: broker 1, its preferred leader, is not registered"),
        ((1, 2, 3), (2, 3), "t-0: broker 1, its preferred leader, is not in sync"),
    ],
)
def test_a_preferred_leader_that_may_not_lead_is_refused(
    backend: Backend, alive: tuple[int, ...], isr: tuple[int, ...], why: str
) -> None:
    scene = Scene(backend, *alive)
    scene.has(led_by(2, *isr))
    with pytest.raises(ElectionImpossible, match=why):
        execute(scene.session, elect_preferred(T0, P0, REPLICAS))
    assert scene.state() == led_by(2, *isr)


def test_an_unclean_election_makes_a_replica_lead_that_was_not_in_sync(backend: Backend) -> None:
    scene = Scene(backend, 3)
    scene.has(led_by(1, 1, 2))
    execute(scene.session, elect_unclean(T0, P0, REPLICAS, 3))
    assert scene.state() == PartitionState(3, 4, (3,), 7, unclean_epoch=5)


def test_an_unclean_election_of_who_is_alone_in_sync_has_it_lead_with_what_it_has(
    backend: Backend,
) -> None:
    scene = Scene(backend, 1, 3)
    scene.has(led_by(1, 1, 2))
    execute(scene.session, elect_unclean(T0, P0, REPLICAS, 1))
    assert scene.state() == PartitionState(1, 4, (1,), 7, unclean_epoch=5)


@pytest.mark.parametrize(
    ("leader", "alive", "why"),
    [
        (4, (3, 4), r"broker 4 is none of its replicas \[1, 2, 3\]"),
        (3, (4,), "broker 3 is not registered"),
        (3, (2, 3), "broker 2 is alive and in sync: no record needs to be lost"),
    ],
)
def test_an_unclean_election_that_is_not_needed_or_not_possible_is_refused(
    backend: Backend, leader: int, alive: tuple[int, ...], why: str
) -> None:
    scene = Scene(backend, *alive)
    scene.has(led_by(1, 1, 2))
    with pytest.raises(ElectionImpossible, match=why):
        execute(scene.session, elect_unclean(T0, P0, REPLICAS, leader))
    assert scene.state() == led_by(1, 1, 2)


def test_an_unclean_election_is_refused_though_a_server_does_not_know_yet_who_is_back() -> None:
    ensemble = LaggingZooKeeper()
    session = ensemble.connect()
    execute(session, brokers.register(3, Registration({}, "n3", "d3")))
    execute(session, partition_states.write({P0: StateWrite(led_by(1, 1, 2), MISSING)}))
    ensemble.armed = True
    back = Create(
        paths.broker(2), msgspec.json.encode(Registration({}, "n2", "d2")), ephemeral=True
    )
    with pytest.raises(ConnectionLost):
        execute(ensemble.connect(), back)
    with pytest.raises(ElectionImpossible, match="broker 2 is alive and in sync"):
        execute(session, elect_unclean(T0, P0, REPLICAS, 3))


def test_a_partition_without_a_state_is_told_of(backend: Backend) -> None:
    scene = Scene(backend, 1)
    with pytest.raises(ElectionImpossible, match="t-0 has no state yet"):
        execute(scene.session, elect_preferred(T0, P0, REPLICAS))


@pytest.mark.parametrize("executed", [False, True], ids=["unsent", "unanswered"])
@pytest.mark.parametrize("unclean", [False, True])
def test_an_election_ends_well_whichever_reply_is_lost(
    backend: Backend, executed: bool, unclean: bool
) -> None:
    scene = Scene(backend, 1, 2, 3) if not unclean else Scene(backend, 3)
    session: Session = scene.session
    for lost in range(ENOUGH):
        each, steps = TopicIdPartition(f"id-{lost}", 0), Steps(session)
        scene.has(led_by(2, 2, 1) if not unclean else led_by(1, 1, 2), each)
        if unclean:
            steps.run(elect_unclean(T0, each, REPLICAS, 3), lost, executed=executed)
        else:
            steps.run(elect_preferred(T0, each, REPLICAS), lost, executed=executed)
        assert scene.state(each).leader == (3 if unclean else 1)
        assert scene.state(each).leader_epoch == 4
        if steps.taken <= lost:
            return
    pytest.fail("the election does not end")
