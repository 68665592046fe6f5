"""Joins a group for a query: the one place where the parts of a QueryMember are put together."""

from folkmoot.consumers.client.rebalance_listener import settings_of
from folkmoot.consumers.config import ConsumerConfig
from folkmoot.consumers.group.group_thread import Member
from folkmoot.coordination.connector import connector
from folkmoot.coordination.discovery import ZooKeeperDiscovery
from folkmoot.coordination.groups import membership, planning
from folkmoot.coordination.wakeup import Wakeup
from folkmoot.coordination.zookeeper.operations import ZooKeeperError
from folkmoot.protocol.errors import ZooKeeperUnreachable
from folkmoot.spark_apps.offsets.log_watch import LogWatch
from folkmoot.spark_apps.options.config import StreamConfig
from folkmoot.spark_apps.stream.group_member import AssignedMember, GroupPlan
from folkmoot.spark_apps.stream.query_member import QueryMember

SESSION_TIMEOUT = 6.0


def query_member(config: StreamConfig, reader_schema: int = 0) -> QueryMember:
    """Return a member that has yet to `start`. Order: the wakeup; those who wake; those who wait."""
    wakeup = Wakeup()
    if config.assign:
        connect = connector(config.zookeeper)
        finder = ZooKeeperDiscovery(connect, SESSION_TIMEOUT, config.listener)
        logs = LogWatch(config, finder)
        assigned_member = AssignedMember(config, logs, finder)
        return QueryMember(
            config, assigned_member, logs, assigned_member.read_plan, wakeup, reader_schema
        )
    options = ConsumerConfig[bytes, bytes](
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
    member = Member(settings_of(options), connector(config.zookeeper, guarded=True), wakeup.wake)
    session = _Session(member, config)
    logs = LogWatch(config, session)
    return QueryMember(config, member, logs, session.read_plan, wakeup, reader_schema)


class _Session(ZooKeeperDiscovery):
    """Reads in the member's ZooKeeper session, never for long."""

    def __init__(self, member: Member, config: StreamConfig) -> None:
        super().__init__(lambda _: member.sessions.current, 0.0, config.listener)
        self._member = member
        self._config = config

    def read_plan(self) -> GroupPlan | None:
        """Return what the plan gives to this member, None while that is not known."""
        try:
            plan = self.ask(planning.get(self._config.group)).plan
        except (ZooKeeperError, ZooKeeperUnreachable):
            return None
        name = membership.assignee(self._member.name or "")
        if name not in plan.members:
            return None
        return GroupPlan(frozenset(plan.partitions_of(name)), plan.topics)
