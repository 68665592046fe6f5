"""Deleting a group: its members' place first, then what it knew.

1. Take the place of the members away, with the plan, in one transaction; it fails if there is a member.
2. Delete the offsets, each on condition of the version read before. (By force: of the present version, with
   their owners' nodes; whose claim that is, is removed from the members first.)
3. Delete what is empty by then.

Dying before 1 changes nothing. Dying after it leaves a group that nobody is a member of, with some of its
offsets; to delete it again does the rest.

Who joins in between makes the place anew. What it has claimed by then is another version, and stays: the
group lives. (By force it is deleted, too, and its claimant begins anew once more.)

Without members nothing of it can be in anybody's hands: their writes check that they are members
(ownership.py), so a zombie's fail whatever is made anew under these names.
"""

from contextlib import suppress

from folkmoot.coordination import groups, members, ownership, paths
from folkmoot.coordination.operations import (
    ConnectionLost,
    Delete,
    Exists,
    Get,
    Multi,
    MultiFailed,
    Node,
    NoNode,
    NotEmpty,
    Operation,
    Set,
    Verb,
)
from folkmoot.coordination.questions import Malformed, children, surely
from folkmoot.protocol.errors import GroupNotEmpty, UnknownGroup
from folkmoot.protocol.records import TopicPartition


def delete(group: str, force: bool = False) -> Verb[None]:
    """Delete a group that has no members. Raises UnknownGroup, GroupNotEmpty.

    With `force` its members are removed; those that live join anew and begin as a new group does.
    """
    if (yield from surely(Exists(paths.group(group)))) is None:
        raise UnknownGroup(f"group {group} does not exist: see `folkmoot group list`")
    versions = yield from _versions(group)
    if force:
        yield from _remove_members(group)
        for partition in versions:
            yield from _take_away(group, partition)
    else:
        owned = yield from _owned(group, versions)
        if owned is not None:
            raise _occupied(group, owned)
        yield from _close(group)
        for partition, version in versions.items():
            yield from _forget(Delete(paths.offset(group, *partition), version))
    yield from _sweep(group)


def _close(group: str) -> Verb[None]:
    """From here on there are no members, and none of before can do anything."""
    while True:
        there = yield from children(paths.group(group))
        place = [paths.members(group)] if "ids" in there else []
        place += [paths.plan(group)] if "plan" in there else []
        if not place:
            return
        try:
            yield Multi(tuple(Delete(path) for path in place))
        except MultiFailed as refusal:
            if isinstance(refusal.cause, NotEmpty):
                names = yield from members.names(group)
                raise _occupied(group, ", ".join(names)) from None
        except ConnectionLost:
            continue
        else:
            return


def _occupied(group: str, who: str) -> GroupNotEmpty:
    return GroupNotEmpty(f"group {group} has live members: stop them first, or use --force ({who})")


def _versions(group: str) -> Verb[dict[TopicPartition, int]]:
    found: dict[TopicPartition, int] = {}
    for each in sorted((yield from groups.with_offsets(group))):
        with suppress(NoNode):
            node: Node = yield from surely(Get(paths.offset(group, *each)))
            found[each] = node.stat.version
    return found


def _owned(group: str, partitions: dict[TopicPartition, int]) -> Verb[str | None]:
    """Who owns something, if anybody: also one whose member's node was removed by hand."""
    for each in partitions:
        owner = yield from ownership.owner_of(group, each)
        if owner is not None:
            return owner.member or "somebody"
    return None


def _remove_members(group: str) -> Verb[None]:
    for name in (yield from members.names(group)):
        yield from members.leave(group, name)
    yield from _gone(Delete(paths.plan(group)))


def _take_away(group: str, partition: TopicPartition) -> Verb[None]:
    """Delete an offset and its owner's node in one transaction: nobody owns what has no fence.

    Who has claimed it has joined since the members were removed, and ceases to be one first: the node
    may be made anew, and come to the version that its claim stands on.
    """
    path = paths.offset(group, *partition)
    while True:
        try:
            node: Node = yield from surely(Get(path))
        except NoNode:
            return
        yield from _remove_writer(group, path, node)
        writes = [Delete(path, node.stat.version)]
        # Read after the offset: an owner that comes later has moved the fence.
        if (yield from ownership.owner_of(group, partition)) is not None:
            writes.append(Delete(paths.owner(group, *partition)))
        if (yield from _forget(*writes)):
            return


def _remove_writer(group: str, path: str, offset: Node) -> Verb[None]:
    """Who wrote an offset last is no member from here on."""
    try:
        nonce = ownership.state_of(path, offset).nonce
    except Malformed:
        return
    for name in (yield from members.names(group)):
        if nonce and members.prefix(name).endswith(nonce):
            yield from members.leave(group, name)


def _forget(*writes: Delete) -> Verb[bool]:
    """Carry these out together, and note on the groups' node that offsets were deleted: by its version
    resets know (resets.py). False if one of them could not be, or was done before its reply was lost."""
    while True:
        try:
            yield Multi((*writes, Set(paths.GROUPS, b"")))
        except MultiFailed as refusal:
            ownership.check_foreseen(refusal)
            return False
        except ConnectionLost:
            continue
        return True


def _sweep(group: str) -> Verb[None]:
    """What is left, but for what somebody has made or filled meanwhile."""
    for above in (paths.all_owners(group), paths.all_offsets(group)):
        for topic in (yield from children(above)):
            yield from _gone(Delete(f"{above}/{topic}"))
        yield from _gone(Delete(above))
    for name in (yield from children(paths.left(group))):
        yield from _gone(Delete(paths.left(group, name)))
    for noted in (paths.left(group), paths.events(group)):
        yield from _gone(Delete(noted))
    if not (yield from members.names(group)):
        for rest in ("ids", "plan"):
            yield from _gone(Delete(f"{paths.group(group)}/{rest}"))
    yield from _gone(Delete(paths.group(group)))


def _gone(deletion: Delete) -> Verb[None]:
    """Delete a node unless it is gone, or has children. Raises BadVersion."""
    operation: Operation = deletion
    with suppress(NoNode, NotEmpty):
        yield from surely(operation)
