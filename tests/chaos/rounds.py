"""A run: rounds of events that overlap, each followed by peace, in which L must hold."""

import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import ceil

from folkmoot.protocol.records import TopicPartition
from tests.chaos.dealing import Dealt, deal
from tests.chaos.events import (
    CRASHES,
    DEATHS,
    DEPARTURES,
    ENSEMBLE,
    OF_A_LONG_SESSION,
    ON_A_MEMBER,
    ON_ALL,
    Breach,
    Event,
    Script,
)
from tests.chaos.scene import MemberProcess, Scene
from tests.chaos.settings import MACHINE

STEP = 0.1
START_PATIENCE = 60.0
END_PATIENCE = 60.0
SETTLE_PATIENCE = 60.0
VICTIM_PATIENCE = 60.0


@dataclass(slots=True)
class Round:
    """What was found when peace had returned."""

    kinds: Counter[str]
    seconds: float
    settled: float
    """Seconds from the last fault until every partition was owned, and all shares even."""
    limit: float
    stall: float
    """The longest that this process itself was kept from looking."""


@dataclass(slots=True)
class _Running:
    event: Event
    script: Script
    member: MemberProcess | None


@dataclass(slots=True)
class Rounds:
    """Carries events out, in an order that the scene's seed decides, and judges each round."""

    scene: Scene
    events: list[Event] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    breaches: list[str] = field(default_factory=list)
    acknowledged: dict[TopicPartition, list[int]] = field(default_factory=dict)
    """The offsets of all records that the sender knows to be there."""
    _stall: float = 0.0
    _looked: float = 0.0
    _running: list[_Running] = field(default_factory=list)

    def begin(self) -> None:
        """The whole group, and peace."""
        for _ in range(self.scene.settings.members):
            self.scene.start_member()
        self.scene.start_sender()
        self._until(self.scene.is_settled, START_PATIENCE, "the group is whole at the beginning")

    def run(self, count: int, report: Callable[[str], None], is_enough: Callable[[], bool]) -> None:
        """So many events or a few more, in whole hands; fewer if something is found."""
        settings = self.scene.settings
        hand = sum(settings.kinds.values())
        while len(self.events) < count and not self.found() and not is_enough():
            hands = min(settings.hands, ceil((count - len(self.events)) / hand))
            kinds = {kind: some * hands for kind, some in settings.kinds.items()}
            for dealt in deal(self.scene.random, kinds, settings.calm, settings.members):
                if not self.found():
                    self._round(dealt)
                    self._tell(report)

    def _tell(self, report: Callable[[str], None]) -> None:
        last = self.rounds[-1]
        kinds = "  ".join(f"{kind} {some}" for kind, some in sorted(last.kinds.items()))
        report(
            f"{len(self.events):>6} events, this round in {last.seconds:4.1f} s, settled in"
            f" {last.settled:5.2f} of {last.limit:5.2f}, stall {last.stall:.2f}  {kinds}"
        )

    def end(self) -> None:
        """No more records; what was sent is committed; everybody leaves."""
        scene = self.scene
        scene.nursery.signal(scene.sender, signal.SIGTERM)
        self._until(lambda: scene.sender in scene.nursery.ended, END_PATIENCE, "the sender ends")
        if scene.nursery.ended.get(scene.sender) != 0:
            self.breaches.append("the sender failed: its log tells")
        for _, topic, number, offset in scene.sent.read():
            self.acknowledged.setdefault(TopicPartition(topic, int(number)), []).append(int(offset))
        ends = {place: max(offsets) + 1 for place, offsets in self.acknowledged.items()}

        def all_committed() -> bool:
            lives = scene.history.lives
            return all((lives[place].state.offset or 0) == end for place, end in ends.items())

        self._until(all_committed, END_PATIENCE, "all that was sent is committed")
        leaving = scene.living()
        for member in leaving:
            member.busy = True  # it may end now
            scene.signal(member, signal.SIGTERM)
        self._until(
            lambda: all(member.pid in scene.nursery.ended for member in leaving),
            END_PATIENCE,
            "all members end",
        )
        for _ in range(3):  # what is ready is handed out at the next look
            self._look()
        for member in scene.members.values():
            member.take_in()
        self.breaches += [
            f"{member.name} ended with {scene.nursery.ended.get(member.pid)}"
            for member in leaving
            if scene.nursery.ended.get(member.pid) != 0
        ]
        self.breaches += [
            f"{place} is owned after all have left: {life.owner}"
            for place, life in scene.history.lives.items()
            if life.owner is not None
        ]

    def found(self) -> list[str]:
        return self.breaches + self.scene.history.breaches

    # -- one round --------------------------------------------------------------------------------

    def _round(self, dealt: Dealt) -> None:
        """Everything that was dealt, and then peace."""
        scene = self.scene
        begin = time.monotonic()
        spread = scene.settings.spread * max(1, len(dealt.servers))
        times = sorted(begin + scene.random.uniform(0, spread) for _ in dealt.members)
        members, servers = deque(zip(times, dealt.members, strict=True)), deque(dealt.servers)
        self._running = []
        self._stall = 0.0
        before = len(self.events)
        while members or servers or self._running:
            while members and members[0][0] <= time.monotonic() and self._begin(members[0][1]):
                members.popleft()
            if servers and not any(each.event.kind in ENSEMBLE for each in self._running):
                self._begin(servers.popleft())  # two servers down were no ensemble
            for each in tuple(self._running):
                if self._is_over(each):
                    self._running.remove(each)
                    each.event.ended = time.time()
            if members and time.monotonic() > members[0][0] + VICTIM_PATIENCE:
                self.breaches.append(f"nobody is left to whom {members[0][1]} could be done")
                members.clear()
            self._look()
            time.sleep(STEP)
        self._judge(self.events[before:], begin)

    def _begin(self, kind: str) -> bool:
        """False if there is nobody now to whom it could be done."""
        event = Event(kind, begun=time.time())
        if kind in ON_ALL:
            self._running.append(_Running(event, ON_ALL[kind](self.scene, event), None))
        else:
            member = self._victim(kind)
            if member is None:
                return False
            member.busy = True
            event.member = member.name
            script = ON_A_MEMBER[kind](self.scene, event, member)
            self._running.append(_Running(event, script, member))
        self.events.append(event)
        return True

    def _victim(self, kind: str) -> MemberProcess | None:
        """Somebody with partitions to whom nothing else happens now."""
        free = [
            member
            for member in self.scene.living()
            if not member.busy and member.sessions and self.scene.history.owned_by(member.name)
        ]
        if kind in OF_A_LONG_SESSION:
            free = [member for member in free if member.has_long_session]
        elif kind in CRASHES:
            free = [member for member in free if not member.has_long_session]
        if kind in ("kill", "kill_guardian"):
            free = [member for member in free if member.guardian() is not None]
        if kind == "expire":
            free = [member for member in free if member.guardian() is None] or free
        return self.scene.random.choice(free) if free else None

    def _is_over(self, each: _Running) -> bool:
        """Whether the event has come to its end, after one more step of it."""
        try:
            self._check_alive(each)
            next(each.script)
            return False
        except StopIteration:
            pass
        except Breach as breach:
            self.breaches.append(f"{each.event.kind}: {breach}")
        if each.member is not None:
            each.member.busy = False
        return True

    def _check_alive(self, each: _Running) -> None:
        """A member to whom nothing deadly was done is there."""
        member = each.member
        if member is None or each.event.kind in DEPARTURES:
            return
        if member.pid in self.scene.nursery.ended:
            member.alive = False
            raise Breach(f"{member.name} ended by itself: {member.said()}")

    def _judge(self, events: list[Event], begun: float) -> None:
        kinds = Counter(event.kind for event in events)
        disturbed = max((event.disturbed for event in events), default=0.0) or time.time()
        limit = self._limit(events, disturbed)
        deadline = time.monotonic() + SETTLE_PATIENCE
        while not self.scene.is_settled() and time.monotonic() < deadline:
            self._look()
            time.sleep(STEP)
        settled = time.time() - disturbed
        allowed = limit + MACHINE + 3 * self._stall
        if settled > allowed:
            self.breaches.append(f"settled after {settled:.2f} s, allowed {allowed:.2f}: {kinds}")
            self.breaches += self.scene.unsettled()
        for event in events:
            event.shaken = not ENSEMBLE.isdisjoint(kinds)
            self._note_recovery(event)
            if event.kind == "kill" and not event.shaken:
                self._check_guarded(event)
        seconds = time.monotonic() - begun
        self.rounds.append(Round(kinds, seconds, settled, limit, self._stall))

    def _limit(self, events: list[Event], disturbed: float) -> float:
        """L after the last fault. Who was stopped or killed before that for longer is known to be gone."""
        settings = self.scene.settings
        kinds = {event.kind for event in events}
        session = 0.0
        if not ENSEMBLE.isdisjoint(
            kinds
        ):  # a guardian finds no server, a client cannot say goodbye
            session = settings.long_session_timeout
        elif not CRASHES.isdisjoint(kinds):
            session = settings.session_timeout
        unknown = disturbed - settings.session_timeout - 2 * settings.tick
        dead = [each for each in events if each.kind in DEATHS and each.since > unknown]
        return settings.limit(len(dead), session)

    def _check_guarded(self, event: Event) -> None:
        """It was its guardian that ended the session of a member that was killed, if ZooKeeper was there."""
        session, _ = self.scene.members[event.member].sessions[-1]
        end = self.scene.history.ended.get(session)
        if end is not None and end.ends == "expired" and end.at > event.since:
            self.breaches.append(f"{event.member} was killed, and its session left to its timeout")

    def _note_recovery(self, event: Event) -> None:
        """How long the slowest of what the event took from its owner waited for the next one."""
        if event.recovered is not None:
            return
        since = event.since
        lives = self.scene.history.lives
        waits = [
            next((claim.at - since for claim in lives[place].claims if claim.epoch > epoch), None)
            for place, epoch in event.affected.items()
        ]
        event.recovered = max((wait for wait in waits if wait is not None), default=0.0)

    def story(self) -> Iterator[str]:
        """What was done to whom in the last seconds, for people who look for a reason."""
        now = time.time()
        for event in self.events[-60:]:
            ended = f"{event.ended - now:8.2f}" if event.ended else " (not yet)"
            yield (
                f"{event.begun - now:8.2f} s to {ended} s  {event.kind:<16} {event.member:<5}"
                f" disturbed {event.disturbed - now if event.disturbed else 0.0:8.2f}"
                f" {event.refusal}"
            )
        registered = {name.partition("-")[0] for name in self.scene.history.members}
        for member in self.scene.living():
            if member.name not in registered or not self.scene.history.owned_by(member.name):
                yield f"{member.name} said:{member.said(lines=8)}"

    # -- looking ----------------------------------------------------------------------------------

    def _look(self) -> None:
        now = time.monotonic()
        if self._looked:
            self._stall = max(self._stall, now - self._looked - STEP)
        self._looked = now
        self.scene.look()
        for member in self.scene.living():
            if member.pid in self.scene.nursery.ended and not member.busy:
                member.alive = False
                self.breaches.append(f"{member.name} ended by itself: {member.said()}")

    def _until(self, condition: Callable[[], object], patience: float, what: str) -> None:
        deadline = time.monotonic() + patience
        while not condition():
            if time.monotonic() > deadline:
                self.breaches += [f"not within {patience:g} s: {what}", *self._unsettled()]
                return
            self._look()
            time.sleep(STEP)
        self._looked = 0.0

    def _unsettled(self) -> Iterator[str]:
        yield from self.scene.unsettled()
