"""Joins a group for a query: the one place where the parts of a `Share` are put together."""

from collections import deque
from collections.abc import Mapping
from typing import Any

from folkmoot.consumers.client.rebalance_listener import settings_of
from folkmoot.consumers.config import ConsumerConfig
from folkmoot.consumers.group.events import Assigned, Committed, Left, Lost, Notice
from folkmoot.consumers.group.group_thread import Member
from folkmoot.coordination.connector import connector
from folkmoot.coordination.discovery import ZooKeeperDiscovery
from folkmoot.coordination.groups import membership, planning
from folkmoot.coordination.groups.plan import TopicBasis
from folkmoot.coordination.wakeup import Wakeup
from folkmoot.coordination.zookeeper.operations import ZooKeeperError
from folkmoot.protocol.errors import ConfigError, ZooKeeperUnreachable
from folkmoot.protocol.records import TopicPartition
from folkmoot.spark_apps.config import StreamConfig
from folkmoot.spark_apps.log_watch import LogWatch
from folkmoot.spark_apps.share import BROKER_WAIT, GroupPlan, Share

SESSION_TIMEOUT = 6.0


def prepared(config: StreamConfig, reader_schema: int = 0) -> Share:
    """A share that has yet to `start`. Order: the wakeup; who wakes; who waits."""
    wakeup = Wakeup()
    if config.assign:
        connect = connector(config.zookeeper)
        finder = ZooKeeperDiscovery(connect, SESSION_TIMEOUT, config.listener)
        logs = LogWatch(config, finder)
        alone = Alone(config, logs, finder)
        return Share(config, alone, logs, alone.planned, wakeup, reader_schema)
    told = ConsumerConfig[bytes, bytes](
        zookeeper=config.zookeeper,
        group=config.group,
        topics=config.topics,
        pattern=config.subscribePattern,
        client_id=config.clientId,
        instance_id=config.instanceId or None,
        rejoin_timeout=config.rejoinTimeout,
        assignors=(config.assignor,),
        revoke_timeout=config.revokeTimeout,
        max_processing_time=config.maxProcessingTime,
    )
    member = Member(settings_of(told), connector(config.zookeeper, guarded=True), wakeup.wake)
    session = _Session(member, config)
    logs = LogWatch(config, session)
    return Share(config, member, logs, session.planned, wakeup, reader_schema)


class _Session(ZooKeeperDiscovery):
    """Reads in the member's ZooKeeper session, never for long."""

    def __init__(self, member: Member, config: StreamConfig) -> None:
        super().__init__(lambda _: member.session, 0.0, config.listener)
        self._member = member
        self._config = config

    def planned(self) -> GroupPlan | None:
        """What the plan gives to this member, None while that cannot be told."""
        try:
            plan = self.ask(planning.get(self._config.group)).plan
        except (ZooKeeperError, ZooKeeperUnreachable):
            return None
        name = membership.assignee(self._member.name or "")
        if name not in plan.members:
            return None
        return GroupPlan(frozenset(plan.share(name)), plan.topics)


class Alone:
    """In the place of a member, without a group: the partitions of `assign` are ours, from the first call
    on, and what is committed is in Spark's checkpoint alone."""

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
        """Raises UnknownTopicOrPartition, ConfigError, or why brokers tell nothing."""
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

    def planned(self) -> GroupPlan:
        return GroupPlan(frozenset(self._config.assigned), self._topics)

    def commit(self, offsets: Mapping[Any, int], epochs: Mapping[Any, int]) -> None:
        self.notices.append(Committed(0, dict(offsets), frozenset()))

    def drained(self, partition: TopicPartition, epoch: int, offset: int | None) -> None:
        pass

    def begin_to_leave(self) -> None:
        self.notices.append(Left())

    def stop(self, timeout: float) -> None:
        self._finder.close()
