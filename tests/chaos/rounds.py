"""A run: rounds of events that overlap, each followed by peace, in which L must hold."""

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from folkmoot.protocol.records import TopicPartition
from tests.chaos.events import (
    CRASHES,
    DEPARTURES,
    ENSEMBLE,
    ON_A_MEMBER,
    ON_ALL,
    Breach,
    Event,
    Script,
)
from tests.chaos.scene import MemberProcess, Scene
from tests.chaos.settings import MACHINE

STEP = 0.05
GUARDED = 2.0
"""Within this a guardian has ended the session of its member, if ZooKeeper is there."""
START_PATIENCE = 60.0
END_PATIENCE = 60.0


@dataclass(slots=True)
class Round:
    """What was found when peace had returned."""

    kinds: Counter[str]
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
    _waiting: list[str] = field(default_factory=list)

    def begin(self) -> None:
        """The whole group, and peace."""
        for _ in range(self.scene.settings.members):
            self.scene.start_member()
        self.scene.start_sender()
        self._until(self.scene.is_settled, START_PATIENCE, "the group is whole at the beginning")

    def run(self, count: int, report: Callable[[str], None]) -> None:
        """So many events, unless something is found."""
        while len(self.events) < count and not self.found():
            at_once = self.scene.random.randint(*self.scene.settings.at_once)
            self._round(self._chosen(min(at_once, count - len(self.events)), count))
            last = self.rounds[-1]
            report(
                f"{len(self.events):>6} events  settled {last.settled:5.2f} s of {last.limit:5.2f}"
                f"  stall {last.stall:.2f}  {' '.join(sorted(last.kinds.elements()))}"
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

    def _chosen(self, count: int, total: int) -> list[str]:
        """The next kinds in the order of the seed; what does not fit now comes first next time."""
        scene = self.scene
        chosen: list[str] = []
        later: list[str] = []
        population = len(scene.living())
        low, high = round(scene.settings.members * 0.8), round(scene.settings.members * 1.2)
        while len(chosen) < count:
            if not self._waiting:
                if chosen and len(self.events) + len(chosen) + len(later) >= total:
                    break  # the last ones
                kinds = scene.settings.kinds.items()
                self._waiting = [kind for kind, some in kinds for _ in range(some)]
                scene.random.shuffle(self._waiting)
            kind = self._waiting.pop()
            after = population + (kind == "join") - (kind in DEPARTURES)
            if not low <= after <= high or (
                kind in ENSEMBLE and sum(each in ENSEMBLE for each in chosen) == 2
            ):
                later.append(kind)
                if len(later) > 60:
                    break
                continue
            population = after
            chosen.append(kind)
        self._waiting += later
        return chosen

    def _round(self, kinds: list[str]) -> None:
        scene = self.scene
        begin = time.monotonic()
        starts = sorted(
            (begin + scene.random.uniform(0, scene.settings.spread), kind) for kind in kinds
        )
        running: list[_Running] = []
        self._stall = 0.0
        disturbed = 0.0
        events: list[Event] = []
        while starts or running:
            while starts and starts[0][0] <= time.monotonic():
                begun = self._begin(starts.pop(0)[1])
                running.append(begun)
                events.append(begun.event)
            for each in tuple(running):
                if self._is_over(each):
                    running.remove(each)
                    each.event.ended = time.time()
                    disturbed = max(disturbed, each.event.disturbed)
            self._look()
            time.sleep(STEP)
        self._judge(events, disturbed)
        self.events += events

    def _begin(self, kind: str) -> _Running:
        event = Event(kind, begun=time.time())
        if kind in ON_ALL:
            return _Running(event, ON_ALL[kind](self.scene, event), None)
        member = self._victim(kind)
        member.busy = True
        event.member = member.name
        return _Running(event, ON_A_MEMBER[kind](self.scene, event, member), member)

    def _victim(self, kind: str) -> MemberProcess:
        """Somebody with partitions to whom nothing else happens now."""
        free = [
            member
            for member in self.scene.living()
            if not member.busy and member.sessions and self.scene.history.owned_by(member.name)
        ]
        if kind in ("kill", "kill_guardian"):
            free = [member for member in free if member.guardian() is not None] or free
        if kind == "expire":
            free = [member for member in free if member.guardian() is None] or free
        return self.scene.random.choice(free)

    def _is_over(self, each: _Running) -> bool:
        try:
            next(each.script)
            return False
        except StopIteration:
            pass
        except Breach as breach:
            self.breaches.append(f"{each.event.kind}: {breach}")
        if each.member is not None:
            each.member.busy = False
        return True

    def _judge(self, events: list[Event], disturbed: float) -> None:
        kinds = Counter(event.kind for event in events)
        deaths = sum(kinds[kind] for kind in CRASHES | {"expire"})
        limit = self.scene.settings.limit(deaths, crashed=not CRASHES.isdisjoint(kinds))
        deadline = time.monotonic() + 60.0
        while not self.scene.is_settled() and time.monotonic() < deadline:
            self._look()
            time.sleep(STEP)
        settled = time.time() - (disturbed or time.time())
        allowed = limit + MACHINE + 3 * self._stall
        if settled > allowed:
            self.breaches.append(f"settled after {settled:.2f} s, allowed {allowed:.2f}: {kinds}")
            self.breaches += self.scene.unsettled()
        for event in events:
            event.shaken = not ENSEMBLE.isdisjoint(kinds)
            self._note_recovery(event)
            if event.kind == "kill" and not event.shaken:
                self._check_guarded(event)
        self.rounds.append(Round(kinds, settled, limit, self._stall))

    def _check_guarded(self, event: Event) -> None:
        took = event.ended - event.since
        if took > GUARDED + 3 * self._stall:
            self.breaches.append(f"{event.member} was gone {took:.2f} s after its SIGKILL only")

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
                self.breaches.append(f"{member.name} ended by itself: {self._words(member)}")

    def _words(self, member: MemberProcess) -> str:
        with suppress(OSError):
            return " | ".join(member.output.read_text(errors="replace").splitlines()[-4:])
        return ""

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
