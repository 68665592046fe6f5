"""The states of all partitions of several replicas, read again when their watches ring."""

import logging
from collections.abc import Callable, Iterable, Mapping

from folkmoot.coordination import partition_states
from folkmoot.coordination.partition_states import TopicIdPartition, VersionedState
from folkmoot.coordination.topics import TopicInfo
from folkmoot.coordination.zookeeper.execute import execute_all
from folkmoot.coordination.zookeeper.operations import Recipe, WatchCallback
from folkmoot.coordination.zookeeper.recipes import Malformed
from folkmoot.coordination.zookeeper.session import Session

logger = logging.getLogger(__name__)


class WatchedStates:
    """What one session has read, with a watch on each state, there or not.

    What rang is read again, side by side. `states` has topic id → partition → state; a mapping in there
    never changes, a topic with a new state gets a new one. Owner: the cluster watcher.
    """

    def __init__(self, ring: Callable[[object], WatchCallback]) -> None:
        """`ring` gives what a watch is to call: it notes the object for `refresh`, and wakes the owner."""
        self._ring = ring
        self._watched: set[TopicIdPartition] = set()
        self.states: dict[str, Mapping[int, VersionedState]] = {}

    def refresh(
        self, session: Session, topics: Iterable[TopicInfo], rang: Iterable[object]
    ) -> set[str]:
        """Read what rang, and what is new → the ids of topics whose states differ. Raises SessionLost."""
        replicated = {
            TopicIdPartition(topic.topic_id, number)
            for topic in topics
            for number in range(len(topic.partitions))
            if topic.is_replicated(number)
        }
        due = sorted(replicated.difference(self._watched) | replicated.intersection(rang))
        self._watched = replicated
        changes: dict[str, dict[int, VersionedState]] = {}
        for topic_id in self.states.keys() - {each.topic_id for each in replicated}:
            del self.states[topic_id]
        found = execute_all(session, map(self._read, due))
        for (topic_id, number), state in zip(due, found, strict=True):
            known = self.states.get(topic_id, {})
            if known.get(number) != state:
                changed = changes.setdefault(topic_id, dict(known))
                if state is None:
                    del changed[number]
                else:
                    changed[number] = state
        self.states.update(changes)
        return set(changes)

    def _read(self, partition: TopicIdPartition) -> Recipe[VersionedState | None]:
        try:
            return (yield from partition_states.read(partition, self._ring(partition)))
        except Malformed as error:
            logger.warning("%s; what was known of it stays", error)
            return self.states.get(partition.topic_id, {}).get(partition.partition)
