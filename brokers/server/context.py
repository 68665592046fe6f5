"""What the handlers of requests work on, and what they may answer."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any, Final, NamedTuple

from folkmoot.brokers.server.metadata_cache import LEADER_EPOCH, NOBODY, ClusterView
from folkmoot.brokers.server.purgatory import ParkedRequests
from folkmoot.brokers.storage.damage_reports import Suspects
from folkmoot.brokers.storage.deletions import Deletions
from folkmoot.brokers.storage.log import Log
from folkmoot.brokers.storage.log_manager import Logs
from folkmoot.brokers.storage.partition_creation import Newcomers, Submit, at_once
from folkmoot.brokers.storage.timelookups import TimeLookups
from folkmoot.coordination.topics import TopicInfo
from folkmoot.protocol.errors import (
    FolkmootError,
    NotLeader,
    StaleTopicId,
    StorageError,
    UnknownServerError,
)
from folkmoot.protocol.messages import (
    BrokerInfo,
    DeleteRecordsEntry,
    FetchEntry,
    ListOffsetsEntry,
    ProduceEntry,
    ReportDamageEntry,
)
from folkmoot.protocol.records import TopicPartition

logger = logging.getLogger(__name__)

NO_OFFSET: Final = -1
ANY_EPOCH: Final = -1

_EPOCHLESS = (ListOffsetsEntry, ReportDamageEntry)
_Entry = ProduceEntry | FetchEntry | ListOffsetsEntry | DeleteRecordsEntry | ReportDamageEntry


class Answer(NamedTuple):
    """What to send back; payloads travel as they are."""

    response: Any
    payloads: Sequence[bytes | memoryview] = ()


class Asked(NamedTuple):
    """Who waits for the answer, and to what."""

    peer: bytes
    correlation_id: int
    request: Any


class Later:
    """The answer comes by `answer`, which calls `reply` on the reactor's thread."""

    def __init__(self) -> None:
        self.reply: Callable[[Answer], None] | None = None

    def answer(self, answer: Answer) -> None:
        if self.reply is not None:
            self.reply(answer)


class Gathered(Later):
    """The results of a request's entries, some of which come later and in any order."""

    def __init__(self, count: int, response: Callable[[list[Any]], Any]) -> None:
        super().__init__()
        self.results: dict[int, Any] = {}
        self._count = count
        self._response = response

    @property
    def whole(self) -> bool:
        return len(self.results) == self._count

    def so_far(self) -> "Answer | Gathered":
        """The answer, if nothing is wanting."""
        return self._answer() if self.whole else self

    def add(self, results: Mapping[int, Any]) -> None:
        """Results by the numbers of their entries; the last ones are answered with."""
        self.results.update(results)
        if self.whole:
            self.answer(self._answer())

    def _answer(self) -> Answer:
        return Answer(self._response([self.results[each] for each in range(self._count)]))


@dataclass(eq=False, slots=True)
class Context:
    """What handlers work on; all of it belongs to the reactor's thread."""

    broker_id: int
    logs: Logs
    max_batch_bytes: int
    view: ClusterView = field(default_factory=ClusterView)
    parked: ParkedRequests = field(default_factory=ParkedRequests)
    suspects: Suspects = field(default_factory=Suspects)
    newcomers: Newcomers = field(init=False)
    deletions: Deletions = field(default_factory=Deletions)
    times: TimeLookups = field(default_factory=TimeLookups)
    waiting_bytes: int = 0
    """Bytes of batches that wait for the directories of new partitions."""
    submit: InitVar[Submit] = at_once
    """Who makes directories; in tests, the one who asks for them."""
    # Logs of which `_checked` found nothing wrong in a view, since each fetch asks for many.
    _known: dict[tuple[str, int], Log] = field(default_factory=dict, init=False)
    _known_in: ClusterView | None = field(default=None, init=False)

    def __post_init__(self, submit: Submit) -> None:
        self.newcomers = Newcomers(self.logs, submit)

    def written(self, entry: _Entry) -> Log | None:
        """The log that an entry is about, None if there is none yet: nothing was written then.

        Raises what the entry's result shall say.
        """
        if self._known_in is not self.view:
            self._known_in = self.view
            self._known.clear()
        key = entry.topic, entry.partition
        log = self._known.get(key)
        if log is not None and log.topic_id == entry.topic_id and log.is_open:
            epoch = ANY_EPOCH if isinstance(entry, _EPOCHLESS) else entry.leader_epoch
            if epoch in (ANY_EPOCH, LEADER_EPOCH):
                return log
        log = self.logs.find(entry.topic, self._checked(entry), entry.partition)
        if log is not None:
            log.require_open()
            self._known[key] = log
        return log

    def _checked(self, entry: _Entry) -> str:
        """The id of an entry's topic, if this broker leads its partition."""
        topic = self.view.topic(entry.topic, entry.partition)
        if entry.topic_id != topic.topic_id:
            raise StaleTopicId(f"topic {entry.topic} has another id: it was created anew")
        leader = self.view.leader(topic, entry.partition)
        epoch = ANY_EPOCH if isinstance(entry, _EPOCHLESS) else entry.leader_epoch
        if leader != self.broker_id or epoch not in (ANY_EPOCH, LEADER_EPOCH):
            who = "nobody" if leader == NOBODY else f"broker {leader}"
            raise NotLeader(f"{entry.topic}-{entry.partition} is led by {who}")
        return topic.topic_id

    def show(self, view: ClusterView, deleted: frozenset[str]) -> None:
        """Take over a new view; logs of deleted topics go, and who waits for a changed topic wakes."""
        before, self.view = self.view, view
        for name, topic in view.topics.items():
            if before.topics.get(name) != topic:
                self.logs.configure(topic.topic_id, topic.config)
                self.newcomers.look_ahead(name, topic.topic_id, self._mine(topic))
        for name, topic in before.topics.items():
            if view.topics.get(name) != topic:
                self.parked.disturb(
                    TopicPartition(name, number) for number in range(len(topic.partitions))
                )
        for topic_id in deleted:
            self.newcomers.forget(topic_id)
            try:
                self.logs.delete_topic(topic_id)
            except StorageError as error:
                logger.error("logs of a deleted topic are left behind: %s", error)

    def _mine(self, topic: TopicInfo) -> list[int]:
        """The partitions of a topic that this broker leads."""
        leader, me = self.view.leader, self.broker_id
        return [each for each in range(len(topic.partitions)) if leader(topic, each) == me]

    def hint(self, entry: _Entry, error: FolkmootError) -> BrokerInfo | None:
        """Who leads, for those who asked the wrong broker."""
        if not isinstance(error, NotLeader):
            return None
        topic = self.view.topics[entry.topic]
        return self.view.brokers.get(self.view.leader(topic, entry.partition))


def code_of(error: FolkmootError) -> int:
    """What an error is called on the wire."""
    return error.code or UnknownServerError.code
