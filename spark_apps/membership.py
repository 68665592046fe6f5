"""Joins a group for a query: the one place where the parts of a `Share` are put together."""

from collections.abc import Sequence
from typing import TypeVar

from folkmoot.consumers.group.group_thread import Member, MemberSettings
from folkmoot.coordination.brokers import live
from folkmoot.coordination.connector import connector
from folkmoot.coordination.groups import planning
from folkmoot.coordination.wakeup import Wakeup
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.operations import Recipe, ZooKeeperError
from folkmoot.coordination.zookeeper.session import SessionState
from folkmoot.network.lookups import Lookups
from folkmoot.protocol.errors import ZooKeeperUnreachable
from folkmoot.protocol.records import TopicPartition
from folkmoot.spark_apps.config import SourceConfig
from folkmoot.spark_apps.share import Share

ANSWER_TIMEOUT = 5.0

_T = TypeVar("_T")


def prepared(config: SourceConfig) -> Share:
    """A share that has yet to `start`. Order: the wakeup; who wakes; who waits."""
    wakeup = Wakeup()
    settings = MemberSettings(
        group=config.group,
        topics=config.topics,
        client_id=config.client_id,
        revoke_timeout=config.hand_over,
    )
    member = Member(settings, connector(config.zookeeper, guarded=True), wakeup.wake)
    session = _Session(member, config)
    lookups = Lookups(config.client_id, config.listener, session.brokers)
    return Share(config, member, lookups, session.planned, wakeup)


class _Session:
    """Reads in the member's ZooKeeper session, never for longer than ANSWER_TIMEOUT."""

    def __init__(self, member: Member, config: SourceConfig) -> None:
        self._member = member
        self._config = config

    def brokers(self) -> Sequence[str]:
        """Addresses of live brokers. Raises ZooKeeperUnreachable."""
        listener = self._config.listener
        found = self._ask(live()).values()
        return [each.listeners[listener] for each in found if listener in each.listeners]

    def planned(self) -> frozenset[TopicPartition] | None:
        """What the plan gives to this member, None while that cannot be told."""
        try:
            plan = self._ask(planning.get(self._config.group)).plan
        except (ZooKeeperError, ZooKeeperUnreachable):
            return None
        name = self._member.name
        return frozenset(plan.share(name)) if name in plan.members else None

    def _ask(self, recipe: Recipe[_T]) -> _T:
        store = self._member.session
        if store is None or store.state is not SessionState.CONNECTED:
            raise ZooKeeperUnreachable("ZooKeeper does not answer at the moment")
        return execute(store, recipe, ANSWER_TIMEOUT)
