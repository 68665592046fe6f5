"""The group member as a pure state machine: what happens and the time in, effects out. No I/O, no clock.

```
        Join done                      Leaving            all released, Leave done
JOINING ─────────► MEMBER ─────────────────────► LEAVING ───────────────────────► LEFT
   ▲                 │ session lost, the member's node removed, the application gone:    ▲
   └─────────────────┤ everything is dropped                                            │
                     └──────────────────────────────────────────────────────────────────┘
                       another process has our instance id
```

A change of the plan touches nothing but the partitions that move (drawn in owned_partitions.py). Whatever
happens is noted at once; what follows for the whole, the next `tick` decides, so that a thousand answers
cost one look at a thousand partitions. Tasks are answered in any order; an answer about something no longer
owned is ignored, since the fence in ZooKeeper has decided already. In silence all is told as Lost, and
released. When to plan is in plan_schedule.py, whether ZooKeeper and the application are there in
liveness.py. The protocol and its proof: docs/groups.md. Owned by the group thread.
"""

import socket
from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from itertools import islice
from random import Random
from typing import Any

import msgspec

from folkmoot.consumers.assignors.assignor import Assignor
from folkmoot.consumers.assignors.next_plan import DEFAULT, next_plan
from folkmoot.consumers.group.events import Left, Rebalanced, Replaced
from folkmoot.consumers.group.liveness import Liveness, PollState, Timing
from folkmoot.consumers.group.owned_partitions import (
    Effect,
    EndSession,
    OwnedPartitions,
    Task,
)
from folkmoot.consumers.group.plan_schedule import NO_PLAN, PlanSchedule
from folkmoot.coordination.groups import membership, ownership, planning
from folkmoot.coordination.groups.membership import MemberInfo, Superseded
from folkmoot.coordination.groups.ownership import (
    CLAIMS_PER_TRANSACTION,
    Claim,
    Claimant,
    Owner,
)
from folkmoot.coordination.groups.plan import PROTOCOL
from folkmoot.coordination.groups.planning import VersionedPlan
from folkmoot.coordination.zookeeper.operations import (
    Recipe,
    TooLarge,
    WatchCallback,
    ZooKeeperError,
)
from folkmoot.protocol.records import TopicPartition

_REMOVED = "this member's node was removed"
_MOST_NAMED = 10

Watch = Callable[..., WatchCallback]
"""Makes what a watch calls: it has this done, with these arguments, in the member's thread."""


class MemberSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a member is told; durations in seconds. As in ConsumerConfig."""

    group: str
    topics: tuple[str, ...] = ()
    pattern: str = ""
    client_id: str = "consumer"
    instance_id: str | None = None
    rejoin_timeout: float = 0.0
    revoke_timeout: float = 2.0
    session_timeout: float = 6.0
    max_processing_time: float | None = None
    assignors: tuple[Assignor, ...] = (DEFAULT,)
    rack: str = ""
    protocol: int = PROTOCOL
    pid: int = 0
    """Of its process, for people."""

    @property
    def hand_over(self) -> float:
        """How long it may take to let go: to end what is under way, and then to give up."""
        return self.revoke_timeout + (self.max_processing_time or 0.0)

    def info(self) -> MemberInfo:
        """What the member publishes."""
        return MemberInfo(
            topics=self.topics,
            host=socket.gethostname(),
            pid=self.pid,
            revoke_timeout=self.revoke_timeout,
            protocol=self.protocol,
            pattern=self.pattern,
            assignors=tuple(each.name for each in self.assignors),
            rack=self.rack,
            rejoin_timeout=self.rejoin_timeout if self.instance_id is not None else 0.0,
        )


class Phase(Enum):
    """Where a member is in its life, as drawn above."""

    JOINING = "joining"
    MEMBER = "member"
    LEAVING = "leaving"
    LEFT = "left"


class Source(Enum):
    """What may have changed; each is read as a whole, and watched."""

    OWN = "own"
    """The own node: somebody may remove it."""
    OLDER = "older"
    """The node of the next older member."""
    MEMBERS = "members"
    PLAN = "plan"
    TOPICS = "topics"


class Beside(msgspec.Struct, frozen=True):
    """A recipe's step that is no operation of ZooKeeper: done beside the group thread."""

    work: Callable[[], Any]


class GroupMember:
    """One member's view of its group and what follows from it.

    Whatever happens goes through `handle`; the methods for it are those above "what ZooKeeper answered",
    those of `owned` that a consumer asks for, and the `done` of tasks.
    """

    def __init__(
        self, settings: MemberSettings, timing: Timing, random: Random, watch: Watch
    ) -> None:
        self.name: str | None = None
        self.phase = Phase.JOINING
        self.alarms: tuple[str, ...] = ()
        """What somebody has to look at; replaced as a whole."""
        self.missing: tuple[str, ...] = ()
        """Of what it wants, topics that the plan, which knows of it, found nowhere; a pattern that matches
        none stands between slashes. Replaced as a whole."""
        self.info = settings.info()
        self._settings = settings
        self._timing = timing
        self._random = random
        self._watch = watch
        self._now = 0.0
        self._nonce = ""
        self._effects: list[Effect] = []
        me = Claimant(settings.group, "", "", settings.hand_over)
        self.owned = OwnedPartitions(
            me, self._effects, timing, self._watch_owner, settings.revoke_timeout
        )
        self.schedule = PlanSchedule(self.info, timing, random)
        self.liveness = Liveness(timing, settings.max_processing_time, settings.revoke_timeout)
        self._last: tuple[str | None, str] = (None, "")  # the name before, and why it was given up
        self._in_session = False
        self._mine: Mapping[TopicPartition, str] = {}
        """What the plan gives us, with the topics' ids."""
        self._published: dict[str, MemberInfo] = {}  # what is known of members, for planning
        self._reading: dict[Source, bool] = {}  # under way; value: it has changed since
        self._changed = True  # something has happened since the whole was looked at
        self._leave_sent = False
        self._signs_of_life = 0
        self._plan_trouble = ""
        self._is_told = False  # our node rang: the plan that comes with it changes our share
        self._read_plan_at: float | None = None  # when to read a plan that is said to be new
        self.due: float | None = None
        """When the next tick is due, if nothing changes before."""

    @property
    def plan(self) -> VersionedPlan:
        """The plan last seen."""
        return self.schedule.plan

    def handle(
        self, now: float, heard: float, happened: Callable[..., None], *given: Any
    ) -> list[Effect]:
        """Take in one thing that has happened, and return what follows, in order.

        `heard` is when the last thing was sent that ZooKeeper has answered (0: nothing in this session).
        Our own clock comes first: who stood still may hear of an answer that came meanwhile, but others
        may have taken what it had.
        """
        self._now = now
        liveness = self.liveness
        if now >= liveness.fence_at and not liveness.fenced:
            liveness.fenced = self._changed = True
            self.owned.let_go_of_all("ZooKeeper has been silent for too long")
            self.schedule.doubt()
        if heard > liveness.acknowledged_at and liveness.acknowledged(heard, now):
            # What the plan gives us is claimed anew, from its committed offset on.
            self._changed = True
            self._read(Source.PLAN)
        happened(*given)
        if self.phase is Phase.LEAVING:
            self._maybe_left()
        effects = self._effects.copy()
        self._effects.clear()
        return effects

    # -- what happens -----------------------------------------------------------------------------

    def started(self, nonce: str, session_timeout: float, chroot: str = "") -> None:
        """A session is open; `nonce` marks all that is done in it. Nothing of an earlier one counts.

        `session_timeout` (s) is what ZooKeeper granted, which may be less than what was asked for.
        """
        self._nonce, self.owned.chroot = nonce, chroot
        self.liveness.began(session_timeout)
        self._changed = self._in_session = True
        self._join()

    def session_lost(self) -> None:
        """The session is over; `started` follows when there is another."""
        self._in_session = False
        self._forget("the ZooKeeper session was lost")

    def changed(self, source: Source) -> None:
        """A source may have changed."""
        if source is Source.PLAN:
            self._plan_changed()
        elif source not in (Source.MEMBERS, Source.TOPICS):
            self._read(source)
            if source is Source.OWN:
                self._is_told = True
                if self._read_plan_at is not None:
                    self._plan_changed()
        elif self.schedule.is_eldest:
            self.schedule.changed(self._now)
            self.due = None
        elif source in self._reading:  # its answer may be old, and make us the eldest
            self._reading[source] = True

    def owner_changed(self, partition: TopicPartition) -> None:
        """The owner's node of a partition may have changed."""
        self._changed = True
        self.owned.owner_changed(partition, self._now)

    def leaving(self) -> None:
        """The consumer wants out."""
        self._changed = True
        if self.phase in (Phase.JOINING, Phase.MEMBER):
            self.phase = Phase.LEAVING
            self.owned.give_up_claims()
            self.owned.revoke_all()

    def polled(self, at: float) -> None:
        """The application asked for records at that time (monotonic)."""
        before = self.liveness.polled(at)
        self._changed = self._changed or before is not PollState.ACTIVE
        if before is PollState.EXPIRED:
            self._join()

    def tick(self) -> None:
        """Time has passed, or all that had happened was told: decide what follows."""
        if self.owned.has_changed:
            self.owned.has_changed, self._changed = False, True
        if releases := self.owned.release_drained():
            asked = self.owned.me, releases
            self._start(ownership.release, asked, partial(self._released, releases))
        if self._changed or self.due is None or self._now >= self.due:
            self._act_by_time(self._now)
            self._reconsider(self._now)
            self.due = self._next_due()

    def _next_due(self) -> float | None:
        """What only puts it off later is not looked at."""
        times = [self.liveness.deadline(), self._read_plan_at]
        if self._is_planning():
            times.append(self.schedule.deadline())
        if self.phase is Phase.MEMBER:
            times += [self.liveness.absence_at(), self.owned.overdue_at()]
        if self._may_claim():
            times.append(self.owned.deadline())
        return min((at for at in times if at is not None), default=None)

    def _start(
        self,
        recipe: Callable[..., Recipe[Any]],
        given: tuple[Any, ...],
        done: Callable[[Any], None],
    ) -> None:
        self._effects.append(Task(recipe, given, done))

    def _watch_owner(self, partition: TopicPartition) -> WatchCallback:
        return self._watch(self.owner_changed, partition)

    # -- what ZooKeeper answered ------------------------------------------------------------------

    def failed(self, task: Task, error: ZooKeeperError) -> None:
        """ZooKeeper refused a task for a reason that its recipe did not foresee.

        Without the next plan the last one stands. Anything else leaves open what this session holds, so
        it ends, and its nodes with it; another begins after a pause.
        """
        if task.recipe == self._make_plan:
            self._planned(error)
            return
        what = task.recipe.__name__.replace("_", " ")
        why = f"ZooKeeper refused to {what}: {error}"
        self.alarms = (f"this member joins again: {why}",)
        self._forget(why)
        self._effects.append(EndSession(why, has_failed=True))

    def _joined(self, result: object) -> None:
        self._changed = True
        if isinstance(result, Superseded):
            self._replaced()
        else:
            assert isinstance(result, str)
            self.name = result
            self.owned.me = msgspec.structs.replace(self.owned.me, name=result, nonce=self._nonce)
            self._last = (result, "")
            self.liveness.joined(self._now, self._random.uniform(0.2, 1.0))
            if self.phase is Phase.JOINING:
                self.phase = Phase.MEMBER
                for source in (Source.OWN, Source.PLAN, Source.MEMBERS):
                    self._read(source)

    def _planned(self, result: object) -> None:
        self._changed = True
        self.schedule.ended(result, self._now)
        self._plan_trouble = "" if isinstance(result, bool) else f"no plan: {result}"
        # Not written: somebody else was faster, or what we know of the group is old.
        self._read(Source.PLAN)
        if result is not True:
            self._read(Source.MEMBERS)
            if self.schedule.is_eldest:
                self._read(Source.TOPICS)

    def _claimed(self, answers: Mapping[TopicPartition, object]) -> None:
        self._changed = True
        if self.owned.claimed(answers, self._is_wanted, self._is_ours, self._now):
            self._read(Source.PLAN)

    def _released(self, held: Mapping[TopicPartition, tuple[Claim, int | None]], _: object) -> None:
        self._changed = True
        self.owned.released(held)

    def _left(self, _: object) -> None:
        self.phase = Phase.LEFT
        self._effects.append(Left())

    def _seen(self, source: Source, name: str, watched: bool, value: object) -> None:
        """What was read of a source: whether the node `name` is there, names, a plan, topics."""
        self._changed = True
        again = self._reading.pop(source, False)
        match source, value:
            case Source.OWN, False:
                self._removed(_REMOVED)
            case Source.OLDER, False if name == self._older():
                self._read(Source.MEMBERS)
            case Source.MEMBERS, tuple(names):
                self._saw_members(names, watched)
            case Source.PLAN, VersionedPlan() as found:
                if self.plan is not NO_PLAN and found.made != self.plan.made:
                    self._removed("the group's plan was removed")
                elif found.version > self.plan.version:
                    self._adopt(found, self._now)
            case Source.TOPICS, dict(topics):
                # Also where they ring again by now, or the group wants others: a plan reads them anew.
                self.schedule.saw_topics(topics)
        if again:
            self._read(source)

    def _plan_changed(self) -> None:
        """There is a newer plan. In a large group those read it first whose share it changes."""
        spread = 0.0 if self._is_told else self.schedule.spread()
        self._is_told = False
        if not spread:
            self._read(Source.PLAN)
        elif self._read_plan_at is None:
            self._read_plan_at = self._now + self._random.uniform(spread / 4, spread)
            self.due = None

    def _saw_members(self, names: tuple[str, ...], watched: bool) -> None:
        """Is our node there, and is it that of the youngest process with our instance id?"""
        assert self.name is not None
        older = self._older()
        self.schedule.saw_members(names, self.name)
        youngest = membership.assignees(names).get(membership.assignee(self.name), "")
        if youngest and membership.age(youngest) > membership.age(self.name):
            self._replaced()
        elif youngest != self.name:
            self._removed(_REMOVED)
        elif self.schedule.is_eldest:
            if not watched:
                self._read(Source.MEMBERS)
        elif self._older() != older:
            self._read(Source.OLDER)

    def _adopt(self, found: VersionedPlan, now: float) -> None:
        assert self.name is not None
        plan, is_next = found.plan, found.version == self.plan.version + 1
        self.schedule.saw_plan(found)
        if self.schedule.is_eldest and not self.schedule.is_current:
            self._read(Source.MEMBERS)
        self._plan_trouble = ""
        self._mine = plan.share(membership.assignee(self.name))
        wanted = plan.subscriptions.get(membership.assignee(self.name))
        self.missing = () if wanted is None else wanted.unmet_by(plan.topics)
        self.owned.keep(self._mine, is_next, now)
        self._effects.append(Rebalanced(plan.generation, len(plan.members), tuple(self._mine)))

    def _is_wanted(self, partition: TopicPartition, topic_id: str) -> bool:
        """Whether the plan gives us the partition (of a topic with that id, if it is named)."""
        if not topic_id:
            return partition in self._mine
        trusting = self.phase is Phase.MEMBER and self._is_trusting()
        return trusting and self._mine.get(partition) == topic_id

    def _is_ours(self, owner: Owner) -> bool:
        """An earlier process with our instance id, or an earlier claim of ours: nobody to wait for."""
        return owner.nonce == self._nonce or owner.member == membership.assignee(self.name or "")

    # -- what follows -----------------------------------------------------------------------------

    def _reconsider(self, now: float) -> None:
        """Compare the plan with the live group and with what is owned; start what is missing."""
        if self.name is None or not self._changed or not self.schedule.is_informed:
            return
        self._changed = False
        if self._is_planning():
            if not self.liveness.fenced:
                self.schedule.consider(self.name, now)
            if (
                self.schedule.is_eldest
                and self.schedule.topics is None
                and self.plan is not NO_PLAN
            ):
                if Source.TOPICS not in self._reading:
                    self._read(Source.TOPICS)
        if self.phase is Phase.MEMBER:
            for partition in self.owned:
                if self._mine.get(partition) != self.owned.topic_id(partition):
                    self.owned.revoke(partition)
            if self._may_claim():
                self._claim_due(now)
        self._raise_alarms(now)

    def _claim_due(self, now: float) -> None:
        due = self.owned.claim_due(self._mine, now, self.plan.plan.start_of)
        remaining = iter(due.items())
        while some := dict(islice(remaining, CLAIMS_PER_TRANSACTION)):
            asked = self.owned.me, some, self.plan.version, self._watch_owner
            self._start(ownership.claim, asked, self._claimed)

    @property
    def is_without_topics(self) -> bool:
        """Whether nothing at all that it wants exists."""
        wishes = len(self.info.topics) + bool(self.info.pattern)
        return 0 < wishes == len(self.missing)

    def _raise_alarms(self, now: float) -> None:
        malformed = self.owned.malformed()
        found = [f"{each} has no owner: {why}" for each, why in [*malformed.items()][:_MOST_NAMED]]
        if len(malformed) > _MOST_NAMED:
            found.append(f"{len(malformed) - _MOST_NAMED} more partitions have no owner")
        if self.owned.beyond_limit:
            found.append(
                f"{self.owned.beyond_limit} partitions have no owner: one ZooKeeper session must not own "
                "more, start more members"
            )
        plan = self.plan.plan
        eldest = next((plan.subscriptions.get(each) for each in plan.members), None)
        if eldest is not None and plan.assignor not in eldest.assignors[:1] and eldest.assignors:
            found.append(
                f"assignor {eldest.assignors[0]}, which the eldest member prefers, was not used"
            )
        if self._plan_trouble:
            found.append(self._plan_trouble)
        found += [
            f"no topic matches {each} yet: those that do are read as soon as they are created"
            if each.startswith("/")
            else f"topic {each} does not exist: it is read as soon as it is created"
            for each in self.missing[:_MOST_NAMED]
        ]
        if self.schedule.is_stuck(now):
            found.append(
                f"a plan was begun {self._timing.stuck:g} s ago and has not come about: if assignor "
                f"{self.info.assignors[0]} does not return, end this process"
            )
        self.alarms = tuple(found)

    def _is_trusting(self) -> bool:
        """ZooKeeper and the application are there, as far as is known."""
        return not self.liveness.fenced and self.liveness.poll_state is PollState.ACTIVE

    def _may_claim(self) -> bool:
        """Not under a plan that is being read: a claim under an old one would only be refused."""
        reading = Source.PLAN in self._reading
        return self.phase is Phase.MEMBER and self._is_trusting() and not reading

    def _is_planning(self) -> bool:
        """Also while it leaves, since others wait for the eldest as long as it is there."""
        return self.phase in (Phase.MEMBER, Phase.LEAVING) and not self._leave_sent

    def _older(self) -> str:
        return self.schedule.older(self.name or "")

    def _read(self, source: Source) -> None:
        """One read of each source at a time, and another if it changed meanwhile."""
        if self.name is None or self.phase is Phase.LEFT:
            return
        if source is Source.PLAN:
            self._read_plan_at = None
        if source in self._reading:
            self._reading[source] = True
            return
        name = self._older() if source is Source.OLDER else self.name
        if not name:
            return
        self._reading[source] = False
        watched = (
            source is not Source.MEMBERS or self.schedule.is_eldest or not self.schedule.is_informed
        )
        watch = self._watch(self.changed, source) if watched else None
        group = self._settings.group
        done = partial(self._seen, source, name, watched)
        match source:
            case Source.OWN | Source.OLDER:
                self._start(membership.exists, (group, name, watch), done)
            case Source.MEMBERS:
                self._start(membership.names, (group, watch), done)
            case Source.PLAN:
                self._start(planning.get, (group, watch, self._settings.protocol), done)
            case Source.TOPICS:
                wanting = {*self.plan.plan.subscriptions.values(), self.info}
                self._start(planning.wanted_topics, (wanting, watch), done)

    def _maybe_left(self) -> None:
        if not self.owned.idle:
            return
        if self.name is None:  # not yet joined, or no longer: there is no node to remove
            self._left(None)
        elif not self._leave_sent:
            self._leave_sent = True
            self._start(membership.leave, (self._settings.group, self.name), self._left)

    # -- time -------------------------------------------------------------------------------------

    def _act_by_time(self, now: float) -> None:
        if self.phase is Phase.MEMBER:
            missing = self.liveness.misses(now)
            if missing is PollState.LATE:
                self.owned.revoke_all()
            elif missing is PollState.EXPIRED:
                self._removed("the application did not ask for records for too long")
            self.owned.give_up_overdue(now)
        if self.name is None:
            return
        if self._read_plan_at is not None and now >= self._read_plan_at:
            self._read(Source.PLAN)
        if self._is_planning():
            due = (self.owned.deadline(), self.schedule.deadline())
            self._changed = self._changed or any(at is not None and now >= at for at in due)
            if (expired := self.schedule.begin(now)) is not None:
                asked = self.name, expired, self.plan.identity
                self._start(self._make_plan, asked, self._planned)
            if self.schedule.read_at is not None and now >= self.schedule.read_at:
                self.schedule.read_at = None
                self._read(Source.MEMBERS)
                self._read(Source.TOPICS)
        if self.liveness.asks(now):
            self._show_life()

    def _make_plan(
        self, name: str, expired: tuple[str, ...], seen: tuple[int, int]
    ) -> Recipe[bool | TooLarge]:
        """Write the next plan if one is due: read the group, divide beside this thread, and write.

        → whether it was written. `expired` counts under the plan of the identity `seen`: under a later
        one somebody may have been back.
        """
        settings = self._settings
        snapshot = yield from planning.read_snapshot(
            settings.group, self._published, expired, seen, settings.protocol
        )
        if snapshot is None:
            return False
        step: Any = Beside(partial(next_plan, snapshot, settings.assignors, settings.protocol))
        plan = yield step
        if plan is None:
            return False
        return (yield from planning.write(settings.group, name, snapshot, plan))

    def _show_life(self) -> None:
        """Read something that a lost watch may have hidden: each has its turn, many partitions together."""
        owned = list(self.owned)
        chunks = min(len(owned), self._timing.verifications)
        sources = [Source.OWN, Source.PLAN, Source.MEMBERS]
        if self.schedule.is_eldest:
            sources.append(Source.TOPICS)
        turn = self._signs_of_life % (len(sources) + chunks)
        self._signs_of_life += 1
        if turn < len(sources):
            self._read(sources[turn])
        else:
            asked = len(self._effects)
            for partition in owned[turn - len(sources) :: chunks]:
                self.owned.verify(partition)
            if len(self._effects) == asked:  # all being released: something has to be answered
                self._read(Source.OWN)

    # -- sessions ---------------------------------------------------------------------------------

    def _join(self) -> None:
        """As soon as there is a session, and an application that asks for records."""
        there = self.liveness.poll_state is not PollState.EXPIRED
        if self.phase is not Phase.JOINING or not self._in_session or not there:
            return
        settings, (last, why) = self._settings, self._last
        info = msgspec.structs.replace(self.info, previous=f"was {last}: {why}" if last else "")
        group, instance = settings.group, settings.instance_id
        if instance is not None:
            asked = group, instance, self._nonce, info, last
            self._start(membership.join_as_static, asked, self._joined)
        else:
            name = f"{settings.client_id}-{self._nonce}"
            self._start(membership.join, (group, name, info), self._joined)

    def _removed(self, reason: str) -> None:
        """Somebody took us, or the whole group, away: what we know of it means nothing now.

        What is under way would still count in this session, so that there has to be another.
        """
        if self.phase is Phase.MEMBER:
            self._forget(reason)
            self._effects.append(EndSession(reason))

    def _replaced(self) -> None:
        """Another process has our instance id. Coming back would drive it out in turn."""
        leaving = self.phase is Phase.LEAVING
        self._forget("another process has this member's instance id")
        self.phase = Phase.LEFT
        self._effects.append(Left() if leaving else Replaced())

    def _forget(self, reason: str) -> None:
        """Nothing of the last session counts: its answers will not come, and it is asked nothing more."""
        self._effects[:] = [each for each in self._effects if not isinstance(each, Task)]
        self.owned.forget(reason)
        self.schedule = PlanSchedule(self.info, self._timing, self._random)
        self.liveness.forget()
        if self.name is not None:
            self._last = (self.name, reason)
        if self.phase is Phase.MEMBER:
            self.phase = Phase.JOINING
        self.name = None
        self._mine = {}
        self._reading.clear()
        self._is_told, self._read_plan_at = False, None
        self._changed = True
