"""The group member as a pure state machine: events and the time in, effects out. No I/O, no clock.

```
        Join done                      Leaving            all let go, Leave done
JOINING ─────────► MEMBER ─────────────────────► LEAVING ───────────────────────► LEFT
   ▲                 │ session lost: everything is dropped
   └─────────────────┘
```

For each partition that the plan gives to this member:

```
(none) ─ ClaimPartition ─► claiming ─ Claim ─► held ─ plan takes it ─► revoking ─ Drained ─► releasing
                            │ Blocked            │                                             │
                            ▼                    │ VerifyOwner says no, a commit was fenced,   ▼
                         waiting                 ▼ the session is silent for too long        (none)
                            │                  (none), told as Lost
                            └─ its owner's node changes, or its hand-over time is over:
                               claim again, stealing in the latter case
```

A change of the plan touches nothing but the partitions that move. Tasks are answered in any order;
an answer about something no longer held is ignored, since the fence in ZooKeeper has decided already.
The protocol and its proof: docs/groups.md. Owned by the group thread (member.py).
"""

from dataclasses import dataclass
from enum import Enum
from random import Random

from folkmoot.consumers.events import (
    Acknowledged,
    ClaimPartition,
    Commit,
    CommitOffsets,
    Drained,
    Effect,
    Event,
    Failed,
    Finished,
    Heartbeat,
    Join,
    Leave,
    Leaving,
    Left,
    MakePlan,
    OwnerRang,
    Rang,
    Read,
    Rebalanced,
    ReleasePartition,
    SessionLost,
    Source,
    Started,
    Task,
    Tick,
    VerifyOwner,
)
from folkmoot.consumers.holdings import Holdings
from folkmoot.coordination.ownership import Blocked, Claim, Owner, Stale
from folkmoot.coordination.plans import Plan, TopicBasis, VersionedPlan
from folkmoot.protocol.records import TopicPartition


@dataclass(frozen=True, kw_only=True)
class Timing:
    """How patient a member is, in seconds."""

    session_timeout: float = 6.0
    debounce: float = 0.1
    """Wait this long (times 0.5 to 1.5) for more changes before planning."""
    patience: float = 0.25
    """Each younger member waits this much longer before it plans in the older ones' place."""
    sweep: float = 7.0
    """Read everything again this often (times 0.7 to 1.3), in case a watch was lost."""
    steal_margin: float = 0.5
    """Beyond the owner's own hand-over time, before its partition is stolen."""


class Phase(Enum):
    """Where the member is in its life; see the module's drawing."""

    JOINING = "joining"
    MEMBER = "member"
    LEAVING = "leaving"
    LEFT = "left"


@dataclass(slots=True)
class _Waiting:
    """A partition that the plan gives to us while another still owns it."""

    owner: Owner
    steal_at: float


class GroupMember:
    """One member's view of its group and what follows from it."""

    def __init__(self, topics: tuple[str, ...], timing: Timing, random: Random) -> None:
        self.name: str | None = None
        self.nonce = ""
        self.phase = Phase.JOINING
        self.topics = topics
        self.plan = VersionedPlan(Plan(), -1)
        self._effects: list[Effect] = []
        self.holdings = Holdings(self._effects)
        self._timing = timing
        self._random = random
        self._members: tuple[str, ...] | None = None
        self._known_topics: dict[str, TopicBasis] | None = None
        self._claiming: set[TopicPartition] = set()
        self._waiting: dict[TopicPartition, _Waiting] = {}
        self._reading: dict[Source, bool] = {}  # value: rang again while being read
        self._planning = False
        self._leave_sent = False
        self._fenced = False
        self._plan_at: float | None = None
        self._sweep_at: float | None = None
        self._heartbeat_at: float | None = None
        self._retry_at: float | None = None
        self._fence_at: float | None = None

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take one event and return what follows, in order."""
        match event:
            case Finished(task, result):
                self._finished(task, result, now)
            case Failed(task):
                self._failed(task, now)
            case Rang(source):
                self._read(source)
            case OwnerRang(partition):
                self._owner_rang(partition)
            case Commit():
                self.holdings.commit(event)
            case Drained(partition, offset):
                self.holdings.drained(partition, offset)
            case Acknowledged(sent_at):
                self._acknowledged(sent_at)
            case Started(nonce):
                self.nonce = nonce
                if self.phase is Phase.JOINING:
                    self._effects.append(Join())
            case SessionLost():
                self._forget("the ZooKeeper session was lost")
            case Leaving():
                self._leave()
            case Tick():
                pass
        self._act_by_time(now)
        self._maybe_left()
        effects = self._effects.copy()
        self._effects.clear()
        return effects

    def deadline(self) -> float | None:
        """When a Tick is due next, if nothing else happens before."""
        steals = [waiting.steal_at for waiting in self._waiting.values()]
        times = (self._plan_at, self._sweep_at, self._heartbeat_at, self._retry_at, self._fence_at)
        return min((at for at in (*times, *steals) if at is not None), default=None)

    # -- what ZooKeeper answered ------------------------------------------------------------------

    def _finished(self, task: Task, result: object, now: float) -> None:
        match task, result:
            case Join(), str(name):
                self.name = name
                if self.phase is Phase.JOINING:
                    self.phase = Phase.MEMBER
                    self._heartbeat_at = now
                    self._sweep(now)
            case Read(source), value:
                self._seen(source, value)
            case MakePlan(), _:
                self._planning = False
                self._read(Source.PLAN)
            case ClaimPartition(), Claim() | Blocked() | Stale() as answer:
                self._claimed(task, answer, now)
            case ReleasePartition(), _:
                self.holdings.released(task)
            case CommitOffsets(), dict(answers):
                self.holdings.committed(task, answers)
            case VerifyOwner(), bool(ours):
                self.holdings.verified(task, ours)
            case Heartbeat(), bool(alive):
                if not alive and self.phase is Phase.MEMBER:
                    self._forget("this member's node was removed")
                    self._effects.append(Join())
            case Leave(), _:
                self.phase = Phase.LEFT
                self._effects.append(Left())
        self._reconsider(now)

    def _failed(self, task: Task, now: float) -> None:
        """The connection broke under a task that may be repeated: read everything again soon."""
        match task:
            case Read(source):
                self._reading.pop(source, None)
            case MakePlan():
                self._planning = False
            case ClaimPartition(partition):
                self._claiming.discard(partition)
        self._retry_at = now + self._timing.patience

    def _seen(self, source: Source, value: object) -> None:
        again = self._reading.pop(source, False)
        match source, value:
            case Source.MEMBERS, tuple(names):
                self._members = names
            case Source.PLAN, VersionedPlan() as found:
                if found.version > self.plan.version:
                    self.plan = found
                    plan, mine = found.plan, tuple(self._mine())
                    self._effects.append(Rebalanced(plan.generation, len(plan.members), mine))
            case Source.TOPICS, dict(topics):
                self._known_topics = topics
        if again:
            self._read(source)

    def _claimed(self, task: ClaimPartition, answer: Claim | Blocked | Stale, now: float) -> None:
        partition = task.partition
        self._claiming.discard(partition)
        match answer:
            case Claim():
                self._waiting.pop(partition, None)
                wanted = self.phase is Phase.MEMBER and partition in self._mine()
                if wanted and not self._fenced:
                    self.holdings.add(partition, answer)
                else:
                    self.holdings.decline(partition, answer)
            case Blocked(owner):
                waiting = self._waiting.get(partition)
                if waiting is None or waiting.owner != owner:
                    patience = owner.hand_over + self._timing.steal_margin
                    ours = owner.nonce == self.nonce  # dropped by ourselves in doubt: take it back
                    self._waiting[partition] = _Waiting(owner, now if ours else now + patience)
            case Stale():
                self._waiting.pop(partition, None)
                self._read(Source.PLAN)

    # -- what follows -----------------------------------------------------------------------------

    def _reconsider(self, now: float) -> None:
        """Compare the plan with the live group and with what is held; start what is missing."""
        if self.phase is not Phase.MEMBER or self._members is None or self._known_topics is None:
            return
        self._consider_planning(now)
        mine = self._mine()
        for partition in self.holdings:
            if partition not in mine:
                self.holdings.revoke(partition)
        self._waiting = {key: value for key, value in self._waiting.items() if key in mine}
        for partition in mine:
            if partition not in self.holdings and partition not in self._waiting:
                self._claim(partition, None)

    def _consider_planning(self, now: float) -> None:
        """The oldest plans; each younger member only if the older ones have not after a while."""
        assert self._members is not None
        assert self._known_topics is not None
        plan, known = self.plan.plan, self._known_topics
        due = plan.members != self._members or any(
            plan.topics.get(topic) != known.get(topic) for topic in self.topics
        )
        if not due:
            self._plan_at = None
        elif self._plan_at is None and not self._planning:
            rank = self._members.index(self.name) if self.name in self._members else 0
            debounce = self._timing.debounce * self._random.uniform(0.5, 1.5)
            self._plan_at = now + debounce + rank * self._timing.patience

    def _mine(self) -> dict[TopicPartition, str]:
        """The partitions that the plan gives to this member, with the topics' ids."""
        plan = self.plan.plan
        return {
            TopicPartition(topic, number): plan.topics[topic].topic_id
            for topic, owners in plan.assignment.items()
            for number, owner in enumerate(owners)
            if owner == self.name
        }

    def _claim(self, partition: TopicPartition, steal_from: Owner | None) -> None:
        """Ask for a partition of ours, unless that is under way or we may not trust our session.

        Under a plan whose read is pending the claim would only be refused, so it waits for that.
        """
        if partition in self._claiming or self._fenced or Source.PLAN in self._reading:
            return
        self._claiming.add(partition)
        topic_id = self.plan.plan.topics[partition.topic].topic_id
        self._effects.append(ClaimPartition(partition, topic_id, self.plan.version, steal_from))

    def _owner_rang(self, partition: TopicPartition) -> None:
        if partition in self.holdings:
            self.holdings.verify(partition)
        elif partition in self._waiting and partition in self._mine():
            self._claim(partition, None)

    def _read(self, source: Source) -> None:
        if self.phase is not Phase.MEMBER:
            return
        if source in self._reading:
            self._reading[source] = True
        else:
            self._reading[source] = False
            self._effects.append(Read(source))

    def _leave(self) -> None:
        if self.phase in (Phase.JOINING, Phase.MEMBER):
            self.phase = Phase.LEAVING
            self._waiting.clear()
            for partition in self.holdings:
                self.holdings.revoke(partition)

    def _maybe_left(self) -> None:
        if self.phase is not Phase.LEAVING or not self.holdings.idle or self._claiming:
            return
        if self.name is None:  # not yet joined, or no longer: there is no node to remove
            self.phase = Phase.LEFT
            self._effects.append(Left())
        elif not self._leave_sent:
            self._leave_sent = True
            self._effects.append(Leave())

    # -- time and doubt ---------------------------------------------------------------------------

    def _acknowledged(self, sent_at: float) -> None:
        """The session cannot have ended before `sent_at` + its timeout; stop well before that."""
        self._fence_at = sent_at + self._timing.session_timeout * 2 / 3
        if self._fenced:
            self._fenced = False
            self._read(Source.PLAN)

    def _act_by_time(self, now: float) -> None:
        if _is_due(self._fence_at, now):
            self._fence_at = None
            self._fenced = True
            self.holdings.drop_all("ZooKeeper has been silent for too long")
        if self.phase is not Phase.MEMBER:
            self._plan_at = self._sweep_at = self._heartbeat_at = self._retry_at = None
            return
        if _is_due(self._heartbeat_at, now):
            self._heartbeat_at = now + self._timing.session_timeout / 6
            self._effects.append(Heartbeat())
        if _is_due(self._plan_at, now):
            self._plan_at = None
            self._planning = True
            self._effects.append(MakePlan())
        if _is_due(self._retry_at, now):
            self._retry_at = None
            for source in Source:
                self._read(source)
        if _is_due(self._sweep_at, now):
            self._sweep(now)
        for partition, waiting in self._waiting.items():
            if now >= waiting.steal_at:
                waiting.steal_at = now + self._timing.patience
                self._claim(partition, waiting.owner)

    def _sweep(self, now: float) -> None:
        """Read everything again: what a lost watch would have told is found out here."""
        self._sweep_at = now + self._timing.sweep * self._random.uniform(0.7, 1.3)
        for partition in self._waiting:
            self._claim(partition, None)
        for partition in self.holdings:
            self.holdings.verify(partition)
        for source in Source:
            self._read(source)

    def _forget(self, reason: str) -> None:
        """Nothing of the last incarnation counts: its answers will not come, or are ignored."""
        self.holdings.forget(reason)
        if self.phase is Phase.MEMBER:
            self.phase = Phase.JOINING
        self.name = None
        self.plan = VersionedPlan(Plan(), -1)
        self._members = self._known_topics = None
        self._plan_at = self._sweep_at = self._heartbeat_at = None
        self._retry_at = self._fence_at = None
        self._planning = self._fenced = False
        self._claiming.clear()
        self._waiting.clear()
        self._reading.clear()


def _is_due(at: float | None, now: float) -> bool:
    return at is not None and now >= at
