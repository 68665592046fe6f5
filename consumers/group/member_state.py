"""The group member as a pure state machine: events and the time in, effects out. No I/O, no clock.

```
        Join done                      leaving            all released, Leave done
JOINING ─────────► MEMBER ─────────────────────► LEAVING ───────────────────────► LEFT
   ▲                 │ session lost, own node removed, application gone: all is dropped  ▲
   └─────────────────┤                                                                   │
                     └── another process has our instance id ────────────────────────────┘
```

A new plan touches only the partitions that move (drawn in owned_partitions.py). Each event is noted at
once; the next `tick` decides what follows, so that 1,000 answers cost one look at 1,000 partitions. Tasks
may be answered in any order. When ZooKeeper is silent, all partitions are reported as Lost, and released.
plan_schedule.py decides when to plan, liveness.py whether ZooKeeper and the application are alive. The
protocol and its proof: docs/groups.md. Owned by the group thread.
"""

import logging
import socket
from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from itertools import islice
from math import inf
from random import Random
from typing import Any

import msgspec

from folkmoot.consumers.assignors.assignor import Assignor
from folkmoot.consumers.assignors.next_plan import DEFAULT, next_plan
from folkmoot.consumers.group.events import Left, Rebalanced, Replaced
from folkmoot.consumers.group.group_view import NO_PLAN, GroupView
from folkmoot.consumers.group.liveness import Liveness, PollState, Timing
from folkmoot.consumers.group.owned_partitions import (
    Effect,
    EndSession,
    LogLine,
    OwnedPartitions,
    Task,
)
from folkmoot.consumers.group.pending_claims import PendingClaims
from folkmoot.consumers.group.plan_schedule import PlanSchedule
from folkmoot.consumers.group.source_reads import Source, SourceReads
from folkmoot.coordination.groups import membership, ownership, planning
from folkmoot.coordination.groups.membership import MemberInfo, Superseded
from folkmoot.coordination.groups.ownership import CLAIMS_PER_TRANSACTION, Claim, Claimant, Owner
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
"""Makes a watch that calls this function, with these arguments, in the member's thread."""


class MemberSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A member's settings, as in ConsumerConfig; durations in seconds."""

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
    """The host of its process, for people."""

    def info(self) -> MemberInfo:
        """Return what the member publishes."""
        return MemberInfo(
            topics=self.topics,
            host=socket.gethostname(),
            pid=self.pid,
            revoke_timeout=self.revoke_timeout,
            protocol=self.protocol,
            pattern=self.pattern,
            assignors=tuple(assignor.name for assignor in self.assignors),
            rack=self.rack,
            rejoin_timeout=self.rejoin_timeout if self.instance_id is not None else 0.0,
        )


class Phase(Enum):
    """A member's phase, as drawn above."""

    JOINING = "joining"
    MEMBER = "member"
    LEAVING = "leaving"
    LEFT = "left"


class BackgroundWork(msgspec.Struct, frozen=True):
    """A recipe's step that is no operation of ZooKeeper: work for another thread."""

    work: Callable[[], Any]


class GroupMember:
    """One member's view of its group, and its decisions.

    Every event goes through `handle`: a method above "answers of ZooKeeper", one of `owned`, or the
    `done` of a task.
    """

    def __init__(
        self, settings: MemberSettings, timing: Timing, random: Random, watch: Watch
    ) -> None:
        self.settings = settings
        self.phase = Phase.JOINING
        self.alarms: tuple[str, ...] = ()
        """Problems for people, as sentences; replaced as a whole."""
        self.due = 0.0
        """When the next tick must decide; 0: something has changed since the last."""
        self._now = 0.0
        self._effects: list[Effect] = []
        release_timeout = settings.revoke_timeout + (settings.max_processing_time or 0.0)
        self.owned = OwnedPartitions(
            Claimant(settings.group, "", "", release_timeout),  # its nonce is "" without a session
            self._effects,
            PendingClaims(settings.group, timing),
            partial(watch, self.owner_changed),
            settings.revoke_timeout,
        )
        self.schedule = PlanSchedule(GroupView(settings.info()), timing, random)
        self.reads = SourceReads(
            *(settings.group, settings.protocol, self._effects),
            *(partial(watch, self.changed), self._source_read),
        )
        self.liveness = Liveness(timing, settings.max_processing_time, settings.revoke_timeout)
        self._last: tuple[str | None, str] = (None, "")  # the last name, and why it ended
        self._leave_sent = False

    @property
    def view(self) -> GroupView:
        """What the member knows of its group."""
        return self.schedule.view

    @property
    def name(self) -> str | None:
        """The member's name; None before it has joined."""
        return self.view.name or None

    def handle(
        self, now: float, acknowledged_at: float, event: Callable[..., None], *arguments: Any
    ) -> list[Effect]:
        """Take one event, and return the effects, in order.

        `acknowledged_at` is when the last answered operation was sent (0: none in this session). Our clock
        comes before the answer: after a pause of this process, others may have taken its partitions.
        """
        self._now = now
        liveness = self.liveness
        if now >= liveness.fence_at and not liveness.fenced:
            liveness.fenced, self.due = True, 0.0
            self.owned.abandon_all("ZooKeeper has been silent for too long")
            self.schedule.forget_time()
        if acknowledged_at > liveness.acknowledged_at and liveness.acknowledged(
            acknowledged_at, now
        ):
            # Our share is claimed again, from the committed offsets.
            self.due = 0.0
            self._read(Source.PLAN)
        event(*arguments)
        if self.phase is Phase.LEAVING:
            self._leave_if_idle()
        effects = self._effects.copy()
        self._effects.clear()
        return effects

    # -- events -----------------------------------------------------------------------------------

    def started(self, nonce: str, session_timeout: float, chroot: str = "") -> None:
        """A session is open, with the timeout (s) that ZooKeeper granted; `nonce` marks its writes."""
        self.owned.me = msgspec.structs.replace(self.owned.me, nonce=nonce)
        self.owned.claims.chroot = chroot
        self.liveness.began(session_timeout)
        self.due = 0.0
        self._join()

    def session_lost(self) -> None:
        """The session has ended; `started` follows with the next."""
        self.owned.me = msgspec.structs.replace(self.owned.me, nonce="")
        self._forget("the ZooKeeper session was lost")

    def changed(self, source: Source) -> None:
        if source is Source.PLAN:
            self._plan_changed()
        elif source not in (Source.MEMBERS, Source.TOPICS):
            self._read(source)
            if source is Source.OWN:
                self.reads.is_notified = True
                if self.reads.plan_at < inf:
                    self._plan_changed()
        elif self.view.is_leader:
            self.schedule.changed(self._now)
            self.due = self._now
        elif source in self.reads:  # the answer may be outdated, and make us the leader
            self._read(source)

    def owner_changed(self, partition: TopicPartition) -> None:
        self.due = 0.0
        self.owned.owner_changed(partition, self._now)

    def leaving(self) -> None:
        self.due = 0.0
        if self.phase in (Phase.JOINING, Phase.MEMBER):
            self.phase = Phase.LEAVING
            self.owned.claims.drop()
            self.owned.revoke_all()

    def polled(self, at: float) -> None:
        """The application polled at that time."""
        before = self.liveness.polled(at)
        if before is not PollState.ACTIVE:
            self.due = 0.0
        if before is PollState.EXPIRED:
            self._join()

    def tick(self) -> None:
        """Time has passed, or all events were taken: decide what follows."""
        if self.owned.has_changed:
            self.owned.has_changed, self.due = False, 0.0
        if self.owned.has_drained and (releases := self.owned.release_drained()):
            arguments = self.owned.me, releases
            self._start(ownership.release, arguments, partial(self._released, releases))
        if self._now >= self.due or self.due == inf:
            self._act_by_time(self._now)
            self._reconsider(self._now)
            self.due = self._next_due()

    def _next_due(self) -> float:
        """Events that only postpone it are ignored: then a tick comes too early."""
        times = [self.liveness.deadline(), self.reads.plan_at]
        if self._is_planning():
            times.append(self.schedule.deadline())
        if self.phase is Phase.MEMBER:
            times += [self.liveness.absence_at(), self.owned.overdue_at()]
        if self._may_claim():
            times.append(self.owned.claims.deadline())
        return min(times)

    def _start(
        self,
        recipe: Callable[..., Recipe[Any]],
        arguments: tuple[Any, ...],
        done: Callable[[Any], None],
    ) -> None:
        self._effects.append(Task(recipe, arguments, done))

    # -- answers of ZooKeeper -----------------------------------------------------------------------

    def failed(self, task: Task, error: ZooKeeperError) -> None:
        """ZooKeeper refused a task for a reason that its recipe does not know.

        Without a new plan the last one stays. Anything else leaves the session's nodes unknown, so the
        session ends, and the next one begins after a pause.
        """
        if task.recipe == self._make_plan:
            self._planned(error)
            return
        what = task.recipe.__name__.replace("_", " ")
        why = f"ZooKeeper refused to {what}: {error}"
        self._set_alarms((f"this member joins again: {why}",))
        self._forget(why)
        self._effects.append(EndSession(why, has_failed=True))

    def _joined(self, result: object) -> None:
        self.due = 0.0
        if isinstance(result, Superseded):
            self._replaced()
        else:
            assert isinstance(result, str)
            self.view.name = result
            self.owned.me = msgspec.structs.replace(self.owned.me, name=result)
            self._last = (result, "")
            self.liveness.joined(self._now, self.schedule.random.uniform(0.2, 1.0))
            if self.phase is Phase.JOINING:
                self.phase = Phase.MEMBER
                for source in (Source.OWN, Source.PLAN, Source.MEMBERS):
                    self._read(source)

    def _planned(self, result: object) -> None:
        self.due = 0.0
        self.schedule.ended(result, self._now)
        self._read(Source.PLAN)
        if result is not True:  # another member was faster, or our reads are outdated
            self._read(Source.MEMBERS)
            if self.view.is_leader:
                self._read(Source.TOPICS)

    def _claimed(self, answers: Mapping[TopicPartition, object]) -> None:
        self.due = 0.0
        is_stale = False
        for partition, answer in answers.items():
            if isinstance(answer, Claim):
                is_planned = self.owned.claims.share.get(partition) == answer.state.topic_id
                is_wanted = is_planned and self.phase is Phase.MEMBER and self._is_alive()
                self.owned.own(partition, answer, is_wanted=is_wanted)
            else:
                arguments = partition, answer, self._is_ours, self._now
                is_stale = self.owned.claims.refused(*arguments) or is_stale
        if is_stale:
            self._read(Source.PLAN)

    def _released(self, held: Mapping[TopicPartition, tuple[Claim, int | None]], _: object) -> None:
        self.due = 0.0
        self.owned.released(held)

    def _left(self, _: object) -> None:
        self.phase = Phase.LEFT
        self._effects.append(Left())

    def _source_read(self, source: Source, name: str, watched: bool, value: object) -> None:
        """Take a read source: whether the node `name` exists, names, a plan, topics."""
        self.due = 0.0
        again = self.reads.end(source)
        match source, value:
            case Source.OWN, False:
                self._removed(_REMOVED)
            case Source.OLDER, False if name == self.view.older():
                self._read(Source.MEMBERS)
            case Source.MEMBERS, tuple(names):
                self._update_members(names, watched)
            case Source.PLAN, VersionedPlan() as plan:
                known = self.view.plan
                if known is not NO_PLAN and plan.created != known.created:
                    self._removed("the group's plan was removed")
                elif plan.version > known.version:
                    self._adopt(plan)
            case Source.TOPICS, dict(topics):  # perhaps outdated: a plan reads them anew
                self.view.update_topics(topics)
        if again:
            self._read(source)

    def _plan_changed(self) -> None:
        """There is a newer plan. In a large group, members whose share it changes read it first."""
        spread = 0.0 if self.reads.is_notified else self.schedule.spread()
        self.reads.is_notified = False
        if not spread:
            self._read(Source.PLAN)
        elif self.reads.plan_at == inf:
            self.reads.plan_at = self._now + self.schedule.random.uniform(spread / 4, spread)
            self.due = self._now

    def _update_members(self, names: tuple[str, ...], watched: bool) -> None:
        """Check that our node exists, and is that of the youngest process with our instance id."""
        older, name = self.view.older(), self.view.name
        self.view.update_members(names)
        youngest = membership.assignees(names).get(membership.assignee(name), "")
        if youngest and membership.age(youngest) > membership.age(name):
            self._replaced()
        elif youngest != name:
            self._removed(_REMOVED)
        elif self.view.is_leader:
            if not watched:
                self._read(Source.MEMBERS)
        elif self.view.older() != older:
            self._read(Source.OLDER)

    def _adopt(self, versioned: VersionedPlan) -> None:
        view, plan = self.view, versioned.plan
        before, is_next = view.plan.plan, versioned.version == view.plan.version + 1
        view.update_plan(versioned)
        if view.is_leader and not view.is_current:
            self._read(Source.MEMBERS)
        self.schedule.error = ""
        preferred = view.info.assignors[:1]
        if plan.assignor not in (*preferred, "", before.assignor):
            text = f" uses assignor {plan.assignor}, which the group leader prefers, not %s"
            self._effects.append(LogLine(logging.WARNING, text % preferred))
        share = plan.partitions_of(membership.assignee(view.name))
        self.owned.claims.take_share(share, is_next, self._now)
        self._effects.append(Rebalanced(plan.generation, len(plan.members), tuple(share)))

    def _is_ours(self, owner: Owner) -> bool:
        """Return whether it is an earlier process with our instance id, or an earlier claim of ours."""
        return owner.nonce == self.owned.me.nonce or owner.member == membership.assignee(
            self.view.name
        )

    # -- decisions --------------------------------------------------------------------------------

    def _reconsider(self, now: float) -> None:
        """Compare the plan with the live group and with what is owned; start what is missing."""
        view, owned = self.view, self.owned
        if not view.name or view.names is None:
            return
        if self._is_planning():
            if not self.liveness.fenced:
                self.schedule.consider(now)
            if view.is_leader and view.topics is None and view.plan is not NO_PLAN:
                if Source.TOPICS not in self.reads:
                    self._read(Source.TOPICS)
        if self.phase is Phase.MEMBER:
            owned.revoke_unplanned()
            if self._may_claim():
                due = iter(owned.claims.take_due(owned, now, view.plan.plan.start_of).items())
                while chunk := dict(islice(due, CLAIMS_PER_TRANSACTION)):
                    arguments = owned.me, chunk, view.plan.version, owned.watch
                    self._start(ownership.claim, arguments, self._claimed)
        self._raise_alarms(now)

    def _raise_alarms(self, now: float) -> None:
        view, claims = self.view, self.owned.claims
        malformed = claims.malformed()
        alarms = [
            f"{partition} has no owner: {why}"
            for partition, why in [*malformed.items()][:_MOST_NAMED]
        ]
        if len(malformed) > _MOST_NAMED:
            alarms.append(f"{len(malformed) - _MOST_NAMED} more partitions have no owner")
        if claims.beyond_limit:
            alarms.append(
                f"{claims.beyond_limit} partitions have no owner: one ZooKeeper session must not own "
                "more, start more members"
            )
        plan = view.plan.plan
        leader = next((plan.subscriptions.get(member) for member in plan.members), None)
        if leader is not None and plan.assignor not in leader.assignors[:1] and leader.assignors:
            alarms.append(
                f"assignor {leader.assignors[0]}, which the group leader prefers, was not used"
            )
        if self.schedule.error:
            alarms.append(self.schedule.error)
        alarms += [
            f"no topic matches {topic} yet: those that do are read as soon as they are created"
            if topic.startswith("/")
            else f"topic {topic} does not exist: it is read as soon as it is created"
            for topic in view.missing[:_MOST_NAMED]
        ]
        if self.schedule.is_stuck(now):
            alarms.append(
                f"the plan begun {self.schedule.timing.stuck:g} s ago is not finished: if assignor "
                f"{view.info.assignors[0]} does not return, end this process"
            )
        self._set_alarms(tuple(alarms))

    def _set_alarms(self, alarms: tuple[str, ...]) -> None:
        """Set the alarms, and log the new ones."""
        new = [alarm for alarm in alarms if alarm not in self.alarms]
        self._effects += [LogLine(logging.ERROR, f": {alarm}") for alarm in new]
        self.alarms = alarms

    def _is_alive(self) -> bool:
        """Return whether ZooKeeper and the application seem alive."""
        return not self.liveness.fenced and self.liveness.poll_state is PollState.ACTIVE

    def _may_claim(self) -> bool:
        """Not while the plan is being read: a claim under an old plan would be refused."""
        reading = Source.PLAN in self.reads
        return self.phase is Phase.MEMBER and self._is_alive() and not reading

    def _is_planning(self) -> bool:
        """Also while it leaves: others wait for the leader as long as its node exists."""
        return self.phase in (Phase.MEMBER, Phase.LEAVING) and not self._leave_sent

    def _read(self, source: Source) -> None:
        if self.phase is not Phase.LEFT:
            self.reads.begin(source, self.view)

    def _leave_if_idle(self) -> None:
        if not self.owned.is_idle:
            return
        if not self.view.name:  # there is no node to remove
            self._left(None)
        elif not self._leave_sent:
            self._leave_sent = True
            self._start(membership.leave, (self.settings.group, self.view.name), self._left)

    # -- time -------------------------------------------------------------------------------------

    def _act_by_time(self, now: float) -> None:
        if self.phase is Phase.MEMBER:
            missing = self.liveness.misses(now)
            if missing is PollState.LATE:
                self.owned.revoke_all()
            elif missing is PollState.EXPIRED:
                self._removed("the application did not ask for records for too long")
            self.owned.release_overdue(now)
        if not self.view.name:
            return
        if now >= self.reads.plan_at:
            self._read(Source.PLAN)
        if self._is_planning():
            if (expired := self.schedule.begin(now)) is not None:
                arguments = self.view.name, expired, self.view.plan.identity
                self._start(self._make_plan, arguments, self._planned)
            if now >= self.schedule.read_at:
                self.schedule.read_at = inf
                self._read(Source.MEMBERS)
                self._read(Source.TOPICS)
        if self.liveness.needs_heartbeat(now):
            self._send_heartbeat()

    def _make_plan(
        self, name: str, expired: tuple[str, ...], seen: tuple[int, int]
    ) -> Recipe[bool | TooLarge]:
        """Write the next plan if one is due: read the group, divide in another thread, and write.

        Return whether it was written. `expired` counts under the plan with the identity `seen` only: in a
        later one these members may have been back.
        """
        settings = self.settings
        snapshot = yield from planning.read_snapshot(
            settings.group, self.view.published, expired, seen, settings.protocol
        )
        if snapshot is None:
            return False
        step: Any = BackgroundWork(
            partial(next_plan, snapshot, settings.assignors, settings.protocol)
        )
        plan = yield step
        if plan is None:
            return False
        return (yield from planning.write(settings.group, name, snapshot, plan))

    def _send_heartbeat(self) -> None:
        """Read, in turns, sources and groups of partitions: a watch may have been lost."""
        owned = list(self.owned)
        chunks = min(len(owned), self.schedule.timing.verifications)
        what = self.reads.next_in_turn(self.view, chunks)
        if isinstance(what, Source):
            self._read(what)
            return
        effect_count = len(self._effects)
        for partition in owned[what::chunks]:
            self.owned.verify(partition)
        if len(self._effects) == effect_count:  # all are being released: read something else
            self._read(Source.OWN)

    # -- sessions ---------------------------------------------------------------------------------

    def _join(self) -> None:
        """Join as soon as there is a session, and the application polls."""
        polls = self.liveness.poll_state is not PollState.EXPIRED
        if self.phase is not Phase.JOINING or not self.owned.me.nonce or not polls:
            return
        settings, nonce, (last, why) = self.settings, self.owned.me.nonce, self._last
        info = msgspec.structs.replace(
            self.view.info, previous=f"was {last}: {why}" if last else ""
        )
        group, instance = settings.group, settings.instance_id
        if instance is not None:
            arguments = group, instance, nonce, info, last
            self._start(membership.join_as_static, arguments, self._joined)
        else:
            name = f"{settings.client_id}-{nonce}"
            self._start(membership.join, (group, name, info), self._joined)

    def _removed(self, reason: str) -> None:
        """Our node, or the whole group, was removed. Requests in flight would count in this session, so
        it ends."""
        if self.phase is Phase.MEMBER:
            self._forget(reason)
            self._effects.append(EndSession(reason))

    def _replaced(self) -> None:
        """Another process has our instance id. Joining again would remove it in turn."""
        leaving = self.phase is Phase.LEAVING
        self._forget("another process has this member's instance id")
        self.phase = Phase.LEFT
        self._effects.append(Left() if leaving else Replaced())

    def _forget(self, reason: str) -> None:
        """Drop all of the last session: its requests are never answered, and none is sent any more."""
        self._effects[:] = [effect for effect in self._effects if not isinstance(effect, Task)]
        self.owned.forget(reason)
        self.reads.forget()
        self.liveness.forget()
        view, schedule = self.view, self.schedule
        if view.name:
            self._last = (view.name, reason)
        self.schedule = PlanSchedule(GroupView(view.info), schedule.timing, schedule.random)
        if self.phase is Phase.MEMBER:
            self.phase = Phase.JOINING
        self.due = 0.0
