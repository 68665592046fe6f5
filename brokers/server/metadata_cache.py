"""What a broker knows of its cluster: one immutable value, replaced as a whole."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from folkmoot.coordination.brokers import Registration
from folkmoot.coordination.topics import TopicInfo
from folkmoot.protocol.errors import UnknownTopicOrPartition
from folkmoot.protocol.messages import (
    BrokerInfo,
    MetadataResponse,
    PartitionMetadata,
    TopicMetadata,
)

NOBODY = -1
LEADER_EPOCH = 0


class ClusterView:
    """Live brokers and existing topics as of one moment.

    While topics have one replica, its broker leads, in epoch 0, whether it is registered or not:
    nobody else can have the data. Others are told of a leader only while it is registered.
    Immutable: read by the reactor, made by the watcher's thread.
    """

    def __init__(
        self, brokers: Mapping[int, Registration] = {}, topics: Mapping[str, TopicInfo] = {}
    ) -> None:
        self.brokers = MappingProxyType(
            {number: BrokerInfo(number, dict(found.listeners)) for number, found in brokers.items()}
        )
        self.topics = MappingProxyType(dict(topics))

    def topic(self, name: str, partition: int) -> TopicInfo:
        """The topic, if it has the partition. Raises UnknownTopicOrPartition."""
        topic = self.topics.get(name)
        if topic is None:
            raise UnknownTopicOrPartition(f"topic {name} is not known to this broker")
        if partition >= len(topic.partitions):
            raise UnknownTopicOrPartition(
                f"topic {name} has partitions 0 to {len(topic.partitions) - 1}, not {partition}"
            )
        return topic

    def leader(self, topic: TopicInfo, partition: int) -> int:
        """The broker that leads, NOBODY if there is none."""
        replicas = topic.partitions[partition]
        return replicas[0] if replicas else NOBODY

    def metadata(self, names: Iterable[str] | None) -> MetadataResponse:
        """The answer to a client's question for topics; None asks for all."""
        wanted = sorted(self.topics) if names is None else dict.fromkeys(names)
        return MetadataResponse(
            list(self.brokers.values()), [self._topic_metadata(name) for name in wanted]
        )

    def _topic_metadata(self, name: str) -> TopicMetadata:
        topic = self.topics.get(name)
        if topic is None:
            return TopicMetadata(name, UnknownTopicOrPartition.code, "", [])
        partitions = []
        for number, replicas in enumerate(topic.partitions):
            leader = self.leader(topic, number)
            known = leader if leader in self.brokers else NOBODY
            partitions.append(PartitionMetadata(number, known, LEADER_EPOCH, replicas))
        return TopicMetadata(name, 0, topic.topic_id, partitions)
