"""A partition's replicas are moved: what the brokers do that have them, get them, or leave."""

from collections.abc import Iterator
from errno import ENOSPC
from pathlib import Path

import pytest
from msgspec.structs import replace

from folkmoot.brokers.jobs.jobs import Now
from folkmoot.brokers.replication.partition import DISK_AGAIN_AFTER
from folkmoot.brokers.server.metadata_cache import ClusterChange
from folkmoot.coordination.deletions import Deletion
from folkmoot.coordination.partition_states import PartitionState, VersionedState
from folkmoot.coordination.topics import Reassignment
from folkmoot.protocol.messages import LogSizesRequest
from tests.brokers.replication.brokers import PARTITION, Cluster, Node

RATE = 100


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """The partition is on brokers 1 and 2; it is to be moved to 1 and 3, at a rate."""
    made = Cluster(tmp_path)
    made.topic = replace(made.topic, partitions=[[1, 2]])
    isr = PartitionState(1, made.state.state.leader_epoch, (1, 2), 1, active=True)
    made.state = VersionedState(isr, made.state.partition_epoch + 1)
    made.show()
    task(made.nodes[3])
    yield made
    made.stop()


def task(node: Node) -> None:
    node.logs.deletion_task(node.now)


def move(cluster: Cluster, throttle: int = 0) -> None:
    moved = Reassignment([1, 2], [1, 3], throttle)
    cluster.topic = replace(cluster.topic, partitions=[moved.replicas], reassignments={0: moved})
    cluster.show()
    cluster.run()


def end(cluster: Cluster) -> None:
    """As the controller does."""
    end_state(cluster)
    cluster.topic = replace(cluster.topic, partitions=[[1, 3]], reassignments={}, reassigned=1)


def end_state(cluster: Cluster) -> None:
    """The same, where nobody has read of the topic yet."""
    ended = replace(cluster.state.state.designate(1, (1, 3), 1), reassigned=1)
    cluster.state = VersionedState(ended, cluster.state.partition_epoch + 1)


def has_log(node: Node) -> bool:
    return node.logs.find(*PARTITION) is not None


def isr(cluster: Cluster) -> set[int]:
    return set(cluster.state.state.isr)


def test_a_replica_that_was_moved_away_is_deleted_and_one_that_stays_is_not(
    cluster: Cluster,
) -> None:
    assert [has_log(node) for node in cluster.nodes.values()] == [True, True, False]
    answer = cluster.nodes[1].produce(b"a")
    cluster.run()
    assert answer[0].error == 0
    move(cluster)
    cluster.later(0.6)
    assert isr(cluster) == {1, 2, 3}
    assert cluster.nodes[3].log.log_end == 1
    directory = cluster.nodes[2].log.directory
    end(cluster)
    cluster.show()
    task(cluster.nodes[2])
    assert [has_log(node) for node in cluster.nodes.values()] == [True, False, True]
    assert not directory.exists()
    answer = cluster.nodes[1].produce(b"b")
    cluster.run()
    assert answer[0].error == 0


def test_a_replica_that_counts_as_in_sync_is_kept_until_its_leader_has_seen_that_it_left(
    cluster: Cluster,
) -> None:
    move(cluster)
    cluster.later(0.6)
    end(cluster)
    leftover = cluster.state
    cluster.state = replace(leftover, state=leftover.state.with_isr((1, 2, 3)))
    cluster.show(2)
    assert has_log(cluster.nodes[2])
    cluster.state = leftover
    cluster.show(2)
    assert not has_log(cluster.nodes[2])


def test_a_broker_that_was_away_deletes_what_was_moved_when_it_is_back(cluster: Cluster) -> None:
    move(cluster)
    cluster.later(0.6)
    cluster.kill(2)
    end(cluster)
    cluster.show()
    cluster.start(2)
    assert has_log(cluster.nodes[2])
    cluster.show()
    assert not has_log(cluster.nodes[2])


def test_a_replica_that_comes_back_at_once_is_made_anew_behind_its_deletion(
    cluster: Cluster,
) -> None:
    cluster.nodes[1].produce(b"a")
    move(cluster)
    cluster.later(0.6)
    two = cluster.nodes[2]
    end(cluster)
    cluster.show()
    two.by_hand = True
    task(two)
    moved = Reassignment([1, 3], [1, 2])
    cluster.topic = replace(cluster.topic, partitions=[moved.replicas], reassignments={0: moved})
    cluster.show()
    assert not has_log(two)
    assert two.hands.keys() == ["deletion"], "the old directory goes first"
    two.hands.work_all()
    two.by_hand = False
    two.partitions.creation.task(two.now)
    assert two.log.log_end == 0
    cluster.later(0.6)
    cluster.run()
    assert (two.log.log_end, isr(cluster)) == (1, {1, 2, 3})


def test_a_leader_that_reads_of_fewer_replicas_lets_nobody_else_back_in(cluster: Cluster) -> None:
    move(cluster)
    cluster.later(0.6)
    end(cluster)
    cluster.show(1, 3)
    cluster.run()
    cluster.later(0.6)
    assert isr(cluster) == {1, 3}


def test_who_was_moved_away_is_not_let_back_in_by_a_leader_that_has_not_read_of_it(
    cluster: Cluster,
) -> None:
    move(cluster)
    cluster.later(0.6)
    one, two = cluster.nodes[1], cluster.nodes[2]
    assert isr(cluster) == {1, 2, 3}
    before = one.replica.state.epoch
    end_state(cluster)
    cluster.show(1)
    cluster.run()
    cluster.later(0.6)
    assert one.replica.leader is not None
    assert one.replica.state.epoch == before + 1, "what it has acked before does not count any more"
    assert isr(cluster) == {1, 3}, "its fetch is one of an earlier epoch"
    cluster.show(2, 3)
    cluster.later(0.6)
    assert isr(cluster) == {1, 3}, "who knows the state alone may have left, and does not fetch"
    cluster.topic = replace(cluster.topic, partitions=[[1, 3]], reassignments={}, reassigned=1)
    cluster.show(2)
    assert not has_log(two)
    cluster.show(3)
    cluster.later(0.6)
    assert isr(cluster) == {1, 3}


def test_what_is_added_waits_for_its_rate_and_nobody_waits_for_it(cluster: Cluster) -> None:
    one, three = cluster.nodes[1], cluster.nodes[3]
    for _ in range(20):
        one.produce(b"x" * 1000)
    cluster.run()
    move(cluster, RATE)
    there = three.log.log_end
    assert there > 0, "the first answer comes at once"
    for _ in range(5):
        answer = one.produce(b"y" * 1000)
        cluster.later(0.6)
        assert answer[0].error == 0, "a producer waits for those in sync alone"
        assert isr(cluster) == {1, 2}
    assert three.log.log_end == there
    moved = replace(cluster.topic.reassignments[0], throttle=0)
    cluster.topic = replace(cluster.topic, reassignments={0: moved})
    cluster.show()
    cluster.later(300.0)
    cluster.run()
    cluster.later(0.6)
    assert three.log.log_end == one.log.log_end
    assert isr(cluster) == {1, 2, 3}


def test_a_topic_deleted_while_it_is_moved_is_deleted_on_all_brokers(cluster: Cluster) -> None:
    move(cluster)
    for node in cluster.nodes.values():
        gone = {PARTITION.topic_id: Deletion("t", 0.0, "", (1, 2, 3))}
        change = ClusterChange(brokers=cluster.registrations, topics={"t": None}, deleted=gone)
        node.handlers.updates.show(change, lambda work: work())
        node.logs.deletion_task(Now(0.0, 0))
    assert not any(map(has_log, cluster.nodes.values()))


def test_min_in_sync_is_that_of_fewer_replicas_while_more_are_added(cluster: Cluster) -> None:
    cluster.topic = replace(cluster.topic, partitions=[[1, 2]], config={})
    moved = Reassignment([1, 2], [1, 2, 3])
    cluster.topic = replace(cluster.topic, partitions=[[1, 2, 3]], reassignments={0: moved})
    cluster.show()
    leader = cluster.nodes[1].replica.leader
    assert leader is not None
    assert leader.min_in_sync == 1
    cluster.topic = replace(cluster.topic, reassignments={})
    cluster.show()
    assert leader.min_in_sync == 2


def test_a_broker_tells_how_much_it_has_whether_it_leads_or_not(cluster: Cluster) -> None:
    cluster.nodes[1].produce(b"a" * 100)
    cluster.run()
    for number, count in ((1, 1), (2, 1), (3, 0)):
        logs = cluster.nodes[number].ask(LogSizesRequest(None)).logs
        assert len(logs) == count
        for each in logs:
            assert (each.topic, each.topic_id, each.partition) == ("t", *PARTITION)
            assert (each.log_end, each.size > 100) == (1, True)
    assert cluster.nodes[1].ask(LogSizesRequest(["t"])).logs
    assert cluster.nodes[1].ask(LogSizesRequest(["u"])).logs == []


def test_a_replica_is_kept_where_zookeeper_knows_less_than_its_disk(cluster: Cluster) -> None:
    """As behind a ZooKeeper that was restored from a backup: the others may have deleted theirs."""
    move(cluster)
    cluster.later(0.6)
    before, topic = cluster.state, cluster.topic
    end(cluster)
    cluster.designate(3, 1, 3)
    cluster.show()
    assert isr(cluster) == {1, 3}
    isr_then = replace(before.state, isr=(1, 2), leader=1)
    cluster.state = VersionedState(isr_then, before.partition_epoch)
    cluster.topic = replace(topic, partitions=[[1, 2]], reassignments={})
    cluster.show(3)
    assert has_log(cluster.nodes[3])


def test_a_replica_that_could_not_be_made_is_made_when_the_disk_has_room_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:

        def full(*_: object) -> None:
            raise OSError(ENOSPC, "no space left on device")

        patched.setattr("folkmoot.brokers.storage.partition_creation.save_facts", full)
        move(cluster)
        cluster.later(2.0)
    cluster.later(DISK_AGAIN_AFTER / 2)
    assert not has_log(cluster.nodes[3]), "a full disk is not tried at once"
    cluster.later(2.0)
    cluster.later(0.6)
    assert isr(cluster) == {1, 2, 3}


def test_a_replica_that_is_moved_away_and_back_while_it_is_made_stays(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, replicas=[1, 2])
    three = cluster.nodes[3]
    three.by_hand = True
    for replicas in ([1, 2, 3], [1, 2], [1, 2, 3]):
        cluster.topic = replace(cluster.topic, partitions=[replicas])
        cluster.show()
    three.hands.work_all()
    three.by_hand = False
    cluster.later(1.0)
    answer = cluster.nodes[1].produce(b"a")
    cluster.run()
    assert answer[0].error == 0
    assert three.log.log_end == 1
    cluster.stop()
