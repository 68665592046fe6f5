"""The group member as a pure state machine: events and the time in, effects out. No I/O, no clock.

For each partition that the plan gives to this member (claims.py until it is held, then holdings.py):

```
(none) ─ ClaimPartition ─► claiming ─ Claim ─► held ─ plan takes it ─► revoking ─ Drained ─► releasing
                            │ Blocked            │                                             │
                            ▼                    │ VerifyOwner says no, a commit was fenced,   ▼
                         waiting                 ▼ the session is over                       (none)
                            │                  (none), told as Lost
                            └─ its owner's node changes, or its hand-over time is over:
                               claim again, stealing in the latter case
```

A change of the plan touches nothing but the partitions that move. Whatever happens is noted at once;
what follows for the whole, the next Tick decides, so that a thousand answers cost one look at a
thousand partitions. Tasks are answered in any order; an answer about something no longer held is
ignored, since the fence in ZooKeeper has decided already. In silence all is told as Lost, and released.
A member's life is drawn in phase.py; when to plan is in planning.py, whether ZooKeeper and the
application are there in liveness.py. The protocol and its proof: docs/groups.md. Owned by the group thread.
"""

from random import Random

from folkmoot.consumers.group.claims import Claims
from folkmoot.consumers.group.events import (
    Acknowledged,
    Changed,
    ClaimPartition,
    Commit,
    CommitOffsets,
    Drained,
    Effect,
    EndSession,
    Event,
    Finished,
    Heartbeat,
    Join,
    Leave,
    Leaving,
    Left,
    MakePlan,
    OwnerChanged,
    Polled,
    Read,
    Rebalanced,
    ReleasePartition,
    Replaced,
    SessionLost,
    Source,
    Started,
    Task,
    Tick,
    VerifyOwner,
    is_quiet,
)
from folkmoot.consumers.group.liveness import Liveness, Presence
from folkmoot.consumers.group.owned_partitions import Holdings
from folkmoot.consumers.group.pending_reads import Reads
from folkmoot.consumers.group.phase import Phase
from folkmoot.consumers.group.plan_schedule import NO_PLAN, Planning
from folkmoot.consumers.group.timing import Timing
from folkmoot.coordination.groups import membership as members
from folkmoot.coordination.groups.membership import MemberInfo, Superseded
from folkmoot.coordination.groups.ownership import Blocked, Claim, Stale
from folkmoot.coordination.groups.plan import VersionedPlan
from folkmoot.coordination.zookeeper.operations import TooLarge
from folkmoot.protocol.records import TopicPartition

_REMOVED = "this member's node was removed"


class GroupMember:
    """One member's view of its group and what follows from it; `info` is what it publishes."""

    def __init__(
        self,
        info: MemberInfo,
        timing: Timing,
        random: Random,
        max_processing_time: float | None = None,
    ) -> None:
        self.name: str | None = None
        self.nonce = ""
        self.phase = Phase.JOINING
        self._effects: list[Effect] = []
        self._reads = Reads(self._effects)
        self.holdings = Holdings(self._effects)
        self.claims = Claims(self._effects, timing.patience, timing.steal_margin)
        self.planning = Planning(info, timing, random)
        self.liveness = Liveness(timing, max_processing_time, info.hand_over)
        self._timing = timing
        self._random = random
        self._last_name: str | None = None
        self._in_session = False
        self._mine: dict[TopicPartition, str] = {}  # what the plan gives us, with the topics' ids
        self._changed = True  # something has happened since the whole was looked at
        self._leave_sent = False
        self._sweep_at: float | None = None
        self._due: float | None = None

    @property
    def plan(self) -> VersionedPlan:
        """The plan last seen."""
        return self.planning.plan

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take one event and return what follows, in order."""
        if isinstance(event, Acknowledged):
            self.liveness.acknowledged(event.sent_at)
            if not self.liveness.fenced:
                return []  # by far the most frequent event
            # ZooKeeper answers again: what the plan gives us is claimed anew, from its committed offset on.
            self.liveness.fenced = False
            self._changed = True
            self._read(Source.PLAN)
        if self.liveness.falls_silent(now):
            self._changed = True
            self.holdings.let_go_of_all("ZooKeeper has been silent for too long")
            self.planning.doubt()
        match event:
            case Finished(Heartbeat(), bool(alive)):
                self.liveness.answered()
                if not alive:
                    self._removed(_REMOVED)
            case Tick():
                if not self._changed and self._due is not None and now < self._due:
                    return []  # and this the next
                self._act_by_time(now)
                self._reconsider(now)
                self._due = None
            case _:
                held = len(self.holdings)
                self._take(event, now)
                if not is_quiet(event) or held != len(self.holdings):
                    self._changed = True
        self._maybe_left()
        effects = self._effects.copy()
        self._effects.clear()
        return effects

    def deadline(self) -> float | None:
        """When a Tick is due next, if nothing changes before. What only puts it off is not looked at."""
        if self._due is None or self._changed:
            self._due = self._next_deadline()
        return self._due

    def _next_deadline(self) -> float | None:
        asked = self.claims.deadline() if self._may_claim() else None
        planned = self.planning.deadline() if self.phase is Phase.MEMBER else None
        missed = self.liveness.absence_at() if self.phase is Phase.MEMBER else None
        times = (asked, planned, missed, self.liveness.deadline(), self._sweep_at)
        return min((at for at in times if at is not None), default=None)

    def _take(self, event: Event, now: float) -> None:
        match event:
            case Finished() if self.phase is Phase.LEFT:
                pass
            case Finished(task, result):
                self._finished(task, result, now)
            case Changed(source):
                self._read(source)
            case OwnerChanged(partition) if partition in self.holdings:
                self.holdings.verify(partition)
            case OwnerChanged(partition):
                self.claims.rang(partition, now)
            case Commit():
                self.holdings.commit(event)
            case Drained():
                self.holdings.drained(event)
            case Started(nonce, session_timeout):
                self._started(nonce, session_timeout)
            case SessionLost():
                self._in_session = False
                self._forget("the ZooKeeper session was lost")
            case Leaving():
                self._leave()
            case Polled(at):
                before = self.liveness.polled(at)
                self._changed = self._changed or before is not Presence.THERE
                if before is Presence.GONE:
                    self._join()

    # -- what ZooKeeper answered ------------------------------------------------------------------

    def _finished(self, task: Task, result: object, now: float) -> None:
        match task, result:
            case Join(), str(name):
                self._joined(name, now)
            case Join(), Superseded():
                self._replaced()
            case Read(source), value:
                self._seen(source, value, now)
            case MakePlan(), bool() | TooLarge() as written:
                self.planning.ended(written, now)
                # Not written: somebody else was faster, or what we know of the group is old.
                for source in (Source.PLAN,) if written is True else Source:
                    self._read(source)
            case ClaimPartition(), Claim() | Blocked() | Stale() as answer:
                self._claimed(task.partition, answer, now)
            case ReleasePartition(), _:
                self.holdings.released(task)
            case CommitOffsets(), dict(answers):
                self.holdings.committed(task, answers)
            case VerifyOwner(), bool(ours):
                self.holdings.verified(task, ours)
            case Leave(), _:
                self.phase = Phase.LEFT
                self._effects.append(Left())

    def _joined(self, name: str, now: float) -> None:
        self.name = self._last_name = name
        self.liveness.joined(now)
        if self.phase is Phase.JOINING:
            self.phase = Phase.MEMBER
            self._sweep(now)

    def _seen(self, source: Source, value: object, now: float) -> None:
        again = self._reads.answered(source)
        match source, value:
            case Source.MEMBERS, tuple(names):
                self.planning.saw_members(names)
                self._check_seat(names)
            case Source.PLAN, VersionedPlan() as found:
                if self.plan is not NO_PLAN and found.made != self.plan.made:
                    self._removed("the group's plan was removed")
                elif found.version > self.plan.version:
                    self._adopt(found, now)
            case Source.TOPICS, dict(topics):
                self.planning.saw_topics(topics)
        if again:
            self._read(source)

    def _check_seat(self, names: tuple[str, ...]) -> None:
        """Is our node there, and is it that of the youngest who sits here?"""
        assert self.name is not None
        sitting = members.seats(names).get(members.seat(self.name), "")
        if sitting and members.age(sitting) > members.age(self.name):
            self._replaced()
        elif sitting != self.name:
            self._removed(_REMOVED)

    def _adopt(self, found: VersionedPlan, now: float) -> None:
        assert self.name is not None
        plan, is_next = found.plan, found.version == self.plan.version + 1
        self.planning.saw_plan(found)
        self._mine = plan.share(members.seat(self.name))
        self.claims.keep(self._mine, is_next, now)
        self._effects.append(Rebalanced(plan.generation, len(plan.members), tuple(self._mine)))

    def _claimed(
        self, partition: TopicPartition, answer: Claim | Blocked | Stale, now: float
    ) -> None:
        match answer:
            case Claim(state):
                rang = self.claims.won(partition)
                wanted = self.phase is Phase.MEMBER and self._is_trusting()
                if wanted and self._mine.get(partition) == state.topic_id:
                    self.holdings.add(partition, answer)
                    if rang:
                        self.holdings.verify(partition)
                else:
                    self.holdings.decline(partition, answer)
            case _ if partition not in self._mine:
                self.claims.refused(partition)
            case Blocked(owner):
                # An earlier process in our seat, or an earlier claim of ours, need not be waited for.
                ours = owner.nonce == self.nonce or owner.member == members.seat(self.name or "")
                self.claims.blocked(partition, owner, ours, now)
            case Stale():
                self.claims.stale(partition, now)
                self._read(Source.PLAN)

    # -- what follows -----------------------------------------------------------------------------

    def _reconsider(self, now: float) -> None:
        """Compare the plan with the live group and with what is held; start what is missing."""
        if self.phase is not Phase.MEMBER or not self.planning.is_informed or not self._changed:
            return
        assert self.name is not None
        self._changed = False
        if not self.liveness.fenced:
            self.planning.consider(self.name, now)
        for partition in self.holdings:
            if self._mine.get(partition) != self.holdings.topic_id(partition):
                self.holdings.revoke(partition)
        if self._may_claim():
            for partition, topic_id in self._mine.items():
                if partition not in self.holdings:
                    self.claims.pursue(partition, topic_id, self.plan.version, now)

    def _is_trusting(self) -> bool:
        """ZooKeeper and the application are there, as far as is known."""
        return not self.liveness.fenced and self.liveness.presence is Presence.THERE

    def _may_claim(self) -> bool:
        """Not under a plan that is being read: a claim under an old one would only be refused."""
        return (
            self.phase is Phase.MEMBER
            and self._is_trusting()
            and Source.PLAN not in self._reads
            and self.planning.is_informed
        )

    def _read(self, source: Source) -> None:
        if self.phase is Phase.MEMBER:
            self._reads.ask(source)

    def _leave(self) -> None:
        if self.phase in (Phase.JOINING, Phase.MEMBER):
            self.phase = Phase.LEAVING
            self._sweep_at = None
            self.claims.give_up()
            self.holdings.revoke_all()

    def _maybe_left(self) -> None:
        if self.phase is not Phase.LEAVING or not self.holdings.idle or not self.claims.idle:
            return
        if self.name is None:  # not yet joined, or no longer: there is no node to remove
            self.phase = Phase.LEFT
            self._effects.append(Left())
        elif not self._leave_sent:
            self._leave_sent = True
            self._effects.append(Leave())

    # -- time and doubt ---------------------------------------------------------------------------

    def _act_by_time(self, now: float) -> None:
        if self.liveness.asks(now):
            self._effects.append(Heartbeat())
        if self.phase is Phase.MEMBER:
            due = (self.claims.deadline(), self.planning.deadline())
            self._changed = self._changed or any(at is not None and now >= at for at in due)
            if (plan := self.planning.begin(now)) is not None:
                self._effects.append(plan)
            self._watch_application(now)
        if self._sweep_at is not None and now >= self._sweep_at:
            self._sweep(now)

    def _watch_application(self, now: float) -> None:
        missing = self.liveness.misses(now)
        if missing is Presence.LATE:
            self.holdings.revoke_all()
        elif missing is Presence.GONE:
            self._removed("the application did not ask for records for too long")

    def _sweep(self, now: float) -> None:
        """Read everything again: what a lost watch would have told is found out here."""
        self._changed = True
        self._sweep_at = now + self._timing.sweep * self._random.uniform(0.7, 1.3)
        self.claims.look_again(now)
        for partition in self.holdings:
            self.holdings.verify(partition)
        for source in Source:
            self._read(source)

    # -- sessions ---------------------------------------------------------------------------------

    def _started(self, nonce: str, session_timeout: float) -> None:
        self.nonce = nonce
        self.liveness.began(session_timeout)
        self._in_session = True
        self._join()

    def _join(self) -> None:
        """As soon as there is a session, and an application that asks for records."""
        there = self.liveness.presence is not Presence.GONE
        if self.phase is Phase.JOINING and self._in_session and there:
            self._effects.append(Join(self._last_name))

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
        """Nothing of the last session counts: its answers will not come."""
        self.holdings.forget(reason)
        self.claims.forget()
        self.planning.forget()
        self.liveness.forget()
        if self.phase is Phase.MEMBER:
            self.phase = Phase.JOINING
        self.name = None
        self._mine = {}
        self._sweep_at = None
        self._reads.forget()
