"""The next plan of a group: a pure function of a snapshot of it.

The group leader's preferred assignor divides. Absent static members keep their partitions, which do not
count when the others are balanced.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from folkmoot.consumers.assignors.assignor import AssignmentInput, Assignor, Subscriber
from folkmoot.consumers.assignors.range_roundrobin import Range, RoundRobin
from folkmoot.consumers.assignors.sticky import Sticky
from folkmoot.coordination.groups.membership import MemberInfo, is_wanted
from folkmoot.coordination.groups.plan import (
    MOST_REMEMBERED,
    PROTOCOL,
    Plan,
    StaticMember,
    TopicBasis,
)
from folkmoot.coordination.groups.planning import GroupSnapshot
from folkmoot.protocol.errors import ConfigError
from folkmoot.protocol.process.thread_log import thread_log
from folkmoot.protocol.records import TopicPartition

log = thread_log(__name__)

DEFAULT: Final = Sticky()
"""Every member has this one."""

KNOWN: Final[Mapping[str, Assignor]] = {
    assignor.name: assignor for assignor in (DEFAULT, Range(), RoundRobin())
}

Owners = dict[TopicPartition, str]


def assignors_of(preferred: Iterable[str | Assignor]) -> tuple[Assignor, ...]:
    """Return a consumer's assignors, preferred first, the default last. Raises ConfigError."""
    by_name: dict[str, Assignor] = {}
    for choice in preferred:
        assignor: Any = KNOWN.get(choice) if isinstance(choice, str) else choice
        if not (hasattr(assignor, "name") and hasattr(assignor, "assign")):
            raise ConfigError(
                f"assignor {choice!r} is not known: use one of {', '.join(KNOWN)}, or an Assignor"
            )
        by_name.setdefault(assignor.name, assignor)
    by_name.setdefault(DEFAULT.name, DEFAULT)
    return tuple(by_name.values())


def next_plan(
    snapshot: GroupSnapshot,
    assignors: Sequence[Assignor] = (DEFAULT,),
    protocol: int = PROTOCOL,
) -> Plan | None:
    """Return the plan for this snapshot, or None if the current one fits it.

    `assignors` and `protocol` are the planner's own assignors and protocol.
    """
    current = snapshot.current.plan
    topics = {
        name: TopicBasis(topic.topic_id, len(topic.partitions))
        for name, topic in snapshot.topics.items()
    }
    static = _static_members(current, snapshot)
    away = [name for name, member in static.items() if member.absent]
    members = (*snapshot.members, *away)
    basis = (topics, static, snapshot.subscriptions)
    same = (current.topics, current.static, current.subscriptions) == basis
    if current.generation and same and set(current.members) == set(members):
        return None
    previous = _surviving_owners(current, topics)
    reserved = {partition: owner for partition, owner in previous.items() if owner in away}
    assignor, divided = _divide(snapshot, _input(snapshot, topics, previous, reserved), assignors)
    owners = reserved | divided
    protocols = (max(1, member.protocol) for member in snapshot.members.values())
    return Plan(
        generation=current.generation + 1,
        members=members,
        topics=topics,
        assignment={
            topic: [owners.get(TopicPartition(topic, number)) for number in range(basis.partitions)]
            for topic, basis in topics.items()
        },
        static=static,
        assignor=assignor,
        protocol=min([protocol, *protocols]),
        subscriptions=snapshot.subscriptions,
        initial_topics=_initial_topics(current, topics),
        subscribed=_subscribed(current, snapshot.members.values()),
    )


def _initial_topics(current: Plan, topics: Mapping[str, TopicBasis]) -> dict[str, TopicBasis]:
    """Return the partitions of each topic that the group began with: none of a topic created later."""
    began: dict[str, TopicBasis] = {}
    for name, basis in topics.items():
        before = current.initial_topics.get(name)
        if before is not None and before.topic_id == basis.topic_id:
            began[name] = before
        elif before is not None or is_wanted(name, current.subscribed):
            began[name] = TopicBasis(basis.topic_id, 0)
        else:
            began[name] = basis
    remembered = (
        (name, partitions)
        for name, partitions in current.initial_topics.items()
        if name not in began
    )
    return began | dict(islice(remembered, MOST_REMEMBERED))


def _subscribed(current: Plan, members: Iterable[MemberInfo]) -> tuple[str, ...]:
    subscriptions = dict.fromkeys(
        subscription for member in members for subscription in member.subscriptions
    )
    remembered = (
        subscription for subscription in current.subscribed if subscription not in subscriptions
    )
    return (*subscriptions, *islice(remembered, MOST_REMEMBERED))


def _divide(
    snapshot: GroupSnapshot, inputs: AssignmentInput, assignors: Sequence[Assignor]
) -> tuple[str, Owners]:
    """Divide by the leader's preferred assignor, or by the default if that is missing or fails.

    Return the assignor's name, and the owners.
    """
    leader = next(iter(snapshot.members.values()), None)
    preferred = leader.assignors[0] if leader is not None and leader.assignors else DEFAULT.name
    assignor = {**KNOWN, **{own.name: own for own in assignors}}.get(preferred, DEFAULT)
    if assignor.name != preferred:
        log.warning(
            "the group leader prefers assignor %s, which this member does not have", preferred
        )
    try:
        owners = assignor.assign(inputs)
        for partition, owner in owners.items():
            if (
                partition in inputs.reserved
                or partition.topic not in inputs.subscribers[owner].topics
            ):
                raise ValueError(f"it gives {partition} to {owner}, who may not have it")
        subscribed = {
            topic for subscriber in inputs.subscribers.values() for topic in subscriber.topics
        }
        for partition in inputs.partitions():
            if partition not in owners and partition.topic in subscribed:
                raise ValueError(f"it gives {partition} to no member, though there are subscribers")
    except (Exception, SystemExit):
        if assignor is DEFAULT:
            raise
        log.exception("assignor %s has failed: %s is used instead", assignor.name, DEFAULT.name)
        return DEFAULT.name, DEFAULT.assign(inputs)
    return assignor.name, owners


def _static_members(current: Plan, snapshot: GroupSnapshot) -> dict[str, StaticMember]:
    """Return the static members: live ones, and absent ones within their rejoin timeout."""
    waited_for = {
        name: StaticMember(member.rejoin_timeout, absent=True)
        for name, member in current.static.items()
        if name not in snapshot.members and name not in snapshot.expired
    }
    live = {
        name: StaticMember(info.rejoin_timeout)
        for name, info in snapshot.members.items()
        if info.rejoin_timeout > 0
    }
    return waited_for | live


def _surviving_owners(current: Plan, topics: Mapping[str, TopicBasis]) -> Owners:
    """Return the last owners, in topics with the same ids."""
    return {
        TopicPartition(topic, partition): owner
        for topic, owners in current.assignment.items()
        if topic in topics and current.topics[topic].topic_id == topics[topic].topic_id
        for partition, owner in enumerate(owners)
        if owner is not None and partition < topics[topic].partitions
    }


def _input(
    snapshot: GroupSnapshot, topics: Mapping[str, TopicBasis], previous: Owners, reserved: Owners
) -> AssignmentInput:
    subscriptions = {
        (member.topics, member.pattern): member for member in snapshot.members.values()
    }
    topics_of = {
        subscription: frozenset(topic for topic in topics if member.wants(topic))
        for subscription, member in subscriptions.items()
    }
    return AssignmentInput(
        sizes={name: basis.partitions for name, basis in topics.items()},
        subscribers={
            name: Subscriber(topics=topics_of[info.topics, info.pattern], rack=info.rack)
            for name, info in snapshot.members.items()
        },
        previous=previous,
        racks={
            TopicPartition(name, number): snapshot.racks[replicas[0]]
            for name, topic in snapshot.topics.items()
            for number, replicas in enumerate(topic.partitions)
            if replicas and replicas[0] in snapshot.racks
        },
        reserved=frozenset(reserved),
    )
