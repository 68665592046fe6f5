"""What a broker knows of its cluster, and which of its logs it leads."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.log_manager import LogManager
from folkmoot.coordination.brokers import Registration
from folkmoot.coordination.topics import TopicInfo
from folkmoot.protocol.errors import (
    FolkmootError,
    NotLeader,
    ResponseTooLarge,
    StaleTopicId,
    UnknownTopicOrPartition,
)
from folkmoot.protocol.messages import BrokerInfo, PartitionMetadata, TopicMetadata
from folkmoot.protocol.wire import MAX_ENVELOPE_BYTES

NOBODY: Final = -1
LEADER_EPOCH: Final = 0
ANY_EPOCH: Final = -1

_encode: Final = msgspec.msgpack.Encoder().encode


class ClusterView:
    """Live brokers and existing topics as of one moment, and the answer to METADATA already encoded.

    While topics have one replica, its broker leads, in epoch 0, whether it is registered or not:
    nobody else can have the data. Others are told of a leader only while it is registered.

    Immutable. The cluster watcher's thread makes it, out of the former one and of what changed since,
    so that one topic more costs one topic's encoding; the event loop reads it.
    """

    def __init__(
        self,
        brokers: Mapping[int, Registration] = {},
        topics: Mapping[str, TopicInfo] = {},
        former: "ClusterView | None" = None,
        changed: Iterable[str] = (),
    ) -> None:
        """`changed` are the topics that differ from those of `former`."""
        self.brokers = {
            number: BrokerInfo(number, dict(found.listeners)) for number, found in brokers.items()
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
        for number, replicas in enumerate(topic.partitions):
            leader = leader_of(topic, number)
            known = leader if leader in self.brokers else NOBODY
            partitions.append(PartitionMetadata(number, known, LEADER_EPOCH, replicas))
        return msgspec.Raw(_encode(TopicMetadata(name, 0, topic.topic_id, partitions)))


def _unknown(name: str) -> msgspec.Raw:
    return msgspec.Raw(_encode(TopicMetadata(name, UnknownTopicOrPartition.code, "", [])))


def leader_of(topic: TopicInfo, partition: int) -> int:
    """The broker that leads, NOBODY if there is none."""
    replicas = topic.partitions[partition]
    return replicas[0] if replicas else NOBODY


class MetadataCache:
    """The current view, and for each topic the logs of partitions that this broker was found to lead.

    A look-up, one for each entry of each request, is checked against the view once; from then on it
    costs two look-ups in dictionaries, until something about its topic changes.

    Owner: the event loop.
    """

    def __init__(self, broker_id: int, logs: LogManager) -> None:
        self.broker_id = broker_id
        self.view = ClusterView()
        self._logs = logs
        self._led: dict[str, tuple[str, dict[int, Log]]] = {}

    def leader_log(self, entry: Any, leader_epoch: int = ANY_EPOCH) -> Log | None:
        """The log that a request's entry is about, None if there is none yet: nothing was written.

        Raises what the entry's result is to say: UnknownTopicOrPartition, StaleTopicId, NotLeader;
        StorageError if the log is out of use.
        """
        topic_id, logs = self._led.get(entry.topic, ("", None))
        if logs is not None and topic_id == entry.topic_id and leader_epoch <= LEADER_EPOCH:
            log = logs.get(entry.partition)
            if log is not None and log.is_open:
                return log
        topic = self._require_leader(entry, leader_epoch)
        log = self._logs.find(topic.topic_id, entry.partition)
        if log is not None:
            log.require_open()
            if topic_id != topic.topic_id or logs is None:
                logs = {}
                self._led[entry.topic] = topic.topic_id, logs
            logs[entry.partition] = log
        return log

    def _require_leader(self, entry: Any, leader_epoch: int) -> TopicInfo:
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
        leader = leader_of(topic, entry.partition)
        if leader != self.broker_id or leader_epoch not in (ANY_EPOCH, LEADER_EPOCH):
            who = "nobody" if leader == NOBODY else f"broker {leader}"
            raise NotLeader(f"{entry.topic}-{entry.partition} is led by {who}")
        return topic

    def current_leader(self, entry: Any, error: FolkmootError) -> BrokerInfo | None:
        """Who leads, for those who asked the wrong broker."""
        if not isinstance(error, NotLeader):
            return None
        topic = self.view.topics.get(entry.topic)
        if topic is None or entry.partition >= len(topic.partitions):
            return None
        return self.view.brokers.get(leader_of(topic, entry.partition))

    def forget(self, topic: str) -> None:
        """Something about the topic has changed: its partitions are looked up again."""
        self._led.pop(topic, None)

    def led_partitions(self, topic: TopicInfo) -> list[int]:
        """The partitions of a topic that this broker leads."""
        partitions = range(len(topic.partitions))
        return [each for each in partitions if leader_of(topic, each) == self.broker_id]
