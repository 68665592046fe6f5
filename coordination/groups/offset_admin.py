"""Resets: an offset moved to somewhere else by an administrator, also while the group runs.

A reset is a claim by nobody. One transaction writes the offset's node with the next epoch, on condition
of the version just read, and takes the owner's node away, if there is one. So the holder is fenced
from that moment on: what it did under its epoch cannot be committed any more. It watches its own node,
drops the partition, claims it again as the plan says, and goes on at the new offset.

An administrator is no member, whose own node would tell that the group is still the same one. So it checks
that no offset was deleted since it looked (group_deletion.py notes that): the version of an offset's node
that was made anew may be the one just read.
"""

from contextlib import suppress
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
from folkmoot.coordination.zookeeper.operations import Recipe
from folkmoot.coordination.zookeeper.recipes import (
    Malformed,
    check_foreseen,
    ensured,
)
from folkmoot.protocol.records import TopicPartition

PATIENCE: Final = 3
"""An owner that commits without a pause may move the fence before every attempt. After so many its
node is taken away first, so that it has to claim, which takes longer than an attempt."""


def reset(
    group: str, partition: TopicPartition, topic_id: str, offset: int | None, mark: str
) -> Recipe[OffsetState]:
    """Have the group go on at `offset`, None: as if nothing had been committed; returns what was written.

    `mark` must be unique to this call, or to several on different partitions. What somebody else has
    written over is mended by that.
    """
    path, owner_path = paths.offset(group, *partition), paths.owner(group, *partition)
    attempts = 0
    while True:
        try:
            deletions = (yield from ensured(paths.GROUPS)).stat.version  # of whatever group
            node = (yield from offset_nodes(group, (partition,)))[partition]
            was = _known(path, node)
            if was.reset == mark:
                return was  # an attempt of ours was not answered, and had been done
            new = OffsetState(offset, next_epoch(was, node), "", mark, topic_id, mark)
            no_deletion = zk.Check(paths.GROUPS, deletions)
            writes: list[zk.Write] = [no_deletion, zk.Set(path, encode(new), node.stat.version)]
            # Read after the offset: an owner that comes later has moved the fence.
            if (yield from owner_of(group, partition)) is not None:
                attempts += 1
                if attempts > PATIENCE:
                    with suppress(zk.NoNode):
                        yield zk.Delete(owner_path)
                    attempts = 0
                    continue
                writes.append(zk.Delete(owner_path))
            yield zk.Multi(tuple(writes))
            return new
        except zk.MultiFailed as refusal:
            check_foreseen(refusal)
        except zk.ConnectionLost:
            continue


def _known(path: str, node: zk.Node) -> OffsetState:
    """The offset as it is; of one that is illegible, the highest epoch that it can have had.

    Each epoch was a write of its own, and the first came after the node was made.
    """
    try:
        return state_of(path, node)
    except Malformed:
        return OffsetState(epoch=node.stat.czxid + node.stat.version)
