"""The group thread: feeds the pure member (group.py) from ZooKeeper, the clock and the consumer.

One thread owns the member, its session and all recipes under way. Watches, answers and the consumer's
wishes reach it through one inbox and a wakeup; what the consumer must know leaves through one queue of
notices and the consumer's own wakeup. Recipes run side by side, each waiting for its own answer, so a
hundred claims cost about as many round trips as one.

A lost session is replaced by a new one under a new nonce; answers that belong to the old one are
thrown away. While there is none the consumer is answered all the same: nothing is held then, and
the next session is opened on a thread of its own. An unforeseen error ends the group thread and is
raised to the consumer at its next call.
"""

import logging
import math
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping
from random import Random
from threading import Thread
from typing import Any

import msgspec

from folkmoot.consumers.group.events import (
    Acknowledged,
    Commit,
    Drained,
    EndSession,
    Event,
    Finished,
    Join,
    Leaving,
    Notice,
    Polled,
    SessionLost,
    Started,
    Task,
    Tick,
)
from folkmoot.consumers.group.exit_reason import LastWords
from folkmoot.consumers.group.group_operations import MemberSettings, Recipes
from folkmoot.consumers.group.liveness import Presence
from folkmoot.consumers.group.member_state import GroupMember
from folkmoot.consumers.group.phase import Phase
from folkmoot.consumers.group.session_opener import Opener
from folkmoot.consumers.group.timing import Timing
from folkmoot.coordination.wakeup import Wakeup
from folkmoot.coordination.zookeeper import operations
from folkmoot.coordination.zookeeper.operations import Operation, Recipe, WatchCallback
from folkmoot.coordination.zookeeper.session import Connect, Outcome, Session, SessionState
from folkmoot.protocol.errors import ZooKeeperUnreachable
from folkmoot.protocol.records import TopicPartition

__all__ = ["Member", "MemberSettings"]

log = logging.getLogger(__name__)

RECONNECT_PAUSE = 0.5
_TICK = Tick()


class _Answer(msgspec.Struct, frozen=True):
    """An operation of a recipe ended."""

    session: int
    task: Task
    recipe: Recipe[Any]
    outcome: Outcome


class _Ring(msgspec.Struct, frozen=True):
    """A watch of a session rang."""

    session: int
    event: Event


class _Connected(msgspec.Struct, frozen=True):
    """An attempt to open a session ended."""

    found: Any  # Session | Exception


_Message = Event | _Answer | _Ring | _Connected


class Member:
    """A running member. `start` once, `stop` once; the other methods belong to the consumer's thread.

    Without `start` there is no thread: a simulator calls `open`, and `turn` whenever something has
    happened or `deadline` has come, under its own `clock` and `random`.
    """

    def __init__(
        self,
        settings: MemberSettings,
        connect: Connect,
        wake: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
        random: Random | None = None,
    ) -> None:
        self.settings = settings
        self.notices: deque[Notice] = deque()
        self.error: BaseException | None = None
        self._connect = connect
        self._opener = Opener(connect, lambda found: self._post(_Connected(found)))
        self._wake = wake
        self._clock = clock
        self._random = random or Random(secrets.randbits(128))
        self._wakeup = Wakeup()
        self._inbox: deque[_Message] = deque()
        self._group = GroupMember(
            settings.info(), Timing(), self._random, settings.max_processing_time
        )
        self._verbs = Recipes(settings, self._group, self._ring)
        self._last_words = LastWords(settings.group)
        self._rings: dict[Event, WatchCallback] = {}
        self._session = 0
        self._store: Session | None = None
        self._connect_at = 0.0
        self._acknowledged = 0.0
        self._connecting = False
        self._stopping = False
        self._remind_at = math.inf  # written by the consumer's thread
        self._reminded = [math.inf, math.inf]
        self.polled_at: float | None = None
        """When the application last asked for records, by our clock."""
        self._told_polled_at: float | None = None
        self._thread = Thread(target=self._main, name="folkmoot-group", daemon=True)

    # -- the consumer's side ----------------------------------------------------------------------

    def start(self) -> None:
        """Open the first session, here, so that an unreachable ZooKeeper is raised; then join."""
        self.open()
        self._thread.start()

    def open(self) -> None:
        """What `start` does besides starting the thread. Raises ZooKeeperUnreachable."""
        self.polled(self._clock())
        self._open(self._connect(self.settings.session_timeout))
        self._feed(self._started())

    def polled(self, now: float) -> None:
        """The application asks for records. Cheap: the group thread looks when it has to know."""
        self.polled_at = now
        if self.presence is not Presence.THERE:
            self._wakeup.wake()

    def commit(
        self,
        token: int,
        offsets: Mapping[TopicPartition, int],
        epochs: Mapping[TopicPartition, int],
    ) -> None:
        """Ask for a commit; its outcome comes as the notice Committed with this token.

        `epochs` are those of the assignments that the consumer knows. Work done under an earlier
        claim is not committed under a later one; a partition without an epoch is refused.
        """
        known = {each: (epochs.get(each, 0), offset) for each, offset in offsets.items()}
        self._post(Commit(token, known))

    def drained(self, partition: TopicPartition, epoch: int, offset: int | None) -> None:
        """Answer Revoking: nothing of the partition is under way; commit `offset` and let it go."""
        self._post(Drained(partition, epoch, offset))

    def remind(self, at: float) -> None:
        """Wake the consumer at that time (monotonic), whatever it does; no earlier time counts then."""
        self._remind_at = at
        self._wakeup.wake()

    def begin_to_leave(self) -> None:
        """Ask for everything to be revoked; the notice Left tells when the member is gone."""
        self._post(Leaving())

    def stop(self, timeout: float) -> None:
        """End the thread and the session, whether the member has left or not."""
        self._stopping = True
        self._wakeup.wake()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        if not self._thread.is_alive():
            self._wakeup.close()

    @property
    def name(self) -> str | None:
        """The member's name in the group while it has joined."""
        return self._group.name

    @property
    def phase(self) -> Phase:
        return self._group.phase

    @property
    def presence(self) -> Presence:
        """Whether the application asks for records often enough."""
        return self._group.liveness.presence

    @property
    def is_fenced(self) -> bool:
        """ZooKeeper has been silent for so long that nothing is held."""
        return self._group.liveness.fenced

    @property
    def has_left(self) -> bool:
        """Nothing more will happen: the last notice was Left, or Replaced."""
        return self._group.phase is Phase.LEFT

    @property
    def generation(self) -> int:
        """The generation of the plan last seen."""
        return self._group.plan.plan.generation

    @property
    def fenced_commits(self) -> int:
        """How many commits were refused because another member held the partition."""
        return self._group.holdings.fenced_commits

    @property
    def lost_partitions(self) -> int:
        """How many partitions went without being given up."""
        return self._group.holdings.lost

    @property
    def store(self) -> Session | None:
        """The session of the moment, for reading what has no owner."""
        return self._store

    # -- the group thread -------------------------------------------------------------------------

    def _post(self, message: _Message) -> None:
        self._inbox.append(message)
        self._wakeup.wake()

    def _main(self) -> None:
        try:
            while not self._stopping and not self.has_left:
                due = self.deadline()
                deadline = min(math.inf if due is None else due, self._remind())
                self._wakeup.wait(
                    None if deadline == math.inf else max(0.0, deadline - self._clock())
                )
                self.turn()
        except BaseException as error:
            log.exception("the group thread of %s ended", self.settings.group)
            self.error = error
        finally:
            if self._store is not None:
                self._store.close()
            self._opener.close()
            for message in tuple(self._inbox):
                if isinstance(message, _Connected) and not isinstance(message.found, Exception):
                    message.found.close()
            self._wake()

    def _remind(self) -> float:
        """Wake the consumer if the time has come; → when it will, if it has not.

        Also when half the time has passed that the application may stay away: an iteration that goes
        on by itself is cut, and shows itself with the next record.
        """
        half = (self.settings.max_processing_time or math.inf) / 2
        due = math.inf
        for kind, at in enumerate((self._remind_at, (self.polled_at or 0.0) + half)):
            if at != self._reminded[kind] and at <= self._clock():
                self._reminded[kind] = at
                self._wake()
            elif at != self._reminded[kind]:
                due = min(due, at)
        return due

    def deadline(self) -> float | None:
        """When the next turn is due, if nothing happens before."""
        if self._store is not None:
            return self._group.deadline()
        return None if self._connecting else self._connect_at

    def turn(self) -> None:
        """Take in all that has happened, and act."""
        self._check_session()
        self._check_acknowledged()
        if self.polled_at is not None and self.polled_at != self._told_polled_at:
            self._told_polled_at = self.polled_at
            self._feed(Polled(self.polled_at))
        for _ in range(len(self._inbox)):
            message = self._inbox.popleft()
            self._check_acknowledged()
            match message:
                case _Answer():
                    if message.session == self._session:
                        self._advance(message.task, message.recipe, message.outcome)
                case _Connected():
                    self._connected(message)
                case _Ring():
                    if message.session == self._session:
                        self._feed(message.event)
                case _:
                    self._feed(message)
        self._feed(_TICK)

    def _feed(self, event: Event) -> None:
        told = False
        for effect in self._group.handle(event, self._clock()):
            if isinstance(effect, Task):
                self._advance(effect, self._verbs.of(effect), None)
            elif isinstance(effect, EndSession):
                self._end_session(effect.why)
            else:
                self.notices.append(effect)
                told = True
        if told:
            self._wake()

    def _advance(self, task: Task, recipe: Recipe[Any], outcome: Outcome | None) -> None:
        """Give a recipe its answer and submit what it asks next; feed the member when it has ended."""
        store, session = self._store, self._session
        if store is None:
            return
        try:
            operation: Operation
            if outcome is None:
                operation = next(recipe)
            elif outcome.error is not None:
                operation = recipe.throw(outcome.error)
            else:
                operation = recipe.send(outcome.result)
        except StopIteration as stop:
            if isinstance(stop.value, operations.TooLarge):
                log.error("group %s keeps its plan: %s", self.settings.group, stop.value)
            elif isinstance(task, Join) and isinstance(stop.value, str):
                self._last_words.joined(store, stop.value)
            self._feed(Finished(task, stop.value))
        except operations.SessionLost:
            pass  # the session's own state says so, too
        else:
            store.submit(
                operation, lambda answer: self._post(_Answer(session, task, recipe, answer))
            )

    # -- sessions ---------------------------------------------------------------------------------

    def _open(self, store: Session) -> None:
        self._session += 1
        self._store = store
        self._acknowledged = 0.0
        self._rings.clear()
        store.listen(lambda state: self._wakeup.wake())

    def _started(self) -> Started:
        """What the member is told of the session just opened. The nonce is new in all the world."""
        assert self._store is not None
        return Started(f"{self._random.getrandbits(64):016x}", self._store.session_timeout)

    def _check_session(self) -> None:
        """Replace a session that is over."""
        if self._store is not None:
            if self._store.state is not SessionState.LOST:
                return
            log.warning("group %s: the ZooKeeper session was lost", self.settings.group)
            self._end_session()
        if self._store is None and not self._connecting and self._clock() >= self._connect_at:
            self._connecting = True
            running = self._thread.ident is not None
            self._opener.begin(self.settings.session_timeout, aside=running)

    def _connected(self, message: "_Connected") -> None:
        self._connecting = False
        if isinstance(message.found, ZooKeeperUnreachable):
            log.warning("group %s: %s", self.settings.group, message.found)
            self._connect_at = self._clock() + RECONNECT_PAUSE
        elif isinstance(message.found, Exception):
            raise message.found
        else:
            self._open(message.found)
            self._feed(self._started())

    def _end_session(self, why: str = "") -> None:
        """Nothing of this session counts any more; the next turn opens another."""
        store, self._store = self._store, None
        self._session += 1
        if store is not None:
            if why:
                self._last_words.give_up(store, why)
            store.close()
        self._connect_at = 0.0
        self._feed(SessionLost())

    def _check_acknowledged(self) -> None:
        if self._store is not None:
            latest = self._store.last_acknowledged()
            if latest > self._acknowledged:
                self._acknowledged = latest
                self._feed(Acknowledged(latest))

    def _ring(self, event: Event) -> WatchCallback:
        """What a watch calls. The same one for the same event, so that reading a node again and
        again arms one watch and not many."""
        session = self._session
        return self._rings.setdefault(event, lambda: self._post(_Ring(session, event)))
