"""What a broker knows of its cluster, and which of its logs it leads."""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NoReturn

import msgspec

from folkmoot.brokers.replication.partition import Partition
from folkmoot.brokers.replication.partitions import Partitions
from folkmoot.coordination.brokers import Registration
from folkmoot.coordination.partition_states import VersionedState
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

NOBODY: Final = -1
ANY_EPOCH: Final = -1

_NO_STATES: Final[Mapping[int, VersionedState]] = {}
_encode: Final = msgspec.msgpack.Encoder().encode


class ClusterView:
    """Live brokers and existing topics as of one moment, and the answer to METADATA already encoded.

    The partition's state names its leader, which leads once it is active. Metadata names a leader only
    while it is registered.

    Immutable. The cluster watcher's thread makes it, out of the former one and of what changed since,
    so that one topic more costs one topic's encoding; the event loop reads it.
    """

    def __init__(
        self,
        brokers: Mapping[int, Registration] = {},
        topics: Mapping[str, TopicInfo] = {},
        former: "ClusterView | None" = None,
        changed: Iterable[str] = (),
        states: Mapping[str, Mapping[int, VersionedState]] = {},
        *,
        is_settled: bool = False,
        is_registered: bool = False,
    ) -> None:
        """`changed` are the topics that differ from those of `former`, by themselves or by the `states`
        of their partitions (topic id → partition → state). `is_settled`: all was read in a new session,
        in which nothing was written before. `is_registered`: by then this session had registered the
        broker."""
        self.registrations = dict(brokers)
        self.states = dict(states)
        self.is_settled = is_settled
        self.is_registered = is_registered
        self.brokers = {
            number: BrokerInfo(number, dict(found.listeners), found.rack)
            for number, found in brokers.items()
        }
        self.topics = dict(topics)
        self._brokers = msgspec.Raw(_encode(list(self.brokers.values())))
        if former is not None and former.brokers.keys() == self.brokers.keys():
            self._encoded: dict[str, msgspec.Raw] = dict(former._encoded)
            for name in changed:
                self._encoded.pop(name, None)
        else:
            self._encoded, changed = {}, self.topics
        for name in changed:
            if name in self.topics:
                self._encoded[name] = self._topic_metadata(name)
        self._all: msgspec.Raw | None = None

    def metadata(self, names: Iterable[str] | None) -> msgspec.Raw:
        """The encoded MetadataResponse to a client's question for topics; None asks for all.

        Raises ResponseTooLarge: less is to be asked for at a time.
        """
        if names is not None:
            wanted = dict.fromkeys(names)
            return self._response([self._encoded.get(each) or _unknown(each) for each in wanted])
        if self._all is None:
            self._all = self._response(list(self._encoded.values()))
        return self._all

    def leader_of(self, topic: TopicInfo, partition: int) -> tuple[int, int]:
        """The broker that leads, NOBODY if there is none, and the leader epoch."""
        found = self.states_of(topic).get(partition)
        if found is None:
            return NOBODY, 0
        return (found.state.leader if found.state.active else NOBODY), found.state.leader_epoch

    def states_of(self, topic: TopicInfo) -> Mapping[int, VersionedState]:
        """The states of a topic's partitions that have one."""
        return self.states.get(topic.topic_id, _NO_STATES)

    def _response(self, topics: list[msgspec.Raw]) -> msgspec.Raw:
        size = sum(memoryview(each).nbytes for each in topics)
        if size > MAX_ENVELOPE_BYTES:  # nobody is to wait while so much is put together
            raise ResponseTooLarge(
                f"the metadata of {len(topics)} topics exceeds {MAX_ENVELOPE_BYTES} bytes: "
                "ask for less at a time"
            )
        return msgspec.Raw(_encode([self._brokers, topics]))

    def _topic_metadata(self, name: str) -> msgspec.Raw:
        topic, partitions = self.topics[name], []
        states = self.states_of(topic)
        for number, replicas in enumerate(topic.partitions):
            leader, epoch = self.leader_of(topic, number)
            known = leader if leader in self.brokers else NOBODY
            isr = [*states[number].state.isr] if number in states else []
            partitions.append(PartitionMetadata(number, known, epoch, replicas, isr))
        return msgspec.Raw(_encode(TopicMetadata(name, 0, topic.topic_id, partitions)))


NOTHING_READ: Final = ClusterView()
"""Before the first view: what there is not known yet is not missing."""


def _unknown(name: str) -> msgspec.Raw:
    return msgspec.Raw(_encode(TopicMetadata(name, UnknownTopicOrPartition.code, "", [])))


class MetadataCache:
    """The current view, and the partitions that requests are about.

    Whether this broker leads a partition is not the view's to say: its own replica knows. The view is
    asked for the reason, where it does not.

    Owner: the event loop.
    """

    def __init__(self, broker_id: int, partitions: Partitions) -> None:
        self.broker_id = broker_id
        self.view = NOTHING_READ
        self._partitions = partitions
        self.out_of_use: set[str] = set()
        """Ids of topics whose nodes are older than what this broker knows."""

    def answer(self, names: Iterable[str] | None) -> msgspec.Raw:
        """To METADATA. Raises ResponseTooLarge; ZooKeeperUnreachable as long as nothing was read there."""
        if self.view is NOTHING_READ:
            raise ZooKeeperUnreachable(
                "this broker has just started, and has not read of any topic yet: ask another, or later"
            )
        return self.view.metadata(names)

    def led(self, entry: Any, leader_epoch: int = ANY_EPOCH) -> Partition:
        """The partition that a request's entry is about, which this broker leads.

        Raises what the entry's result is to say: UnknownTopicOrPartition, StaleTopicId; NotLeader, also
        while the partition has no leader yet; StorageError if the log is out of use.
        """
        partition = self._partitions.find(entry.topic_id, entry.partition)
        leader = None if partition is None else partition.leader
        if (
            partition is None
            or leader is None
            or not partition.log.is_open
            or partition.log.name.topic != entry.topic
            or leader_epoch not in (leader.epoch, ANY_EPOCH)
        ):
            self._refuse(entry, partition, leader_epoch)
        return partition

    def readable(self, entry: Any) -> Partition:
        """As `led`, or a replica that is in sync in the entry's leader epoch."""
        try:
            return self.led(entry, entry.leader_epoch)
        except NotLeader:
            partition = self._partitions.find(entry.topic_id, entry.partition)
            if partition is None or not partition.serves(entry.leader_epoch):
                raise
            partition.log.require_open()
            return partition

    def _refuse(self, entry: Any, partition: Partition | None, leader_epoch: int) -> NoReturn:
        """Say why this broker does not lead it."""
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
                "of use: its log says what to do"
            )
        if partition is not None:
            led = partition.leader
            is_led = led is not None and leader_epoch in (led.epoch, ANY_EPOCH)
            if is_led or partition.log.is_alone:  # no other broker will ever lead it
                partition.log.require_open()
        leader, epoch = self.view.leader_of(topic, entry.partition)
        who = "nobody" if leader == NOBODY else f"broker {leader} in leader epoch {epoch}"
        raise NotLeader(f"{entry.topic}-{entry.partition} is led by {who}")

    def current_leader(self, entry: Any, error: FolkmootError) -> BrokerInfo | None:
        """Who leads, for those who asked the wrong broker."""
        if not isinstance(error, NotLeader):
            return None
        topic = self.view.topics.get(entry.topic)
        if topic is None or entry.partition >= len(topic.partitions):
            return None
        leader, _ = self.view.leader_of(topic, entry.partition)
        return None if leader == self.broker_id else self.view.brokers.get(leader)
