"""Where partitions begin and end, asked of their leaders; short of patience, since an engine waits."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from folkmoot.network.client import Connections, Reply
from folkmoot.network.cluster import Cluster
from folkmoot.network.leaderless import Waiting, said_of
from folkmoot.protocol.errors import (
    BrokerUnreachable,
    RetriableError,
    UnknownTopicOrPartition,
    from_wire,
)
from folkmoot.protocol.messages import (
    LATEST,
    MAX_ENTRIES,
    Api,
    ListOffsetsEntry,
    ListOffsetsRequest,
)
from folkmoot.protocol.process.thread_log import thread_log
from folkmoot.protocol.records import TopicPartition

ANSWER_WAIT = 2.0
TRIES = 3
PAUSE = 0.1

log = thread_log(__name__)


class _Asked(NamedTuple):
    """A request under way: what it looks up, of which partitions with their topics' ids, for whom."""

    address: str
    place: int
    partitions: Mapping[TopicPartition, str]
    found: dict[TopicPartition, int]


def no_answer(partitions: Iterable[TopicPartition]) -> str:
    """What is said of partitions whose leaders are silent."""
    return f"no leader answers for {', '.join(map(str, sorted(partitions)))}"


def why_silent(partitions: Collection[TopicPartition], leaderless: Waiting) -> str:
    """What is said of partitions of which nothing was told, of all that nobody leads."""
    awaited = {each: at for each, at in leaderless.items() if each in partitions}
    return said_of(awaited) if awaited else no_answer(partitions)


class Lookups:
    """Asks for offsets, and knows the brokers; owned by the thread that the engine calls.

    An end once seen stands in for one that is not answered in time: a log's end never goes back, so
    an old one merely makes a shorter batch. A broker that owes an answer is not asked again, and a
    partition without a leader is not waited for.
    """

    def __init__(
        self, client_id: str, listener: str, discover: Callable[[], Sequence[str] | None]
    ) -> None:
        self._discover = discover
        self._found: frozenset[str] = frozenset()
        self._cluster = Cluster(Connections(client_id), self._discovered, listener=listener)
        self._asked: dict[int, _Asked] = {}
        self._ends: dict[tuple[TopicPartition, str], int] = {}

    def ends(
        self, wanted: Mapping[TopicPartition, str], wait: float = ANSWER_WAIT
    ) -> dict[TopicPartition, int]:
        """The ends of partitions, given with their topics' ids, as far as they are known."""
        for partition, end in self.find(wanted, LATEST, wait).items():
            self._ends[partition, wanted[partition]] = end
        return {
            partition: self._ends[partition, topic_id]
            for partition, topic_id in wanted.items()
            if (partition, topic_id) in self._ends
        }

    def find(
        self,
        wanted: Mapping[TopicPartition, str],
        place: int,
        wait: float = ANSWER_WAIT,
    ) -> dict[TopicPartition, int]:
        """The offsets at `place` (EARLIEST or LATEST), as far as they are answered in time."""
        found: dict[TopicPartition, int] = {}
        deadline = time.monotonic() + wait
        for _ in range(TRIES):
            missing = {each: wanted[each] for each in wanted if each not in found}
            self._await_topics({each.topic for each in missing}, deadline)
            sent = self._ask(missing, place, found)
            if not sent:
                break
            while sent & self._asked.keys() and (left := deadline - time.monotonic()) > 0:
                self._poll(left)
        return found

    def leader_address(self, partition: TopicPartition) -> str | None:
        return self._cluster.leader_address(partition)

    def partitions(self, topic: str, wait: float) -> range:
        """The topic's partitions. Raises UnknownTopicOrPartition, or why nobody told."""
        self._await_topics((topic,), time.monotonic() + wait)
        if self._cluster.is_missing(topic):
            raise UnknownTopicOrPartition(f"topic {topic} does not exist")
        if not self._cluster.partitions(topic):
            raise self._cluster.trouble or BrokerUnreachable(f"no broker told about topic {topic}")
        return self._cluster.partitions(topic)

    def topic_id(self, topic: str) -> str:
        """The topic's id, once `partitions` has found it."""
        return self._cluster.topic_id(topic) or ""

    def why_silent(self, partitions: Collection[TopicPartition]) -> str:
        """What is said of partitions of which nothing was told."""
        return why_silent(partitions, self._cluster.leaderless)

    def brokers(self) -> frozenset[str]:
        """Addresses that executors can ask. Raises why none is known."""
        while not self._found:
            found = self._discovered()
            if found is not None and not found:
                raise BrokerUnreachable("no broker is registered: is one running?")
        return self._found

    def close(self) -> None:
        self._cluster.close()

    # -- inside -----------------------------------------------------------------------------------

    def _discovered(self) -> Sequence[str] | None:
        found = self._discover()
        self._found = self._found if found is None else frozenset(found)
        return found

    def _await_topics(self, topics: Iterable[str], deadline: float) -> None:
        """Learn of topics that are not known yet."""
        for topic in topics:
            self._cluster.want(topic)
            while not self._cluster.partitions(topic) and not self._cluster.is_missing(topic):
                left = deadline - time.monotonic()
                if left <= 0:
                    return
                self._poll(left)

    def _ask(
        self, wanted: Mapping[TopicPartition, str], place: int, found: dict[TopicPartition, int]
    ) -> set[int]:
        """Ask each leader that owes no answer of the kind, MAX_ENTRIES partitions to a request."""
        by_leader: dict[str, dict[TopicPartition, str]] = {}
        for partition, topic_id in wanted.items():
            address = self._cluster.leader_address(partition)
            if address is not None:
                by_leader.setdefault(address, {})[partition] = topic_id
        owing = {(asked.address, asked.place) for asked in self._asked.values()}
        sent = set()
        for address, partitions in by_leader.items():
            if (address, place) in owing:
                continue
            left = iter(partitions.items())
            while some := dict(islice(left, MAX_ENTRIES)):
                entries = [
                    ListOffsetsEntry(topic, topic_id, number, place)
                    for (topic, number), topic_id in some.items()
                ]
                request = ListOffsetsRequest(entries)
                number = self._cluster.send(address, Api.LIST_OFFSETS, request)
                self._asked[number] = _Asked(address, place, some, found)
                sent.add(number)
        self._poll(0.0)  # keeps metadata coming when there is nobody to ask, too
        return sent

    def _poll(self, timeout: float) -> None:
        for reply in self._cluster.poll(timeout):
            self._take(reply)

    def _take(self, reply: Reply) -> None:
        asked = self._asked.pop(reply.correlation_id, None)
        if asked is None or reply.error is not None:
            if reply.error is not None:
                log.info("no offsets from %s: %s", reply.address, reply.error)
            return
        for result, partition in zip(reply.response.results, asked.partitions, strict=True):
            if result.error:
                error = from_wire(result.error, result.message)
                if not isinstance(error, RetriableError):
                    raise error
                log.info("no offset of %s: %s", partition, error)
            else:
                asked.found[partition] = result.offset
