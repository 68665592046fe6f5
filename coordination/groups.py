"""Groups as an onlooker sees them: read only, no watches, nothing of it is needed for the protocol."""

import msgspec

from folkmoot.coordination import members, ownership, paths, plans
from folkmoot.coordination.members import MemberInfo
from folkmoot.coordination.operations import NoNode, Verb
from folkmoot.coordination.ownership import OffsetState, Owner
from folkmoot.coordination.questions import children
from folkmoot.protocol.records import TopicPartition


class PartitionState(msgspec.Struct, frozen=True):
    """A partition of a group: who shall own it by the plan, who does, what is committed."""

    partition: TopicPartition
    planned: str | None
    owner: Owner | None
    offset: OffsetState | None


class GroupState(msgspec.Struct, frozen=True):
    """A group, read piece by piece while it goes on: not a snapshot of one moment.

    `members` by their seats, as in plans and owners' nodes.
    """

    name: str
    generation: int
    members: dict[str, MemberInfo]
    partitions: list[PartitionState]

    @property
    def state(self) -> str:
        """empty: nobody; rebalancing: some partition is not owned as planned; else stable."""
        if not self.members:
            return "empty"
        settled = all(
            each.owner is not None and each.owner.member == each.planned
            for each in self.partitions
            if each.planned is not None
        )
        return "stable" if settled and self.generation else "rebalancing"


def names() -> Verb[list[str]]:
    """The names of all groups, sorted."""
    return sorted((yield from children(paths.GROUPS)))


def describe(group: str) -> Verb[GroupState | None]:
    """A group as it is now, or None if there is none."""
    if not (yield from children(paths.group(group))):
        return None
    infos: dict[str, MemberInfo] = {}
    for seat, name in members.seats((yield from members.names(group))).items():
        found = yield from members.info(group, name)
        if found is not None:
            infos[seat] = found
    try:
        plan = (yield from plans.get(group)).plan
    except NoNode:
        plan = plans.Plan()
    planned = {
        TopicPartition(topic, number): owner
        for topic, owners in plan.assignment.items()
        for number, owner in enumerate(owners)
    }
    known = set(planned)
    for topic in (yield from children(f"{paths.group(group)}/offsets")):
        for number in (yield from children(paths.offsets(group, topic))):
            known.add(TopicPartition(topic, int(number)))
    partitions = []
    for each in sorted(known):
        owner = yield from ownership.owner_of(group, each)
        offset = yield from ownership.committed(group, each)
        partitions.append(PartitionState(each, planned.get(each), owner, offset))
    return GroupState(group, plan.generation, infos, partitions)
