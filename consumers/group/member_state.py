"""The group member as a pure state machine: events and the time in, effects out. No I/O, no clock.

```
        Join done                      Leaving            all released, Leave done
JOINING ─────────► MEMBER ─────────────────────► LEAVING ───────────────────────► LEFT
   ▲                 │ session lost, the member's node removed, the application gone:    ▲
   └─────────────────┤ everything is dropped                                            │
                     └──────────────────────────────────────────────────────────────────┘
                       another process has our instance id
```

A change of the plan touches nothing but the partitions that move (drawn in owned_partitions.py). Whatever
happens is noted at once; what follows for the whole, the next Tick decides, so that a thousand answers
cost one look at a thousand partitions. Tasks are answered in any order; an answer about something no longer
owned is ignored, since the fence in ZooKeeper has decided already. In silence all is told as Lost, and
released. When to plan is in plan_schedule.py, whether ZooKeeper and the application are there in
liveness.py. The protocol and its proof: docs/groups.md. Owned by the group thread.
"""

from collections.abc import Mapping
from enum import Enum
from random import Random

from folkmoot.consumers.group import events
from folkmoot.consumers.group.liveness import Liveness, PollState, Timing
from folkmoot.consumers.group.owned_partitions import OwnedPartitions
from folkmoot.consumers.group.plan_schedule import NO_PLAN, PlanSchedule
from folkmoot.coordination.groups import membership
from folkmoot.coordination.groups.membership import MemberInfo, Superseded
from folkmoot.coordination.groups.ownership import Owner
from folkmoot.coordination.groups.planning import VersionedPlan
from folkmoot.protocol.records import TopicPartition

_REMOVED = "this member's node was removed"
_QUIET = events.Commit | events.Drained | events.Polled | events.Changed
"""Events that change nothing for the whole of a member, unless it loses something by them."""
_QUIET_TASKS = events.CommitOffsets | events.VerifyOwner
_MOST_NAMED = 10


class Phase(Enum):
    """Where a member is in its life, as drawn above."""

    JOINING = "joining"
    MEMBER = "member"
    LEAVING = "leaving"
    LEFT = "left"


class GroupMember:
    """One member's view of its group and what follows from it; `info` is what it publishes."""

    def __init__(
        self,
        group: str,
        info: MemberInfo,
        timing: Timing,
        random: Random,
        max_processing_time: float | None = None,
    ) -> None:
        self.name: str | None = None
        self.nonce = ""
        self.phase = Phase.JOINING
        self.alarms: tuple[str, ...] = ()
        """What somebody has to look at; replaced as a whole."""
        self._effects: list[events.Effect] = []
        self.owned = OwnedPartitions(group, self._effects, timing)
        self.schedule = PlanSchedule(info, timing, random)
        self.liveness = Liveness(timing, max_processing_time, info.revoke_timeout)
        self._info = info
        self._timing = timing
        self._random = random
        self._last: tuple[str | None, str] = (None, "")  # the name before, and why it was given up
        self._in_session = False
        self._mine: Mapping[
            TopicPartition, str
        ] = {}  # what the plan gives us, with the topics' ids
        self._reading: dict[events.Source, bool] = {}  # under way; value: it has changed since
        self._changed = True  # something has happened since the whole was looked at
        self._leave_sent = False
        self._signs_of_life = 0
        self._plan_trouble = ""
        self._due: float | None = None

    @property
    def plan(self) -> VersionedPlan:
        """The plan last seen."""
        return self.schedule.plan

    def handle(self, event: events.Event, now: float) -> list[events.Effect]:
        """Take one event and return what follows, in order.

        Our own clock comes first: who stood still may hear of an answer that came meanwhile, but others
        may have taken what it had.
        """
        if self.liveness.falls_silent(now):
            self._changed = True
            self.owned.let_go_of_all("ZooKeeper has been silent for too long")
            self.schedule.doubt()
        match event:
            case events.Acknowledged(sent_at):
                if self.liveness.acknowledged(sent_at, now):
                    # What the plan gives us is claimed anew, from its committed offset on.
                    self._changed = True
                    self._read(events.Source.PLAN)
            case events.Tick():
                self._tick(now)
            case _:
                owned = len(self.owned)
                self._take(event, now)
                quiet = isinstance(event, _QUIET) or (
                    isinstance(event, events.Finished) and isinstance(event.task, _QUIET_TASKS)
                )
                self._changed = self._changed or not quiet or owned != len(self.owned)
        self._maybe_left()
        effects = self._effects.copy()
        self._effects.clear()
        return effects

    def deadline(self) -> float | None:
        """When a Tick is due next, if nothing changes before. What only puts it off is not looked at."""
        if self._due is None or self._changed:
            times = [self.liveness.deadline()]
            if self._is_planning():
                times.append(self.schedule.deadline())
            if self.phase is Phase.MEMBER:
                times.append(self.liveness.absence_at())
            if self._may_claim():
                times.append(self.owned.deadline())
            self._due = min((at for at in times if at is not None), default=None)
        return self._due

    def _take(self, event: events.Event, now: float) -> None:
        match event:
            case events.Finished() if self.phase is Phase.LEFT:
                pass
            case events.Finished(task, result):
                self._finished(task, result, now)
            case events.Changed(events.Source.MEMBERS | events.Source.TOPICS as source):
                if self.schedule.is_eldest:
                    self.schedule.changed(now)
                    self._due = None
                elif source in self._reading:  # its answer may be old, and make us the eldest
                    self._reading[source] = True
            case events.Changed(source):
                self._read(source)
            case events.OwnerChanged(partition):
                self.owned.owner_changed(partition, now)
            case events.Commit():
                self.owned.commit(event)
            case events.Drained():
                self.owned.drained(event)
            case events.Started(nonce, session_timeout, chroot):
                self.nonce, self.owned.chroot = nonce, chroot
                self.liveness.began(session_timeout)
                self._in_session = True
                self._join()
            case events.SessionLost():
                self._in_session = False
                self._forget("the ZooKeeper session was lost")
            case events.Leaving():
                self._leave()
            case events.Polled(at):
                before = self.liveness.polled(at)
                self._changed = self._changed or before is not PollState.ACTIVE
                if before is PollState.EXPIRED:
                    self._join()

    # -- what ZooKeeper answered ------------------------------------------------------------------

    def _finished(self, task: events.Task, result: object, now: float) -> None:
        match task:
            case events.Join() if isinstance(result, str):
                self._joined(result, now)
            case events.Join() if isinstance(result, Superseded):
                self._replaced()
            case events.Join():
                why = result.reason if isinstance(result, events.Failed) else str(result)
                self.alarms = (f"this member cannot join: {why}",)
                self._effects.append(events.EndSession(f"it could not join: {why}"))
            case events.Read():
                self._seen(task, result, now)
            case events.MakePlan():
                self.schedule.ended(result, now)
                self._plan_trouble = "" if isinstance(result, bool) else f"no plan: {result}"
                # Not written: somebody else was faster, or what we know of the group is old.
                self._read(events.Source.PLAN)
                if result is not True:
                    self._read(events.Source.MEMBERS)
                    if self.schedule.is_eldest:
                        self._read(events.Source.TOPICS)
            case events.ClaimPartitions():
                answers = dict.fromkeys(task.wanted)
                answers |= result if isinstance(result, dict) else {}
                if self.owned.claimed(answers, self._is_wanted, self._is_ours, now):
                    self._read(events.Source.PLAN)
            case events.ReleasePartitions():
                self.owned.released(task)
            case events.CommitOffsets():
                self.owned.committed(task, result if isinstance(result, dict) else {})
            case events.VerifyOwner():
                self.owned.verified(task, result is not False)
            case events.Leave():
                self.phase = Phase.LEFT
                self._effects.append(events.Left())

    def _joined(self, name: str, now: float) -> None:
        self.name = name
        self._last = (name, "")
        self.liveness.joined(now, self._random.uniform(0.2, 1.0))
        if self.phase is Phase.JOINING:
            self.phase = Phase.MEMBER
            for source in (events.Source.OWN, events.Source.PLAN, events.Source.MEMBERS):
                self._read(source)

    def _seen(self, task: events.Read, value: object, now: float) -> None:
        again = self._reading.pop(task.source, False)
        match task.source, value:
            case events.Source.OWN, False:
                self._removed(_REMOVED)
            case events.Source.OLDER, False if task.name == self._older():
                self._read(events.Source.MEMBERS)
            case events.Source.MEMBERS, tuple(names):
                self._saw_members(names, task)
            case events.Source.PLAN, VersionedPlan() as found:
                if self.plan is not NO_PLAN and found.made != self.plan.made:
                    self._removed("the group's plan was removed")
                elif found.version > self.plan.version:
                    self._adopt(found, now)
            case events.Source.TOPICS, dict(topics) if (
                not again
            ):  # else for what the group wanted before
                self.schedule.saw_topics(topics)
        if again:
            self._read(task.source)

    def _saw_members(self, names: tuple[str, ...], task: events.Read) -> None:
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
            if not task.watched:
                self._read(events.Source.MEMBERS)
        elif self._older() != older:
            self._read(events.Source.OLDER)

    def _adopt(self, found: VersionedPlan, now: float) -> None:
        assert self.name is not None
        plan, is_next = found.plan, found.version == self.plan.version + 1
        self.schedule.saw_plan(found)
        if self.schedule.is_eldest and not self.schedule.is_current:
            self._read(events.Source.MEMBERS)
        self._plan_trouble = ""
        self._mine = plan.share(membership.assignee(self.name))
        self.owned.keep(self._mine, is_next, now)
        self._effects.append(
            events.Rebalanced(plan.generation, len(plan.members), tuple(self._mine))
        )

    def _is_wanted(self, partition: TopicPartition, topic_id: str) -> bool:
        """Whether the plan gives us the partition (of a topic with that id, if it is named)."""
        if not topic_id:
            return partition in self._mine
        trusting = self.phase is Phase.MEMBER and self._is_trusting()
        return trusting and self._mine.get(partition) == topic_id

    def _is_ours(self, owner: Owner) -> bool:
        """An earlier process with our instance id, or an earlier claim of ours: nobody to wait for."""
        return owner.nonce == self.nonce or owner.member == membership.assignee(self.name or "")

    # -- what follows -----------------------------------------------------------------------------

    def _tick(self, now: float) -> None:
        self.owned.send_releases()
        if self._changed or self._due is None or now >= self._due:
            self._act_by_time(now)
            self._reconsider(now)
            self._due = None

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
                if events.Source.TOPICS not in self._reading:
                    self._read(events.Source.TOPICS)
        if self.phase is Phase.MEMBER:
            for partition in self.owned:
                if self._mine.get(partition) != self.owned.topic_id(partition):
                    self.owned.revoke(partition)
            if self._may_claim():
                self.owned.claim_due(self._mine, self.plan.version, now)
        self._raise_alarms()

    def _raise_alarms(self) -> None:
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
            found.append(f"assignor {eldest.assignors[0]} of the eldest member did not divide")
        if self._plan_trouble:
            found.append(self._plan_trouble)
        self.alarms = tuple(found)

    def _is_trusting(self) -> bool:
        """ZooKeeper and the application are there, as far as is known."""
        return not self.liveness.fenced and self.liveness.poll_state is PollState.ACTIVE

    def _may_claim(self) -> bool:
        """Not under a plan that is being read: a claim under an old one would only be refused."""
        reading = events.Source.PLAN in self._reading
        return self.phase is Phase.MEMBER and self._is_trusting() and not reading

    def _is_planning(self) -> bool:
        """Also while it leaves, since others wait for the eldest as long as it is there."""
        return self.phase in (Phase.MEMBER, Phase.LEAVING) and not self._leave_sent

    def _older(self) -> str:
        return self.schedule.older(self.name or "")

    def _read(self, source: events.Source) -> None:
        """One read of each source at a time, and another if it changed meanwhile."""
        if self.name is None or self.phase is Phase.LEFT:
            return
        if source in self._reading:
            self._reading[source] = True
            return
        name = self._older() if source is events.Source.OLDER else self.name
        if name:
            self._reading[source] = False
            needs_name = source in (events.Source.OWN, events.Source.OLDER)
            watched = (
                source is not events.Source.MEMBERS
                or self.schedule.is_eldest
                or not self.schedule.is_informed
            )
            self._effects.append(events.Read(source, name if needs_name else "", watched))

    def _leave(self) -> None:
        if self.phase in (Phase.JOINING, Phase.MEMBER):
            self.phase = Phase.LEAVING
            self.owned.give_up_claims()
            self.owned.revoke_all()

    def _maybe_left(self) -> None:
        if self.phase is not Phase.LEAVING or not self.owned.idle:
            return
        if self.name is None:  # not yet joined, or no longer: there is no node to remove
            self.phase = Phase.LEFT
            self._effects.append(events.Left())
        elif not self._leave_sent:
            self._leave_sent = True
            self._effects.append(events.Leave())

    # -- time -------------------------------------------------------------------------------------

    def _act_by_time(self, now: float) -> None:
        if self.phase is Phase.MEMBER:
            missing = self.liveness.misses(now)
            if missing is PollState.LATE:
                self.owned.revoke_all()
            elif missing is PollState.EXPIRED:
                self._removed("the application did not ask for records for too long")
        if self.name is None:
            return
        if self._is_planning():
            due = (self.owned.deadline(), self.schedule.deadline())
            self._changed = self._changed or any(at is not None and now >= at for at in due)
            if (plan := self.schedule.begin(now)) is not None:
                self._effects.append(plan)
            if self.schedule.read_at is not None and now >= self.schedule.read_at:
                self.schedule.read_at = None
                self._read(events.Source.MEMBERS)
                self._read(events.Source.TOPICS)
        if self.liveness.asks(now):
            self._show_life()

    def _show_life(self) -> None:
        """Read something that a lost watch may have hidden: each has its turn, many partitions together."""
        owned = list(self.owned)
        chunks = min(len(owned), self._timing.verifications)
        sources = [events.Source.OWN, events.Source.PLAN, events.Source.MEMBERS]
        if self.schedule.is_eldest:
            sources.append(events.Source.TOPICS)
        turn = self._signs_of_life % (len(sources) + chunks)
        self._signs_of_life += 1
        if turn < len(sources):
            self._read(sources[turn])
        else:
            asked = len(self._effects)
            for partition in owned[turn - len(sources) :: chunks]:
                self.owned.verify(partition)
            if len(self._effects) == asked:  # all being released: something has to be answered
                self._read(events.Source.OWN)

    # -- sessions ---------------------------------------------------------------------------------

    def _join(self) -> None:
        """As soon as there is a session, and an application that asks for records."""
        there = self.liveness.poll_state is not PollState.EXPIRED
        if self.phase is Phase.JOINING and self._in_session and there:
            self._effects.append(events.Join(*self._last))

    def _removed(self, reason: str) -> None:
        """Somebody took us, or the whole group, away: what we know of it means nothing now.

        What is under way would still count in this session, so that there has to be another.
        """
        if self.phase is Phase.MEMBER:
            self._forget(reason)
            self._effects.append(events.EndSession(reason))

    def _replaced(self) -> None:
        """Another process has our instance id. Coming back would drive it out in turn."""
        leaving = self.phase is Phase.LEAVING
        self._forget("another process has this member's instance id")
        self.phase = Phase.LEFT
        self._effects.append(events.Left() if leaving else events.Replaced())

    def _forget(self, reason: str) -> None:
        """Nothing of the last session counts: its answers will not come, and it is asked nothing more."""
        self._effects[:] = [each for each in self._effects if not isinstance(each, events.Task)]
        self.owned.forget(reason)
        self.schedule = PlanSchedule(self._info, self._timing, self._random)
        self.liveness.forget()
        if self.name is not None:
            self._last = (self.name, reason)
        if self.phase is Phase.MEMBER:
            self.phase = Phase.JOINING
        self.name = None
        self._mine = {}
        self._reading.clear()
        self._changed = True
