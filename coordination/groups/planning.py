"""The plan's node: read it, read what the next plan is made for, replace it by compare-and-set.

A plan names the assignees and topics that it was made for; it is outdated once these are not the live ones.
A plan alone makes no owner: the transaction of a claim (ownership.py) checks the plan's version.

`read_snapshot` reads the plan *before* all else: a later change makes the snapshot newer, or `write` fail.
"""

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Final

import msgspec

from folkmoot.coordination import brokers, paths, topics
from folkmoot.coordination.groups import history, membership
from folkmoot.coordination.groups import plan as plans
from folkmoot.coordination.groups.membership import MemberInfo
from folkmoot.coordination.groups.ownership import make_room
from folkmoot.coordination.groups.plan import Plan, TopicBasis
from folkmoot.coordination.topics import TopicInfo
from folkmoot.coordination.zookeeper import operations as zk
from folkmoot.coordination.zookeeper.operations import Recipe, WatchCallback
from folkmoot.coordination.zookeeper.recipes import Malformed, check_foreseen, ensure, get_node

NOTIFY_FROM: Final = 100
"""In larger groups the members whose assignment a plan changes hear of it first."""
MAX_NOTIFIED: Final = 50
"""Unless more members than this are concerned."""


class VersionedPlan(msgspec.Struct, frozen=True):
    """The plan and its node's version, which every claim made under it checks.

    `created` is the transaction (czxid) that created the node: versions repeat after a group was deleted.
    """

    plan: Plan
    version: int
    created: int = 0

    @property
    def identity(self) -> tuple[int, int]:
        """Unique among all plans of groups with this name."""
        return self.created, self.version


class GroupSnapshot(msgspec.Struct, frozen=True):
    """The basis of a plan: live members by assignee, oldest first, and the topics they subscribe to.

    `expired` are assignees that were absent for longer than their rejoin timeout. `racks` maps live
    brokers to their racks. `names` are the members' nodes.
    """

    current: VersionedPlan
    members: Mapping[str, MemberInfo]
    topics: Mapping[str, TopicInfo]
    expired: frozenset[str] = frozenset()
    racks: Mapping[int, str] = {}
    names: frozenset[str] = frozenset()

    @property
    def subscriptions(self) -> dict[str, MemberInfo]:
        """As a plan for this snapshot publishes them."""
        return {assignee: info.subscription() for assignee, info in self.members.items()}


def get(
    group: str, watch: WatchCallback | None = None, understands: int = plans.PROTOCOL
) -> Recipe[VersionedPlan]:
    """Return the current plan: empty if there is none or it is malformed, version -1 without a group."""
    node = yield from get_node(paths.plan(group), watch)
    if node is None:
        return VersionedPlan(Plan(), zk.ANY_VERSION)
    plan = plans.decode(node.data, understands)
    return VersionedPlan(plan, node.stat.version, node.stat.czxid)


def read_snapshot(
    group: str,
    known: dict[str, MemberInfo],
    expired: Iterable[str] = (),
    seen: tuple[int, int] | None = None,
    understands: int = plans.PROTOCOL,
) -> Recipe[GroupSnapshot | None]:
    """Return the group as it is now; None if its plan was missing: try again.

    `known` caches what members published, which never changes, and is updated: only members that neither
    it nor the plan knows are read. `expired` counts only if the plan still has the identity `seen`.
    """
    current = yield from get(group, None, understands)
    if current.version == zk.ANY_VERSION:
        yield from ensure(paths.plan(group))
        return None
    infos: dict[str, MemberInfo] = {}
    for assignee, name in membership.assignees((yield from membership.names(group))).items():
        # The plan knows static members by instance id only, which another process may have now.
        info = known.get(name) or (
            current.plan.subscriptions.get(name) if name == assignee else None
        )
        if info is None and (member := (yield from membership.read(group, name))) is not None:
            info = member.info
        if info is not None:
            infos[name] = info
    known.clear()
    known.update(infos)
    return GroupSnapshot(
        current,
        {membership.assignee(name): info for name, info in infos.items()},
        (yield from _topics_of({info.subscription() for info in infos.values()})),
        frozenset(expired if current.identity == seen else ()),
        (yield from _racks(infos.values())),
        frozenset(infos),
    )


def write(
    group: str, planner: str, snapshot: GroupSnapshot, plan: Plan
) -> Recipe[bool | zk.TooLarge]:
    """Replace the plan of the snapshot: True if written, False if not or unknown, TooLarge if impossible.

    The transaction checks that `planner` is still a member, since versions repeat after a group was
    deleted. It also adds to the group's history, or does without if that is refused.
    """
    # A thousand first claims would otherwise each find that these are missing.
    yield from make_room(group, plan.topics.keys() - snapshot.current.plan.topics.keys())
    is_member = zk.Check(paths.member(group, planner))
    replaced = zk.Set(paths.plan(group), plans.encode(plan), snapshot.current.version)
    history_writes = yield from history.notes(
        group, planner, snapshot.current.plan, plan, snapshot.members, snapshot.names
    )
    notified = yield from _notify_changed(group, planner, snapshot, plan)
    for extras in ([*notified, *history_writes], history_writes, []):
        try:
            yield zk.Multi((is_member, replaced, *extras))
            return True
        except zk.TooLarge as refusal:
            if not extras:
                return refusal
        except (zk.MultiFailed, zk.ConnectionLost) as refusal:
            if isinstance(refusal, zk.MultiFailed) and refusal.failed > 1:
                continue
            check_foreseen(refusal)
            break
    return False


def _notify_changed(
    group: str, planner: str, snapshot: GroupSnapshot, plan: Plan
) -> Recipe[list[zk.Write]]:
    """Return writes that change nothing, but fire the watches of members whose assignment changes.

    Only in large groups, whose other members read the plan a little later (member_state.py).
    """
    if len(plan.members) <= NOTIFY_FROM:
        return []
    before, after = snapshot.current.plan.owners, plan.owners
    changed = (each for each in before.keys() | after.keys() if before.get(each) != after.get(each))
    concerned = {owner for each in changed for owner in (before.get(each), after.get(each))}
    others = sorted(snapshot.names - {planner})
    notified = [name for name in others if membership.assignee(name) in concerned]
    writes: list[zk.Write] = []
    for name in notified if len(notified) <= MAX_NOTIFIED else ():
        path = paths.member(group, name)
        node = yield from get_node(path)
        if node is not None:
            writes.append(zk.Set(path, node.data, node.stat.version))
    return writes


def wanted_topics(
    wanting: Collection[MemberInfo], watch: WatchCallback | None = None
) -> Recipe[dict[str, TopicBasis]]:
    """Return the existing topics that these members want; `watch` is called when one comes, goes or grows."""
    found = yield from _topics_of(wanting, watch)
    return {
        name: TopicBasis(topic.topic_id, len(topic.partitions)) for name, topic in found.items()
    }


def _topics_of(
    wanting: Collection[MemberInfo], watch: WatchCallback | None = None
) -> Recipe[dict[str, TopicInfo]]:
    found: dict[str, TopicInfo] = {}
    for name in sorted((yield from topics.names(watch))):
        if any(each.wants(name) for each in wanting):
            with suppress(Malformed):
                topic = yield from topics.read(name, watch)
                if topic is not None:
                    found[name] = topic
    return found


def _racks(infos: Iterable[MemberInfo]) -> Recipe[dict[int, str]]:
    """Return the racks of live brokers, if any member has a rack."""
    if not any(each.rack for each in infos):
        return {}
    live = yield from brokers.live()
    return {number: broker.rack for number, broker in live.items() if broker.rack}
