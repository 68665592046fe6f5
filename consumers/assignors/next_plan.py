"""The next plan of a group: a pure function of what is known of it, the same in every member.

Members agree on an assignor by what all of them publish (assignors/agreement.py), and on a kind of
plan that all of them understand. Seats of static members that are empty for a while keep what they
have: nobody else is given it, and it is not taken into account when the others are balanced.
"""

from collections.abc import Mapping, Sequence

from folkmoot.consumers.assignors.agreement import DEFAULT, agreed
from folkmoot.consumers.assignors.assignor import Assignor, Question, Subscriber
from folkmoot.coordination.groups.membership import MemberInfo
from folkmoot.coordination.groups.plan import Facts, Plan, Standing, TopicBasis
from folkmoot.coordination.groups.plan_format import PROTOCOL
from folkmoot.protocol.records import TopicPartition

MOST_WEIGHT = 100


def next_plan(
    current: Plan,
    facts: Facts,
    mine: Sequence[Assignor] = (DEFAULT,),
    understands: int = PROTOCOL,
) -> Plan | None:
    """The plan for these facts, or None if `current` was made for them.

    `mine` and `understands` are what the planner itself can do.
    """
    topics = {
        name: TopicBasis(topic.topic_id, len(topic.partitions))
        for name, topic in facts.topics.items()
    }
    static = _standings(current, facts)
    members = (*facts.members, *(seat for seat in static if static[seat].absent))
    same = (current.topics, current.static) == (topics, static)
    if current.generation and same and set(current.members) == set(members):
        return None
    assignor = agreed([info.assignors for info in facts.members.values()], mine)
    previous = _still_there(current, topics)
    owned = {
        partition: seat
        for partition, seat in previous.items()
        if seat in static and static[seat].absent
    }
    owned |= assignor.assign(_question(facts, topics, previous, owned)) if facts.members else {}
    return Plan(
        generation=current.generation + 1,
        members=members,
        topics=topics,
        assignment={
            topic: [owned.get(TopicPartition(topic, number)) for number in range(basis.partitions)]
            for topic, basis in topics.items()
        },
        static=static,
        assignor=assignor.name,
        protocol=min([understands, *(max(1, each.protocol) for each in facts.members.values())]),
    )


def _standings(current: Plan, facts: Facts) -> dict[str, Standing]:
    """Seats that are kept when they are empty: those taken now, and those waited for."""
    waited_for = {
        seat: Standing(standing.grace, standing.wish, absent=True)
        for seat, standing in current.static.items()
        if seat not in facts.members and seat not in facts.expired
    }
    taken = {
        seat: Standing(info.grace, info.wish())
        for seat, info in facts.members.items()
        if info.grace > 0
    }
    return waited_for | taken


def _still_there(current: Plan, topics: Mapping[str, TopicBasis]) -> dict[TopicPartition, str]:
    """Who had what, of topics that are the same as then."""
    return {
        TopicPartition(topic, partition): owner
        for topic, owners in current.assignment.items()
        if topic in topics and current.topics[topic].topic_id == topics[topic].topic_id
        for partition, owner in enumerate(owners)
        if owner is not None and partition < topics[topic].partitions
    }


def _question(
    facts: Facts,
    topics: Mapping[str, TopicBasis],
    previous: Mapping[TopicPartition, str],
    kept: Mapping[TopicPartition, str],
) -> Question:
    racks = {
        TopicPartition(name, number): facts.racks[replicas[0]]
        for name, topic in facts.topics.items()
        for number, replicas in enumerate(topic.partitions)
        if replicas and replicas[0] in facts.racks
    }
    return Question(
        sizes={name: basis.partitions for name, basis in topics.items()},
        subscribers={seat: _subscriber(info, topics) for seat, info in facts.members.items()},
        previous=previous,
        racks=racks,
        kept=frozenset(kept),
    )


def _subscriber(info: MemberInfo, topics: Mapping[str, TopicBasis]) -> Subscriber:
    return Subscriber(
        topics=frozenset(topic for topic in topics if info.wants(topic)),
        weight=min(max(1, info.weight), MOST_WEIGHT),
        rack=info.rack,
    )
