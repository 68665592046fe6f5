"""What a client knows of brokers and topics, and when to ask again."""

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
DOUBT: Final = 2.0
"""So long a leader that says it is none is not believed in; then nobody has replaced it."""


class _Leader(NamedTuple):
    broker_id: int
    epoch: int
    isr: Sequence[int]
    replicas: Sequence[int]


class _Topic(NamedTuple):
    topic_id: str
    leaders: list[_Leader]


class Metadata:
    """What is known of brokers and topics, and when to ask again. No I/O, no clock.

    It holds the topics that somebody wants, and is *due* when it is older than `max_age`, when it
    was told that it must be wrong (`expire`) or asked for a partition that it does not know, and as
    long as a wanted topic, or the leader or an in-sync replica of one of its partitions, is not known (who
    registers a moment later may lead next), or the leader known has just said that it is none. Between
    two requests lies a pause that grows while answers do not help; while one is under way nothing is due.

    Wanted topics are asked for and no others: `at_a_time` in one request, half as many from then on
    when an answer would have been too large, and the rest as soon as the answer is there.

    An answer may come from a broker that knows less than another: a leader of an older epoch never
    replaces one of a newer epoch of the same topic id. A hint (the leader that a broker names when
    it is not the leader itself) counts at once, until the next answer, as long as nothing newer is known.

    `version` grows whenever what is known of brokers or topics changes, and only then: what was made
    of it is right as long as it is the same. One thread may call.
    """

    def __init__(self, listener: str = "client", max_age: float = MAX_AGE) -> None:
        self._listener = listener
        self._max_age = max_age
        self._brokers: dict[int, str] = {}
        self._racks: dict[int, str] = {}
        self._topics: dict[str, _Topic] = {}
        self._missing: dict[
            str, tuple[float, float]
        ] = {}  # since when that was said, and said last
        self._wanted: set[str] = set()
        self._rest: list[str] = []
        self._at_a_time = MAX_ENTRIES
        self._expired = False
        self._asked = False
        self._answered_at = -inf
        self._not_before = -inf
        self._unhelpful = 0.0
        self._doubted: dict[TopicPartition, tuple[_Leader, float]] = {}
        self.version = 0
        self.answers = 0
        """How many there were."""

    # -- what is known ------------------------------------------------------------------------------

    def addresses(self) -> list[str]:
        """Where brokers listen."""
        return list(self._brokers.values())

    def leader_address(self, partition: TopicPartition) -> str | None:
        """Where the leader listens; None if nobody leads now or it is not known yet."""
        leader = self._leader(partition)
        return None if leader is None else self._brokers.get(leader.broker_id)

    def nearest_address(self, partition: TopicPartition, rack: str) -> str | None:
        """Where an in-sync replica of that rack listens, else the leader, as `leader_address`."""
        leader = self._leader(partition)
        if leader is None or leader.broker_id not in self._brokers:
            return None
        near = [
            each for each in leader.isr if each in self._brokers and self._racks.get(each) == rack
        ]
        if not near or leader.broker_id in near:
            return self._brokers[leader.broker_id]
        return self._brokers[near[partition.partition % len(near)]]

    def leaderless(self) -> Waiting:
        """The partitions of wanted topics that nobody leads, as far as is known."""
        return {
            TopicPartition(name, number): tuple(leader.isr or leader.replicas)
            for name, topic in self._topics.items()
            for number, leader in enumerate(topic.leaders)
            if leader.broker_id not in self._brokers
        }

    def leader_epoch(self, partition: TopicPartition) -> int:
        """The epoch of the leader known, or -1."""
        leader = self._leader(partition)
        return -1 if leader is None else leader.epoch

    def is_replicated(self, partition: TopicPartition) -> bool:
        """Whether it has several replicas; which of them are in sync may have changed since."""
        leader = self._leader(partition)
        return leader is not None and len(leader.replicas) > 1

    def topic_id(self, topic: str) -> str | None:
        self.want(topic)
        known = self._topics.get(topic)
        return None if known is None else known.topic_id

    def partitions(self, topic: str) -> range:
        """The partitions of a topic, none as long as it is not known."""
        self.want(topic)
        known = self._topics.get(topic)
        return range(0) if known is None else range(len(known.leaders))

    def has_moved(self, address: str, request: Any) -> bool:
        """Whether others lead what a request to that broker is about, in a newer epoch than it knew."""
        for entry in getattr(request, "entries", ()):
            known = self._topics.get(entry.topic)
            if known is not None and entry.partition < len(known.leaders):
                leader = known.leaders[entry.partition]
                where = self._brokers.get(leader.broker_id, address)
                if where != address and leader.epoch > getattr(entry, "leader_epoch", -1):
                    return True
        return False

    def is_missing(self, topic: str) -> bool:
        """Whether a broker has said, most recently, that the topic does not exist."""
        return topic in self._missing

    def gone(self, patience: float) -> list[str]:
        """Wanted topics that all answers of at least `patience` seconds have called missing."""
        return [each for each, (first, last) in self._missing.items() if last - first >= patience]

    def _leader(self, partition: TopicPartition) -> _Leader | None:
        self.want(partition.topic)
        known = self._topics.get(partition.topic)
        if known is None:
            return None
        if not 0 <= partition.partition < len(known.leaders):
            self.expire()  # whoever asks for it has heard that it was added
            return None
        return known.leaders[partition.partition]

    # -- what is wanted -----------------------------------------------------------------------------

    def want(self, topic: str) -> None:
        """Keep this topic known from now on. Every look-up wants its topic."""
        if topic not in self._wanted:
            self._wanted.add(topic)
            if self._rest:
                self._rest.append(topic)
            self._expired = True
            self._not_before = -inf  # what others miss is no reason for this one to wait

    def forget(self, topic: str) -> None:
        """Nobody needs this topic any more."""
        self._wanted.discard(topic)
        self._topics.pop(topic, None)
        self._missing.pop(topic, None)

    def expire(self) -> None:
        """Something that is known has proven wrong, or a broker is gone: ask again soon."""
        self._expired = True

    def due(self) -> float:
        """When to ask next."""
        if self._asked:
            return inf
        if self._expired:
            return self._not_before
        return max(self._not_before, self._answered_at + self._max_age)

    # -- what happens -------------------------------------------------------------------------------

    def ask(self, now: float) -> MetadataRequest:
        """The request to send now; then comes `update` or `fail`."""
        self._asked = True
        self._pause(now)
        topics = self._rest or sorted(self._wanted)
        self._rest = topics[self._at_a_time :]
        return MetadataRequest(topics[: self._at_a_time])

    def fail(self, now: float) -> None:
        """The request was not answered, or there was no broker to send it to."""
        self._asked = False
        self._expired = True
        self._rest = []
        self._unhelpful += 1
        self._pause(now)

    def ask_for_less(self, now: float) -> bool:
        """The answer would have been too large. False if it was asked for one topic."""
        self._asked, self._not_before, self._rest = False, now, []
        can_be_less = self._at_a_time > 1
        self._at_a_time = max(1, min(self._at_a_time, len(self._wanted)) // 2)
        return can_be_less

    def update(self, response: MetadataResponse, now: float) -> None:
        """Take an answer in."""
        self._asked = False
        self.answers += 1
        self._answered_at = now
        brokers = {
            broker.broker_id: broker.listeners[self._listener]
            for broker in response.brokers
            if self._listener in broker.listeners
        }
        # A broker that has just lost ZooKeeper may know of nobody; then what was known is better.
        if brokers:
            self._racks = {each.broker_id: each.rack for each in response.brokers}
        if brokers and brokers != self._brokers:
            self._brokers = brokers
            self.version += 1
        for topic in response.topics:
            self._take(topic, now)
        if self._rest:
            self._expired, self._not_before = True, now
            return
        self._expired = not self._is_complete() or self._is_doubted(now)
        # What exists has a leader soon: then the pauses grow by a fifth, else they double.
        exists = self._topics.keys() >= self._wanted
        self._unhelpful += 0.25 if exists else 1.0
        if not self._expired:
            self._unhelpful = 0.0

    def hint(self, partition: TopicPartition, broker: BrokerInfo, said_by: str) -> None:
        """A broker said that another one leads this partition. It knows better only where it was taken
        for the leader itself: what has been learned since, of a newer epoch, may be more."""
        known = self._topics.get(partition.topic)
        address = broker.listeners.get(self._listener)
        if known is None or address is None or partition.partition >= len(known.leaders):
            return
        former = known.leaders[partition.partition]
        if self._brokers.get(former.broker_id) != said_by or address == said_by:
            return
        self._brokers[broker.broker_id] = address
        known.leaders[partition.partition] = former._replace(broker_id=broker.broker_id)
        self.version += 1

    def doubt(self, partition: TopicPartition, said_by: str, now: float) -> None:
        """A broker that was taken for the leader said that it is not, or is about not to be: for a
        while an answer that names it again, in the same epoch, does not help."""
        self._expired = True
        known = self._topics.get(partition.topic)
        if known is not None and partition.partition < len(known.leaders):
            leader = known.leaders[partition.partition]
            if self._brokers.get(leader.broker_id) == said_by:
                self._doubted[partition] = leader, now + DOUBT

    def _is_doubted(self, now: float) -> bool:
        for partition, (leader, until) in list(self._doubted.items()):
            known = self._topics.get(partition.topic)
            leaders = () if known is None else known.leaders[partition.partition :]
            if until <= now or not leaders or leaders[0][:2] != leader[:2]:
                del self._doubted[partition]
        return bool(self._doubted)

    def _take(self, topic: TopicMetadata, now: float) -> None:
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
                each.partition: _Leader(each.leader, each.leader_epoch, each.isr, each.replicas)
                for each in topic.partitions
            }
            if former is not None and former.topic_id == topic.topic_id:
                for number, leader in enumerate(former.leaders):
                    if number in leaders and leaders[number].epoch < leader.epoch:
                        leaders[number] = leader
            known = _Topic(topic.topic_id, [leaders[number] for number in range(len(numbers))])
            self.version += known != former
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

    def _pause(self, now: float) -> None:
        growth: float = 2 ** min(self._unhelpful, 10)
        self._not_before = now + min(LONGEST_PAUSE, FIRST_PAUSE * growth)
