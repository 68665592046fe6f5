"""Topics put back from what brokers' directories know: who leads them, at whatever step somebody dies."""

import msgspec
import pytest

from folkmoot.coordination import deletions, partition_states, paths, topics
from folkmoot.coordination.cluster.restoring import FoundReplica, restore, topic_of
from folkmoot.coordination.partition_states import (
    PartitionState,
    StateWrite,
    TopicIdPartition,
)
from folkmoot.coordination.topics import TopicInfo
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.operations import Delete
from folkmoot.protocol.errors import ConfigError, TopicExists
from tests.coordination.losses import every_loss
from tests.coordination.steps import Steps
from tests.memory_zookeeper import MemorySession, MemoryZooKeeper

REPLICAS = (1, 2, 3)


def found(broker: int, last_epoch: int, log_end: int, **more: object) -> FoundReplica:
    replica = FoundReplica(
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
    with pytest.raises(ConfigError, match="do not say what it is"):
        topic_of("t", [FoundReplica(1, "t", "id", 0)])


TOPIC, STATES = topic_of("t", ALL)


def check(session: MemorySession) -> None:
    assert execute(session, topics.read("t")) == TOPIC
    state = execute(session, partition_states.read(TopicIdPartition("id", 0)))
    assert state is not None
    assert state.state == STATES[0]
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
    state = PartitionState(3, 5, (3, 1), 1, active=True)
    write = {TopicIdPartition("id", 0): StateWrite(state, 1)}
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
