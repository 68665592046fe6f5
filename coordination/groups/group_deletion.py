"""Deleting a group: its plan and its offsets, in a transaction after which it has no members.

A member that joins during a deletion could read a node (an offset, the plan) right before it is deleted. Once
a new node has the same version, its write would succeed. So these are never deleted while there is a member:
each transaction also deletes the members' parent. ZooKeeper refuses that while there is a member, unless the
transaction deletes it, too (by force). A group with more partitions than a transaction holds takes several,
and each checks this again.

Without members nothing can be owned: all writes of owners check that they are members (ownership.py).
"""

import secrets
from contextlib import suppress
from typing import Final, NamedTuple

from folkmoot.coordination import paths, topics
from folkmoot.coordination.groups import inspection, offset_admin, planning
from folkmoot.coordination.groups import plan as plans
from folkmoot.coordination.groups.plan import Plan, TopicBasis
from folkmoot.coordination.zookeeper import operations as zk
from folkmoot.coordination.zookeeper import recipes
from folkmoot.coordination.zookeeper.operations import Recipe
from folkmoot.protocol.errors import GroupNotEmpty, UnknownGroup, UnknownTopicOrPartition
from folkmoot.protocol.records import TopicPartition

PARTITIONS_PER_TRANSACTION: Final = 250
"""A quarter of what a transaction can hold if all are owned and all names have the maximum length."""


def delete(group: str, force: bool = False) -> Recipe[None]:
    """Delete a group that has no members. Raises UnknownGroup, GroupNotEmpty.

    `force` removes its members; live ones join again and start as members of a new group.
    """
    yield from _check_exists(group)
    while True:
        found = yield from _read_nodes(group)
        if not force:
            _check_unused(group, found, ", or use --force")
        if (yield from _delete_nodes(group, found)) and found.is_all:
            # A member that came and went may have left offsets; one that is there has a new group.
            if not (yield from inspection.with_offsets(group)):
                break
            if (yield from recipes.children(paths.members(group))):
                break
    yield from _sweep(group)


def delete_offsets(group: str, topic: str) -> Recipe[None]:
    """Delete a group's offsets in one topic, which no live member may subscribe to.

    Without members the nodes are deleted, and the plan keeps only what the group began with, and begins
    again with this topic. With members, which may have read the nodes, each offset is reset to nothing in
    the next epoch (offset_admin.py), which fences any owner.

    Raises UnknownGroup, GroupNotEmpty, UnknownTopicOrPartition if there is nothing of that topic.
    """
    yield from _check_exists(group)
    if (yield from recipes.children(paths.members(group))):
        yield from _reset_to_nothing(group, topic)
        return
    is_known = topic in (yield from planning.get(group)).plan.topics
    is_known = is_known or bool((yield from _with_offset(group, topic)))
    while (found := (yield from _read_nodes(group, topic))).partitions:
        _check_unused(group, found)
        yield from _delete_nodes(group, found, (yield from _empty_plan(group, topic)))
    if not is_known:
        raise UnknownTopicOrPartition(f"group {group} has no offsets of topic {topic}")
    for path in (paths.owners(group, topic), paths.offsets(group, topic)):
        yield from _delete_empty(path)


def _empty_plan(group: str, topic: str) -> Recipe[zk.Set]:
    """Return the write that empties the plan: the group begins with the topic as it is now."""
    current = yield from planning.get(group)
    initial_topics = {
        name: each for name, each in current.plan.initial_topics.items() if name != topic
    }
    with suppress(recipes.Malformed):
        if (info := (yield from topics.read(topic))) is not None:
            initial_topics[topic] = TopicBasis(info.topic_id, len(info.partitions))
    plan = Plan(
        current.plan.generation, initial_topics=initial_topics, subscribed=current.plan.subscribed
    )
    return zk.Set(paths.plan(group), plans.encode(plan), current.version)


def _reset_to_nothing(group: str, topic: str) -> Recipe[None]:
    plan = (yield from planning.get(group)).plan
    owned = yield from inspection.with_owners(group)
    if topic in plan.topics or any(each.topic == topic for each in owned):
        raise GroupNotEmpty(
            f"group {group} has live members that subscribe to {topic}: unsubscribe or stop them first"
        )
    found = yield from _with_offset(group, topic)
    if not found:
        raise UnknownTopicOrPartition(f"group {group} has no offsets of topic {topic}")
    for each, topic_id in found.items():
        yield from offset_admin.reset(group, each, topic_id, None, secrets.token_hex(8))


def _with_offset(group: str, topic: str) -> Recipe[dict[TopicPartition, str]]:
    """Return the partitions of a topic with a committed offset, and the topic's id at the commit."""
    found: dict[TopicPartition, str] = {}
    for each in sorted((yield from inspection.with_offsets(group))):
        if each.topic == topic:
            state = yield from inspection.partition(group, each)
            if state.has_offset:
                found[each] = "" if state.offset is None else state.offset.topic_id
    return found


def _check_exists(group: str) -> Recipe[None]:
    yield from recipes.retry_on_connection_loss(zk.Sync())
    if (yield from _created_by(paths.group(group))) == 0:
        raise UnknownGroup(f"group {group} does not exist: see `folkmoot group list`")


class _GroupNodes(NamedTuple):
    """Nodes that a transaction deletes. `created` is the transaction that created the members' parent."""

    created: int
    members: list[str]
    partitions: list[TopicPartition]
    nodes: list[str]
    is_owned: bool
    is_all: bool


def _read_nodes(group: str, topic: str | None = None) -> Recipe[_GroupNodes]:
    """Read one topic, or all; members last, since they change meanwhile."""
    for path in (paths.members(group), paths.plan(group)):
        yield from recipes.ensure(path)
    created = yield from _created_by(paths.members(group))
    offsets = yield from inspection.with_offsets(group)
    owners = yield from inspection.with_owners(group)
    partitions = sorted(each for each in offsets | owners if topic in (None, each.topic))
    some = partitions[:PARTITIONS_PER_TRANSACTION]
    nodes = [paths.offset(group, *each) for each in some if each in offsets]
    nodes += [paths.owner(group, *each) for each in some if each in owners]
    members = sorted((yield from recipes.children(paths.members(group))))
    return _GroupNodes(created, members, some, nodes, bool(owners), some == partitions)


def _check_unused(group: str, nodes: _GroupNodes, or_force: str = "") -> None:
    """Raises GroupNotEmpty, also for owners whose member nodes were removed by hand."""
    if nodes.members or nodes.is_owned:
        names = ", ".join(nodes.members) or "owners without a member node"
        raise GroupNotEmpty(f"group {group} has live members: stop them first{or_force} ({names})")


def _delete_nodes(group: str, nodes: _GroupNodes, plan: zk.Write | None = None) -> Recipe[bool]:
    """Delete what was found unless something has changed → whether it is done. `plan` replaces the plan."""
    parent = paths.members(group)
    members = [paths.member(group, name) for name in nodes.members]
    writes: list[zk.Write] = [
        *map(zk.Delete, (*members, parent, *nodes.nodes)),
        plan or zk.Delete(paths.plan(group)),
        # Resets know by the version of this node that offsets were deleted (offset_admin.py).
        zk.Set(paths.GROUPS, b""),
    ]
    try:
        yield zk.Multi(tuple(writes))
    except zk.MultiFailed as refusal:
        if not isinstance(refusal.cause, zk.NotEmpty) or writes[refusal.failed].path != parent:
            recipes.check_foreseen(refusal)
        return (yield from _created_by(paths.group(group))) == 0
    except zk.ConnectionLost:
        return (yield from _created_by(parent)) != nodes.created
    return True


def _created_by(path: str) -> Recipe[int]:
    """Return the transaction that created a node, 0 if it does not exist."""
    stat: zk.Stat | None = yield from recipes.retry_on_connection_loss(zk.Exists(path))
    return 0 if stat is None else stat.czxid


def _sweep(group: str) -> Recipe[None]:
    """Delete what is left, except what others have created or filled meanwhile."""
    for above in (paths.all_owners(group), paths.all_offsets(group), paths.events(group)):
        for name in (yield from recipes.children(above)):
            yield from _delete_empty(f"{above}/{name}")
        yield from _delete_empty(above)
    yield from _delete_empty(paths.group(group))


def _delete_empty(path: str) -> Recipe[None]:
    """Delete a node unless it is gone, or has children."""
    with suppress(zk.NoNode, zk.NotEmpty):
        yield from recipes.retry_on_connection_loss(zk.Delete(path))
