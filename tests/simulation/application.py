"""A simulated process: the real `Member` with its real recipes, and an application that uses it."""

from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from math import inf
from random import Random

import msgspec

from folkmoot.consumers.group.events import (
    Assigned,
    Committed,
    Left,
    Lost,
    Notice,
    Rebalanced,
    Replaced,
    Revoking,
)
from folkmoot.consumers.group.group_thread import Member
from folkmoot.consumers.group.liveness import PollState
from folkmoot.consumers.group.member_state import MemberSettings, Phase
from folkmoot.consumers.lag import is_beyond
from folkmoot.consumers.offsets.progress import Positions
from folkmoot.coordination.zookeeper.session import Session
from folkmoot.protocol.records import TopicPartition
from tests.simulation.checks import Checks
from tests.simulation.line import Line
from tests.simulation.world import World

SESSION_TIMEOUT = 3.0
HAND_OVER = 1.0
SLACK = 0.9
"""For two turns of a thread."""


@dataclass
class Reading:
    """A partition as the application knows it: processed is everything below `position`, from its start on.

    None while the end is looked up, where the group starts, or is being committed.
    """

    topic_id: str
    epoch: int
    position: int | None


class Application:
    """Processes records at its own pace and hears of changes late, as a slow handler does.

    Two threads as in a real process: the member's and the application's. Each takes its turn some
    time after it was woken, so that what one tells the other is old when it is heard.
    """

    def __init__(
        self,
        world: World,
        name: str,
        settings: MemberSettings,
        checks: Checks,
        *,
        policy: str = "earliest",
        by_hand: bool = False,
    ) -> None:
        """`policy`: where to start what the group begins with. `by_hand`: it seldom commits."""
        self.policy = policy
        self.by_hand = by_hand
        self.world = world
        self.name = name
        self.settings = settings
        self.readings: dict[TopicPartition, Reading] = {}
        self.positions = Positions()
        self.leaving = False
        self.left = False
        self.replaced = False
        self.dead = False
        self.line: Line | None = None
        self.slow = 0.0
        """How long draining takes at most."""
        self.works_at = 0.0
        """When the application looks again; it may be slow."""
        self._checks = checks
        self._frozen = False
        self._gone = False
        self._busy_until = 0.0
        self._stage = (Phase.JOINING, PollState.ACTIVE, False)
        self._turn_due = self._alarm = 0.0
        self._notices: deque[Notice] = deque()
        random = Random(world.random.getrandbits(64))
        self.member = Member(settings, self._connect, self._woken, world.clock, random)
        checks.seats.members[name] = self.member
        self.member._wakeup.close()  # nobody waits on it, and a closed one costs no system calls

    def start(self) -> None:
        self.world.note(f"{self.name} starts, {_wanting(self.settings)}")
        self.member.open()
        self._hear()
        self.world.after(0.0, self._work)

    @property
    def running(self) -> bool:
        return not self.dead and not self.left

    # -- the group thread -------------------------------------------------------------------------

    def _connect(self, session_timeout: float) -> Session:
        self.line = Line(self.world, self.name, session_timeout)
        self.line.holder_hears = self._hear
        return self.line

    def _hear(self) -> None:
        """Something has happened: take a turn soon."""
        if self._turn_due <= self.world.now:
            delay = self.world.delay() / 4
            self._turn_due = self.world.now + delay
            self.world.after(delay, self._turn)

    def _turn(self) -> None:
        if self.dead or self._frozen or self._gone:
            return
        deadline = self.member.run_once()
        self._note_stage()
        self._gone = self.member.state.phase is Phase.LEFT
        if self._gone and self.line is not None:
            self.line.close()
        if deadline < inf and not self._gone:
            at = max(deadline, self.world.now)
            if not self.world.now < self._alarm <= at:
                self._alarm = at
                self.world.at(at, self._turn)

    def _note_stage(self) -> None:
        """So that a run can tell which changes of a member's life never occurred in it."""
        member = self.member
        stage = (member.state.phase, member.state.liveness.poll_state, member.state.liveness.fenced)
        if stage != self._stage:
            change = f"stage {_called(*self._stage)} to {_called(*stage)}"
            self.world.seen[change] += 1
            self._stage = stage

    # -- the application's thread -----------------------------------------------------------------

    def _woken(self) -> None:
        """The member has told something; the application hears of it when it looks."""

    def _work(self) -> None:
        if self.dead or self.left:
            return
        if not self._frozen and self.world.now >= self._busy_until:
            self.member.polled(self.world.now)
            if self.member.state.liveness.poll_state is not PollState.ACTIVE:
                self._hear()
            steps = [self._serve, self._process, self._commit]
            self.world.random.shuffle(steps)
            for step in steps:
                step()
        slow = self.world.faults and self.world.random.random() < 0.06
        pause = self.world.random.uniform(0.5, 3.0) if slow else self.world.random.uniform(0, 0.3)
        self.works_at = self.world.now + pause
        self.world.after(pause, self._work)

    def _serve(self) -> None:
        while self.member.notices:
            notice = self.member.notices.popleft()
            self.world.seen[f"notice {type(notice).__name__}"] += 1
            match notice:
                case Assigned(partition, topic_id, offset, epoch):
                    self.world.note(f"{self.name} is assigned {partition} {offset} {epoch}")
                    assert partition not in self.readings, f"{partition} is assigned twice"
                    self._checks.assigned(self.name, notice)
                    start = None if offset is None and self.policy == "latest" else offset or 0
                    self.readings[partition] = Reading(topic_id, epoch, start)
                    self.positions.claim(partition, offset)
                    if start is None:
                        self._look_up_later(partition, epoch)
                case Revoking(partition):
                    if partition in self.readings:
                        self.member.draining(partition, self.readings[partition].epoch)
                        self._drain_later(partition, self.readings[partition].epoch)
                case Lost(partition):
                    self.readings.pop(partition, None)
                    self.positions.release(partition)
                case Committed(_, offsets):
                    for partition, offset in offsets.items():
                        self._checks.told_committed(self.name, partition, offset)
                        reading = self.readings.get(partition)
                        if reading is not None and reading.position is None:
                            reading.position = offset
                    self.positions.group.mark_committed(offsets)
                case Left():
                    self.left = True
                case Replaced():
                    self.left = self.replaced = True
                case Rebalanced():
                    pass

    def _look_up_later(self, partition: TopicPartition, epoch: int) -> None:
        """Its leader is asked for the end, and answers."""

        def look_up() -> None:
            reading = self.readings.get(partition)
            if self.dead or reading is None or reading.epoch != epoch:
                return
            if self._frozen or self.world.now < self._busy_until:
                self.world.after(0.1, look_up)
                return
            self.world.seen["start at the end"] += 1
            self.commit_start(
                partition, reading, self._checks.logs.end(partition, reading.topic_id)
            )

        self.world.after(self.world.delay() + self.world.random.uniform(0.0, 0.3), look_up)

    def commit_start(self, partition: TopicPartition, reading: Reading, start: int) -> None:
        """Whatever else is committed, and when: nothing is processed before."""
        self.positions.begin(partition, start)
        starts, _ = self.positions.group.request({partition: start})
        self.member.commit(starts, {partition: reading.epoch})
        self._hear()

    def _drain_later(self, partition: TopicPartition, epoch: int) -> None:
        """The last records take their time; they are processed all the same."""

        def drain() -> None:
            if self.dead:
                return
            if self._frozen or self.world.now < self._busy_until:
                self.world.after(0.1, drain)
                return
            reading = self.readings.get(partition)
            if reading is not None and reading.epoch == epoch:
                del self.readings[partition]
                self._advance(partition, reading)
                keep = self.by_hand or self.world.random.random() < 0.2
                final = None if keep else self.positions.due({partition}).get(partition)
                self.positions.release(partition)
                self.member.drained(partition, epoch, final)
                self._hear()

        self.world.after(self.world.random.uniform(0.0, self.slow), drain)

    def _process(self) -> None:
        for partition, reading in self.readings.items():
            if self.world.random.random() < 0.5:
                self._advance(partition, reading)

    def _advance(self, partition: TopicPartition, reading: Reading) -> None:
        self._look_at_the_end(partition, reading)
        count = self.world.random.randint(0, 3)
        first = reading.position
        if first is None:
            return
        reading.position = first + count
        self._checks.processed(partition, reading.topic_id, reading.epoch, first, count)
        self.positions.of(partition).handed_out = reading.position
        self.positions.end_poll()

    def _look_at_the_end(self, partition: TopicPartition, reading: Reading) -> None:
        """What a fetch behind the end of a log is answered: then all that is there is read."""
        end = self._checks.logs.end_after_cut(partition, reading.topic_id)
        if is_beyond(reading.position, end):
            assert end is not None
            self.world.seen["log below the group"] += 1
            self._checks.went_back.add((partition, reading.epoch))
            self.positions.cut(partition, end)
            reading.position = 0
            self.positions.begin(partition, 0)

    def _commit(self) -> None:
        if self.world.random.random() < (0.05 if self.by_hand else 0.3):
            self.commit_all()

    def commit_all(self) -> "Future[Committed] | None":
        """Commit what is processed, under the epochs that the application knows. → its outcome; None: there
        is nothing to commit."""
        for partition, reading in self.readings.items():
            self._look_at_the_end(partition, reading)
        offsets = self.positions.due(self.readings)
        if not offsets:
            return None
        epochs = {partition: self.readings[partition].epoch for partition in offsets}
        outcome = self.member.commit(offsets, epochs)
        self._hear()
        return outcome

    # -- what can befall it -----------------------------------------------------------------------

    def leave(self) -> None:
        self.world.note(f"{self.name} leaves")
        self.leaving = True
        self.member.begin_to_leave()
        self._hear()

    def crash(self, guarded: bool = False) -> None:
        """Its session ends by its timeout or, `guarded`, by its guardian, at once."""
        self.world.note(f"{self.name} dies")
        self.dead = True
        if self.line is not None:
            self.line.vanish(guarded)

    def freeze(self, pause: float) -> None:
        """SIGSTOP, and SIGCONT after the pause. A long one outlasts the session."""
        if self._frozen or self.dead:
            return
        self.world.note(f"{self.name} freezes for {pause:.3f}")
        self._frozen = True
        line = self.line
        if pause > SESSION_TIMEOUT and line is not None:
            self.world.after(SESSION_TIMEOUT, line.expire_unheard)
        self.world.after(pause, self._thaw)

    def stall(self, pause: float) -> None:
        """Its handler does not come back for so long; its group thread lives on."""
        self._busy_until = self.world.now + pause
        limit = self.settings.max_processing_time
        if limit is not None:
            check = partial(self._check_absence, self.world.now)
            self.world.after(limit + HAND_OVER + SLACK, check)

    def _check_absence(self, since: float) -> None:
        """A member whose application is away for too long holds nothing, as far as it can know."""
        line = self.line
        hears = not self._frozen and line is not None and line.is_sound
        if (self.member.polls.polled_at or 0.0) > since:
            return  # it was back, and is away again
        if self.running and not self.leaving and hears and self.world.now < self._busy_until:
            held = list(self.member.state.owned)
            self._checks.absent(self.name, held)

    def _thaw(self) -> None:
        self._frozen = False
        self.world.note(f"{self.name} thaws")
        self._hear()
        if self.line is not None and self.line.ended:
            self.world.after(self.world.delay(), self.line.lose)


def _wanting(settings: MemberSettings) -> str:
    assignors = [each.name for each in settings.assignors]
    return str(msgspec.structs.replace(settings, assignors=assignors))


def _called(phase: Phase, poll_state: PollState, fenced: bool) -> str:
    words = (
        phase.value,
        "" if poll_state is PollState.ACTIVE else poll_state.value,
        "fenced" * fenced,
    )
    return " ".join(filter(None, words))
