"""The leader and the in-sync replicas of each partition, as ZooKeeper has them now."""

from collections.abc import Iterable
from contextlib import suppress

import msgspec

from folkmoot.coordination import brokers, partition_states, topics
from folkmoot.coordination.brokers import Registration
from folkmoot.coordination.cluster import controllers
from folkmoot.coordination.cluster.controllers import Controller
from folkmoot.coordination.partition_states import PartitionState, TopicIdPartition
from folkmoot.coordination.topics import Reassignment, TopicInfo
from folkmoot.coordination.zookeeper.execute import execute, execute_all
from folkmoot.coordination.zookeeper.operations import Recipe
from folkmoot.coordination.zookeeper.recipes import Malformed
from folkmoot.coordination.zookeeper.session import Session
from folkmoot.protocol.names import check_name


class PartitionStatus(msgspec.Struct, frozen=True):
    """A partition; `leader` is None while it has none, `in_sync` has live replicas only."""

    topic: str
    partition: int
    leader: int | None
    leader_epoch: int
    replicas: list[int]
    in_sync: list[int]
    min_in_sync: int
    reassignment: Reassignment | None = None

    @property
    def is_leaderless(self) -> bool:
        return self.leader is None

    @property
    def is_under_replicated(self) -> bool:
        """True if a replica is not in sync; replicas that are being added do not count."""
        required = self.replicas if self.reassignment is None else self.reassignment.original
        return not set(required) <= set(self.in_sync)

    @property
    def is_below_minimum(self) -> bool:
        """True if too few replicas are in sync for a write with `acks=all`."""
        return len(self.in_sync) < self.min_in_sync


class ClusterStatus(msgspec.Struct, frozen=True):
    """The live brokers, the controller if there is one, and the partitions in order."""

    brokers: dict[int, Registration]
    controller: Controller | None
    partitions: list[PartitionStatus]


def read_cluster(
    session: Session, timeout: float, names: Iterable[str] | None = None
) -> ClusterStatus:
    """Read the topics of these names, or all.

    Raises UnknownTopicOrPartition, InvalidName, ZooKeeperUnreachable, Malformed.
    """
    if names is None:
        wanted = execute(session, topics.names(), timeout)
    else:
        wanted = list(dict.fromkeys(check_name("topic", each) for each in names))
    found = execute_all(session, map(topics.read, wanted), timeout=timeout)
    rows: list[tuple[str, TopicInfo, int, int]] = []
    for name, topic in zip(wanted, found, strict=True):
        if topic is not None:
            needed = topic.min_in_sync  # it looks at all partitions
            rows += ((name, topic, needed, number) for number in range(len(topic.partitions)))
        elif names is not None:
            raise topics.unknown(name)
    reads = (_state(TopicIdPartition(topic.topic_id, number)) for _, topic, _, number in rows)
    states = execute_all(session, reads, timeout=timeout)
    live = execute(session, brokers.live(), timeout)
    statuses = [_status(*row, state, live) for row, state in zip(rows, states, strict=True)]
    return ClusterStatus(live, execute(session, controllers.current(), timeout), statuses)


def _state(partition: TopicIdPartition) -> Recipe[PartitionState]:
    """Read a partition's state; a malformed one counts as missing."""
    with suppress(Malformed):
        found = yield from partition_states.read(partition)
        if found is not None:
            return found.state
    return PartitionState(partition_states.NOBODY, 0, (), 0)


def _status(
    name: str,
    topic: TopicInfo,
    min_in_sync: int,
    number: int,
    state: PartitionState,
    live: dict[int, Registration],
) -> PartitionStatus:
    return PartitionStatus(
        topic=name,
        partition=number,
        leader=state.leader if state.active and state.leader in live else None,
        leader_epoch=state.leader_epoch,
        replicas=topic.partitions[number],
        in_sync=[each for each in state.isr if each in live],
        min_in_sync=min_in_sync,
        reassignment=topic.reassignments.get(number),
    )
