"""Joins a group for a query: the one place where the parts of a `Share` are put together."""

import os

from folkmoot.consumers.group.group_thread import Member
from folkmoot.consumers.group.member_state import MemberSettings
from folkmoot.consumers.offsets.log_ends import Lookups
from folkmoot.coordination.connector import connector
from folkmoot.coordination.discovery import ZooKeeperDiscovery
from folkmoot.coordination.groups import planning
from folkmoot.coordination.wakeup import Wakeup
from folkmoot.coordination.zookeeper.operations import ZooKeeperError
from folkmoot.protocol.errors import ZooKeeperUnreachable
from folkmoot.protocol.records import TopicPartition
from folkmoot.spark_apps.config import SourceConfig
from folkmoot.spark_apps.share import Share


def prepared(config: SourceConfig) -> Share:
    """A share that has yet to `start`. Order: the wakeup; who wakes; who waits."""
    wakeup = Wakeup()
    settings = MemberSettings(
        group=config.group,
        topics=config.topics,
        client_id=config.client_id,
        revoke_timeout=config.hand_over,
        pid=os.getpid(),
    )
    member = Member(settings, connector(config.zookeeper, guarded=True), wakeup.wake)
    session = _Session(member, config)
    lookups = Lookups(config.client_id, config.listener, session)
    return Share(config, member, lookups, session.planned, wakeup)


class _Session(ZooKeeperDiscovery):
    """Reads in the member's ZooKeeper session, never for long."""

    def __init__(self, member: Member, config: SourceConfig) -> None:
        super().__init__(lambda _: member.session, 0.0, config.listener)
        self._member = member
        self._group = config.group

    def planned(self) -> frozenset[TopicPartition] | None:
        """What the plan gives to this member, None while that cannot be told."""
        try:
            plan = self.ask(planning.get(self._group)).plan
        except (ZooKeeperError, ZooKeeperUnreachable):
            return None
        name = self._member.name
        return frozenset(plan.share(name)) if name in plan.members else None
