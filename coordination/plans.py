"""A group's plan: who shall own what. One node, replaced by compare-and-set.

The plan names its basis, the members and topics that it was made for; it is due for replacement when
these are no longer the live ones. Members never obey a plan blindly: owning takes a claim
(ownership.py), which checks the plan's version in the same transaction.
"""

from collections.abc import Callable, Mapping

import msgspec

from folkmoot.coordination import members, paths
from folkmoot.coordination.members import MemberInfo
from folkmoot.coordination.operations import (
    ANY_VERSION,
    BadVersion,
    ConnectionLost,
    Get,
    Node,
    NoNode,
    Ring,
    Set,
    Verb,
)
from folkmoot.coordination.questions import Malformed, decode, surely
from folkmoot.coordination.store import ensure
from folkmoot.coordination.topics import TopicInfo, read


class TopicBasis(msgspec.Struct, frozen=True):
    """A topic as the planner saw it: the id tells it from a later topic of the same name."""

    topic_id: str
    partitions: int


class Plan(msgspec.Struct, frozen=True):
    """`assignment[topic][partition]` is the member that shall own it, None if nobody can.

    `members` are oldest first. `generation` grows by one with every plan.
    """

    generation: int = 0
    members: tuple[str, ...] = ()
    topics: dict[str, TopicBasis] = {}
    assignment: dict[str, list[str | None]] = {}


class VersionedPlan(msgspec.Struct, frozen=True):
    """The plan and its node's version, which every claim made under it checks."""

    plan: Plan
    version: int


Decide = Callable[[Plan, Mapping[str, MemberInfo], Mapping[str, TopicInfo]], Plan | None]
"""The next plan for members (oldest first) and the topics that they want, or None if all is well."""

_encode = msgspec.json.encode
_decoder = msgspec.json.Decoder(Plan)


def get(group: str, watch: Ring | None = None) -> Verb[VersionedPlan]:
    """The current plan: an empty one if none was made yet, with version -1 if there is no group.

    A plan that is none counts as empty, so that the next one heals the group.
    """
    try:
        node: Node = yield from surely(Get(paths.plan(group), watch))
    except NoNode:
        return VersionedPlan(Plan(), ANY_VERSION)
    return VersionedPlan(_legible(paths.plan(group), node), node.stat.version)


def _legible(path: str, node: Node) -> Plan:
    try:
        plan = decode(_decoder, path, node) if node.data else Plan()
    except Malformed:
        return Plan()
    return plan if plan.assignment.keys() <= plan.topics.keys() else Plan()


def replace(group: str, known: dict[str, MemberInfo], decide: Decide) -> Verb[bool]:
    """Make the next plan if one is due; True if it was written.

    The plan is read *before* its basis: whatever changes after that read makes either the basis newer
    or the write fail. Dying before the write leaves the group as it was, and the next in age plans.
    `known` is the caller's memory of what members published, which never changes: it is brought up
    to date, so that the next plan reads newcomers only.
    """
    current = yield from get(group)
    if current.version == ANY_VERSION:
        yield from ensure(paths.plan(group))
        return False  # somebody deleted the group under our feet: look again
    infos: dict[str, MemberInfo] = {}
    for name in (yield from members.names(group)):
        found = known.get(name) or (yield from members.info(group, name))
        if found is not None:
            infos[name] = found
    known.clear()
    known.update(infos)
    wanted = sorted({topic for found in infos.values() for topic in found.topics})
    topics: dict[str, TopicInfo] = {}
    for name in wanted:
        topic = yield from read(name)
        if topic is not None:
            topics[name] = topic
    plan = decide(current.plan, infos, topics)
    if plan is None:
        return False
    try:
        yield Set(paths.plan(group), _encode(plan), current.version)
    except (BadVersion, NoNode, ConnectionLost):
        return False  # another plan won, or nobody knows: everyone reads what is there now
    return True
