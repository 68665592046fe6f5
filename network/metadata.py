"""A client's metadata of brokers and topics, and when to ask for it again."""

from collections.abc import Sequence
from math import inf
from typing import Any, Final, NamedTuple

from folkmoot.network.leaderless import Waiting
from folkmoot.protocol.errors import UnknownTopicOrPartition
from folkmoot.protocol.messages import (
    MAX_ENTRIES,
    BrokerInfo,
    MetadataRequest,
    MetadataResponse,
    TopicMetadata,
)
from folkmoot.protocol.records import TopicPartition

MAX_AGE: Final = 300.0
FIRST_PAUSE: Final = 0.01
LONGEST_PAUSE: Final = 1.0
STALE_FOR: Final = 2.0
"""Seconds for which metadata is asked for again after a leader has said that it is none."""


class _Leader(NamedTuple):
    broker_id: int
    epoch: int
    isr: Sequence[int]
    replicas: Sequence[int]


class _Topic(NamedTuple):
    topic_id: str
    leaders: list[_Leader]


class Pace:
    """When the next request for metadata is due: see `Metadata`. No clock."""

    def __init__(self) -> None:
        self.is_expired = False
        self.not_before = -inf
        self._is_in_flight = False
        self._answered_at = -inf
        self._unhelpful = 0.0

    def due(self) -> float:
        """The time of the next request."""
        if self._is_in_flight:
            return inf
        if self.is_expired:
            return self.not_before
        return max(self.not_before, self._answered_at + MAX_AGE)

    def begin(self, now: float) -> None:
        self._is_in_flight = True
        self._pause(now)

    def fail(self, now: float) -> None:
        self._is_in_flight, self.is_expired = False, True
        self._unhelpful += 1
        self._pause(now)

    def answered(self, now: float) -> None:
        self._is_in_flight, self._answered_at = False, now

    def judge(self, *, helped: bool, exists: bool) -> None:
        """Take the whole answer in. A topic that exists has a leader soon: then the pauses grow by a fifth,
        else they double."""
        self.is_expired = not helped
        self._unhelpful = 0.0 if helped else self._unhelpful + (0.25 if exists else 1.0)

    def again(self, now: float) -> None:
        """The next request follows at once: this one named too many topics, or not all."""
        self._is_in_flight, self.not_before = False, now

    def _pause(self, now: float) -> None:
        growth: float = 2 ** min(self._unhelpful, 10)
        self.not_before = now + min(LONGEST_PAUSE, FIRST_PAUSE * growth)


class Metadata:
    """The known brokers and wanted topics, and when to ask again. No I/O, no clock.

    It is *due*

    - when it is older than MAX_AGE, after `expire`, and after a look-up of an unknown partition;
    - while a wanted topic is not known, or the leader or an in-sync replica of one of its partitions;
    - for STALE_FOR after a leader has said that it is none, unless an answer brings a change.

    Between two requests lies a pause that grows while answers do not help. While a request is under way
    nothing is due.

    One request names at most `at_a_time` wanted topics, half as many after an answer that would have been
    too large. The next request names the others.

    A broker may answer with older metadata than another one: a leader of an older epoch never replaces one
    of a newer epoch of the same topic id. A leader that a broker names in place of itself counts at once,
    until the next answer.

    `version` grows with each change of known brokers or topics. One thread may call.
    """

    def __init__(self, listener: str = "client") -> None:
        self._listener = listener
        self.pace = Pace()
        self._brokers: dict[int, str] = {}
        self._racks: dict[int, str] = {}
        self._topics: dict[str, _Topic] = {}
        self._missing: dict[str, tuple[float, float]] = {}
        """Topics that do not exist: when a broker first said so, and last."""
        self._wanted: set[str] = set()
        self._next: list[str] = []
        """The wanted topics that the next request names."""
        self._at_a_time = MAX_ENTRIES
        self._stale_leaders: dict[TopicPartition, tuple[int, float]] = {}
        """Partitions whose leader has said that it is none: its epoch, and until when that counts."""
        self.version = 0
        self.answers = 0
        """The number of answers."""

    # -- look-ups -----------------------------------------------------------------------------------

    def addresses(self) -> list[str]:
        """The addresses of all brokers."""
        return list(self._brokers.values())

    def leader_address(self, partition: TopicPartition) -> str | None:
        """The leader's address; None if there is none or it is not known yet."""
        leader = self._leader(partition)
        return None if leader is None else self._brokers.get(leader.broker_id)

    def nearest_address(self, partition: TopicPartition, rack: str) -> str | None:
        """The address of an in-sync replica of that rack, else the leader's, as `leader_address`."""
        leader = self._leader(partition)
        if leader is None or leader.broker_id not in self._brokers:
            return None
        near = [
            replica
            for replica in leader.isr
            if replica in self._brokers and self._racks.get(replica) == rack
        ]
        if not near or leader.broker_id in near:
            return self._brokers[leader.broker_id]
        return self._brokers[near[partition.partition % len(near)]]

    def leaderless(self) -> Waiting:
        """The partitions of wanted topics without a known leader, and the brokers that they wait for."""
        return {
            TopicPartition(name, number): tuple(leader.isr or leader.replicas)
            for name, topic in self._topics.items()
            for number, leader in enumerate(topic.leaders)
            if leader.broker_id not in self._brokers
        }

    def leader_epoch(self, partition: TopicPartition) -> int:
        """The epoch of the known leader, or -1."""
        leader = self._leader(partition)
        return -1 if leader is None else leader.epoch

    def is_replicated(self, partition: TopicPartition) -> bool:
        """True if it has several replicas, in sync or not."""
        leader = self._leader(partition)
        return leader is not None and len(leader.replicas) > 1

    def topic_id(self, topic: str) -> str | None:
        self.want(topic)
        known = self._topics.get(topic)
        return None if known is None else known.topic_id

    def partitions(self, topic: str) -> range:
        """The partitions of a topic; empty while it is not known."""
        self.want(topic)
        known = self._topics.get(topic)
        return range(0) if known is None else range(len(known.leaders))

    def has_moved(self, address: str, request: Any) -> bool:
        """True if a partition of a request to that broker has another leader, in a newer epoch than the
        request has."""
        for entry in getattr(request, "entries", ()):
            known = self._topics.get(entry.topic)
            if known is not None and entry.partition < len(known.leaders):
                leader = known.leaders[entry.partition]
                current_address = self._brokers.get(leader.broker_id, address)
                if current_address != address and leader.epoch > getattr(entry, "leader_epoch", -1):
                    return True
        return False

    def is_missing(self, topic: str) -> bool:
        """True if the topic does not exist, by the last answer."""
        return topic in self._missing

    def topics_missing_for(self, patience: float) -> list[str]:
        """Wanted topics that all answers of at least `patience` seconds have called missing."""
        return [topic for topic, (first, last) in self._missing.items() if last - first >= patience]

    def _leader(self, partition: TopicPartition) -> _Leader | None:
        self.want(partition.topic)
        known = self._topics.get(partition.topic)
        if known is None:
            return None
        if not 0 <= partition.partition < len(known.leaders):
            self.expire()  # it may have been added
            return None
        return known.leaders[partition.partition]

    # -- wanted topics ------------------------------------------------------------------------------

    def want(self, topic: str) -> None:
        """Keep this topic known from now on. Every look-up wants its topic."""
        if topic not in self._wanted:
            self._wanted.add(topic)
            if self._next:
                self._next.append(topic)
            self.pace.is_expired = True
            self.pace.not_before = -inf  # pauses for missing topics do not delay a new one

    def forget(self, topic: str) -> None:
        """Stop wanting this topic."""
        self._wanted.discard(topic)
        self._topics.pop(topic, None)
        self._missing.pop(topic, None)

    def expire(self) -> None:
        """Ask again soon: something has proven wrong, or a broker is gone."""
        self.pace.is_expired = True

    # -- requests and answers -----------------------------------------------------------------------

    def ask(self, now: float) -> MetadataRequest:
        """The request to send now; `update`, `fail` or `ask_for_less` follows."""
        self.pace.begin(now)
        topics = self._next or sorted(self._wanted)
        self._next = topics[self._at_a_time :]
        return MetadataRequest(topics[: self._at_a_time])

    def fail(self, now: float) -> None:
        """The request was not answered, or there was no broker to send it to."""
        self.pace.fail(now)
        self._next = []

    def ask_for_less(self, now: float) -> bool:
        """The answer would have been too large. False if the request named one topic."""
        self.pace.again(now)
        self._next = []
        can_be_less = self._at_a_time > 1
        self._at_a_time = max(1, min(self._at_a_time, len(self._wanted)) // 2)
        return can_be_less

    def update(self, response: MetadataResponse, now: float) -> None:
        """Take an answer in."""
        self.answers += 1
        self.pace.answered(now)
        brokers = {
            broker.broker_id: broker.listeners[self._listener]
            for broker in response.brokers
            if self._listener in broker.listeners
        }
        # A broker that has just lost ZooKeeper may name no brokers; the known ones stay then.
        if brokers:
            self._racks = {broker.broker_id: broker.rack for broker in response.brokers}
        if brokers and brokers != self._brokers:
            self._brokers = brokers
            self.version += 1
        for topic in response.topics:
            self._update_topic(topic, now)
        if self._next:
            self.pace.is_expired = True
            self.pace.again(now)
            return
        self._stale_leaders = {
            partition: (epoch, until)
            for partition, (epoch, until) in self._stale_leaders.items()
            if now < until and self._epoch(partition) == epoch
        }
        helped = self._is_complete() and not self._stale_leaders
        self.pace.judge(helped=helped, exists=self._topics.keys() >= self._wanted)

    def refused(
        self, partition: TopicPartition, address: str, leader: BrokerInfo | None, now: float
    ) -> None:
        """The broker at `address` does not lead this partition, or not for long; it may name the leader.

        Its word counts only if it is the known leader: metadata of a newer epoch may be better.
        """
        self.expire()
        known = self._topics.get(partition.topic)
        if known is None or partition.partition >= len(known.leaders):
            return
        former = known.leaders[partition.partition]
        if self._brokers.get(former.broker_id) != address:
            return
        self._stale_leaders[partition] = former.epoch, now + STALE_FOR
        named = None if leader is None else leader.listeners.get(self._listener)
        if leader is not None and named is not None and named != address:
            self._brokers[leader.broker_id] = named
            known.leaders[partition.partition] = former._replace(broker_id=leader.broker_id)
            self.version += 1

    def _epoch(self, partition: TopicPartition) -> int | None:
        known = self._topics.get(partition.topic)
        leaders = () if known is None else known.leaders[partition.partition :]
        return leaders[0].epoch if leaders else None

    def _update_topic(self, topic: TopicMetadata, now: float) -> None:
        if topic.topic not in self._wanted:
            return
        numbers = [partition.partition for partition in topic.partitions]
        former = self._topics.get(topic.topic)
        if topic.error == UnknownTopicOrPartition.code:
            self.version += topic.topic not in self._missing
            self._missing[topic.topic] = self._missing.get(topic.topic, (now, now))[0], now
            self._topics.pop(topic.topic, None)
        elif topic.error == 0 and numbers and sorted(numbers) == list(range(len(numbers))):
            self._missing.pop(topic.topic, None)
            leaders = {
                partition.partition: _Leader(
                    partition.leader, partition.leader_epoch, partition.isr, partition.replicas
                )
                for partition in topic.partitions
            }
            if former is not None and former.topic_id == topic.topic_id:
                for number, leader in enumerate(former.leaders):
                    if number in leaders and leaders[number].epoch < leader.epoch:
                        leaders[number] = leader
            known = _Topic(topic.topic_id, [leaders[number] for number in range(len(numbers))])
            if known != former:
                self.version += 1
            self._topics[topic.topic] = known

    def _is_complete(self) -> bool:
        return all(
            topic in self._topics
            and all(
                leader.broker_id in self._brokers and self._racks.keys() >= {*leader.isr}
                for leader in self._topics[topic].leaders
            )
            for topic in self._wanted
        )
