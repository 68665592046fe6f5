"""Topics put back from what brokers' directories know: who leads them, at whatever step somebody dies."""

from typing import Any

import msgspec
import pytest

from folkmoot.brokers.replication.leader_state import LeaderState
from folkmoot.brokers.replication.replica_state import PersistEpoch, ReplicaState
from folkmoot.brokers.storage.leader_epochs import EpochStarts
from folkmoot.coordination import deletions, partition_states, paths, topics
from folkmoot.coordination.cluster import controllers
from folkmoot.coordination.cluster.restoring import ReplicaOnDisk, restore, topic_of
from folkmoot.coordination.partition_states import (
    PartitionState,
    StateWrite,
    TopicIdPartition,
    VersionedState,
)
from folkmoot.coordination.topics import TopicInfo
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.operations import Delete, Operation, Recipe
from folkmoot.protocol.errors import ConfigError, TopicExists
from tests.coordination.losses import every_loss
from tests.coordination.steps import Steps, going_on
from tests.coordination.steps import step as take_step
from tests.memory_zookeeper import MemorySession, MemoryZooKeeper

REPLICAS = (1, 2, 3)


def found(broker: int, last_epoch: int, log_end: int, **more: object) -> ReplicaOnDisk:
    replica = ReplicaOnDisk(
        *(broker, "t", "id", 0),
        leader_epoch=4,
        last_epoch=last_epoch,
        log_end=log_end,
        partitions=1,
        replicas=REPLICAS,
        config={"retention": "7"},
        revision=2,
    )
    return msgspec.structs.replace(replica, **more)


ALL = [found(1, 3, 10), found(2, 2, 99), found(3, 3, 9)]
"""The second is a leader of before with what was never committed, the third one lags."""


def test_who_leads_has_all_that_was_committed_in_an_epoch_that_nobody_has_acted_beyond() -> None:
    topic, states = topic_of("t", ALL)
    assert topic == TopicInfo("id", [[1, 2, 3]], {"retention": "7"}, revision=3)
    assert states == {0: PartitionState(1, 4, (1,), 0)}
    newer = [*ALL[:2], found(3, 3, 9, leader_epoch=7, config={"retention": "9"}, revision=5)]
    topic, states = topic_of("t", newer)
    assert (topic.config, topic.revision) == ({"retention": "9"}, 6)
    assert states == {0: PartitionState(1, 7, (1,), 0)}


def test_a_replica_that_was_not_looked_at_is_asked_for_unless_it_is_gone_for_good() -> None:
    with pytest.raises(ConfigError, match=r"t-0 has replicas on brokers \[1\].*--without"):
        topic_of("t", ALL[1:])
    assert topic_of("t", ALL[1:], [1])[1] == {0: PartitionState(3, 4, (3,), 0)}
    two = [msgspec.structs.replace(each, partitions=2) for each in ALL]
    with pytest.raises(ConfigError, match="t-1 is in none of these directories"):
        topic_of("t", two)
    assert topic_of("t", two, [9])[0].partitions == [[1, 2, 3], [1]]


def test_a_partition_of_one_replica_gets_a_state_above_the_epochs_of_its_disk() -> None:
    assert topic_of("t", [found(1, 2, 5, replicas=(1,))])[1] == {0: PartitionState(1, 4, (1,), 0)}
    unused = found(1, -1, 0, replicas=(1,), leader_epoch=-1)
    assert topic_of("t", [unused])[1] == {0: PartitionState(1, 0, (1,), 0)}
    with pytest.raises(ConfigError, match="no directory describes it"):
        topic_of("t", [ReplicaOnDisk(1, "t", "id", 0)])


TOPIC, STATES = topic_of("t", ALL)


def check(session: MemorySession) -> None:
    assert execute(session, topics.read("t")) == TOPIC
    state = execute(session, partition_states.read(TopicIdPartition("id", 0)))
    assert state is not None
    assert state.state.leader_epoch > STATES[0].leader_epoch
    epoch = state.state.leader_epoch  # each time that it was begun has taken another
    assert state.state == msgspec.structs.replace(STATES[0], leader_epoch=epoch)
    assert execute(session, partition_states.is_intact("id"))


def test_restoring_ends_well_whichever_reply_is_lost() -> None:
    for _, session in every_loss(most=16):
        assert execute(session, restore("t", TOPIC, STATES)) == TOPIC
        check(session)
        assert execute(session, restore("t", TOPIC, STATES)) is None


def set_back(session: MemorySession) -> None:
    """A topic that is older, with a state of before."""
    old = msgspec.structs.replace(TOPIC, revision=0, config={})
    execute(session, restore("t", old, {0: PartitionState(2, 1, (2, 3), 0, active=True)}))


def test_who_dies_at_any_step_leaves_something_that_doing_it_again_ends() -> None:
    for before in (lambda _: None, set_back):
        for step in range(60):
            ensemble = MemoryZooKeeper()
            dying, session = ensemble.connect(), ensemble.connect()
            before(session)
            ended = not Steps(dying).run_until(restore("t", TOPIC, STATES), step)
            ensemble.expire(dying)
            execute(session, restore("t", TOPIC, STATES))
            check(session)
            if ended:
                break
        else:
            pytest.fail("it does not end")


def test_a_state_that_is_no_older_than_the_directories_stays() -> None:
    session = MemoryZooKeeper().connect()
    execute(session, restore("t", TOPIC, STATES))
    state = PartitionState(3, 6, (3, 1), 1, active=True)
    write = {TopicIdPartition("id", 0): StateWrite(state, 0)}
    execute(session, partition_states.write(write))
    execute(session, Delete(paths.topic("t")))
    execute(session, restore("t", TOPIC, STATES))
    found = execute(session, partition_states.read(TopicIdPartition("id", 0)))
    assert found is not None
    assert found.state == state


def test_a_deletion_is_taken_back_and_another_topic_keeps_its_name() -> None:
    session = MemoryZooKeeper().connect()
    execute(session, restore("t", TOPIC, STATES))
    execute(session, topics.delete("t"))
    execute(session, partition_states.topic_ids())
    execute(session, restore("t", TOPIC, STATES))
    assert execute(session, deletions.topic_ids()) == []
    execute(session, topics.delete("t"))
    other = execute(session, topics.create("t", 1, [1]))
    with pytest.raises(TopicExists, match=f"another id, {other.topic_id}"):
        execute(session, restore("t", TOPIC, STATES))
    execute(session, restore("t-before", TOPIC, STATES))
    assert execute(session, topics.names()) == ["t", "t-before"]


TWO = {0: STATES[0], 1: STATES[0]}
AT = [TopicIdPartition("id", 0), TopicIdPartition("id", 1)]


def led_with_a_state_missing(session: MemorySession) -> VersionedState:
    """The first partition was written often, and is led by broker 3; the second one's node is gone."""
    execute(session, restore("t", TOPIC, TWO))
    state = PartitionState(3, 9, (3, 1), 1, active=True)
    for number in range(5):
        execute(session, partition_states.write({AT[0]: StateWrite(state, number)}))
    execute(session, Delete(paths.partition_state(*AT[1])))
    found = execute(session, partition_states.read(AT[0]))
    assert found == VersionedState(state, 5)
    return found


def test_who_has_not_seen_states_missing_knows_the_restored_ones_as_the_newer() -> None:
    session = MemoryZooKeeper().connect()
    before = led_with_a_state_missing(session)
    leader, follower = (
        ReplicaState(3, 9, {1, 2, 3}, {1, 2, 3}),
        ReplicaState(1, 9, {1, 2, 3}, {1, 2, 3}),
    )
    leader.leader = LeaderState(
        *(3, before, REPLICAS, EpochStarts()),
        log_end=9,
        high_watermark=9,
        deleted_before=0,
        min_in_sync=1,
        max_lag=10.0,
        now=0.0,
    )
    for each in (leader, follower):
        each.observe(before)
    execute(session, restore("t", TOPIC, TWO))
    found = execute(session, partition_states.read(AT[0]))
    assert found is not None
    assert found.partition_epoch < before.partition_epoch
    for each in (leader, follower):
        each.observe(found)
        assert each.known == found
    assert leader.leader is None, "it leads in the next epoch, and not in the former one"


@pytest.mark.parametrize(
    ("state", "log_epoch"),
    [(PartitionState(1, 0, (1,), 0), -1), (PartitionState(1, 4, (1,), 0, unclean_epoch=5), 4)],
    ids=["nothing was appended", "it is to lead with what it has"],
)
def test_a_restored_partition_has_a_leader_that_may_lead_with_what_it_has(
    state: PartitionState, log_epoch: int
) -> None:
    session = MemoryZooKeeper().connect()
    execute(session, restore("t", TOPIC, {0: state}))
    found = execute(session, partition_states.read(AT[0]))
    assert found is not None
    assert found.state.leader_epoch > state.leader_epoch
    replica = ReplicaState(1, log_epoch, {1, 2, 3}, {1, 2, 3})
    replica.may_lead = False  # it knows nothing of that epoch
    step = replica.observe(found)
    assert isinstance(step, PersistEpoch)
    step = replica.confirm_epoch(step.epoch)
    assert isinstance(step, StateWrite)
    assert step.state.active


def test_what_a_leader_writes_while_states_are_restored_is_not_taken_back() -> None:
    written = 0
    for step in range(60):
        ensemble = MemoryZooKeeper()
        restoring, leader = ensemble.connect(), ensemble.connect()
        before = led_with_a_state_missing(leader)
        restoration = restore("t", TOPIC, TWO)
        left = advance(restoring, restoration, step)
        newer = before.state.designate(1, (1,), 2).activate()
        write = {AT[0]: StateWrite(newer, before.partition_epoch)}
        (answer,) = execute(leader, partition_states.write(write)).values()
        if left is None:
            assert written
            return
        execute(restoring, going_on(restoration, left))
        found = execute(leader, partition_states.read(AT[0]))
        assert found is not None
        if isinstance(answer, VersionedState):
            written += 1
            assert found.state.leader_epoch >= newer.leader_epoch
            assert (found.state.leader, found.state.isr) == (1, (1,))
    pytest.fail("it does not end")


def test_a_deletion_that_is_carried_out_meanwhile_leaves_a_restored_topic_all_of_its_states() -> (
    None
):
    for step in range(60):
        ensemble = MemoryZooKeeper()
        session, controller = ensemble.connect(), ensemble.connect()
        execute(session, restore("t", TOPIC, TWO))
        me = execute(controller, controllers.elect(1, "controller", lambda: None))
        execute(session, topics.delete("t"))
        guard, left = controllers.is_in_epoch(me), None
        for is_deletion_first in (True, False):
            first, then = partition_states.delete("id", guard), restore("t", TOPIC, TWO)
            sessions = [controller, session]
            recipes = [first, then]
            if not is_deletion_first:
                sessions.reverse()
                recipes.reverse()
            left = advance(sessions[0], recipes[0], step)
            execute(sessions[1], recipes[1])
            if left is not None:
                execute(sessions[0], going_on(recipes[0], left))
            assert execute(session, partition_states.partitions_of("id")) == [0, 1]
            assert execute(session, partition_states.is_intact("id"))
            execute(session, topics.delete("t"))
        if left is None:
            return
    pytest.fail("it does not end")


def advance(session: MemorySession, recipe: Recipe[Any], steps: int) -> Operation | None:
    """Carry out so many of a recipe's operations → the next one, None if it has ended."""
    try:
        operation = next(recipe)
        for _ in range(steps):
            operation = take_step(session, recipe, operation)
    except StopIteration:
        return None
    return operation
