"""The group machine's tasks (events.py) as recipes on ZooKeeper."""

import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from folkmoot.consumers.assignors import next_plan as assignment
from folkmoot.consumers.assignors.agreement import DEFAULT
from folkmoot.consumers.assignors.assignor import Assignor
from folkmoot.consumers.group.events import (
    Changed,
    ClaimPartition,
    CommitOffsets,
    Event,
    Heartbeat,
    Join,
    Leave,
    MakePlan,
    OwnerChanged,
    Read,
    ReleasePartition,
    Source,
    Task,
    VerifyOwner,
)
from folkmoot.consumers.group.member_state import GroupMember
from folkmoot.coordination import topics
from folkmoot.coordination.groups import membership as members
from folkmoot.coordination.groups import ownership
from folkmoot.coordination.groups import plan as plans
from folkmoot.coordination.groups import rebalance_history as chronicle
from folkmoot.coordination.groups.membership import MemberInfo, Superseded
from folkmoot.coordination.groups.ownership import Claimant
from folkmoot.coordination.groups.plan import Facts, Plan, TopicBasis
from folkmoot.coordination.groups.plan_format import PROTOCOL
from folkmoot.coordination.zookeeper.operations import Recipe, TooLarge, WatchCallback
from folkmoot.coordination.zookeeper.recipes import Malformed

LOOKS = 10


class MemberSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a member is told; durations in seconds. As in ConsumerConfig."""

    group: str
    topics: tuple[str, ...] = ()
    pattern: str = ""
    client_id: str = "consumer"
    instance_id: str | None = None
    grace: float = 0.0
    hand_over: float = 2.0
    session_timeout: float = 6.0
    max_processing_time: float | None = None
    assignors: tuple[Assignor, ...] = (DEFAULT,)
    weight: int = 1
    rack: str = ""
    protocol: int = PROTOCOL

    def info(self) -> MemberInfo:
        """What the member publishes."""
        return MemberInfo(
            self.topics,
            socket.gethostname(),
            self.hand_over,
            self.protocol,
            self.pattern,
            tuple(each.name for each in self.assignors),
            self.weight,
            self.rack,
            self.grace if self.instance_id is not None else 0.0,
        )


class Recipes:
    """Makes the recipes of one member; `ring` gives what a watch calls so that an event is told."""

    def __init__(
        self, settings: MemberSettings, member: GroupMember, ring: Callable[[Event], WatchCallback]
    ) -> None:
        self._settings = settings
        self._info = settings.info()
        self._member = member
        self._ring = ring
        self._known: dict[str, MemberInfo] = {}
        self._looks = 0  # how often to look yet how long the plan took that we have noted last

    def of(self, task: Task) -> Recipe[Any]:
        """The recipe that carries a task out; what it returns goes into the task's Finished."""
        group = self._settings.group
        name = self._member.name or ""
        me = Claimant(group, name, self._member.nonce, self._settings.hand_over)
        match task:
            case Join(last):
                return self._joining(last)
            case Leave():
                return members.bid_farewell(group, name)
            case Heartbeat():
                return self._showing_life(name)
            case Read(source):
                return self._reading(source, self._ring(Changed(source)))
            case MakePlan(expired, seen):
                return self._planning(name, expired, seen)
            case ClaimPartition(partition, topic_id, version, steal_from):
                ring = self._ring(OwnerChanged(partition))
                return ownership.claim(me, partition, topic_id, version, ring, steal_from)
            case ReleasePartition(partition, held, offset):
                return ownership.release(me, partition, held, offset)
            case CommitOffsets(_, offsets):
                return ownership.commit(me, offsets)
            case VerifyOwner(partition, held):
                return ownership.verify(me, partition, held, self._ring(OwnerChanged(partition)))

    def _joining(self, last: str | None) -> Recipe[str | Superseded]:
        group, nonce = self._settings.group, self._member.nonce
        instance = self._settings.instance_id
        info = self._info
        if last is not None:
            why = f"was {last}: {self._member.holdings.forgotten}"
            info = msgspec.structs.replace(info, back=why)
        if instance is not None:
            return members.take_seat(group, instance, nonce, info, last)
        return members.join(group, f"{self._settings.client_id}-{nonce}", info)

    def _planning(
        self, name: str, expired: tuple[str, ...], seen: tuple[int, int] | None
    ) -> Recipe[bool | TooLarge]:
        """Write the next plan, and take note of it."""
        made: list[tuple[Plan, Plan, Facts]] = []

        def decide(current: Plan, facts: Facts) -> Plan | None:
            plan = self._next_plan(current, facts)
            if plan is not None:
                made.append((current, plan, facts))
            return plan

        group, understands = self._settings.group, self._settings.protocol
        written = yield from plans.replace(
            group, name, self._known, decide, expired, seen, understands
        )
        if written is True:
            before, after, facts = made[-1]
            known, names = facts.members, set(self._known)
            yield from chronicle.record(group, name, before, after, known, names)
            self._looks = LOOKS
        return written

    def _showing_life(self, name: str) -> Recipe[bool]:
        """Ask for the own node; and, since this comes about once a second, look what became of a plan."""
        group = self._settings.group
        alive = yield from members.is_there(group, name)
        if alive and self._looks:
            self._looks -= 1
            if not (yield from chronicle.measure(group)):
                self._looks = 0
        return alive

    def _reading(self, source: Source, ring: WatchCallback) -> Recipe[Any]:
        match source:
            case Source.MEMBERS:
                return members.names(self._settings.group, ring)
            case Source.PLAN:
                return plans.get(self._settings.group, ring, self._settings.protocol)
            case Source.TOPICS:
                return _read_topics(self._info, ring)

    def _next_plan(self, current: Plan, facts: Facts) -> Plan | None:
        settings = self._settings
        return assignment.next_plan(current, facts, settings.assignors, settings.protocol)


def _read_topics(info: MemberInfo, ring: WatchCallback) -> Recipe[dict[str, TopicBasis]]:
    """The subscribed topics that exist; `ring` rings when one comes, goes or gets partitions."""
    found: dict[str, TopicBasis] = {}
    for name in (yield from topics.names(ring)):
        if info.wants(name):
            with suppress(Malformed):
                topic = yield from topics.read(name, ring)
                if topic is not None:
                    found[name] = TopicBasis(topic.topic_id, len(topic.partitions))
    return found
