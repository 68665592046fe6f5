"""Who gets which partition: pure functions, the same answer in every member.

Sticky: everybody keeps what they have, as far as the balance allows; what has no owner goes to whoever
has least; then partitions move from the most to the least loaded until nobody has two more than a
member that could take one. With equal subscriptions that is balanced within one, with the fewest
moves possible.
"""

from collections.abc import Mapping, Sequence

from folkmoot.coordination.members import MemberInfo
from folkmoot.coordination.plans import Plan, TopicBasis
from folkmoot.coordination.topics import TopicInfo
from folkmoot.protocol.records import TopicPartition


def next_plan(
    current: Plan, members: Mapping[str, MemberInfo], topics: Mapping[str, TopicInfo]
) -> Plan | None:
    """The plan for these members (oldest first) and topics, or None if `current` was made for them."""
    basis = {
        name: TopicBasis(topic.topic_id, len(topic.partitions)) for name, topic in topics.items()
    }
    if current.generation and current.members == tuple(members) and current.topics == basis:
        return None
    previous = {
        TopicPartition(topic, partition): owner
        for topic, owners in current.assignment.items()
        if topic in basis and current.topics[topic].topic_id == basis[topic].topic_id
        for partition, owner in enumerate(owners)
        if owner is not None
    }
    wanted = {name: frozenset(member.topics) for name, member in members.items()}
    sizes = {name: topic.partitions for name, topic in basis.items()}
    owned = sticky(sizes, wanted, previous)
    return Plan(
        generation=current.generation + 1,
        members=tuple(members),
        topics=basis,
        assignment={
            topic: [owned.get(TopicPartition(topic, partition)) for partition in range(size)]
            for topic, size in sizes.items()
        },
    )


def sticky(
    sizes: Mapping[str, int],
    wanted: Mapping[str, frozenset[str]],
    previous: Mapping[TopicPartition, str],
) -> dict[TopicPartition, str]:
    """Owner per partition of topics with these sizes; partitions that nobody wants are left out."""
    held: dict[str, list[TopicPartition]] = {member: [] for member in wanted}
    homeless: list[TopicPartition] = []
    for topic in sorted(sizes):
        for number in range(sizes[topic]):
            partition = TopicPartition(topic, number)
            owner = previous.get(partition)
            if owner is not None and topic in wanted.get(owner, ()):
                held[owner].append(partition)
            else:
                homeless.append(partition)
    for partition in homeless:
        takers = [member for member in wanted if partition.topic in wanted[member]]
        if takers:
            held[min(takers, key=lambda member: (len(held[member]), member))].append(partition)
    while _move_one(held, wanted):
        pass
    return {partition: member for member, some in held.items() for partition in some}


def _move_one(held: dict[str, list[TopicPartition]], wanted: Mapping[str, frozenset[str]]) -> bool:
    """Move one partition from a fuller to an emptier member if the difference is two or more."""
    by_load: Sequence[str] = sorted(held, key=lambda member: (len(held[member]), member))
    for giver in reversed(by_load):
        for taker in by_load:
            if len(held[giver]) - len(held[taker]) < 2:
                break
            for partition in reversed(held[giver]):
                if partition.topic in wanted[taker]:
                    held[giver].remove(partition)
                    held[taker].append(partition)
                    return True
    return False
