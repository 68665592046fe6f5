"""The group machine moved by hand: events and the time in, effects kept until they are looked at."""

from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar

from folkmoot.consumers.group.events import (
    Acknowledged,
    Assigned,
    Changed,
    ClaimPartitions,
    CommitOffsets,
    Effect,
    Event,
    Finished,
    Join,
    Read,
    ReleasePartitions,
    Source,
    Started,
    Task,
    Tick,
)
from folkmoot.consumers.group.liveness import Timing
from folkmoot.consumers.group.member_state import GroupMember
from folkmoot.coordination.groups.membership import MemberInfo
from folkmoot.coordination.groups.ownership import Claim, ClaimRequest, OffsetState, Owner
from folkmoot.coordination.groups.plan import Plan, TopicBasis
from folkmoot.coordination.groups.planning import VersionedPlan
from folkmoot.protocol.records import TopicPartition

ME = "me-0000000001"
OLDER = "older-0000000000"
YOUNGER = "younger-0000000002"
NONCE = "n1"
TOPIC_ID = "id-1"
MADE = 40
"""The transaction that made the plan's node."""
SESSION_TIMEOUT = 6.0
HAND_OVER = 2.0
TIMING = Timing()

_E = TypeVar("_E")


@dataclass(frozen=True)
class ClaimPartition:
    """One partition's part of a ClaimPartitions."""

    partition: TopicPartition
    topic_id: str
    plan_version: int
    steal_from: Owner | None


@dataclass(frozen=True)
class ReleasePartition:
    """One partition's part of a ReleasePartitions."""

    partition: TopicPartition
    held: Claim
    offset: int | None


_Seen = Effect | ClaimPartition | ReleasePartition


def _single(effect: Effect) -> list[_Seen]:
    match effect:
        case ClaimPartitions(wanted, version):
            asked = wanted.items()
            return [ClaimPartition(p, each.topic_id, version, each.steal_from) for p, each in asked]
        case ReleasePartitions(held):
            return [ReleasePartition(p, *each) for p, each in held.items()]
    return [effect]


def t(number: int) -> TopicPartition:
    return TopicPartition("t", number)


def owner(member: str, epoch: int = 1, nonce: str = "theirs") -> Owner:
    return Owner(member, nonce, epoch, HAND_OVER)


def claim(partition: TopicPartition, epoch: int = 1, offset: int | None = None) -> Claim:
    """A claim that was just won; every write under it raises the version by one."""
    return Claim(OffsetState(offset, epoch, ME, NONCE, TOPIC_ID), 10 * epoch)


def later(held: Claim, offset: int) -> Claim:
    """The claim after a commit."""
    state = held.state
    written = OffsetState(offset, state.epoch, state.member, state.nonce, state.topic_id)
    return Claim(written, held.version + 1)


class Scene:
    """One member, `ME`, which wants the topic t of four partitions."""

    def __init__(self) -> None:
        self.now = 100.0
        self.member = GroupMember("g", MemberInfo(("t",), "host", HAND_OVER), TIMING, Random(7))
        self.effects: list[_Seen] = []
        self.asked: list[Effect] = []
        """All effects there ever were, as they were."""
        self.chroot = ""
        self.topics = {"t": TopicBasis(TOPIC_ID, 4)}
        self.members: tuple[str, ...] = (ME,)
        self.plan = VersionedPlan(Plan(), 0, MADE)

    def tell(self, event: Event) -> None:
        """As the group thread does: the event, and then a look at the whole."""
        for each in (event, Tick()):
            for effect in self.member.handle(each, self.now):
                self.asked.append(effect)
                self.effects += _single(effect)

    def wait(self, seconds: float) -> None:
        """Time passes, ZooKeeper answers all the while."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 0.5)
            self.tell(Acknowledged(self.now))

    def be_silent(self, seconds: float) -> None:
        """Time passes, nothing is heard of ZooKeeper."""
        self.now += seconds
        self.tell(Tick())

    def answer(self, task: Task | ClaimPartition | ReleasePartition, result: object) -> None:
        self.tell(Acknowledged(self.now))
        self.finish(task, result)

    def finish(self, task: Task | ClaimPartition | ReleasePartition, result: object) -> None:
        """As `answer`, by what was sent nobody knows when."""
        match task:
            case ClaimPartition(partition, topic_id, version, steal_from):
                wanted = {partition: ClaimRequest(topic_id, steal_from)}
                self.tell(Finished(ClaimPartitions(wanted, version), {partition: result}))
            case ReleasePartition(partition, held, offset):
                self.tell(Finished(ReleasePartitions({partition: (held, offset)}), result))
            case _:
                self.tell(Finished(task, result))

    def take(self, kind: type[_E]) -> list[_E]:
        """The effects of a kind that came since they were last taken."""
        taken: list[_E] = [effect for effect in self.effects if isinstance(effect, kind)]
        self.effects = [effect for effect in self.effects if not isinstance(effect, kind)]
        return taken

    def take_one(self, kind: type[_E]) -> _E:
        (effect,) = self.take(kind)
        return effect

    # -- steps that most scenes begin with --------------------------------------------------------

    def join(self) -> None:
        """A session, a name, and all that is there to read."""
        self.tell(Started(NONCE, SESSION_TIMEOUT, self.chroot))
        self.answer(self.take_one(Join), ME)
        self.read_all()

    def read_all(self) -> None:
        """Answer all reads, with what the group is now."""
        answers: dict[Source, Any] = {}
        while reads := self.take(Read):
            for read in reads:
                answers = {
                    Source.MEMBERS: self.members,
                    Source.PLAN: self.plan,
                    Source.TOPICS: self.topics,
                    Source.OWN: True,
                    Source.OLDER: read.name in self.members,
                }
                self.answer(read, answers[read.source])

    def plan_for(self, *owners: str | None, members: tuple[str, ...] = (OLDER, ME)) -> None:
        """A plan that gives t-0, t-1… to these; the member has not seen it yet."""
        generation = self.plan.plan.generation + 1
        self.members = members
        plan = Plan(generation, members, dict(self.topics), {"t": list(owners)})
        self.plan = VersionedPlan(plan, self.plan.version + 1, MADE)

    def see_plan(self, *owners: str | None, members: tuple[str, ...] = (OLDER, ME)) -> None:
        """Such a plan was made, rings, and is read."""
        self.plan_for(*owners, members=members)
        self.tell(Changed(Source.PLAN))
        self.read_all()

    def see_members(self, *members: str) -> None:
        """These are there now, or those that are; all that tells of it fires, and is read."""
        self.members = members or self.members
        self.tell(Changed(Source.MEMBERS))
        self.tell(Changed(Source.OLDER))
        while self.member.schedule.read_at is not None:
            self.wait(max(0.01, self.member.schedule.read_at - self.now))
        self.read_all()

    def hold(self, *numbers: int, offset: int | None = None) -> dict[TopicPartition, Claim]:
        """As an only member: have a plan and own these partitions of it."""
        self.join()
        mine = [ME if number in numbers else None for number in range(4)]
        self.see_plan(*mine, members=(ME,))
        held = {}
        for task in self.take(ClaimPartition):
            held[task.partition] = claim(task.partition, offset=offset)
            self.answer(task, held[task.partition])
        self.take(Assigned)
        self.effects.clear()
        return held

    def release(self) -> list[ReleasePartition]:
        """Answer the releases that were asked for, and return them."""
        releases = self.take(ReleasePartition)
        for task in releases:
            self.answer(task, None)
        return releases

    def commits(self) -> list[CommitOffsets]:
        return self.take(CommitOffsets)
