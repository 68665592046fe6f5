"""The cluster as this broker knows it, and the partitions that it leads."""

from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

import msgspec

from folkmoot.brokers.replication.partition import Partition
from folkmoot.brokers.replication.partitions import Partitions
from folkmoot.coordination.brokers import Registration
from folkmoot.coordination.deletions import Deletion
from folkmoot.coordination.partition_states import TopicIdPartition, VersionedState
from folkmoot.coordination.topics import TopicInfo
from folkmoot.protocol.errors import (
    FolkmootError,
    NotLeader,
    ResponseTooLarge,
    StaleTopicId,
    UnknownTopicOrPartition,
    ZooKeeperUnreachable,
)
from folkmoot.protocol.messages import BrokerInfo, PartitionMetadata, TopicMetadata
from folkmoot.protocol.wire import MAX_ENVELOPE_BYTES

NO_LEADER: Final = -1
ANY_EPOCH: Final = -1

PARTITIONS_PER_STEP: Final = 500

_encode: Final = msgspec.msgpack.Encoder().encode


class ClusterView:
    """Live brokers, topics and partitions' states as read last, and the answers to METADATA.

    A partition's state names its leader, which leads once the state is active. Metadata names a leader
    only while it is registered. A topic is encoded when a client asks for it, once until it changes.

    Owner: the event loop. The cluster watcher hands over the views that it makes.
    """

    def __init__(
        self,
        brokers: Mapping[int, Registration] = {},
        topics: Mapping[str, TopicInfo] = {},
        states: Mapping[TopicIdPartition, VersionedState] = {},
    ) -> None:
        self.topics = dict(topics)
        self.states = dict(states)
        self._names = {topic.topic_id: name for name, topic in topics.items()}
        self._set_brokers(brokers)

    def apply(self, change: "ClusterChange") -> list[str | TopicIdPartition]:
        """Take a change over → the topics and states that differ. A state costs that one partition."""
        if change.brokers != self.registrations:
            self._set_brokers(change.brokers)
        topics = {
            name: topic for name, topic in change.topics.items() if topic != self.topics.get(name)
        }
        for name, topic in topics.items():
            former = self.topics.pop(name, None)
            self._encoded.pop(name, None)
            if former is not None:
                self._names.pop(former.topic_id, None)
                is_same = topic is not None and topic.topic_id == former.topic_id
                for number in range(0 if is_same else len(former.partitions)):
                    self.states.pop(TopicIdPartition(former.topic_id, number), None)
        for name, topic in topics.items():
            if topic is not None:
                self.topics[name] = topic
                self._names[topic.topic_id] = name
        states = [key for key, found in change.states.items() if found != self.states.get(key)]
        for key in states:
            self._encoded.pop(self._names.get(key.topic_id, ""), None)
            found = change.states[key]
            if found is None:
                del self.states[key]
            else:
                self.states[key] = found
        return [*sorted(topics), *states]

    def _set_brokers(self, brokers: Mapping[int, Registration]) -> None:
        self.registrations = dict(brokers)
        self.brokers = {
            number: BrokerInfo(number, dict(found.listeners), found.rack)
            for number, found in brokers.items()
        }
        self._brokers = msgspec.Raw(_encode(list(self.brokers.values())))
        self._encoded: dict[str, msgspec.Raw] = {}

    def find(self, key: TopicIdPartition) -> tuple[str, TopicInfo] | None:
        """The name and topic of a partition that exists."""
        name = self._names.get(key.topic_id)
        if name is None or key.partition >= len(self.topics[name].partitions):
            return None
        return name, self.topics[name]

    def metadata(self, names: Iterable[str] | None) -> Generator[None, None, msgspec.Raw]:
        """The encoded MetadataResponse for these topics; None: for all.

        Gives way after each PARTITIONS_PER_STEP partitions that are encoded. Raises ResponseTooLarge.
        """
        topics, encoded = [], 0
        for name in dict.fromkeys(self.topics if names is None else names):
            if encoded >= PARTITIONS_PER_STEP:
                encoded = 0
                yield
            if name not in self._encoded and name in self.topics:
                self._encoded[name] = self._topic_metadata(name)
                encoded += 1 + len(self.topics[name].partitions)
            found = self._encoded.get(name)
            if found is None:
                unknown = TopicMetadata(name, UnknownTopicOrPartition.code, "", [])
                found = msgspec.Raw(_encode(unknown))
            topics.append(found)
        if sum(memoryview(topic).nbytes for topic in topics) > MAX_ENVELOPE_BYTES:
            raise ResponseTooLarge(
                f"the metadata of {len(topics)} topics exceeds {MAX_ENVELOPE_BYTES} bytes: "
                "ask for less at a time"
            )
        return msgspec.Raw(_encode([self._brokers, topics]))

    def leader_of(self, topic: TopicInfo, partition: int) -> tuple[int, int]:
        """The leader's broker id, or NO_LEADER, and the leader epoch."""
        found = self.states.get(TopicIdPartition(topic.topic_id, partition))
        if found is None:
            return NO_LEADER, 0
        return (found.state.leader if found.state.active else NO_LEADER), found.state.leader_epoch

    def _topic_metadata(self, name: str) -> msgspec.Raw:
        topic, partitions = self.topics[name], []
        for number, replicas in enumerate(topic.partitions):
            found = self.states.get(TopicIdPartition(topic.topic_id, number))
            leader, epoch = self.leader_of(topic, number)
            known = leader if leader in self.brokers else NO_LEADER
            isr = [] if found is None else [*found.state.isr]
            partitions.append(PartitionMetadata(number, known, epoch, replicas, isr))
        return msgspec.Raw(_encode(TopicMetadata(name, 0, topic.topic_id, partitions)))


@dataclass(frozen=True, kw_only=True)
class ClusterChange:
    """The nodes that the cluster watcher has read since the previous change."""

    brokers: Mapping[int, Registration] = field(default_factory=dict)
    topics: Mapping[str, TopicInfo | None] = field(default_factory=dict)
    """Topics that were read, by name; None: it is gone."""
    states: Mapping[TopicIdPartition, VersionedState | None] = field(default_factory=dict)
    """States that were read; None: it is gone."""
    full_view: ClusterView | None = None
    """The whole cluster, in place of `brokers`, `topics` and `states`: the first change of a session."""
    deleted: Mapping[str, Deletion] = field(default_factory=dict)
    """The deletions that this broker has to carry out, by the topic's id."""
    is_settled: bool = False
    """Everything was read in a new session, which had not written before."""
    is_registered: bool = False
    """By then this session had registered the broker."""


NOTHING_READ: Final = ClusterView()
"""Before the first view: a topic that is not in it may exist."""


class MetadataCache:
    """The current view, and the partitions that requests name.

    The replica here knows whether it leads its partition; the view explains a refusal.

    Owner: the event loop.
    """

    def __init__(self, broker_id: int, partitions: Partitions) -> None:
        self.broker_id = broker_id
        self.view = NOTHING_READ
        self._partitions = partitions
        self.out_of_use: set[str] = set()
        """Ids of topics whose nodes are older than this broker knows them."""

    def answer(self, names: Iterable[str] | None) -> Generator[None, None, msgspec.Raw]:
        """Answer METADATA. Raises ResponseTooLarge; ZooKeeperUnreachable before the first view."""
        if self.view is NOTHING_READ:
            raise ZooKeeperUnreachable(
                "this broker has just started, and has not read any topic yet: ask another one, or later"
            )
        return (yield from self.view.metadata(names))

    def find_led(self, entry: Any, leader_epoch: int = ANY_EPOCH) -> Partition:
        """The partition of a request's entry, which this broker leads.

        Raises the error of the entry's result: UnknownTopicOrPartition, StaleTopicId; NotLeader, also
        while the partition has no leader yet; StorageError if the log is out of use.
        """
        partition = self._partitions.find(entry.topic_id, entry.partition)
        leader = None if partition is None else partition.state.leader
        if (
            partition is None
            or leader is None
            or not partition.log.is_open
            or partition.log.name.topic != entry.topic
            or leader_epoch not in (leader.epoch, ANY_EPOCH)
        ):
            self._refuse(entry, partition, leader_epoch)
        return partition

    def find_readable(self, entry: Any) -> Partition:
        """As `find_led`, or a replica that is in sync in the entry's leader epoch."""
        try:
            return self.find_led(entry, entry.leader_epoch)
        except NotLeader:
            partition = self._partitions.find(entry.topic_id, entry.partition)
            if partition is None or not partition.serves(entry.leader_epoch):
                raise
            partition.log.require_open()
            return partition

    def _refuse(self, entry: Any, partition: Partition | None, leader_epoch: int) -> NoReturn:
        """Raise why this broker does not lead it."""
        topic = self.view.topics.get(entry.topic)
        if topic is None:
            raise UnknownTopicOrPartition(f"topic {entry.topic} is not known to this broker")
        if entry.partition >= len(topic.partitions):
            last = len(topic.partitions) - 1
            raise UnknownTopicOrPartition(
                f"topic {entry.topic} has partitions 0 to {last}, not {entry.partition}"
            )
        if entry.topic_id != topic.topic_id:
            raise StaleTopicId(f"topic {entry.topic} has another id: it was created anew")
        if topic.topic_id in self.out_of_use:
            raise UnknownTopicOrPartition(
                f"topic {entry.topic} came back older from ZooKeeper than this broker knows it, and is out "
                "of use: see the broker's log"
            )
        if partition is not None:
            leading = partition.state.leader
            is_led = leading is not None and leader_epoch in (leading.epoch, ANY_EPOCH)
            if is_led or partition.log.is_alone:  # no other broker will ever lead it
                partition.log.require_open()
        leader, epoch = self.view.leader_of(topic, entry.partition)
        name = f"{entry.topic}-{entry.partition}"
        if leader == NO_LEADER:
            raise NotLeader(f"{name} has no leader")
        raise NotLeader(f"{name} is led by broker {leader} in leader epoch {epoch}")

    def current_leader(self, entry: Any, error: FolkmootError) -> BrokerInfo | None:
        """The leader to ask in place of this broker, after NotLeader."""
        if not isinstance(error, NotLeader):
            return None
        topic = self.view.topics.get(entry.topic)
        if topic is None or entry.partition >= len(topic.partitions):
            return None
        leader, _ = self.view.leader_of(topic, entry.partition)
        return None if leader == self.broker_id else self.view.brokers.get(leader)
