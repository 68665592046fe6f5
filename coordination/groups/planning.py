"""The plan's node: read, made anew from a snapshot of the group, replaced by compare-and-set.

A plan names its basis, the assignees and topics that it was made for; it is due for replacement when
these are no longer the live ones. Members never obey a plan blindly: owning takes a claim
(ownership.py), which checks the plan's version in the same transaction.

`read_snapshot`, then an assignment in as much time as it takes, then `write`. The plan is read *before*
its basis: whatever changes after that read makes either the basis newer or the write fail.
"""

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from itertools import chain, zip_longest
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
from folkmoot.coordination.zookeeper.recipes import (
    Malformed,
    check_foreseen,
    ensure,
    get_node,
)

TELL_FROM: Final = 100
"""In groups of more members those are told of a plan first whose share it changes."""
MOST_TOLD: Final = 50
"""Unless they are more than this."""


class VersionedPlan(msgspec.Struct, frozen=True):
    """The plan and its node's version, which every claim made under it checks.

    `made` is the transaction (czxid) that made the node: a group that was deleted and made anew comes to
    the same versions again, so that only both together say which plan it is.
    """

    plan: Plan
    version: int
    made: int = 0

    @property
    def identity(self) -> tuple[int, int]:
        """No other plan, of this group or of one before, has the same."""
        return self.made, self.version


class GroupSnapshot(msgspec.Struct, frozen=True):
    """What a plan is made for: live members by assignee, oldest first, and the topics that they want.

    `expired` are assignees that were absent for longer than their rejoin timeout; others that the
    current plan keeps something for are kept. `racks` has the rack of each live broker that names one.
    `names` are those of the members' nodes.
    """

    current: VersionedPlan
    members: Mapping[str, MemberInfo]
    topics: Mapping[str, TopicInfo]
    expired: frozenset[str] = frozenset()
    racks: Mapping[int, str] = {}
    names: frozenset[str] = frozenset()

    @property
    def subscriptions(self) -> dict[str, MemberInfo]:
        """As the plan that is made for it is to have them."""
        return {assignee: info.subscription() for assignee, info in self.members.items()}


def get(
    group: str, watch: WatchCallback | None = None, understands: int = plans.PROTOCOL
) -> Recipe[VersionedPlan]:
    """The current plan: an empty one if none was made yet, with version -1 if there is no group.

    A plan that is none counts as empty, so that the next one heals the group.
    """
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
    """The group as it is now; None if somebody deletes it: look again.

    `known` is the caller's memory of what members published, which never changes: it is brought up to
    date, so that only members are read that neither it nor the plan knows. `expired` counts under the
    plan of the identity `seen` only.
    """
    current = yield from get(group, None, understands)
    if current.version == zk.ANY_VERSION:
        yield from ensure(paths.plan(group))
        return None
    infos: dict[str, MemberInfo] = {}
    for assignee, name in membership.assignees((yield from membership.names(group))).items():
        # Who is dynamic is the member that the plan knows; behind an instance id may be another one.
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
    """Replace the plan that the snapshot was made under; True if it was written, TooLarge if it cannot be.

    The transaction checks that `planner` is still a member: the versions of a group that was deleted
    and made anew meet again, and whoever was in the old one must not plan for the new one. It also
    notes what has changed (history.py), which keeps no plan from being written.
    """
    # A thousand first claims would otherwise each find that these are missing.
    yield from make_room(group, plan.topics.keys() - snapshot.current.plan.topics.keys())
    is_member = zk.Check(paths.member(group, planner))
    replaced = zk.Set(paths.plan(group), plans.encode(plan), snapshot.current.version)
    noted = yield from history.notes(
        group, planner, snapshot.current.plan, plan, snapshot.members, snapshot.names
    )
    told = yield from _tell(group, planner, snapshot, plan)
    for ahead, behind in ((told, noted), ([], noted), ([], [])):
        try:
            yield zk.Multi((is_member, *ahead, replaced, *behind))
            return True
        except zk.TooLarge as refusal:
            if not behind:
                return refusal
        except (zk.MultiFailed, zk.ConnectionLost) as refusal:
            needed = 0, 1 + len(ahead)
            if isinstance(refusal, zk.MultiFailed) and refusal.failed not in needed:
                continue
            check_foreseen(refusal)
            return False  # another plan won, or nobody knows: everyone reads what is there now
    return False


def _tell(group: str, planner: str, snapshot: GroupSnapshot, plan: Plan) -> Recipe[list[zk.Write]]:
    """Writes that change nothing, and ring for the members whose share the plan changes.

    Of a large group all others read the plan a little later (member_state.py), so that these need not wait.
    """
    if len(plan.members) <= TELL_FROM:
        return []
    before = snapshot.current.plan.assignment
    concerned: set[str | None] = set()
    for topic in before.keys() | plan.assignment.keys():
        pairs = zip_longest(before.get(topic, ()), plan.assignment.get(topic, ()))
        concerned.update(chain.from_iterable(pair for pair in pairs if pair[0] != pair[1]))
    names = {membership.assignee(name): name for name in snapshot.names}
    told = sorted({names[each] for each in concerned if each in names} - {planner})
    writes: list[zk.Write] = []
    for name in told if len(told) <= MOST_TOLD else ():
        path = paths.member(group, name)
        node = yield from get_node(path)
        if node is not None:
            writes.append(zk.Set(path, node.data, node.stat.version))
    return writes


def wanted_topics(
    wanting: Collection[MemberInfo], watch: WatchCallback | None = None
) -> Recipe[dict[str, TopicBasis]]:
    """The topics that exist and that one of these wants; `watch` tells when one comes, goes or grows."""
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
    """Where brokers stand, if any member says where it stands itself."""
    if not any(each.rack for each in infos):
        return {}
    live = yield from brokers.live()
    return {number: broker.rack for number, broker in live.items() if broker.rack}
