"""The group thread: feeds the pure member (group.py) from ZooKeeper, the clock and the consumer.

One thread owns the member, its session and all verbs under way. Watches, answers and the consumer's
wishes reach it through one inbox and a bell; what the consumer must know leaves through one queue of
notices and the consumer's own bell. Verbs run side by side, each waiting for its own answer, so a
hundred claims cost about as many round trips as one.

A lost session is replaced by a new one under a new nonce; answers that belong to the old one are
thrown away. While there is none the consumer is answered all the same: nothing is held then. An
unforeseen error ends the thread and is raised to the consumer at its next call.
"""

import logging
import math
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import msgspec

from folkmoot.consumers.events import (
    Acknowledged,
    Commit,
    Drained,
    EndSession,
    Event,
    Finished,
    Leaving,
    Notice,
    SessionLost,
    Started,
    Task,
    Tick,
)
from folkmoot.consumers.group import GroupMember
from folkmoot.consumers.phase import Phase
from folkmoot.consumers.timing import Timing
from folkmoot.consumers.verbs import MemberSettings, Verbs
from folkmoot.coordination import operations
from folkmoot.coordination.bell import Bell
from folkmoot.coordination.operations import Operation, Ring, Verb
from folkmoot.coordination.store import Connect, Outcome, SessionState, Store
from folkmoot.protocol.errors import ZooKeeperUnreachable
from folkmoot.protocol.records import TopicPartition

__all__ = ["Member", "MemberSettings"]

log = logging.getLogger(__name__)

RECONNECT_PAUSE = 0.5


class _Answer(msgspec.Struct, frozen=True):
    """An operation of a verb ended."""

    session: int
    task: Task
    verb: Verb[Any]
    outcome: Outcome


class _Ring(msgspec.Struct, frozen=True):
    """A watch of a session rang."""

    session: int
    event: Event


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
        self._wake = wake
        self._clock = clock
        self._random = random or Random(secrets.randbits(128))
        self._bell = Bell()
        self._inbox: deque[Event | _Answer | _Ring] = deque()
        self._group = GroupMember(
            settings.info(), Timing(), self._random, settings.max_processing_time
        )
        self._verbs = Verbs(settings, self._group, self._ring)
        self._rings: dict[Event, Ring] = {}
        self._session = 0
        self._store: Store | None = None
        self._connect_at = 0.0
        self._acknowledged = 0.0
        self._stopping = False
        self._remind_at = self._reminded = math.inf  # written by the consumer's thread, and by ours
        self._thread = threading.Thread(target=self._main, name="folkmoot-group", daemon=True)

    # -- the consumer's side ----------------------------------------------------------------------

    def start(self) -> None:
        """Open the first session, here, so that an unreachable ZooKeeper is raised; then join."""
        self.open()
        self._thread.start()

    def open(self) -> None:
        """What `start` does besides starting the thread. Raises ZooKeeperUnreachable."""
        self._open(self._connect(self.settings.session_timeout))
        self._feed(self._started())

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
        self._bell.ring()

    def begin_to_leave(self) -> None:
        """Ask for everything to be revoked; the notice Left tells when the member is gone."""
        self._post(Leaving())

    def stop(self, timeout: float) -> None:
        """End the thread and the session, whether the member has left or not."""
        self._stopping = True
        self._bell.ring()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        if not self._thread.is_alive():
            self._bell.close()

    @property
    def name(self) -> str | None:
        """The member's name in the group while it has joined."""
        return self._group.name

    @property
    def has_left(self) -> bool:
        """Nothing more will happen: the last notice was Left."""
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
    def store(self) -> Store | None:
        """The session of the moment, for reading what has no owner."""
        return self._store

    # -- the group thread -------------------------------------------------------------------------

    def _post(self, message: Event | _Answer | _Ring) -> None:
        self._inbox.append(message)
        self._bell.ring()

    def _main(self) -> None:
        try:
            while not self._stopping and not self.has_left:
                deadline = min(self.deadline() or math.inf, self._remind())
                self._bell.wait(
                    None if deadline == math.inf else max(0.0, deadline - self._clock())
                )
                self.turn()
        except BaseException as error:
            log.exception("the group thread of %s ended", self.settings.group)
            self.error = error
        finally:
            if self._store is not None:
                self._store.close()
            self._wake()

    def _remind(self) -> float:
        """Wake the consumer if the time has come; → when it will, if it has not."""
        at = self._remind_at
        if at != self._reminded and at <= self._clock():
            self._reminded = at
            self._wake()
        return math.inf if at == self._reminded else at

    def deadline(self) -> float | None:
        """When the next turn is due, if nothing happens before."""
        return self._connect_at if self._store is None else self._group.deadline()

    def turn(self) -> None:
        """Take in all that has happened, and act."""
        self._check_session()
        self._check_acknowledged()
        for _ in range(len(self._inbox)):
            message = self._inbox.popleft()
            self._check_acknowledged()
            match message:
                case _Answer():
                    if message.session == self._session:
                        self._advance(message.task, message.verb, message.outcome)
                case _Ring():
                    if message.session == self._session:
                        self._feed(message.event)
                case _:
                    self._feed(message)
        self._feed(Tick())

    def _feed(self, event: Event) -> None:
        told = False
        for effect in self._group.handle(event, self._clock()):
            if isinstance(effect, Task):
                self._advance(effect, self._verbs.of(effect), None)
            elif isinstance(effect, EndSession):
                self._end_session()
            else:
                self.notices.append(effect)
                told = True
        if told:
            self._wake()

    def _advance(self, task: Task, verb: Verb[Any], outcome: Outcome | None) -> None:
        """Give a verb its answer and submit what it asks next; feed the member when it has ended."""
        store, session = self._store, self._session
        if store is None:
            return
        try:
            operation: Operation
            if outcome is None:
                operation = next(verb)
            elif outcome.error is not None:
                operation = verb.throw(outcome.error)
            else:
                operation = verb.send(outcome.result)
        except StopIteration as stop:
            self._feed(Finished(task, stop.value))
        except operations.SessionLost:
            pass  # the session's own state says so, too
        else:
            store.submit(operation, lambda answer: self._post(_Answer(session, task, verb, answer)))

    # -- sessions ---------------------------------------------------------------------------------

    def _open(self, store: Store) -> None:
        self._session += 1
        self._store = store
        self._acknowledged = 0.0
        self._rings.clear()
        store.listen(lambda state: self._bell.ring())

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
        if self._store is None and self._clock() >= self._connect_at:
            try:
                self._open(self._connect(self.settings.session_timeout))
                self._feed(self._started())
            except ZooKeeperUnreachable as error:
                log.warning("group %s: %s", self.settings.group, error)
                self._connect_at = self._clock() + RECONNECT_PAUSE

    def _end_session(self) -> None:
        """Nothing of this session counts any more; the next turn opens another."""
        store, self._store = self._store, None
        self._session += 1
        if store is not None:
            store.close()
        self._connect_at = 0.0
        self._feed(SessionLost())

    def _check_acknowledged(self) -> None:
        if self._store is not None:
            latest = self._store.last_acknowledged()
            if latest > self._acknowledged:
                self._acknowledged = latest
                self._feed(Acknowledged(latest))

    def _ring(self, event: Event) -> Ring:
        """What a watch calls. The same one for the same event, so that reading a node again and
        again arms one watch and not many."""
        session = self._session
        return self._rings.setdefault(event, lambda: self._post(_Ring(session, event)))
