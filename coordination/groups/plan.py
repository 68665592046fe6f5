"""A group's plan: who shall own what. One node, replaced by compare-and-set.

The plan names its basis, the seats (members.py) and topics that it was made for; it is due for
replacement when these are no longer the live ones. Members never obey a plan blindly: owning takes a
claim (ownership.py), which checks the plan's version in the same transaction.

A plan says which kind it is (`protocol`), and no plan is made that a live member does not understand.
Who finds one that it does not understand reads its head only: to it, the plan gives nothing.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from folkmoot.coordination import paths
from folkmoot.coordination.brokers import live
from folkmoot.coordination.groups import membership as members
from folkmoot.coordination.groups import plan_format
from folkmoot.coordination.groups.membership import MemberInfo
from folkmoot.coordination.groups.ownership import check_foreseen
from folkmoot.coordination.groups.plan_format import Plan, Standing, TopicBasis
from folkmoot.coordination.topics import TopicInfo, names, read
from folkmoot.coordination.zookeeper.operations import (
    ANY_VERSION,
    Check,
    ConnectionLost,
    Get,
    Multi,
    MultiFailed,
    Node,
    NoNode,
    Recipe,
    Set,
    TooLarge,
    WatchCallback,
)
from folkmoot.coordination.zookeeper.recipes import Malformed, ensure, retry_on_connection_loss

__all__ = ["Decide", "Facts", "Plan", "Standing", "TopicBasis", "VersionedPlan", "get", "replace"]


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


class Facts(msgspec.Struct, frozen=True):
    """What a plan is made for: live members by seat, oldest first, and the topics that they want.

    `expired` are seats that were empty for longer than their grace; other seats that the current plan
    keeps for somebody are kept. `racks` has the rack of each live broker that names one.
    """

    members: Mapping[str, MemberInfo]
    topics: Mapping[str, TopicInfo]
    expired: frozenset[str] = frozenset()
    racks: Mapping[int, str] = {}


Decide = Callable[[Plan, Facts], Plan | None]
"""The next plan, or None if all is well."""


def get(
    group: str, watch: WatchCallback | None = None, understands: int = plan_format.PROTOCOL
) -> Recipe[VersionedPlan]:
    """The current plan: an empty one if none was made yet, with version -1 if there is no group.

    A plan that is none counts as empty, so that the next one heals the group.
    """
    try:
        node: Node = yield from retry_on_connection_loss(Get(paths.plan(group), watch))
    except NoNode:
        return VersionedPlan(Plan(), ANY_VERSION)
    plan = plan_format.decode(node.data, understands)
    return VersionedPlan(plan, node.stat.version, node.stat.czxid)


def replace(
    group: str,
    planner: str,
    known: dict[str, MemberInfo],
    decide: Decide,
    expired: Iterable[str] = (),
    seen: tuple[int, int] | None = None,
    understands: int = plan_format.PROTOCOL,
) -> Recipe[bool | TooLarge]:
    """Make the next plan if one is due; True if it was written, TooLarge if it cannot be.

    The write checks that `planner` is still a member: the versions of a group that was deleted and made
    anew meet again, and whoever was in the old one must not plan for the new one.

    The plan is read *before* its basis: whatever changes after that read makes either the basis newer
    or the write fail. Dying before the write leaves the group as it was, but for empty nodes that
    claims need, and the next in age plans. `known` is the caller's memory of what members published,
    which never changes: it is brought up to date, so that the next plan reads newcomers only.
    `expired` counts under the plan of the identity `seen` only.
    """
    current = yield from get(group, None, understands)
    if current.version == ANY_VERSION:
        yield from ensure(paths.plan(group))
        return False  # somebody deleted the group under our feet: look again
    infos: dict[str, MemberInfo] = {}
    for name in members.seats((yield from members.names(group))).values():
        found = known.get(name) or (yield from members.info(group, name))
        if found is not None:
            infos[name] = found
    known.clear()
    known.update(infos)
    facts = Facts(
        {members.seat(name): info for name, info in infos.items()},
        (yield from _wanted(infos.values())),
        frozenset(expired if current.identity == seen else ()),
        (yield from _racks(infos.values())),
    )
    plan = decide(current.plan, facts)
    if plan is None:
        return False
    # A thousand first claims would otherwise each find that these are missing.
    for topic in sorted(plan.topics.keys() - current.plan.topics.keys()):
        yield from ensure(paths.offsets(group, topic))
        yield from ensure(paths.owners(group, topic))
    is_member = Check(paths.member(group, planner), ANY_VERSION)
    write = Set(paths.plan(group), plan_format.encode(plan), current.version)
    try:
        yield Multi((is_member, write))
    except TooLarge as refusal:
        return refusal
    except (MultiFailed, ConnectionLost) as refusal:
        check_foreseen(refusal)
        return False  # another plan won, or nobody knows: everyone reads what is there now
    return True


def _wanted(infos: Iterable[MemberInfo]) -> Recipe[dict[str, TopicInfo]]:
    """The topics that exist and that some member wants."""
    wishes: dict[Any, MemberInfo] = {(each.topics, each.pattern): each for each in infos}
    topics: dict[str, TopicInfo] = {}
    wanted = {topic for wish in wishes.values() for topic in wish.topics}
    patterns = [wish for wish in wishes.values() if wish.pattern]
    if patterns:
        existing = yield from names()
        wanted |= {name for name in existing if any(wish.wants(name) for wish in patterns)}
    for name in sorted(wanted):
        with suppress(Malformed):
            topic = yield from read(name)
            if topic is not None:
                topics[name] = topic
    return topics


def _racks(infos: Iterable[MemberInfo]) -> Recipe[dict[int, str]]:
    """Where brokers stand, if any member says where it stands itself."""
    if not any(each.rack for each in infos):
        return {}
    return {number: found.rack for number, found in (yield from live()).items() if found.rack}
