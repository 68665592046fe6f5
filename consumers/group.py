"""The group member as a pure state machine: events and the time in, effects out. No I/O, no clock.

```
        Join done                      Leaving            all let go, Leave done
JOINING ─────────► MEMBER ─────────────────────► LEAVING ───────────────────────► LEFT
   ▲                 │ session lost, or the member's node removed: everything is dropped
   └─────────────────┘
```

For each partition that the plan gives to this member (claims.py until it is held, then holdings.py):

```
(none) ─ ClaimPartition ─► claiming ─ Claim ─► held ─ plan takes it ─► revoking ─ Drained ─► releasing
                            │ Blocked            │                                             │
                            ▼                    │ VerifyOwner says no, a commit was fenced,   ▼
                         waiting                 ▼ the session is silent for too long        (none)
                            │                  (none), told as Lost
                            └─ its owner's node changes, or its hand-over time is over:
                               claim again, stealing in the latter case
```

A change of the plan touches nothing but the partitions that move. Whatever happens is noted at once;
what follows for the whole, the next Tick decides, so that a thousand answers cost one look at a
thousand partitions. Tasks are answered in any order;
an answer about something no longer held is ignored, since the fence in ZooKeeper has decided already.
The protocol and its proof: docs/groups.md. Owned by the group thread (member.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from random import Random

from folkmoot.consumers.claims import Claims
from folkmoot.consumers.events import (
    Acknowledged,
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
from folkmoot.coordination.ownership import Blocked, Claim, Stale
from folkmoot.coordination.plans import Plan, TopicBasis, VersionedPlan
from folkmoot.protocol.records import TopicPartition


@dataclass(frozen=True, kw_only=True)
class Timing:
    """How patient a member is, in seconds."""

    debounce: float = 0.1
    """Wait this long (times 0.5 to 1.5) for more changes before planning."""
    patience: float = 0.25
    """Each younger member waits this much longer before it plans in the older ones' place; and so
    long everybody waits before asking again for what was refused."""
    sweep: float = 7.0
    """Read everything again this often (times 0.7 to 1.3), in case a watch was lost."""
    steal_margin: float = 0.5
    """Beyond the owner's own hand-over time, before its partition is stolen."""
    heartbeats: int = 6
    """So many signs of life in each session timeout."""
    trust: float = 2 / 3
    """The part of the session timeout without an answer after which nothing is held any more."""


class Phase(Enum):
    """Where the member is in its life; see the module's drawing."""

    JOINING = "joining"
    MEMBER = "member"
    LEAVING = "leaving"
    LEFT = "left"


_NO_PLAN = VersionedPlan(Plan(), -1)


class GroupMember:
    """One member's view of its group and what follows from it."""

    def __init__(self, topics: tuple[str, ...], timing: Timing, random: Random) -> None:
        self.name: str | None = None
        self.nonce = ""
        self.phase = Phase.JOINING
        self.topics = topics
        self.plan = _NO_PLAN
        self._effects: list[Effect] = []
        self.holdings = Holdings(self._effects)
        self.claims = Claims(self._effects, timing.patience, timing.steal_margin)
        self._timing = timing
        self._random = random
        self._session_timeout = 0.0
        self._mine: dict[TopicPartition, str] = {}  # what the plan gives us, with the topics' ids
        self._members: tuple[str, ...] | None = None
        self._known_topics: Mapping[str, TopicBasis] | None = None
        self._reading: dict[Source, bool] = {}  # value: rang again while being read
        self._planning = False
        self._asking = False  # a heartbeat is under way
        self._leave_sent = False
        self._fenced = False
        self._plan_at: float | None = None
        self._sweep_at: float | None = None
        self._heartbeat_at: float | None = None
        self._fence_at: float | None = None

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take one event and return what follows, in order."""
        if isinstance(event, Acknowledged):
            self._fence_at = event.sent_at + self._session_timeout * self._timing.trust
            if not self._fenced:
                return []  # by far the most frequent event
            self._trust_again()
        self._fence_if_silent(now)
        match event:
            case Finished(task, result):
                self._finished(task, result, now)
            case Rang(source):
                self._read(source)
            case OwnerRang(partition) if partition in self.holdings:
                self.holdings.verify(partition)
            case OwnerRang(partition):
                self.claims.rang(partition, now)
            case Commit():
                self.holdings.commit(event)
            case Drained():
                self.holdings.drained(event)
            case Started(nonce, session_timeout):
                self._started(nonce, session_timeout)
            case SessionLost():
                self._forget("the ZooKeeper session was lost")
            case Leaving():
                self._leave()
            case Tick():
                self._act_by_time(now)
                self._reconsider(now)
            case Acknowledged():
                pass
        self._maybe_left()
        effects = self._effects.copy()
        self._effects.clear()
        return effects

    def deadline(self) -> float | None:
        """When a Tick is due next, if nothing else happens before."""
        asked = self.claims.deadline() if self._may_claim() else None
        times = (self._plan_at, self._sweep_at, self._heartbeat_at, self._fence_at, asked)
        return min((at for at in times if at is not None), default=None)

    # -- what ZooKeeper answered ------------------------------------------------------------------

    def _finished(self, task: Task, result: object, now: float) -> None:
        match task, result:
            case Join(), str(name):
                self._joined(name, now)
            case Read(source), value:
                self._seen(source, value, now)
            case MakePlan(), bool(written):
                self._planning = False
                # Not written: somebody else was faster, or what we know of the group is old.
                for source in (Source.PLAN,) if written else Source:
                    self._read(source)
            case ClaimPartition(), Claim() | Blocked() | Stale() as answer:
                self._claimed(task.partition, answer, now)
            case ReleasePartition(), _:
                self.holdings.released(task)
            case CommitOffsets(), dict(answers):
                self.holdings.committed(task, answers)
            case VerifyOwner(), bool(ours):
                self.holdings.verified(task, ours)
            case Heartbeat(), bool(alive):
                self._asking = False
                if not alive:
                    self._removed("this member's node was removed")
            case Leave(), _:
                self.phase = Phase.LEFT
                self._effects.append(Left())

    def _joined(self, name: str, now: float) -> None:
        self.name = name
        self._heartbeat_at = now
        if self.phase is Phase.JOINING:
            self.phase = Phase.MEMBER
            self._sweep(now)

    def _seen(self, source: Source, value: object, now: float) -> None:
        again = self._reading.pop(source, False)
        match source, value:
            case Source.MEMBERS, tuple(names):
                self._members = names
                if self.name not in names:
                    self._removed("this member's node was removed")
            case Source.PLAN, VersionedPlan() as found:
                if found.version > self.plan.version:
                    self._adopt(found, now)
                elif found.version < self.plan.version:
                    self._removed("the group's plan was removed")
            case Source.TOPICS, dict(topics):
                self._known_topics = topics
        if again:
            self._read(source)

    def _adopt(self, found: VersionedPlan, now: float) -> None:
        self.plan, plan = found, found.plan
        self._mine = {
            TopicPartition(topic, number): plan.topics[topic].topic_id
            for topic, owners in plan.assignment.items()
            for number, owner in enumerate(owners)
            if owner == self.name
        }
        self.claims.keep(self._mine, now)
        self._effects.append(Rebalanced(plan.generation, len(plan.members), tuple(self._mine)))

    def _claimed(
        self, partition: TopicPartition, answer: Claim | Blocked | Stale, now: float
    ) -> None:
        match answer:
            case Claim(state):
                rang = self.claims.won(partition)
                wanted = self.phase is Phase.MEMBER and not self._fenced
                if wanted and self._mine.get(partition) == state.topic_id:
                    self.holdings.add(partition, answer)
                    if rang:
                        self.holdings.verify(partition)
                else:
                    self.holdings.decline(partition, answer)
            case _ if partition not in self._mine:
                self.claims.refused(partition)
            case Blocked(owner):
                self.claims.blocked(partition, owner, owner.nonce == self.nonce, now)
            case Stale():
                self.claims.stale(partition, now)
                self._read(Source.PLAN)

    # -- what follows -----------------------------------------------------------------------------

    def _reconsider(self, now: float) -> None:
        """Compare the plan with the live group and with what is held; start what is missing."""
        if self.phase is not Phase.MEMBER or self._members is None or self._known_topics is None:
            return
        self._consider_planning(self._members, self._known_topics, now)
        for partition in self.holdings:
            if self._mine.get(partition) != self.holdings.topic_id(partition):
                self.holdings.revoke(partition)
        if self._may_claim():
            for partition, topic_id in self._mine.items():
                if partition not in self.holdings:
                    self.claims.pursue(partition, topic_id, self.plan.version, now)

    def _consider_planning(
        self, members: tuple[str, ...], topics: Mapping[str, TopicBasis], now: float
    ) -> None:
        """The oldest plans; each younger member only if the older ones have not after a while."""
        plan = self.plan.plan
        due = plan.members != members or any(
            plan.topics.get(topic) != topics.get(topic) for topic in self.topics
        )
        if not due:
            self._plan_at = None
        elif self._plan_at is None and not self._planning:
            rank = members.index(self.name) if self.name in members else 0
            debounce = self._timing.debounce * self._random.uniform(0.5, 1.5)
            self._plan_at = now + debounce + rank * self._timing.patience

    def _may_claim(self) -> bool:
        """Not while we may not trust our session, nor under a plan that is being read: a claim under
        an old one would only be refused."""
        return (
            self.phase is Phase.MEMBER
            and not self._fenced
            and Source.PLAN not in self._reading
            and self._members is not None
            and self._known_topics is not None
        )

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
            self._plan_at = self._sweep_at = None
            self.claims.give_up()
            for partition in self.holdings:
                self.holdings.revoke(partition)

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

    def _trust_again(self) -> None:
        """ZooKeeper answers: what the plan gives us is claimed anew, from its committed offset on."""
        self._fenced = False
        self._read(Source.PLAN)

    def _fence_if_silent(self, now: float) -> None:
        """The session cannot have ended before the last answered operation was sent, plus its
        timeout. We stop well before that."""
        if _is_due(self._fence_at, now):
            self._fence_at = None
            self._fenced = True
            self.holdings.drop_all("ZooKeeper has been silent for too long")

    def _act_by_time(self, now: float) -> None:
        if _is_due(self._heartbeat_at, now):
            self._heartbeat_at = now + self._session_timeout / self._timing.heartbeats
            if not self._asking:
                self._asking = True
                self._effects.append(Heartbeat())
        if _is_due(self._plan_at, now):
            self._plan_at = None
            self._planning = True
            self._effects.append(MakePlan())
        if _is_due(self._sweep_at, now):
            self._sweep(now)

    def _sweep(self, now: float) -> None:
        """Read everything again: what a lost watch would have told is found out here."""
        self._sweep_at = now + self._timing.sweep * self._random.uniform(0.7, 1.3)
        self.claims.look_again(now)
        for partition in self.holdings:
            self.holdings.verify(partition)
        for source in Source:
            self._read(source)

    # -- sessions ---------------------------------------------------------------------------------

    def _started(self, nonce: str, session_timeout: float) -> None:
        self.nonce = nonce
        self._session_timeout = session_timeout
        if self.phase is Phase.JOINING:
            self._effects.append(Join())

    def _removed(self, reason: str) -> None:
        """Somebody took us, or the whole group, away by hand: what we know of it means nothing now.

        What is under way would still count in this session, so that there has to be another.
        """
        if self.phase is Phase.MEMBER:
            self._forget(reason)
            self._effects.append(EndSession())

    def _forget(self, reason: str) -> None:
        """Nothing of the last session counts: its answers will not come."""
        self.holdings.forget(reason)
        self.claims.forget()
        if self.phase is Phase.MEMBER:
            self.phase = Phase.JOINING
        self.name = None
        self.plan = _NO_PLAN
        self._mine = {}
        self._members = self._known_topics = None
        self._plan_at = self._sweep_at = self._heartbeat_at = self._fence_at = None
        self._planning = self._asking = self._fenced = False
        self._reading.clear()


def _is_due(at: float | None, now: float) -> bool:
    return at is not None and now >= at
