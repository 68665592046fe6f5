"""The group machine's tasks (events.py) as verbs on ZooKeeper."""

import socket
from collections.abc import Callable
from typing import Any

import msgspec

from folkmoot.consumers import assignment
from folkmoot.consumers.events import (
    ClaimPartition,
    CommitOffsets,
    Event,
    Heartbeat,
    Join,
    Leave,
    MakePlan,
    OwnerRang,
    Rang,
    Read,
    ReleasePartition,
    Source,
    Task,
    VerifyOwner,
)
from folkmoot.consumers.group import GroupMember
from folkmoot.coordination import members, ownership, plans, topics
from folkmoot.coordination.members import MemberInfo
from folkmoot.coordination.operations import Ring, Verb
from folkmoot.coordination.ownership import Claimant
from folkmoot.coordination.plans import TopicBasis


class MemberSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a member is told; durations in seconds."""

    group: str
    topics: tuple[str, ...]
    client_id: str = "consumer"
    hand_over: float = 2.0
    session_timeout: float = 6.0


class Verbs:
    """Makes the verbs of one member; `ring` gives what a watch calls so that an event is told."""

    def __init__(
        self, settings: MemberSettings, member: GroupMember, ring: Callable[[Event], Ring]
    ) -> None:
        self._settings = settings
        self._member = member
        self._ring = ring
        self._known: dict[str, MemberInfo] = {}

    def of(self, task: Task) -> Verb[Any]:
        """The verb that carries a task out; what it returns goes into the task's Finished."""
        group = self._settings.group
        name = self._member.name or ""
        me = Claimant(group, name, self._member.nonce, self._settings.hand_over)
        match task:
            case Join():
                prefix = f"{self._settings.client_id}-{self._member.nonce}"
                host, hand_over = socket.gethostname(), self._settings.hand_over
                return members.join(
                    group, prefix, MemberInfo(self._settings.topics, host, hand_over)
                )
            case Leave():
                return members.leave(group, name)
            case Heartbeat():
                return members.is_there(group, name)
            case Read(source):
                return self._reading(source, self._ring(Rang(source)))
            case MakePlan():
                return plans.replace(group, self._known, assignment.next_plan)
            case ClaimPartition(partition, topic_id, version, steal_from):
                ring = self._ring(OwnerRang(partition))
                return ownership.claim(me, partition, topic_id, version, ring, steal_from)
            case ReleasePartition(partition, held, offset):
                return ownership.release(me, partition, held, offset)
            case CommitOffsets(_, offsets):
                return ownership.commit(me, offsets)
            case VerifyOwner(partition, held):
                return ownership.verify(me, partition, held, self._ring(OwnerRang(partition)))

    def _reading(self, source: Source, ring: Ring) -> Verb[Any]:
        match source:
            case Source.MEMBERS:
                return members.names(self._settings.group, ring)
            case Source.PLAN:
                return plans.get(self._settings.group, ring)
            case Source.TOPICS:
                return _read_topics(self._settings.topics, ring)


def _read_topics(wanted: tuple[str, ...], ring: Ring) -> Verb[dict[str, TopicBasis]]:
    """The subscribed topics that exist; `ring` rings when one comes, goes or gets partitions."""
    found: dict[str, TopicBasis] = {}
    existing = frozenset((yield from topics.names(ring)))
    for name in wanted:
        topic = (yield from topics.read(name, ring)) if name in existing else None
        if topic is not None:
            found[name] = TopicBasis(topic.topic_id, len(topic.partitions))
    return found
