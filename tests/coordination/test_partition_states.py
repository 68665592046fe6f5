"""Partition states: written only over what was read, fenced by epochs, definite whatever is lost."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import pytest

from folkmoot.coordination import brokers, partition_states, paths
from folkmoot.coordination.brokers import Registration
from folkmoot.coordination.cluster import controllers
from folkmoot.coordination.cluster.controllers import Controller
from folkmoot.coordination.deletions import CONTROLLER, Deletion, create_record
from folkmoot.coordination.partition_states import (
    MISSING,
    NOBODY,
    STATES_PER_TRANSACTION,
    BrokerReplaced,
    PartitionState,
    StateWrite,
    Superseded,
    TopicIdPartition,
    VersionedState,
)
from folkmoot.coordination.zookeeper import recipes
from folkmoot.coordination.zookeeper.execute import execute, execute_all
from folkmoot.coordination.zookeeper.operations import (
    Check,
    ConnectionLost,
    Delete,
    NodeExists,
    SessionLost,
    Set,
)
from folkmoot.coordination.zookeeper.recipes import GuardRefused, Malformed
from folkmoot.coordination.zookeeper.session import Session
from tests.contracts.backends import Backend, settle
from tests.coordination.losses import LaggingZooKeeper
from tests.coordination.steps import ENOUGH, Steps, counted, going_on
from tests.memory_zookeeper import MemoryZooKeeper

LOSSES = pytest.mark.parametrize("executed", [False, True], ids=["unsent", "unanswered"])
P0 = TopicIdPartition("topic-id", 0)
NEW = PartitionState(leader=1, leader_epoch=0, isr=(1, 2, 3), controller_epoch=1)


def nothing() -> None:
    """A ring that nobody hears."""


class Elected:
    """A controller with its session."""

    def __init__(self, session: Session, nonce: str = "c") -> None:
        self.session = session
        self.controller: Controller = execute(session, controllers.elect(9, nonce, nothing))
        assert self.controller.nonce == nonce
        self.guard = controllers.is_in_epoch(self.controller)

    def write(self, writes: Mapping[TopicIdPartition, StateWrite]) -> dict[TopicIdPartition, Any]:
        return execute(self.session, partition_states.write(writes, self.guard))

    def create(self, *partitions: TopicIdPartition) -> dict[TopicIdPartition, Any]:
        return self.write(dict.fromkeys(partitions, StateWrite(NEW, MISSING)))

    def create_deleted(self, topic_id: str) -> None:
        """Many partitions of a topic whose deletion is recorded."""
        execute(self.session, recipes.ensure(paths.DELETIONS))
        with suppress(NodeExists):
            execute(
                self.session, create_record(topic_id, Deletion("t", 0.0, "test", (CONTROLLER,)))
            )
        self.create(*(TopicIdPartition(topic_id, number) for number in range(230)))


@pytest.fixture
def controller(backend: Backend) -> Elected:
    return Elected(backend.open())


@pytest.fixture
def broker(backend: Backend) -> Session:
    return backend.open()


def state(session: Session, partition: TopicIdPartition = P0) -> VersionedState:
    found = execute(session, partition_states.read(partition))
    assert found is not None
    return found


def write_one(session: Session, write: StateWrite, partition: TopicIdPartition = P0) -> Any:
    return execute(session, partition_states.write({partition: write}))[partition]


# -- what is written, and over what ------------------------------------------------------------------


def test_a_partition_is_created_activated_and_designated_anew(
    controller: Elected, broker: Session
) -> None:
    assert controller.create(P0) == {P0: VersionedState(NEW, 0)}
    active = write_one(broker, StateWrite(NEW.activate(), 0))
    assert active == VersionedState(PartitionState(1, 1, (1, 2, 3), 1, True), 1)
    shrunk = write_one(broker, StateWrite(active.state.with_isr((1, 2)), 1))
    assert (shrunk.state.isr, shrunk.partition_epoch) == ((1, 2), 2)
    designated = controller.write({P0: StateWrite(shrunk.state.designate(2, (2,), 1), 2)})
    assert designated[P0] == state(broker) == VersionedState(PartitionState(2, 1, (2,), 1), 3)


def test_a_partition_without_a_live_replica_in_sync_keeps_its_isr(controller: Elected) -> None:
    created = controller.create(P0)[P0]
    nobody = created.state.designate(NOBODY, created.state.isr, 1)
    assert controller.write({P0: StateWrite(nobody, 0)})[P0].state.isr == (1, 2, 3)


def test_of_two_writers_one_is_refused_and_told_what_there_is(
    controller: Elected, broker: Session
) -> None:
    controller.create(P0)
    active = write_one(broker, StateWrite(NEW.activate(), 0))
    assert controller.write({P0: StateWrite(NEW.designate(2, (2,), 1), 0)}) == {
        P0: Superseded(active)
    }
    assert write_one(broker, StateWrite(NEW.activate(), 0, {})) == active, "it is what we wrote"
    assert state(broker) == active


def test_a_state_that_is_there_is_not_created_again(controller: Elected, broker: Session) -> None:
    controller.create(P0)
    active = write_one(broker, StateWrite(NEW.activate(), 0))
    assert controller.create(P0) == {P0: Superseded(active)}


def test_a_state_that_is_gone_is_superseded_by_nothing(controller: Elected) -> None:
    controller.create(P0)
    execute(controller.session, Delete(paths.partition_state(*P0)))
    assert controller.write({P0: StateWrite(NEW.activate(), 0)}) == {P0: Superseded(None)}


def test_an_illegible_state_stays_and_is_told_of(controller: Elected) -> None:
    other = TopicIdPartition("topic-id", 1)
    controller.create(P0, other)
    execute(controller.session, Set(paths.partition_state(*P0), b"scribble"))
    with pytest.raises(Malformed, match="/partitions/topic-id/0"):
        state(controller.session)
    answers = controller.write(dict.fromkeys((P0, other), StateWrite(NEW.activate(), 0)))
    assert answers[P0] == Superseded(None)
    assert answers[other] == VersionedState(NEW.activate(), 1)


def test_states_are_those_of_one_topic_whatever_its_name_is_used_for_later(
    controller: Elected,
) -> None:
    session, later = controller.session, TopicIdPartition("later-id", 2)
    controller.create(P0, later)
    assert execute(session, partition_states.topic_ids()) == ["later-id", "topic-id"]
    assert execute(session, partition_states.partitions_of("later-id")) == [2]
    assert execute(session, partition_states.partitions_of("no-such-id")) == []
    assert execute(session, partition_states.read(TopicIdPartition("later-id", 0))) is None


def test_a_watch_tells_of_a_states_creation_and_of_its_next_write(
    controller: Elected, broker: Session
) -> None:
    rings: list[str] = []
    assert execute(broker, partition_states.read(P0, lambda: rings.append("!"))) is None
    settle(broker)
    assert not rings
    controller.create(P0)
    settle(broker)
    assert rings.pop() == "!"
    execute(broker, partition_states.read(P0, lambda: rings.append("!")))
    settle(broker)
    assert not rings
    controller.write({P0: StateWrite(NEW.designate(2, (2, 3), 1), 0)})
    settle(broker)
    assert rings == ["!"]


# -- many together ------------------------------------------------------------------------------------


def test_many_states_share_a_transaction(controller: Elected) -> None:
    count = 3 * STATES_PER_TRANSACTION
    partitions = [TopicIdPartition("topic-id", number) for number in range(count)]
    controller.create(*partitions)
    designated = StateWrite(NEW.designate(2, (2, 3), 1), 0)
    recipe = partition_states.write(dict.fromkeys(partitions, designated), controller.guard)
    answers, kinds = counted(controller.session, recipe)
    assert answers == dict.fromkeys(partitions, VersionedState(designated.state, 1))
    assert kinds == {"Multi": 3}
    session = controller.session
    found = execute_all(session, (partition_states.read(each) for each in partitions))
    assert found == list(answers.values())


def test_those_that_are_refused_keep_no_other_from_being_written(
    controller: Elected, broker: Session
) -> None:
    partitions = [TopicIdPartition("topic-id", number) for number in range(30)]
    controller.create(*partitions)
    moved = partitions[::7]
    for each in moved:
        write_one(broker, StateWrite(NEW.activate(), 0), each)
    answers = controller.write(dict.fromkeys(partitions, StateWrite(NEW.designate(2, (2,), 1), 0)))
    for each in partitions:
        if each in moved:
            assert answers[each] == Superseded(VersionedState(NEW.activate(), 1))
        else:
            assert answers[each] == VersionedState(NEW.designate(2, (2,), 1), 1)
        assert state(broker, each).partition_epoch == 1


# -- fences -------------------------------------------------------------------------------------------


def test_a_controller_that_was_replaced_writes_nothing(
    backend: Backend, controller: Elected
) -> None:
    controller.create(P0)
    execute(controller.session, Delete(paths.CONTROLLER))
    now = Elected(backend.open(), "later")
    with pytest.raises(GuardRefused):
        controller.write({P0: StateWrite(NEW.designate(2, (2,), 1), 0)})
    with pytest.raises(GuardRefused):
        controller.create(TopicIdPartition("another", 0))
    with pytest.raises(GuardRefused):
        execute(controller.session, partition_states.delete("topic-id", controller.guard))
    assert state(now.session) == VersionedState(NEW, 0)
    assert execute(now.session, partition_states.topic_ids()) == ["topic-id"]


def test_a_replica_that_has_registered_again_does_not_join_the_isr(
    backend: Backend, controller: Elected, broker: Session
) -> None:
    other = TopicIdPartition("topic-id", 1)
    controller.create(P0, other)
    follower = backend.open()
    before = execute(follower, brokers.register(3, Registration({}, "n1", "d3")))
    assert before is not None
    small, full = NEW.with_isr((1, 2)), NEW.with_isr((1, 2, 3))
    controller.write(dict.fromkeys((P0, other), StateWrite(small, 0)))
    joins = StateWrite(full, 1, {3: before.epoch})
    assert write_one(broker, joins) == VersionedState(full, 2)

    backend.expire(follower)
    after = execute(backend.open(), brokers.register(3, Registration({}, "n2", "d3")))
    assert after is not None
    writes = {P0: StateWrite(small, 2), other: joins}
    answers = execute(broker, partition_states.write(writes))
    assert answers == {P0: VersionedState(small, 3), other: BrokerReplaced(3)}
    assert write_one(broker, StateWrite(full, 1, {3: after.epoch}), other).state == full


def test_a_replica_that_never_registered_does_not_join_the_isr(
    controller: Elected, broker: Session
) -> None:
    controller.create(P0)
    joins = StateWrite(NEW.with_isr((1, 2, 3, 4)), 0, {4: 1})
    assert write_one(broker, joins) == BrokerReplaced(4)
    assert state(broker) == VersionedState(NEW, 0)


def test_who_has_lost_the_session_writes_nothing(
    backend: Backend, controller: Elected, broker: Session
) -> None:
    controller.create(P0)
    backend.expire(broker)
    with pytest.raises(SessionLost):
        write_one(broker, StateWrite(NEW.activate(), 0))
    assert state(controller.session) == VersionedState(NEW, 0)


# -- lost replies -------------------------------------------------------------------------------------


def each_lost(
    session: Session,
    prepare: Callable[[str], Mapping[TopicIdPartition, StateWrite]],
    executed: bool,
    guard: Check | None = None,
) -> list[dict[TopicIdPartition, Any]]:
    """What is answered for the writes of each topic id, the reply number n lost for the n-th."""
    answers = []
    for lost in range(ENOUGH):
        writes, steps = prepare(f"id-{lost}"), Steps(session)
        answer = steps.run(partition_states.write(writes, guard), lost, executed=executed)
        assert answer.keys() == writes.keys()
        answers.append(answer)
        if steps.taken <= lost:
            return answers
    raise AssertionError("this recipe does not end")


def three(topic_id: str) -> list[TopicIdPartition]:
    return [TopicIdPartition(topic_id, number) for number in range(3)]


@LOSSES
def test_creating_ends_well_whichever_reply_is_lost(controller: Elected, executed: bool) -> None:
    session = controller.session
    answers = each_lost(
        session,
        lambda topic_id: dict.fromkeys(three(topic_id), StateWrite(NEW, MISSING)),
        executed,
        controller.guard,
    )
    assert len(answers) > 3
    for answer in answers:
        for each, written in answer.items():
            assert written == state(session, each) == VersionedState(NEW, 0)


@LOSSES
def test_a_write_ends_well_whichever_reply_is_lost(
    controller: Elected, broker: Session, executed: bool
) -> None:
    def activating(topic_id: str) -> Mapping[TopicIdPartition, StateWrite]:
        controller.create(*three(topic_id))
        return dict.fromkeys(three(topic_id), StateWrite(NEW.activate(), 0))

    answers = each_lost(broker, activating, executed)
    assert len(answers) > 1
    for answer in answers:
        for each, written in answer.items():
            assert written == state(broker, each) == VersionedState(NEW.activate(), 1)


@LOSSES
def test_a_write_among_refused_ones_ends_well_whichever_reply_is_lost(
    controller: Elected, broker: Session, executed: bool
) -> None:
    def activating(topic_id: str) -> Mapping[TopicIdPartition, StateWrite]:
        controller.create(*three(topic_id))
        moved = StateWrite(NEW.designate(2, (2,), 1), 0)
        controller.write({three(topic_id)[1]: moved})
        writes = dict.fromkeys(three(topic_id), StateWrite(NEW.activate(), 0))
        writes[three(topic_id)[2]] = StateWrite(NEW.activate(), 0, {77: 1})
        return writes

    answers = each_lost(broker, activating, executed)
    assert len(answers) > 3
    for answer in answers:
        first, second, third = sorted(answer)
        assert answer[first] == state(broker, first) == VersionedState(NEW.activate(), 1)
        assert answer[second] == Superseded(state(broker, second))
        assert answer[third] == BrokerReplaced(77)


@LOSSES
def test_deleting_ends_well_whichever_reply_is_lost(controller: Elected, executed: bool) -> None:
    session = controller.session
    for lost in range(ENOUGH):
        topic_id, steps = f"id-{lost}", Steps(session)
        controller.create_deleted(topic_id)
        steps.run(partition_states.delete(topic_id, controller.guard), lost, executed=executed)
        assert execute(session, partition_states.topic_ids()) == []
        if steps.taken <= lost:
            return
    pytest.fail("delete does not end")


def test_what_was_written_is_known_as_ours_though_a_server_lags() -> None:
    ensemble = LaggingZooKeeper()
    controller = Elected(ensemble.connect())
    ensemble.armed = True
    assert controller.create(*three("id")) == dict.fromkeys(three("id"), VersionedState(NEW, 0))
    follower = execute(ensemble.connect(), brokers.register(3, Registration({}, "n1", "d3")))
    assert follower is not None
    broker = ensemble.connect()
    ensemble.armed = True
    joins = StateWrite(NEW.with_isr((1, 2)), 0, {3: follower.epoch})
    answers = execute(broker, partition_states.write(dict.fromkeys(three("id"), joins)))
    assert answers == dict.fromkeys(three("id"), VersionedState(joins.state, 1))


def test_an_isr_that_was_written_is_known_as_ours_though_the_replica_has_registered_again() -> None:
    """Its broker epoch would refuse the write if it were sent again; its version says that it was ours."""
    ensemble = MemoryZooKeeper()
    controller = Elected(ensemble.connect())
    controller.create(P0)
    first, session = ensemble.connect(), controller.session
    follower = execute(first, brokers.register(3, Registration({}, "n1", "d3")))
    assert follower is not None
    joined = StateWrite(NEW.with_isr((1, 2)), 0, {3: follower.epoch})
    recipe = partition_states.write({P0: joined})
    execute(session, next(recipe))
    ensemble.expire(first)
    execute(ensemble.connect(), brokers.register(3, Registration({}, "n2", "d3")))
    question = recipe.throw(ConnectionLost("lost on the way back"))
    answer = execute(session, going_on(recipe, question))
    assert answer == {P0: VersionedState(joined.state, 1)}


# -- death at each step -------------------------------------------------------------------------------


def test_a_controller_that_dies_at_any_step_of_creating_leaves_what_the_next_completes(
    backend: Backend,
) -> None:
    count = STATES_PER_TRANSACTION + 20
    created = set()
    for step in range(ENOUGH):
        dead = Elected(backend.open(), f"d{step}")
        partitions = [TopicIdPartition(f"id-{step}", number) for number in range(count)]
        first = dict.fromkeys(partitions, StateWrite(NEW, MISSING))
        alive = Steps(dead.session).run_until(partition_states.write(first, dead.guard), step)
        backend.expire(dead.session)
        successor = Elected(backend.open(), f"s{step}")
        there = execute(successor.session, partition_states.partitions_of(f"id-{step}"))
        created.add(len(there))
        missing = [each for each in partitions if each.partition not in there]
        assert successor.create(*missing) == dict.fromkeys(missing, VersionedState(NEW, 0))
        everything = execute(successor.session, partition_states.partitions_of(f"id-{step}"))
        assert everything == list(range(count))
        successor.session.close()
        if not alive:
            break
    assert created == {0, STATES_PER_TRANSACTION, count}


def test_a_broker_that_dies_before_or_after_its_activation_has_begun_the_epoch_or_not(
    backend: Backend, controller: Elected
) -> None:
    epochs = []
    for step in range(ENOUGH):
        dead, each = backend.open(), TopicIdPartition(f"id-{step}", 0)
        controller.create(each)
        recipe = partition_states.write({each: StateWrite(NEW.activate(), 0)})
        alive = Steps(dead).run_until(recipe, step)
        backend.expire(dead)
        found = state(controller.session, each)
        epochs.append(found.state.leader_epoch)
        again = write_one(
            backend.open(), StateWrite(found.state.activate(), found.partition_epoch), each
        )
        assert again.state.leader_epoch == found.state.leader_epoch + 1
        if not alive:
            break
    assert epochs == [0, 1]


def test_a_controller_that_dies_at_any_step_of_a_deletion_leaves_what_the_next_deletes(
    backend: Backend,
) -> None:
    for step in range(ENOUGH):
        dead = Elected(backend.open(), f"d{step}")
        dead.create_deleted("id")
        alive = Steps(dead.session).run_until(partition_states.delete("id", dead.guard), step)
        backend.expire(dead.session)
        successor = Elected(backend.open(), f"s{step}")
        execute(successor.session, partition_states.delete("id", successor.guard))
        assert execute(successor.session, partition_states.topic_ids()) == []
        successor.session.close()
        if not alive:
            return
    pytest.fail("delete does not end")
