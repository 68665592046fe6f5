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
    each.name: each for each in (DEFAULT, Range(), RoundRobin())
}

Owners = dict[TopicPartition, str]


def assignors_of(given: Iterable[str | Assignor]) -> tuple[Assignor, ...]:
    """Return a consumer's assignors, preferred first, the default last. Raises ConfigError."""
    found: dict[str, Assignor] = {}
    for each in given:
        assignor: Any = KNOWN.get(each) if isinstance(each, str) else each
        if not (hasattr(assignor, "name") and hasattr(assignor, "assign")):
            raise ConfigError(
                f"assignor {each!r} is not known: use one of {', '.join(KNOWN)}, or an Assignor"
            )
        found.setdefault(assignor.name, assignor)
    found.setdefault(DEFAULT.name, DEFAULT)
    return tuple(found.values())


def next_plan(
    snapshot: GroupSnapshot,
    mine: Sequence[Assignor] = (DEFAULT,),
    understands: int = PROTOCOL,
) -> Plan | None:
    """Return the plan for this snapshot, or None if the current one fits it.

    `mine` and `understands` are the planner's own assignors and protocol.
    """
    current = snapshot.current.plan
    topics = {
        name: TopicBasis(topic.topic_id, len(topic.partitions))
        for name, topic in snapshot.topics.items()
    }
    static = _static_members(current, snapshot)
    away = [each for each, standing in static.items() if standing.absent]
    members = (*snapshot.members, *away)
    basis = (topics, static, snapshot.subscriptions)
    same = (current.topics, current.static, current.subscriptions) == basis
    if current.generation and same and set(current.members) == set(members):
        return None
    previous = _still_there(current, topics)
    kept = {partition: owner for partition, owner in previous.items() if owner in away}
    assignor, divided = _divide(snapshot, _input(snapshot, topics, previous, kept), mine)
    owners = kept | divided
    protocols = (max(1, each.protocol) for each in snapshot.members.values())
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
        protocol=min([understands, *protocols]),
        subscriptions=snapshot.subscriptions,
        began_with=_began_with(current, topics),
        subscribed=_subscribed(current, snapshot.members.values()),
    )


def _began_with(current: Plan, topics: Mapping[str, TopicBasis]) -> dict[str, TopicBasis]:
    """Return the partitions of each topic that the group began with: none of a topic created later."""
    began: dict[str, TopicBasis] = {}
    for name, basis in topics.items():
        before = current.began_with.get(name)
        if before is not None and before.topic_id == basis.topic_id:
            began[name] = before
        elif before is not None or is_wanted(name, current.subscribed):
            began[name] = TopicBasis(basis.topic_id, 0)
        else:
            began[name] = basis
    remembered = ((name, each) for name, each in current.began_with.items() if name not in began)
    return began | dict(islice(remembered, MOST_REMEMBERED))


def _subscribed(current: Plan, members: Iterable[MemberInfo]) -> tuple[str, ...]:
    wishes = dict.fromkeys(wish for each in members for wish in each.subscriptions)
    remembered = (each for each in current.subscribed if each not in wishes)
    return (*wishes, *islice(remembered, MOST_REMEMBERED))


def _divide(
    snapshot: GroupSnapshot, given: AssignmentInput, mine: Sequence[Assignor]
) -> tuple[str, Owners]:
    """Divide by the leader's preferred assignor, or by the default if that is missing or fails.

    Return the assignor's name, and the owners.
    """
    leader = next(iter(snapshot.members.values()), None)
    wanted = leader.assignors[0] if leader is not None and leader.assignors else DEFAULT.name
    assignor = {**KNOWN, **{each.name: each for each in mine}}.get(wanted, DEFAULT)
    if assignor.name != wanted:
        log.warning("the group leader prefers assignor %s, which this member does not have", wanted)
    try:
        owners = assignor.assign(given)
        for partition, owner in owners.items():
            if partition in given.kept or partition.topic not in given.subscribers[owner].topics:
                raise ValueError(f"it gives {partition} to {owner}, who may not have it")
        subscribed = {topic for each in given.subscribers.values() for topic in each.topics}
        for partition in given.partitions():
            if partition not in owners and partition.topic in subscribed:
                raise ValueError(f"it gives {partition} to no member, though there are subscribers")
    except (Exception, SystemExit):
        if assignor is DEFAULT:
            raise
        log.exception("assignor %s has failed: %s is used instead", assignor.name, DEFAULT.name)
        return DEFAULT.name, DEFAULT.assign(given)
    return assignor.name, owners


def _static_members(current: Plan, snapshot: GroupSnapshot) -> dict[str, StaticMember]:
    """Return the static members: live ones, and absent ones within their rejoin timeout."""
    waited_for = {
        each: StaticMember(standing.rejoin_timeout, absent=True)
        for each, standing in current.static.items()
        if each not in snapshot.members and each not in snapshot.expired
    }
    there = {
        each: StaticMember(info.rejoin_timeout)
        for each, info in snapshot.members.items()
        if info.rejoin_timeout > 0
    }
    return waited_for | there


def _still_there(current: Plan, topics: Mapping[str, TopicBasis]) -> Owners:
    """Return the last owners, in topics with the same ids."""
    return {
        TopicPartition(topic, partition): owner
        for topic, owners in current.assignment.items()
        if topic in topics and current.topics[topic].topic_id == topics[topic].topic_id
        for partition, owner in enumerate(owners)
        if owner is not None and partition < topics[topic].partitions
    }


def _input(
    snapshot: GroupSnapshot, topics: Mapping[str, TopicBasis], previous: Owners, kept: Owners
) -> AssignmentInput:
    wishes = {(each.topics, each.pattern): each for each in snapshot.members.values()}
    wanted = {
        wish: frozenset(topic for topic in topics if each.wants(topic))
        for wish, each in wishes.items()
    }
    return AssignmentInput(
        sizes={name: basis.partitions for name, basis in topics.items()},
        subscribers={
            each: Subscriber(topics=wanted[info.topics, info.pattern], rack=info.rack)
            for each, info in snapshot.members.items()
        },
        previous=previous,
        racks={
            TopicPartition(name, number): snapshot.racks[replicas[0]]
            for name, topic in snapshot.topics.items()
            for number, replicas in enumerate(topic.partitions)
            if replicas and replicas[0] in snapshot.racks
        },
        kept=frozenset(kept),
    )
