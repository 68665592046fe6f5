"""Groups as an onlooker sees them: read only, no watches, nothing of it is needed for the protocol."""

import msgspec

from folkmoot.coordination import members, ownership, paths, plans
from folkmoot.coordination.members import MemberInfo
from folkmoot.coordination.operations import Verb
from folkmoot.coordination.ownership import OffsetState, Owner
from folkmoot.coordination.plan_format import Plan
from folkmoot.coordination.questions import children
from folkmoot.protocol.records import TopicPartition


class PartitionState(msgspec.Struct, frozen=True):
    """A partition of a group: who shall own it by the plan, who does, what is committed."""

    partition: TopicPartition
    planned: str | None
    owner: Owner | None
    offset: OffsetState | None


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
        about to take it; kept: it waits for a static member to come back; unowned: nobody will.
        """
        if each.owner is not None:
            return "stable" if each.owner.member == each.planned else "draining"
        if each.planned in self.members:
            return "claiming"
        kept = each.planned is not None and each.planned in self.plan.static and self.members
        return "kept" if kept else "unowned"


def names() -> Verb[list[str]]:
    """The names of all groups, sorted."""
    return sorted((yield from children(paths.GROUPS)))


def describe(group: str) -> Verb[GroupState | None]:
    """A group as it is now, or None if there is none."""
    if not (yield from children(paths.group(group))):
        return None
    infos: dict[str, MemberInfo] = {}
    seated: dict[str, Seated] = {}
    for seat, name in members.seats((yield from members.names(group))).items():
        found = yield from members.look(group, name)
        if found is not None:
            infos[seat], joined_ms = found
            seated[seat] = Seated(name, joined_ms)
    plan = (yield from plans.get(group)).plan
    planned = {
        TopicPartition(topic, number): owner
        for topic, owners in plan.assignment.items()
        for number, owner in enumerate(owners)
    }
    partitions = []
    for each in sorted(planned.keys() | (yield from with_offsets(group))):
        owner = yield from ownership.owner_of(group, each)
        offset = yield from ownership.committed(group, each)
        partitions.append(PartitionState(each, planned.get(each), owner, offset))
    return GroupState(group, plan.generation, infos, partitions, seated, plan)


def with_offsets(group: str) -> Verb[set[TopicPartition]]:
    """The partitions of which the group has an offset's node, of deleted topics, too."""
    found: set[TopicPartition] = set()
    for topic in (yield from children(paths.all_offsets(group))):
        for number in (yield from children(paths.offsets(group, topic))):
            found.add(TopicPartition(topic, int(number)))
    return found


def offsets(group: str) -> Verb[dict[TopicPartition, OffsetState]]:
    """What is known of the group's offsets, as far as anything is. Raises Malformed."""
    found: dict[TopicPartition, OffsetState] = {}
    for each in sorted((yield from with_offsets(group))):
        state = yield from ownership.committed(group, each)
        if state is not None:
            found[each] = state
    return found


def planned_topics(group: str) -> Verb[set[str]]:
    """The topics that the group divides now."""
    return set((yield from plans.get(group)).plan.topics)
