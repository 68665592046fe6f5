"""Groups as an onlooker sees them: read only, no watches, nothing of it is needed for the protocol.

What is read of each member and each partition is read side by side, and of a partition only its offset's
node: a claim writes the owner there as well, and whether the owner's node is still there its parent
tells for all. A group of a thousand partitions costs a thousand reads.
"""

from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

import msgspec

from folkmoot.coordination import paths
from folkmoot.coordination.groups import membership, ownership, planning
from folkmoot.coordination.groups.membership import Member
from folkmoot.coordination.groups.ownership import OffsetState
from folkmoot.coordination.groups.plan import Plan
from folkmoot.coordination.zookeeper.execute import execute_all
from folkmoot.coordination.zookeeper.operations import Recipe
from folkmoot.coordination.zookeeper.recipes import Malformed, children, numbers
from folkmoot.coordination.zookeeper.session import Session
from folkmoot.protocol.records import TopicPartition


class PartitionState(msgspec.Struct, frozen=True):
    """A partition of a group: who shall own it by the plan, who does, what is committed.

    `planned` and `owner` are assignee ids. `offset` is None, too, if the node is not `legible`.
    """

    partition: TopicPartition
    planned: str | None
    owner: str | None
    offset: OffsetState | None
    legible: bool = True

    @property
    def has_offset(self) -> bool:
        """Whether something is committed, as far as can be read: an offset that was forgotten is None."""
        return not self.legible or (self.offset is not None and self.offset.offset is not None)


class GroupState(msgspec.Struct, frozen=True):
    """A group, read piece by piece while it goes on: not a snapshot of one moment.

    `members` by their assignee ids, as in plans and owners' nodes.
    """

    name: str
    plan: Plan
    members: dict[str, Member]
    partitions: list[PartitionState]

    @property
    def state(self) -> str:
        """empty: nobody; rebalancing: some partition is not owned as planned; else stable."""
        if not self.members:
            return "empty"
        planned = [self.state_of(each) for each in self.partitions if each.planned is not None]
        settled = self.plan.generation and all(each in ("stable", "kept") for each in planned)
        return "stable" if settled else "rebalancing"

    def state_of(self, each: PartitionState) -> str:
        """How ownership stands against the plan, whose members may be gone by now.

        stable: owned as planned; draining: its owner is to give it up; claiming: its next owner is
        about to take it; kept: it waits for a static member to come back; unowned: nobody will;
        unsubscribed: no member wants its topic any more; malformed: its offset was written over, and nobody
        can take it before a reset.
        """
        if not each.legible:
            return "malformed"
        if each.owner is not None:
            return "stable" if each.owner == each.planned else "draining"
        if each.planned in self.members:
            return "claiming"
        if each.planned in self.plan.static and self.members:
            return "kept"
        return "unowned" if self.wants(each.partition.topic) else "unsubscribed"

    def wants(self, topic: str) -> bool:
        """Whether the group divides a topic, or is about to; one that has no members may come to."""
        wanted = any(each.info.wants(topic) for each in self.members.values())
        return wanted or topic in self.plan.topics or not self.members


def names() -> Recipe[list[str]]:
    """The names of all groups, sorted."""
    return sorted((yield from children(paths.GROUPS)))


def describe(
    session: Session, groups: Iterable[str], timeout: float | None = None
) -> list[GroupState]:
    """Those of these groups that exist, read side by side in three steps.

    Each step has the `timeout` of `execute_all`.
    """
    outlines = execute_all(session, map(_outline, groups), timeout=timeout)
    found = [each for each in outlines if each is not None]
    reads = (membership.read(each.name, name) for each in found for name in each.sitting)
    members = iter(execute_all(session, reads, timeout=timeout))
    looks = (
        partition(each.name, key, each.plan.owners.get(key), key in each.owned)
        for each in found
        for key in each.partitions
    )
    partitions = iter(execute_all(session, looks, timeout=timeout))
    states = []
    for each in found:
        there = [member for member in islice(members, len(each.sitting)) if member is not None]
        by_assignee = {membership.assignee(member.name): member for member in there}
        divided = _planned(each.plan)
        rows = [
            row
            for row in islice(partitions, len(each.partitions))
            if row.partition in divided or row.owner is not None or row.has_offset
        ]
        states.append(GroupState(each.name, each.plan, by_assignee, rows))
    return states


class _Outline(NamedTuple):
    """What of a group says what else to read."""

    name: str
    plan: Plan
    sitting: list[str]
    owned: set[TopicPartition]
    partitions: list[TopicPartition]


def _outline(group: str) -> Recipe[_Outline | None]:
    if not (yield from children(paths.group(group))):
        return None
    sitting = membership.assignees((yield from membership.names(group))).values()
    plan = (yield from planning.get(group)).plan
    owned = yield from with_owners(group)
    every = _planned(plan) | (yield from with_offsets(group))
    return _Outline(group, plan, list(sitting), owned, sorted(every))


def partition(
    group: str,
    partition: TopicPartition,
    planned: str | None = None,
    is_owned: bool = False,
) -> Recipe[PartitionState]:
    """A partition as it is now; whom the plan gives it to and whether it has an owner the caller knows."""
    owner: str | None = None
    offset: OffsetState | None = None
    legible = True
    try:
        offset = yield from ownership.committed(group, partition)
    except Malformed:
        legible = False
    if is_owned:
        owner = None if offset is None else offset.member
        if not owner:  # a reset was faster than we, or somebody has made nodes by hand
            found = yield from ownership.owner_of(group, partition)
            owner = None if found is None else found.member
    return PartitionState(partition, planned, owner, offset, legible)


def with_offsets(group: str) -> Recipe[set[TopicPartition]]:
    """The partitions of which the group has an offset's node, of deleted topics, too."""
    return (yield from _below(paths.all_offsets(group)))


def with_owners(group: str) -> Recipe[set[TopicPartition]]:
    """The partitions that have an owner's node."""
    return (yield from _below(paths.all_owners(group)))


def _below(path: str) -> Recipe[set[TopicPartition]]:
    """The partitions that have a node there, below one for their topic."""
    found: set[TopicPartition] = set()
    for topic in (yield from children(path)):
        of_topic = yield from numbers(f"{path}/{topic}")
        found.update(TopicPartition(topic, number) for number in of_topic)
    return found


def _planned(plan: Plan) -> set[TopicPartition]:
    """The partitions of a plan, also those that nobody shall own."""
    return {
        TopicPartition(topic, number)
        for topic, basis in plan.topics.items()
        for number in range(basis.partitions)
    }
