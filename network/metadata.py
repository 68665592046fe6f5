"""What a client knows of the cluster: which brokers there are and who leads what. No I/O, no clock."""

import math
from typing import Final, NamedTuple

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
FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 1.0


class _Leader(NamedTuple):
    broker_id: int
    epoch: int


class _Topic(NamedTuple):
    topic_id: str
    leaders: list[_Leader]


class Metadata:
    """A cache that knows when it is to be filled again.

    It holds the topics that somebody wants, and is *due* when it is older than `max_age`, when it
    was told that it must be wrong (`expire`) or asked for a partition that it does not know, and as
    long as a wanted topic or the leader of one of its partitions is not known. Between two requests
    lies a pause that grows while answers do not help; while one is under way nothing is due.

    Wanted topics are asked for and no others: `at_a_time` in one request, half as many from then on
    when an answer would have been too large, and the rest as soon as the answer is there.

    An answer may come from a broker that knows less than another: a leader of an older epoch never
    replaces one of a newer epoch of the same topic id. A hint (the leader that a broker names when
    it is not the leader itself) counts at once, until the next answer.

    One thread may call.
    """

    def __init__(self, listener: str = "client", max_age: float = MAX_AGE) -> None:
        self._listener = listener
        self._max_age = max_age
        self._brokers: dict[int, str] = {}
        self._topics: dict[str, _Topic] = {}
        self._missing: set[str] = set()
        self._wanted: set[str] = set()
        self._rest: list[str] = []
        self._at_a_time = MAX_ENTRIES
        self._expired = False
        self._asked = False
        self._answered_at = -math.inf
        self._not_before = -math.inf
        self._unhelpful = 0

    # -- what is known ------------------------------------------------------------------------------

    def addresses(self) -> list[str]:
        """Where brokers listen."""
        return list(self._brokers.values())

    def leader_address(self, partition: TopicPartition) -> str | None:
        """Where the leader listens; None if nobody leads now or it is not known yet."""
        leader = self._leader(partition)
        return None if leader is None else self._brokers.get(leader.broker_id)

    def leader_epoch(self, partition: TopicPartition) -> int:
        """The epoch of the leader known, or -1."""
        leader = self._leader(partition)
        return -1 if leader is None else leader.epoch

    def topic_id(self, topic: str) -> str | None:
        self.want(topic)
        known = self._topics.get(topic)
        return None if known is None else known.topic_id

    def partitions(self, topic: str) -> range:
        """The partitions of a topic, none as long as it is not known."""
        self.want(topic)
        known = self._topics.get(topic)
        return range(0) if known is None else range(len(known.leaders))

    def is_missing(self, topic: str) -> bool:
        """Whether a broker has said, most recently, that the topic does not exist."""
        return topic in self._missing

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
            self._not_before = -math.inf  # what others miss is no reason for this one to wait

    def forget(self, topic: str) -> None:
        """Nobody needs this topic any more."""
        self._wanted.discard(topic)
        self._topics.pop(topic, None)
        self._missing.discard(topic)

    def expire(self) -> None:
        """Something that is known has proven wrong, or a broker is gone: ask again soon."""
        self._expired = True

    def due(self) -> float:
        """When to ask next."""
        if self._asked:
            return math.inf
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
        self._answered_at = now
        brokers = {
            broker.broker_id: broker.listeners[self._listener]
            for broker in response.brokers
            if self._listener in broker.listeners
        }
        # A broker that has just lost ZooKeeper may know of nobody; then what was known is better.
        self._brokers = brokers or self._brokers
        for topic in response.topics:
            self._take(topic)
        if self._rest:
            self._not_before = now
            return
        self._expired = not self._is_complete()
        self._unhelpful = self._unhelpful + 1 if self._expired else 0

    def hint(self, partition: TopicPartition, broker: BrokerInfo) -> None:
        """A broker said that another one leads this partition."""
        known = self._topics.get(partition.topic)
        address = broker.listeners.get(self._listener)
        if known is None or address is None or partition.partition >= len(known.leaders):
            return
        self._brokers[broker.broker_id] = address
        epoch = known.leaders[partition.partition].epoch
        known.leaders[partition.partition] = _Leader(broker.broker_id, epoch)

    def _take(self, topic: TopicMetadata) -> None:
        if topic.topic not in self._wanted:
            return
        numbers = [partition.partition for partition in topic.partitions]
        if topic.error == UnknownTopicOrPartition.code:
            self._missing.add(topic.topic)
            self._topics.pop(topic.topic, None)
        elif topic.error == 0 and numbers and sorted(numbers) == list(range(len(numbers))):
            self._missing.discard(topic.topic)
            leaders = {p.partition: _Leader(p.leader, p.leader_epoch) for p in topic.partitions}
            former = self._topics.get(topic.topic)
            if former is not None and former.topic_id == topic.topic_id:
                for number, leader in enumerate(former.leaders):
                    if number in leaders and leaders[number].epoch < leader.epoch:
                        leaders[number] = leader
            ordered = [leaders[number] for number in range(len(numbers))]
            self._topics[topic.topic] = _Topic(topic.topic_id, ordered)

    def _is_complete(self) -> bool:
        return all(
            topic in self._topics
            and all(leader.broker_id in self._brokers for leader in self._topics[topic].leaders)
            for topic in self._wanted
        )

    def _pause(self, now: float) -> None:
        growth: float = 2 ** min(self._unhelpful, 10)
        self._not_before = now + min(LONGEST_PAUSE, FIRST_PAUSE * growth)
