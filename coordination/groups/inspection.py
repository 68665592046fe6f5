"""Groups as an onlooker sees them: read only, no watches, nothing of it is needed for the protocol.

What is read of each member and each partition is read side by side, and of a partition only its offset's
node: a claim writes the owner there as well, and whether the owner's node is still there its parent
tells for all. A group of a thousand partitions costs a thousand reads.
"""

import re

import msgspec

from folkmoot.coordination import paths
from folkmoot.coordination.groups import membership as members
from folkmoot.coordination.groups import ownership
from folkmoot.coordination.groups import plan as plans
from folkmoot.coordination.groups.membership import MemberInfo
from folkmoot.coordination.groups.ownership import OffsetState
from folkmoot.coordination.groups.plan_format import Plan
from folkmoot.coordination.zookeeper.execute import execute, execute_all
from folkmoot.coordination.zookeeper.operations import Recipe
from folkmoot.coordination.zookeeper.recipes import Malformed, children
from folkmoot.coordination.zookeeper.session import Session
from folkmoot.protocol.records import TopicPartition

_NUMBER = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)


class PartitionState(msgspec.Struct, frozen=True):
    """A partition of a group: who shall own it by the plan, who does, what is committed.

    `planned` and `owner` are seats. `offset` is None, too, if the node is not `legible`.
    """

    partition: TopicPartition
    planned: str | None
    owner: str | None
    offset: OffsetState | None
    legible: bool = True


class Seated(msgspec.Struct, frozen=True):
    """The node of whoever has a seat: its name, and when it was made (ms, the server's clock)."""

    name: str
    joined_ms: int


class GroupState(msgspec.Struct, frozen=True):
    """A group, read piece by piece while it goes on: not a snapshot of one moment.

    `members` and `seated` by their seats, as in plans and owners' nodes.
    """

    name: str
    generation: int
    members: dict[str, MemberInfo]
    partitions: list[PartitionState]
    seated: dict[str, Seated] = {}
    plan: Plan = Plan()

    @property
    def state(self) -> str:
        """empty: nobody; rebalancing: some partition is not owned as planned; else stable."""
        if not self.members:
            return "empty"
        settled = all(
            self.state_of(each) in ("stable", "kept")
            for each in self.partitions
            if each.planned is not None
        )
        return "stable" if settled and self.generation else "rebalancing"

    def state_of(self, each: PartitionState) -> str:
        """How ownership stands against the plan, whose members may be gone by now.

        stable: owned as planned; draining: its owner is to give it up; claiming: its next owner is
        about to take it; kept: it waits for a static member to come back; unowned: nobody will;
        malformed: its offset was written over, and nobody can take it before a reset.
        """
        if not each.legible:
            return "malformed"
        if each.owner is not None:
            return "stable" if each.owner == each.planned else "draining"
        if each.planned in self.members:
            return "claiming"
        kept = each.planned is not None and each.planned in self.plan.static and self.members
        return "kept" if kept else "unowned"


def names() -> Recipe[list[str]]:
    """The names of all groups, sorted."""
    return sorted((yield from children(paths.GROUPS)))


def describe(session: Session, group: str) -> GroupState | None:
    """A group as it is now, or None if there is none."""
    if not execute(session, children(paths.group(group))):
        return None
    seats = members.seats(execute(session, members.names(group)))
    found = execute_all(session, (members.look(group, name) for name in seats.values()))
    infos: dict[str, MemberInfo] = {}
    seated: dict[str, Seated] = {}
    for (seat, name), published in zip(seats.items(), found, strict=True):
        if published is not None:
            infos[seat], joined_ms = published
            seated[seat] = Seated(name, joined_ms)
    plan = execute(session, plans.get(group)).plan
    planned = {
        TopicPartition(topic, number): owner
        for topic, owners in plan.assignment.items()
        for number, owner in enumerate(owners)
    }
    owned = execute(session, with_owners(group))
    every = sorted(planned.keys() | execute(session, with_offsets(group)))
    states = (_partition(group, each, planned.get(each), each in owned) for each in every)
    partitions = execute_all(session, states)
    return GroupState(group, plan.generation, infos, partitions, seated, plan)


def _partition(
    group: str, partition: TopicPartition, planned: str | None, is_owned: bool
) -> Recipe[PartitionState]:
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
        for number in (yield from children(f"{path}/{topic}")):
            if _NUMBER.fullmatch(number):  # what somebody else has put there is no partition
                found.add(TopicPartition(topic, int(number)))
    return found


def offsets(session: Session, group: str) -> dict[TopicPartition, OffsetState]:
    """What is known of the group's offsets, as far as anything is. Raises Malformed."""
    every = sorted(execute(session, with_offsets(group)))
    states = execute_all(session, (ownership.committed(group, each) for each in every))
    return {each: state for each, state in zip(every, states, strict=True) if state is not None}


def planned_topics(group: str) -> Recipe[set[str]]:
    """The topics that the group divides now."""
    return set((yield from plans.get(group)).plan.topics)
