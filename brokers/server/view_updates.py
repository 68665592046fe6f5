"""Brings this broker's partitions up to date with the cluster, in bounded steps."""

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from folkmoot.brokers.replication.partitions import Partitions
from folkmoot.brokers.server.metadata_cache import ClusterChange, MetadataCache
from folkmoot.brokers.storage.log_manager import LogManager
from folkmoot.coordination.partition_states import TopicIdPartition
from folkmoot.coordination.topics import TopicInfo

logger = logging.getLogger(__name__)

TOPICS_PER_STEP: Final = 50
PARTITIONS_PER_STEP: Final = 500


class ViewUpdates:
    """Takes changes of the cluster over: into the view at once, into the partitions step by step.

    Replicas begin once the broker has registered. By what was read before, an earlier incarnation of
    this broker might still come into an ISR, though this disk has lost what that one had.

    Owner: the event loop.
    """

    def __init__(self, metadata: MetadataCache, logs: LogManager, partitions: Partitions) -> None:
        self._metadata = metadata
        self._logs = logs
        self._partitions = partitions
        self._has_seen_view = False
        self._was_registered = False
        self._pending: OrderedDict[str | TopicIdPartition, int] = OrderedDict()
        """Topics and states that partitions do not know yet, each with the number of unknown outcomes when
        a settled view last showed it, or -1."""
        self._walk: Iterator[int] | None = None

    def show(self, change: ClusterChange, post: Callable[[Callable[[], None]], None]) -> None:
        """Take over a change. The first step runs at once, so that it does not wake a fetch that comes next;
        the following ones are posted."""
        metadata, logs, deleted = self._metadata, self._logs, change.deleted
        changed: list[str | TopicIdPartition]
        if change.full_view is None:
            changed = metadata.view.apply(change)
        else:
            changed = sorted({*metadata.view.topics, *change.full_view.topics})
            metadata.view = change.full_view
        view = metadata.view
        self._partitions.update_brokers(view.registrations, is_registered=change.is_registered)
        if change.is_registered and not self._was_registered:
            self._was_registered = True
            changed = [*sorted(view.topics), *changed]
        for topic_id in logs.scheduled():
            if topic_id not in deleted:  # `folkmoot topic restore` has taken the deletion back
                logs.keep(topic_id)
        for topic_id, deletion in deleted.items():
            logs.delete_later(topic_id, deletion)
            post(partial(self._partitions.drop_topic, topic_id))
        if not self._has_seen_view:
            self._has_seen_view = True
            logs.report_orphans({topic.topic_id for topic in view.topics.values()})
        unknown = self._partitions.counters.unknown_outcomes if change.is_settled else -1
        for key in changed:
            self._pending[key] = max(unknown, self._pending.get(key, -1))
        if self._walk is None:
            self._walk = self._apply_pending()
            self._continue(post)

    def _continue(self, post: Callable[[Callable[[], None]], None]) -> None:
        """Do one step: at most PARTITIONS_PER_STEP partitions, or one topic's slice more."""
        room = PARTITIONS_PER_STEP
        for cost in self._walk or ():
            room -= cost
            if room <= 0:
                post(partial(self._continue, post))
                return
        self._walk = None

    def _apply_pending(self) -> Iterator[int]:
        """Take over all that is pending, as the view is by then → the cost of each part, in partitions."""
        while self._pending:
            changed, settled_at = self._pending.popitem(last=False)
            try:
                if not isinstance(changed, TopicIdPartition):
                    yield from self._apply_topic(changed, settled_at)
                    continue
                found = self._metadata.view.find(changed)
                if found is not None and not self._is_set_back(*found):
                    self._apply_partitions(*found, [changed.partition], settled_at)
            except Exception:
                logger.exception("%s: a change of it was not taken over whole", changed)
            yield 1

    def _apply_topic(self, name: str, settled_at: int) -> Iterator[int]:
        yield PARTITIONS_PER_STEP // TOPICS_PER_STEP
        topic = self._metadata.view.topics.get(name)
        for former in self._logs.ids_of(name) - {"" if topic is None else topic.topic_id}:
            self._lose_topic(former, topic)
        if topic is None or self._is_set_back(name, topic):
            return
        self._logs.configure(name, topic.topic_id, topic.config, topic)
        for first in range(0, len(topic.partitions), PARTITIONS_PER_STEP):
            now = self._metadata.view.topics.get(name)
            if now is None or now.topic_id != topic.topic_id or self._is_set_back(name, now):
                return  # that change is pending too
            numbers = range(first, min(first + PARTITIONS_PER_STEP, len(topic.partitions)))
            self._apply_partitions(name, now, numbers, settled_at)
            yield len(numbers)

    def _apply_partitions(
        self, name: str, topic: TopicInfo, numbers: Sequence[int], settled_at: int
    ) -> None:
        """A settled view counts only if no write since has an unknown outcome: else the next one does."""
        if self._was_registered:
            settled = settled_at == self._partitions.counters.unknown_outcomes
            states = self._metadata.view.states
            self._partitions.update_topic(name, topic, states, numbers=numbers, settled=settled)

    def _is_set_back(self, name: str, topic: TopicInfo) -> bool:
        """True if a topic's node is older than this disk knows it. Then the topic is out of use here: its
        retention, partitions and replicas may have changed since."""
        known, topic_id = self._logs.revision_of(topic.topic_id), topic.topic_id
        if topic.revision >= known:
            self._metadata.out_of_use.discard(topic_id)
            return False
        self._metadata.out_of_use.add(topic_id)
        self._partitions.drop_topic(topic_id)
        if self._logs.lose(topic_id):
            logger.error(
                "topic %s comes back older from ZooKeeper (revision %d) than broker %d knows it (%d): was "
                "ZooKeeper set back? It is out of use here, and all of its files are kept. `folkmoot topic "
                "restore %s` puts it back as the brokers know it",
                *(name, topic.revision, self._metadata.broker_id, known, name),
            )
        return True

    def _lose_topic(self, topic_id: str, now: TopicInfo | None) -> None:
        """ZooKeeper lacks a topic that was not deleted: stop serving it, and keep its files. `now` is a later
        topic of that name."""
        self._partitions.drop_topic(topic_id)
        name, count = self._logs.name_of(topic_id), self._logs.lose(topic_id)
        if count and now is None:
            logger.error(
                "topic %s (id %s) is gone from ZooKeeper, and was not deleted: its %d partitions here are "
                "out of use, and their files are kept. `folkmoot topic restore %s` puts it back",
                *(name, topic_id, count, name),
            )
        elif count and now is not None:
            logger.error(
                "topic %s has the id %s now, and the one with the id %s was not deleted: its %d partitions "
                "here are put aside. `folkmoot log orphans` lists them, `folkmoot topic restore %s --id %s` "
                "puts it back under another name",
                *(name, now.topic_id, topic_id, count, name, topic_id),
            )
