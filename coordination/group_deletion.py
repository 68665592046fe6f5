"""Deleting a group: its members' place, its plan and what it knew, in a transaction that needs nobody there.

A member that joined in the middle of a deletion could read an offset's node right before it goes, and
write to the one that is made anew, once that has come to the same version. So no offset's node is ever
deleted while there is a member: each transaction takes the members' place away, too, which fails if
anybody is in it. A group of more partitions than a transaction holds takes several; each makes sure anew.

Without members nothing of the group can be in anybody's hands: their writes check that they are members
(ownership.py), so a zombie's fail whatever is made anew under these names.

By force the members are removed first. Those that live join anew within moments, perhaps before everybody
is gone; then nothing can be deleted, and each offset is written over instead, as by a reset to nothing:
who holds the partition is fenced, and begins as in a new group.

| if the administrator dies right before a transaction | right after it |
|---|---|
| nothing has changed (by force: members join anew) | its partitions are forgotten; a deletion does the rest |
"""

from contextlib import suppress
from typing import Final

from folkmoot.coordination import groups, members, ownership, paths, resets
from folkmoot.coordination.operations import (
    ConnectionLost,
    Create,
    Delete,
    Exists,
    Multi,
    MultiFailed,
    NoNode,
    NotEmpty,
    Set,
    Sync,
    Verb,
    Write,
)
from folkmoot.coordination.questions import children, surely
from folkmoot.protocol.errors import GroupNotEmpty, UnknownGroup

PARTITIONS_PER_TRANSACTION: Final = 500
"""Half of what a transaction may hold if all names are as long as they may be, and all are owned."""


def delete(group: str, force: bool = False, mark: str = "") -> Verb[None]:
    """Delete a group that has no members. Raises UnknownGroup, GroupNotEmpty.

    Who joins meanwhile keeps the group, or what the transactions before have left of it. With `force` its
    members are removed; those that live join anew and begin as a new group does. `mark` is unique to this
    call: without it, what was done before a reply was lost may be done once more.
    """
    yield from surely(Sync())
    if (yield from surely(Exists(paths.group(group)))) is None:
        raise UnknownGroup(f"group {group} does not exist: see `folkmoot group list`")
    if force:
        yield from _remove_members(group)
        if (yield from _delete(group)):
            yield from _forget_offsets(group, mark)
    else:
        who = (yield from _somebody(group)) or ", ".join((yield from _delete(group)))
        if who:
            raise GroupNotEmpty(
                f"group {group} has live members: stop them first, or use --force ({who})"
            )
    yield from _sweep(group)


def _somebody(group: str) -> Verb[str]:
    """Who owns something, if anybody: also one whose member's node was removed by hand."""
    for each in sorted((yield from groups.with_owners(group))):
        owner = yield from ownership.owner_of(group, each)
        if owner is not None:
            return owner.member or "somebody"
    return ""


def _remove_members(group: str) -> Verb[None]:
    for name in (yield from members.names(group)):
        yield from members.leave(group, name)
    yield from _gone(Delete(paths.plan(group)))


def _delete(group: str) -> Verb[tuple[str, ...]]:
    """Delete all there is while nobody is a member; the members, if there are any."""
    place = paths.members(group)
    while True:
        if (yield from surely(Exists(paths.group(group)))) is None:
            return ()
        empty = yield from _emptying(group)
        offsets = yield from groups.with_offsets(group)
        owners = yield from groups.with_owners(group)
        partitions = sorted(offsets | owners)
        some = partitions[:PARTITIONS_PER_TRANSACTION]
        nodes = [paths.offset(group, *each) for each in some if each in offsets]
        nodes += [paths.owner(group, *each) for each in some if each in owners]
        # By the version of the groups' node resets know that offsets were deleted (resets.py).
        writes = (*empty, *map(Delete, nodes), Set(paths.GROUPS, b""))
        try:
            yield Multi(writes)
        except MultiFailed as refusal:
            if writes[refusal.failed].path != place:
                ownership.check_foreseen(refusal)
            there = yield from children(place)
            if there:
                return tuple(there)
        except ConnectionLost:
            continue
        else:
            if some == partitions:
                return ()


def _emptying(group: str) -> Verb[list[Write]]:
    """Take the members' place away, which fails if there are any, and the plan; to begin a transaction."""
    there = yield from children(paths.group(group))
    place = paths.members(group)
    writes: list[Write] = [] if "ids" in there else [Create(place)]
    writes.append(Delete(place))
    if "plan" in there:
        writes.append(Delete(paths.plan(group)))
    return writes


def _forget_offsets(group: str, mark: str) -> Verb[None]:
    """Have its members begin anew everywhere."""
    partitions = (yield from groups.with_offsets(group)) | (yield from groups.with_owners(group))
    for each in sorted(partitions):
        yield from resets.reset(group, each, "", None, mark)


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
    yield from _gone(Delete(paths.group(group)))


def _gone(deletion: Delete) -> Verb[None]:
    """Delete a node unless it is gone, or has children."""
    with suppress(NoNode, NotEmpty):
        yield from surely(deletion)
