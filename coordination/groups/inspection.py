"""Groups for observers: reads only, without watches; the protocol needs none of it.

Members and partitions are read side by side. A partition costs one read, of its offset's node: a claim also
writes the owner there, and one list for each topic says whose nodes still exist.
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
    """A partition of a group: assignee by the plan, assignee that owns it, and its offset's node.

    `offset` is None if there is no node or not `is_decodable`.
    """

    partition: TopicPartition
    planned: str | None
    owner: str | None
    offset: OffsetState | None
    is_decodable: bool = True

    @property
    def has_offset(self) -> bool:
        """True if an offset is committed; a malformed one counts."""
        return not self.is_decodable or (self.offset is not None and self.offset.offset is not None)


class GroupState(msgspec.Struct, frozen=True):
    """A group, read piece by piece while it changes; `members` by assignee id."""

    name: str
    plan: Plan
    members: dict[str, Member]
    partitions: list[PartitionState]

    @property
    def state(self) -> str:
        """empty (no members), rebalancing (some partition is not owned as planned) or stable."""
        if not self.members:
            return "empty"
        planned = [self.state_of(each) for each in self.partitions if each.planned is not None]
        settled = self.plan.generation and all(each in ("stable", "reserved") for each in planned)
        return "stable" if settled else "rebalancing"

    def state_of(self, each: PartitionState) -> str:
        """Compare ownership with the plan, whose members may be gone by now.

        - stable: owned as planned
        - draining: its owner must give it up
        - claiming: its next owner is about to take it
        - reserved: for an absent static member
        - unowned
        - unsubscribed: no member subscribes to its topic any more
        - malformed: its offset cannot be decoded, and no member can claim it before a reset
        """
        if not each.is_decodable:
            return "malformed"
        if each.owner is not None:
            return "stable" if each.owner == each.planned else "draining"
        if each.planned in self.members:
            return "claiming"
        if each.planned in self.plan.static and self.members:
            return "reserved"
        return "unowned" if self.wants(each.partition.topic) else "unsubscribed"

    def wants(self, topic: str) -> bool:
        """Return whether the plan or a member has a topic; a group without members may have any."""
        wanted = any(each.info.wants(topic) for each in self.members.values())
        return wanted or topic in self.plan.topics or not self.members


def names() -> Recipe[list[str]]:
    """Return the names of all groups, sorted."""
    return sorted((yield from children(paths.GROUPS)))


def describe(
    session: Session, groups: Iterable[str], timeout: float | None = None
) -> list[GroupState]:
    """Return those of these groups that exist, read side by side in three steps.

    Each step has the `timeout` of `execute_all`.
    """
    outlines = execute_all(session, map(_outline, groups), timeout=timeout)
    found = [each for each in outlines if each is not None]
    reads = (membership.read(each.group, name) for each in found for name in each.names)
    members = iter(execute_all(session, reads, timeout=timeout))
    looks = (
        partition(each.group, key, each.plan.owners.get(key), key in each.owned)
        for each in found
        for key in each.partitions
    )
    partitions = iter(execute_all(session, looks, timeout=timeout))
    states = []
    for each in found:
        present = [member for member in islice(members, len(each.names)) if member is not None]
        by_assignee = {membership.assignee(member.name): member for member in present}
        planned = _planned(each.plan)
        rows = [
            row
            for row in islice(partitions, len(each.partitions))
            if row.partition in planned or row.owner is not None or row.has_offset
        ]
        states.append(GroupState(each.group, each.plan, by_assignee, rows))
    return states


class _Outline(NamedTuple):
    """The members and partitions of a group that must be read."""

    group: str
    plan: Plan
    names: list[str]
    owned: set[TopicPartition]
    partitions: list[TopicPartition]


def _outline(group: str) -> Recipe[_Outline | None]:
    if not (yield from children(paths.group(group))):
        return None
    names = membership.assignees((yield from membership.names(group))).values()
    plan = (yield from planning.get(group)).plan
    owned = yield from with_owners(group)
    every = _planned(plan) | (yield from with_offsets(group))
    return _Outline(group, plan, list(names), owned, sorted(every))


def _planned(plan: Plan) -> set[TopicPartition]:
    return {
        TopicPartition(topic, number)
        for topic, basis in plan.topics.items()
        for number in range(basis.partitions)
    }


def partition(
    group: str,
    partition: TopicPartition,
    planned: str | None = None,
    is_owned: bool = False,
) -> Recipe[PartitionState]:
    """Read a partition; the caller knows who shall own it, and whether it has an owner."""
    owner: str | None = None
    offset: OffsetState | None = None
    is_decodable = True
    try:
        offset = yield from ownership.committed(group, partition)
    except Malformed:
        is_decodable = False
    if is_owned:
        owner = None if offset is None else offset.member
        if not owner:  # a reset happened meanwhile, or nodes were made by hand
            found = yield from ownership.owner_of(group, partition)
            owner = None if found is None else found.member
    return PartitionState(partition, planned, owner, offset, is_decodable)


def with_offsets(group: str) -> Recipe[set[TopicPartition]]:
    """Return the partitions that have an offset's node, also of deleted topics."""
    return (yield from _below(paths.all_offsets(group)))


def with_owners(group: str) -> Recipe[set[TopicPartition]]:
    """Return the partitions that have an owner's node."""
    return (yield from _below(paths.all_owners(group)))


def _below(path: str) -> Recipe[set[TopicPartition]]:
    found: set[TopicPartition] = set()
    for topic in (yield from children(path)):
        partitions = yield from numbers(f"{path}/{topic}")
        found.update(TopicPartition(topic, number) for number in partitions)
    return found
