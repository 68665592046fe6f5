"""Deleting a group: its plan and what it knew, in a transaction after which it has no members.

A member that joined in the middle of a deletion could read a node right before it goes (an offset's, the
plan's) and write to the one that is made anew, once that has come to the same version. So neither is ever
deleted while there is a member: each transaction takes the members' place away, too, which fails if there
is anybody in it that the transaction does not remove (as it does by force). A group of more partitions
than a transaction holds takes several, and each makes sure anew.

Without members nothing of the group can be in anybody's hands: their writes check that they are members
(ownership.py), so a zombie's fail whatever is made anew under these names.
"""

import secrets
from contextlib import suppress
from typing import Final, NamedTuple

from folkmoot.coordination import paths, topics
from folkmoot.coordination.groups import inspection, offset_admin, ownership, planning
from folkmoot.coordination.groups import plan as plans
from folkmoot.coordination.groups.plan import Plan, TopicBasis
from folkmoot.coordination.zookeeper import operations as zk
from folkmoot.coordination.zookeeper.operations import Recipe
from folkmoot.coordination.zookeeper.recipes import (
    Malformed,
    check_foreseen,
    children,
    ensure,
    retry_on_connection_loss,
)
from folkmoot.protocol.errors import GroupNotEmpty, UnknownGroup, UnknownTopicOrPartition
from folkmoot.protocol.records import TopicPartition

OR_FORCE: Final = ", or use --force"
PARTITIONS_PER_TRANSACTION: Final = 250
"""A quarter of what a transaction may hold if all are owned and all names are as long as they may be."""


def delete(group: str, force: bool = False) -> Recipe[None]:
    """Delete a group that has no members. Raises UnknownGroup, GroupNotEmpty.

    With `force` its members are removed; those that live join anew and begin as a new group does.
    """
    yield from _check_exists(group)
    if not force:
        yield from _check_owners(group)
    forgotten = 0
    while True:
        found = yield from _look(group)
        if found.members and not force:
            raise _occupied(group, ", ".join(found.members), forgotten)
        if (yield from _take_away(group, found)):
            forgotten += len(found.partitions)
            if found.is_all and (yield from _is_done(group)):
                break
    yield from _sweep(group)


def delete_offsets(group: str, topic: str) -> Recipe[None]:
    """Forget what a group has committed of one topic, which no live member may subscribe to.

    Without members its nodes go, and its plan keeps no more than what the group began with: it begins anew
    with that topic. With members they stay, since a member may have read them: each is reset to nothing,
    under the next epoch (offset_admin.py), which fences whoever has come to own it meanwhile.

    Raises UnknownGroup, GroupNotEmpty, UnknownTopicOrPartition if there is nothing of that topic.
    """
    yield from _check_exists(group)
    if (yield from children(paths.members(group))):
        yield from _forget(group, topic)
        return
    yield from _check_owners(group, or_force="")
    is_known = topic in (yield from planning.get(group)).plan.topics
    is_known = is_known or bool((yield from _with_offset(group, topic)))
    while (found := (yield from _look(group, topic))).partitions:
        if found.members:
            raise _occupied(group, ", ".join(found.members), or_force="")
        yield from _take_away(group, found, (yield from _begin_anew(group, topic)))
    if not is_known:
        raise UnknownTopicOrPartition(f"group {group} has no offsets of topic {topic}")
    for path in (paths.owners(group, topic), paths.offsets(group, topic)):
        yield from _gone(zk.Delete(path))


def _begin_anew(group: str, topic: str) -> Recipe[zk.Set]:
    """The write that empties the plan: the group begins with the topic as it is now."""
    current = yield from planning.get(group)
    began_with = {name: each for name, each in current.plan.began_with.items() if name != topic}
    with suppress(Malformed):
        if (info := (yield from topics.read(topic))) is not None:
            began_with[topic] = TopicBasis(info.topic_id, len(info.partitions))
    plan = Plan(current.plan.generation, began_with=began_with, subscribed=current.plan.subscribed)
    return zk.Set(paths.plan(group), plans.encode(plan), current.version)


def _forget(group: str, topic: str) -> Recipe[None]:
    """What `delete_offsets` does where there are members."""
    plan = (yield from planning.get(group)).plan
    owned = yield from inspection.with_owners(group)
    if topic in plan.topics or any(each.topic == topic for each in owned):
        raise GroupNotEmpty(
            f"group {group} has live members that subscribe to {topic}: have them unsubscribe, or stop them, "
            "first"
        )
    found = yield from _with_offset(group, topic)
    if not found:
        raise UnknownTopicOrPartition(f"group {group} has no offsets of topic {topic}")
    for each, topic_id in found.items():
        yield from offset_admin.reset(group, each, topic_id, None, secrets.token_hex(8))


def _with_offset(group: str, topic: str) -> Recipe[dict[TopicPartition, str]]:
    """The partitions of a topic of which something is committed, and the topic's id then."""
    found: dict[TopicPartition, str] = {}
    for each in sorted((yield from inspection.with_offsets(group))):
        if each.topic == topic:
            state = yield from inspection.partition(group, each)
            if state.has_offset:
                found[each] = "" if state.offset is None else state.offset.topic_id
    return found


def _check_exists(group: str) -> Recipe[None]:
    yield from retry_on_connection_loss(zk.Sync())
    if (yield from _made(paths.group(group))) == 0:
        raise UnknownGroup(f"group {group} does not exist: see `folkmoot group list`")


class _Look(NamedTuple):
    """What a transaction is to take away; `made` is the transaction that made the members' place."""

    made: int
    members: list[str]
    partitions: list[TopicPartition]
    nodes: list[str]
    is_all: bool


def _look(group: str, topic: str | None = None) -> Recipe[_Look]:
    """Of one topic, or of all. Members last: they are what changes while we look."""
    for path in (paths.members(group), paths.plan(group)):
        yield from ensure(path)
    made = yield from _made(paths.members(group))
    offsets = yield from inspection.with_offsets(group)
    owners = yield from inspection.with_owners(group)
    partitions = sorted(each for each in offsets | owners if topic in (None, each.topic))
    some = partitions[:PARTITIONS_PER_TRANSACTION]
    nodes = [paths.offset(group, *each) for each in some if each in offsets]
    nodes += [paths.owner(group, *each) for each in some if each in owners]
    names = yield from children(paths.members(group))
    return _Look(made, sorted(names), some, nodes, some == partitions)


def _take_away(group: str, found: _Look, plan: zk.Write | None = None) -> Recipe[bool]:
    """Do it, if nothing else has come or gone meanwhile; whether it was done.

    `plan` is what becomes of the plan, if it is not to go. The members' place goes first: that fails if
    there is somebody else.
    """
    place = paths.members(group)
    away = [paths.member(group, name) for name in found.members]
    writes: list[zk.Write] = [
        *map(zk.Delete, (*away, place, *found.nodes)),
        plan or zk.Delete(paths.plan(group)),
        # By the version of the groups' node resets know that offsets were deleted (offset_admin.py).
        zk.Set(paths.GROUPS, b""),
    ]
    try:
        yield zk.Multi(tuple(writes))
    except zk.MultiFailed as refusal:
        if not isinstance(refusal.cause, zk.NotEmpty) or writes[refusal.failed].path != place:
            check_foreseen(refusal)
        return (yield from _made(paths.group(group))) == 0
    except zk.ConnectionLost:
        return (yield from _made(place)) != found.made
    return True


def _is_done(group: str) -> Recipe[bool]:
    """Whoever came and went since we looked may have left offsets; who is there now has a new group."""
    if not (yield from inspection.with_offsets(group)):
        return True
    return bool((yield from children(paths.members(group))))


def _made(path: str) -> Recipe[int]:
    """The transaction that made a node; 0 if it is not there."""
    stat: zk.Stat | None = yield from retry_on_connection_loss(zk.Exists(path))
    return 0 if stat is None else stat.czxid


def _check_owners(group: str, or_force: str = OR_FORCE) -> Recipe[None]:
    """Nobody owns anything, not even one whose member's node was removed by hand. Raises GroupNotEmpty."""
    for each in sorted((yield from inspection.with_owners(group))):
        owner = yield from ownership.owner_of(group, each)
        if owner is not None:
            raise _occupied(group, owner.member or "somebody", or_force=or_force)


def _occupied(group: str, who: str, forgotten: int = 0, or_force: str = OR_FORCE) -> GroupNotEmpty:
    joined = f", joined meanwhile: {forgotten} partitions are forgotten, the rest is kept"
    return GroupNotEmpty(
        f"group {group} has live members: stop them first{or_force} ({who}"
        f"{joined if forgotten else ''})"
    )


def _sweep(group: str) -> Recipe[None]:
    """What is left, but for what somebody has made or filled meanwhile."""
    for above in (paths.all_owners(group), paths.all_offsets(group)):
        for topic in (yield from children(above)):
            yield from _gone(zk.Delete(f"{above}/{topic}"))
        yield from _gone(zk.Delete(above))
    for name in (yield from children(paths.events(group))):
        yield from _gone(zk.Delete(f"{paths.events(group)}/{name}"))
    for path in (paths.events(group), paths.group(group)):
        yield from _gone(zk.Delete(path))


def _gone(deletion: zk.Delete) -> Recipe[None]:
    """Delete a node unless it is gone, or has children."""
    with suppress(zk.NoNode, zk.NotEmpty):
        yield from retry_on_connection_loss(deletion)
