"""The holder of a query's partitions: a member of its group, or its substitute without a group."""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from folkmoot.consumers.group.events import Assigned, Committed, Left, Lost, Notice
from folkmoot.consumers.group.group_thread import Member
from folkmoot.coordination.discovery import ZooKeeperDiscovery
from folkmoot.coordination.groups.plan import TopicBasis
from folkmoot.protocol.errors import ConfigError
from folkmoot.protocol.records import TopicPartition
from folkmoot.spark_apps.offsets.log_watch import BROKER_WAIT, LogWatch
from folkmoot.spark_apps.options.config import StreamConfig


class GroupPlan(NamedTuple):
    """This member's assignment in the group's plan, and the plan's topics."""

    assignment: frozenset[TopicPartition]
    topics: Mapping[str, TopicBasis]


ReadPlan = Callable[[], GroupPlan | None]
"""Reads the plan; None while it does not know the member."""


class AssignedMember:
    """A member without a group: owns the partitions of `assign` from the first call on.

    Only Spark's checkpoint has the committed offsets.
    """

    error: BaseException | None = None
    name: str | None = None
    generation = 0

    def __init__(self, config: StreamConfig, logs: LogWatch, finder: ZooKeeperDiscovery) -> None:
        self.notices: deque[Notice] = deque()
        self._config = config
        self._logs = logs
        self._finder = finder
        self._topics: dict[str, TopicBasis] = {}

    def start(self) -> None:
        """Raises UnknownTopicOrPartition, ConfigError, or why brokers do not answer."""
        for topic in self._config.topics:
            count = len(self._logs.partitions(topic, BROKER_WAIT))
            self._topics[topic] = TopicBasis(self._logs.topic_id(topic), count)
        for each in self._config.assigned:
            basis = self._topics[each.topic]
            if each.partition >= basis.partitions:
                raise ConfigError(
                    f"option 'assign' names {each}: topic {each.topic} has partitions 0 to "
                    f"{basis.partitions - 1}"
                )
            self.notices.append(Assigned(each, basis.topic_id, None, 0))

    def polled(self, now: float) -> None:
        """A topic may have been created anew since the last time."""
        for topic, basis in self._topics.items():
            topic_id = self._logs.topic_id(topic)
            if topic_id not in ("", basis.topic_id):
                self._topics[topic] = TopicBasis(topic_id, basis.partitions)
                for each in self._config.assigned:
                    if each.topic == topic:
                        self.notices.append(Lost(each, "its topic was created anew"))
                        self.notices.append(Assigned(each, topic_id, None, 0))

    def read_plan(self) -> GroupPlan:
        return GroupPlan(frozenset(self._config.assigned), self._topics)

    def commit(self, offsets: Mapping[Any, int], epochs: Mapping[Any, int]) -> None:
        self.notices.append(Committed(0, dict(offsets), frozenset()))

    def drained(self, partition: TopicPartition, epoch: int, offset: int | None) -> None:
        pass

    def begin_to_leave(self) -> None:
        self.notices.append(Left())

    def stop(self, timeout: float) -> None:
        self._finder.close()


GroupMember = Member | AssignedMember
