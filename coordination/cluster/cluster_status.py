"""Who leads each partition, and which of its replicas are in sync, as ZooKeeper has it now."""

from collections.abc import Iterable

import msgspec

from folkmoot.coordination import brokers, partition_states, topics
from folkmoot.coordination.brokers import Registration
from folkmoot.coordination.cluster import controllers
from folkmoot.coordination.cluster.controllers import Controller
from folkmoot.coordination.partition_states import TopicIdPartition, VersionedState
from folkmoot.coordination.topics import Reassignment, TopicInfo
from folkmoot.coordination.zookeeper.execute import execute, execute_all
from folkmoot.coordination.zookeeper.operations import Recipe
from folkmoot.coordination.zookeeper.recipes import Malformed
from folkmoot.coordination.zookeeper.session import Session
from folkmoot.protocol.names import check_name


class PartitionStatus(msgspec.Struct, frozen=True):
    """A partition: `leader` is None if nobody serves it now; `in_sync` are live replicas."""

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
        """Whether a replica is not in sync, but for those that are only being added."""
        required = self.replicas if self.reassignment is None else self.reassignment.original
        return not set(required) <= set(self.in_sync)

    @property
    def is_below_minimum(self) -> bool:
        """Too few replicas are in sync for a write with `acks=all`."""
        return len(self.in_sync) < self.min_in_sync


class ClusterStatus(msgspec.Struct, frozen=True):
    """The live brokers, the controller if there is one, and partitions by topic and number."""

    brokers: dict[int, Registration]
    controller: Controller | None
    partitions: list[PartitionStatus]


def read_cluster(
    session: Session, timeout: float, names: Iterable[str] | None = None
) -> ClusterStatus:
    """The topics of these names, or all.

    Raises UnknownTopicOrPartition, InvalidName, ZooKeeperUnreachable, Malformed.
    """
    if names is None:
        wanted = execute(session, topics.names(), timeout)
    else:
        wanted = [check_name("topic", each) for each in names]
    read = execute_all(session, map(topics.read, wanted), timeout=timeout)
    found = dict(zip(wanted, read, strict=True))
    for name, topic in found.items():
        if topic is None and names is not None:
            raise topics.unknown(name)
    known = {name: topic for name, topic in found.items() if topic is not None}
    partitions = [
        TopicIdPartition(topic.topic_id, number)
        for topic in known.values()
        for number in range(len(topic.partitions))
    ]
    of_each = execute_all(session, map(_legible, partitions), timeout=timeout)
    states: dict[tuple[str, int], VersionedState | None]
    states = dict(zip(partitions, of_each, strict=True))
    live = execute(session, brokers.live(), timeout)
    statuses = [
        _status(name, topic, needed, number, states[topic.topic_id, number], live)
        for name, topic in known.items()
        for needed in (topic.min_in_sync,)  # it looks at all partitions
        for number in range(len(topic.partitions))
    ]
    controller = execute(session, controllers.current(), timeout)
    return ClusterStatus(live, controller, statuses)


def _legible(partition: TopicIdPartition) -> Recipe[VersionedState | None]:
    """An illegible state is as good as none."""
    try:
        return (yield from partition_states.read(partition))
    except Malformed:
        return None


def _status(
    name: str,
    topic: TopicInfo,
    min_in_sync: int,
    number: int,
    known: VersionedState | None,
    live: dict[int, Registration],
) -> PartitionStatus:
    replicas = topic.partitions[number]
    if known is None:
        leader, epoch, isr = partition_states.NOBODY, 0, []
    else:
        state = known.state
        leader = state.leader if state.active else partition_states.NOBODY
        epoch, isr = state.leader_epoch, list(state.isr)
    return PartitionStatus(
        name,
        number,
        leader if leader in live else None,
        epoch,
        replicas,
        [each for each in isr if each in live],
        min_in_sync,
        topic.reassignments.get(number),
    )
