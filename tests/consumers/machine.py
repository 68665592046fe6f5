"""The group machine moved by hand: events and the time in, effects kept until they are looked at."""

from dataclasses import dataclass
from functools import partial
from math import inf
from random import Random
from typing import Any, TypeVar

from folkmoot.consumers.group.events import Assigned
from folkmoot.consumers.group.liveness import Timing
from folkmoot.consumers.group.member_state import GroupMember, MemberSettings, Phase
from folkmoot.consumers.group.owned_partitions import Effect, Task
from folkmoot.consumers.group.source_reads import Source
from folkmoot.coordination.groups import membership, ownership, planning
from folkmoot.coordination.groups.ownership import Claim, ClaimRequest, OffsetState, Owner
from folkmoot.coordination.groups.plan import Plan, TopicBasis
from folkmoot.coordination.groups.planning import VersionedPlan
from folkmoot.coordination.zookeeper.operations import WatchCallback, ZooKeeperError
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
class Asked:
    """What a task asks for, in words; told of its result by `answer`."""


@dataclass(frozen=True)
class Join(Asked):
    """Register as a member."""


@dataclass(frozen=True)
class Leave(Asked):
    """Remove the own node."""


@dataclass(frozen=True)
class Read(Asked):
    """Read a source; `name` is that of a node."""

    source: Source
    name: str = ""
    watched: bool = True


@dataclass(frozen=True)
class MakePlan(Asked):
    """Write the next plan."""


@dataclass(frozen=True)
class ClaimPartitions(Asked):
    """Claim partitions under a plan."""

    wanted: dict[TopicPartition, ClaimRequest]
    plan_version: int


@dataclass(frozen=True)
class ReleasePartitions(Asked):
    """Commit and let go."""

    held: dict[TopicPartition, tuple[Claim, int | None]]


@dataclass(frozen=True)
class CommitOffsets(Asked):
    """Write offsets under claims."""

    offsets: dict[TopicPartition, tuple[Claim, int]]


@dataclass(frozen=True)
class VerifyOwner(Asked):
    """Look whether the owner's node is ours."""

    partition: TopicPartition
    held: Claim


@dataclass(frozen=True)
class ClaimPartition(Asked):
    """One partition's part of a ClaimPartitions."""

    partition: TopicPartition
    topic_id: str
    plan_version: int
    steal_from: Owner | None


@dataclass(frozen=True)
class ReleasePartition(Asked):
    """One partition's part of a ReleasePartitions."""

    partition: TopicPartition
    held: Claim
    offset: int | None


_Seen = Effect | Asked


def _in_words(task: Task) -> Asked:
    """What a task asks for."""
    given = task.arguments
    if task.recipe is membership.join:
        return Join()
    if task.recipe is membership.leave:
        return Leave()
    if task.recipe is ownership.claim:
        return ClaimPartitions(given[1], given[2])
    if task.recipe is ownership.release:
        return ReleasePartitions(given[1])
    if task.recipe is ownership.commit:
        return CommitOffsets(given[1])
    if task.recipe is ownership.verify:
        return VerifyOwner(given[1], given[2])
    if task.recipe in (
        *(membership.exists, membership.names),
        *(planning.get, planning.wanted_topics),
    ):
        assert isinstance(task.done, partial)
        source, name, watched = task.done.args
        is_node = source in (Source.OWN, Source.OLDER)
        return Read(source, name if is_node else "", watched)
    assert task.recipe.__name__ == "_make_plan"
    return MakePlan()


def _single(asked: _Seen) -> list[_Seen]:
    match asked:
        case ClaimPartitions(wanted, version):
            every = wanted.items()
            return [ClaimPartition(p, each.topic_id, version, each.steal_from) for p, each in every]
        case ReleasePartitions(held):
            return [ReleasePartition(p, *each) for p, each in held.items()]
    return [asked]


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
        self.heard = 0.0
        settings = MemberSettings(
            group="g", topics=("t",), client_id="me", revoke_timeout=HAND_OVER
        )
        self.member = GroupMember(settings, TIMING, Random(7), _watch)
        self.effects: list[_Seen] = []
        self.asked: list[_Seen] = []
        """All effects there ever were, as they were."""
        self.chroot = ""
        self.topics = {"t": TopicBasis(TOPIC_ID, 4)}
        self.members: tuple[str, ...] = (ME,)
        self.plan = VersionedPlan(Plan(), 0, MADE)
        self._tasks: list[tuple[_Seen, Task]] = []

    def tell(self, what: str, *given: Any) -> None:
        """As the group thread does: what happens, by its method, and then a look at the whole."""
        if what == "acknowledged":
            (self.heard,) = given
            return self._do(lambda: None)
        if what == "session_lost":
            self.heard = 0.0
        owner = self.member.owned if what in ("commit", "drained") else self.member
        return self._do(getattr(owner, what), *given)

    def _do(self, happened: Any, *given: Any) -> None:
        for call, arguments in ((happened, given), (self.member.tick, ())):
            for effect in self.member.handle(self.now, self.heard, call, *arguments):
                seen = _in_words(effect) if isinstance(effect, Task) else effect
                if isinstance(effect, Task):
                    self._tasks += [(each, effect) for each in (seen, *_single(seen))]
                self.asked.append(seen)
                self.effects += _single(seen)

    def wait(self, seconds: float) -> None:
        """Time passes, ZooKeeper answers all the while."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 0.5)
            self.tell("acknowledged", self.now)

    def be_silent(self, seconds: float) -> None:
        """Time passes, nothing is heard of ZooKeeper."""
        self.now += seconds
        self.tell("tick")

    def answer(self, asked: Asked, result: object) -> None:
        self.tell("acknowledged", self.now)
        self.finish(asked, result)

    def finish(self, asked: Asked, result: object) -> None:
        """As `answer`, by what was sent nobody knows when."""
        task = next(task for each, task in reversed(self._tasks) if each == asked)
        if self.member.phase is Phase.LEFT:
            return
        match asked:
            case ClaimPartition(partition):
                self._do(self.member._claimed, {partition: result})
            case ReleasePartition(partition, held, offset):
                self._do(self.member._released, {partition: (held, offset)}, result)
            case _:
                self._do(task.done, result)

    def fail(self, asked: Asked, error: ZooKeeperError) -> None:
        """ZooKeeper refuses a task for a reason that its recipe did not foresee."""
        task = next(task for each, task in reversed(self._tasks) if each == asked)
        self._do(self.member.failed, task, error)

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
        self.tell("started", NONCE, SESSION_TIMEOUT, self.chroot)
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
        self.tell("changed", Source.PLAN)
        self.read_all()

    def see_members(self, *members: str) -> None:
        """These are there now, or those that are; all that tells of it fires, and is read."""
        self.members = members or self.members
        self.tell("changed", Source.MEMBERS)
        self.tell("changed", Source.OLDER)
        while self.member.schedule.read_at < inf:
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


def _watch(*_: object) -> WatchCallback:
    return lambda: None
