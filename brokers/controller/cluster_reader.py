"""Brokers, topics and states as one ZooKeeper session has read them, with watches on all of them."""

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from folkmoot.coordination import brokers, deletions, partition_states, topics
from folkmoot.coordination.brokers import Registration
from folkmoot.coordination.deletions import Deletion
from folkmoot.coordination.partition_states import TopicIdPartition, VersionedState
from folkmoot.coordination.topics import TopicInfo
from folkmoot.coordination.zookeeper.operations import Recipe
from folkmoot.coordination.zookeeper.recipes import Malformed

logger = logging.getLogger(__name__)

BROKERS: Final = object()
TOPICS: Final = object()
DELETIONS: Final = object()


class StatesOf(NamedTuple):
    """The parent of a topic's states; its children are the partitions that have one."""

    topic_id: str


class ClusterReader:
    """The nodes that were read. Each that exists has a watch, and so have the parents of new ones.

    A watch notes which node to read again, and wakes the owner. The owner calls `listen`, and carries out
    `reads` until there are none, since one read may lead to others. So a node is read once for any number
    of changes, and only if it has changed.

    A partition without a state has no watch of its own: the one on the parent of its topic's states rings
    when its state is created. So a new topic of any size costs one read until its states are written.

    A node that cannot be decoded is `malformed`, and keeps its former content here. `changed` has the names
    of topics and the partitions that are new, were read or are gone since the owner has emptied it, and
    BROKERS and DELETIONS. It is in order, so that a simulated history can be repeated. Deletions are read
    after the topics that are gone. So a topic was lost if it is missing and has no deletion.

    One thread owns it; watches ring on any.
    """

    def __init__(self, wake: Callable[[], None], former: "ClusterReader | None" = None) -> None:
        """`former` has read in the session before; nodes that are malformed now stay as it read them."""
        self.brokers: dict[int, Registration] = {}
        self.topics: dict[str, TopicInfo] = {}
        self.states: dict[TopicIdPartition, VersionedState] = {}
        self.deletions: dict[str, Deletion] = {}
        """The deletions that are not complete yet, by the topic's id."""
        self.malformed: set[object] = set()
        self.changed: dict[object, None] = {}
        self._former_topics: dict[str, TopicInfo] = {} if former is None else former.topics
        self._former_states: dict[TopicIdPartition, VersionedState] = (
            {} if former is None else former.states
        )
        self._wake = wake
        self._fired: deque[object] = deque()
        self._stale: dict[object, None] = {}
        self._partitions: dict[str, int] = {}
        """The number of partitions of each topic, by its id."""
        # One object: a node's watch is not set twice.
        self.on_brokers_changed = partial(self.ring, BROKERS)

    def ring(self, what: object) -> None:
        """Read a node again, and wake the owner. From any thread."""
        self._fired.append(what)
        self._wake()

    def note(self, *what: object) -> None:
        """Read these nodes with the next `reads`."""
        self._stale.update(dict.fromkeys(what))

    def listen(self) -> dict[object, None]:
        """Return all that must be read, with what rang by now."""
        while self._fired:
            self.note(self._fired.popleft())
        return self._stale

    def reads(self) -> list[Recipe[None]]:
        """Return recipes that read all that; they may be carried out side by side."""
        stale, self._stale = self._stale, {}
        return [self._read(each) for each in stale if self._is_there(each)]

    def _is_there(self, what: object) -> bool:
        if isinstance(what, TopicIdPartition):
            return what.partition < self._partitions.get(what.topic_id, 0)
        return not isinstance(what, StatesOf) or what.topic_id in self._partitions

    def _read(self, what: object) -> Recipe[None]:
        try:
            if what is BROKERS:
                self.brokers = yield from brokers.live(self.on_brokers_changed)
            elif what is TOPICS:
                yield from self._read_names()
            elif what is DELETIONS:
                yield from self._read_deletions()
            elif isinstance(what, str):
                topic = yield from topics.read(what, partial(self.ring, what))
                self._update_topic(what, topic)
                if topic is None:
                    # By the time the names are read another topic may have this one: that one is new.
                    self.note(TOPICS)
            elif isinstance(what, TopicIdPartition):
                found = yield from partition_states.read(what, partial(self.ring, what))
                if found is None:
                    self.states.pop(what, None)
                elif self._is_there(what):
                    self.states[what] = found
            elif isinstance(what, StatesOf):
                yield from self._find_new_states(what)
                return
        except Malformed as error:
            logger.error("%s; its former content stays in force", error)
            self.malformed.add(what)
            self._keep_former(what)
        else:
            self.malformed.discard(what)
        self.changed[what] = None

    def _keep_former(self, what: object) -> None:
        topics, states = self._former_topics, self._former_states
        if isinstance(what, str) and what in topics and what not in self.topics:
            self._update_topic(what, topics[what])
        elif isinstance(what, TopicIdPartition) and what in states:
            self.states.setdefault(what, states[what])

    def _read_names(self) -> Recipe[None]:
        names = yield from topics.names(partial(self.ring, TOPICS))
        self.note(DELETIONS)
        known = self.topics.keys() | {each for each in self.malformed if isinstance(each, str)}
        self.note(*(name for name in names if name not in known))
        for name in sorted(known.difference(names)):
            self._update_topic(name, None)
            self.malformed.discard(name)
            self.changed[name] = None

    def _read_deletions(self) -> Recipe[None]:
        found = yield from deletions.topic_ids(partial(self.ring, DELETIONS))
        for topic_id in self.deletions.keys() - found:
            del self.deletions[topic_id]
        for topic_id in found:
            if topic_id not in self.deletions:
                try:
                    deletion = yield from deletions.read(topic_id)
                except Malformed as error:
                    logger.error("%s; its topic is not deleted here", error)
                else:
                    if deletion is not None:
                        self.deletions[topic_id] = deletion

    def _find_new_states(self, what: StatesOf) -> Recipe[None]:
        numbers = yield from partition_states.partitions_of(what.topic_id, partial(self.ring, what))
        there = (TopicIdPartition(what.topic_id, number) for number in numbers)
        self.note(
            *(each for each in there if each not in self.states and each not in self.malformed)
        )

    def _update_topic(self, name: str, topic: TopicInfo | None) -> None:
        before = self.topics.pop(name, None)
        if before is not None and (topic is None or topic.topic_id != before.topic_id):
            self.note(DELETIONS)
        former = dict.fromkeys(_partitions_of(before))
        now = dict.fromkeys(_partitions_of(topic))
        for each in former.keys() - now.keys():
            self.states.pop(each, None)
            self.malformed.discard(each)
        if before is not None:
            self._partitions.pop(before.topic_id, None)
        if topic is not None:
            self.topics[name] = topic
            self._partitions[topic.topic_id] = len(topic.partitions)
            if new := [each for each in now if each not in former]:
                self.note(StatesOf(topic.topic_id))
                self.changed.update(dict.fromkeys(new))


def _partitions_of(topic: TopicInfo | None) -> list[TopicIdPartition]:
    numbers = range(0 if topic is None else len(topic.partitions))
    return [] if topic is None else [TopicIdPartition(topic.topic_id, each) for each in numbers]
