"""Resets: an administrator moves an offset, also while the group runs.

One transaction writes the offset's node with the next epoch, if it still has the version just read, and
deletes the owner's node. This fences the owner: it cannot commit under its epoch any more. It watches its own
node, drops the partition, claims it again as the plan says, and continues at the new offset.

An administrator has no member node to check. Instead it checks that no offset was deleted since it looked
(group_deletion.py counts that), because an offset's node that is created again can reach the version just
read.
"""

from typing import Final

from folkmoot.coordination import paths
from folkmoot.coordination.groups.ownership import (
    OffsetState,
    encode,
    next_epoch,
    offset_nodes,
    owner_of,
    state_of,
)
from folkmoot.coordination.zookeeper import operations as zk
from folkmoot.coordination.zookeeper import recipes
from folkmoot.coordination.zookeeper.operations import Recipe
from folkmoot.protocol.records import TopicPartition

PATIENCE: Final = 4
"""Each such attempt deletes only the owner's node: an owner that commits without a pause could move the fence
before every attempt, but claiming takes it longer than an attempt."""


def reset(
    group: str, partition: TopicPartition, topic_id: str, offset: int | None, mark: str
) -> Recipe[OffsetState]:
    """Move the group to `offset` (None: nothing is committed) and return what was written.

    `mark` must be unique to this call, or to one call for each of several partitions. A malformed offset is
    repaired.
    """
    path, owner_path = paths.offset(group, *partition), paths.owner(group, *partition)
    attempt = 0
    while True:
        attempt += 1
        deletions = (yield from recipes.get_or_create(paths.GROUPS)).stat.version
        node = (yield from offset_nodes(group, (partition,)))[partition]
        was = _known(path, node)
        if was.reset == mark:
            return was  # an attempt without a reply had been done
        new = OffsetState(offset, next_epoch(was, node), "", mark, topic_id, mark)
        no_deletion = zk.Check(paths.GROUPS, deletions)
        writes: list[zk.Write] = [no_deletion, zk.Set(path, encode(new), node.stat.version)]
        # Read after the offset: a later owner has moved the fence.
        if (yield from owner_of(group, partition)) is not None:
            if attempt % PATIENCE == 0:
                yield from recipes.delete_node(owner_path)
                continue
            writes.append(zk.Delete(owner_path))
        try:
            yield zk.Multi(tuple(writes))
            return new
        except zk.MultiFailed as refusal:
            recipes.check_foreseen(refusal)
        except zk.ConnectionLost:
            continue


def _known(path: str, node: zk.Node) -> OffsetState:
    """Decode an offset's node; a malformed one counts as having the highest possible epoch.

    Each epoch is a write of its own, and the first one came after the node was created.
    """
    try:
        return state_of(path, node)
    except recipes.Malformed:
        return OffsetState(epoch=node.stat.czxid + node.stat.version)
