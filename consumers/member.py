"""The group thread: feeds the pure member (group.py) from ZooKeeper, the clock and the consumer.

One thread owns the member, its session and all verbs under way. Watches, answers and the consumer's
wishes reach it through one inbox and a bell; what the consumer must know leaves through one queue of
notices and the consumer's own bell. Verbs run side by side, each waiting for its own answer, so a
hundred claims cost about as many round trips as one.

A lost session is replaced by a new one under a new nonce; answers that belong to the old one are
thrown away. An unforeseen error ends the thread and is raised to the consumer at its next call.
"""

import logging
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec

from folkmoot.consumers import assignment
from folkmoot.consumers.events import (
    Acknowledged,
    ClaimPartition,
    Commit,
    CommitOffsets,
    Drained,
    Event,
    Failed,
    Finished,
    Heartbeat,
    Join,
    Leave,
    Leaving,
    MakePlan,
    Notice,
    OwnerRang,
    Rang,
    Read,
    ReleasePartition,
    SessionLost,
    Source,
    Started,
    Task,
    Tick,
    VerifyOwner,
)
from folkmoot.consumers.group import GroupMember, Phase, Timing
from folkmoot.coordination import members, operations, ownership, paths, plans, topics
from folkmoot.coordination.bell import Bell
from folkmoot.coordination.members import MemberInfo
from folkmoot.coordination.operations import ConnectionLost, Exists, Operation, Verb
from folkmoot.coordination.ownership import Claimant
from folkmoot.coordination.plans import TopicBasis
from folkmoot.coordination.store import Connect, Outcome, SessionState, Store
from folkmoot.protocol.errors import ZooKeeperUnreachable
from folkmoot.protocol.records import TopicPartition

log = logging.getLogger(__name__)

RECONNECT_PAUSE = 0.5


class MemberSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a member is told; durations in seconds."""

    group: str
    topics: tuple[str, ...]
    client_id: str = "consumer"
    hand_over: float = 2.0
    session_timeout: float = 6.0


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
    """A running member. `start` once, `leave` once; the other methods belong to the consumer's thread."""

    def __init__(
        self, settings: MemberSettings, connect: Connect, wake: Callable[[], None]
    ) -> None:
        self.settings = settings
        self.notices: deque[Notice] = deque()
        self.error: BaseException | None = None
        self._connect = connect
        self._wake = wake
        self._bell = Bell()
        self._inbox: deque[Event | _Answer | _Ring] = deque()
        timing = Timing(session_timeout=settings.session_timeout)
        self._group = GroupMember(settings.topics, timing, Random(secrets.randbits(64)))
        self._known: dict[str, MemberInfo] = {}
        self._rings: dict[Event, Callable[[], None]] = {}
        self._session = 0
        self._store: Store | None = None
        self._acknowledged = 0.0
        self._stopping = False
        self._thread = threading.Thread(target=self._main, name="folkmoot-group", daemon=True)

    # -- the consumer's side ----------------------------------------------------------------------

    def start(self) -> None:
        """Open the first session, here, so that an unreachable ZooKeeper is raised; then join."""
        self._open(self._connect(self.settings.session_timeout))
        self._thread.start()

    def commit(self, token: int, offsets: dict[TopicPartition, int]) -> None:
        """Ask for a commit; its outcome comes as the notice Committed with this token."""
        self._post(Commit(token, offsets))

    def drained(self, partition: TopicPartition, offset: int | None) -> None:
        """Answer Revoking: nothing of the partition is under way; commit `offset` and let it go."""
        self._post(Drained(partition, offset))

    def begin_to_leave(self) -> None:
        """Ask for everything to be revoked; the notice Left tells when the member is gone."""
        self._post(Leaving())

    def stop(self, timeout: float) -> None:
        """End the thread and the session, whether the member has left or not."""
        self._stopping = True
        self._bell.ring()
        self._thread.join(timeout)
        if not self._thread.is_alive():
            self._bell.close()

    @property
    def name(self) -> str | None:
        """The member's name in the group while it has joined."""
        return self._group.name

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
            while not self._stopping and self._group.phase is not Phase.LEFT:
                self._turn()
        except BaseException as error:
            log.exception("the group thread of %s ended", self.settings.group)
            self.error = error
        finally:
            if self._store is not None:
                self._store.close()
            self._wake()

    def _turn(self) -> None:
        """Wait for something to happen, take all of it in, act."""
        deadline = self._group.deadline()
        self._bell.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        self._check_session()
        self._feed(Tick())
        while self._inbox:
            message = self._inbox.popleft()
            match message:
                case _Answer():
                    if message.session == self._session:
                        self._advance(message.task, message.verb, message.outcome)
                case _Ring():
                    if message.session == self._session:
                        self._feed(message.event)
                case _:
                    self._feed(message)
            self._check_acknowledged()

    def _feed(self, event: Event) -> None:
        told = False
        for effect in self._group.handle(event, time.monotonic()):
            if isinstance(effect, Task):
                self._advance(effect, self._verb(effect), None)
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
        except ConnectionLost:
            self._feed(Failed(task))
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
        self._post(Started(secrets.token_hex(8)))

    def _check_session(self) -> None:
        """Replace a session that is over."""
        if self._store is None or self._store.state is not SessionState.LOST:
            return
        log.warning("group %s: the ZooKeeper session was lost, joining again", self.settings.group)
        self._store.close()
        self._store = None
        self._session += 1
        self._feed(SessionLost())
        while not self._stopping and self._group.phase is not Phase.LEFT:
            try:
                self._open(self._connect(self.settings.session_timeout))
                return
            except ZooKeeperUnreachable as error:
                log.warning("group %s: %s", self.settings.group, error)
                self._bell.wait(RECONNECT_PAUSE)

    def _check_acknowledged(self) -> None:
        if self._store is not None:
            latest = self._store.last_acknowledged()
            if latest > self._acknowledged:
                self._acknowledged = latest
                self._feed(Acknowledged(latest))

    # -- tasks as verbs ---------------------------------------------------------------------------

    def _ring(self, event: Event) -> Callable[[], None]:
        """What a watch calls. The same one for the same event, so that reading a node again and
        again arms one watch and not many."""
        session = self._session
        return self._rings.setdefault(event, lambda: self._post(_Ring(session, event)))

    def _verb(self, task: Task) -> Verb[Any]:
        group = self.settings.group
        name = self._group.name or ""
        me = Claimant(group, name, self._group.nonce, self.settings.hand_over)
        match task:
            case Join():
                prefix = f"{self.settings.client_id}-{self._group.nonce}"
                host, hand_over = socket.gethostname(), self.settings.hand_over
                return members.join(
                    group, prefix, MemberInfo(self.settings.topics, host, hand_over)
                )
            case Leave():
                return members.leave(group, name)
            case Heartbeat():
                return _is_there(paths.member(group, name))
            case Read(source):
                return self._reading_verb(source, self._ring(Rang(source)))
            case MakePlan():
                return plans.replace(group, self._known, assignment.next_plan)
            case ClaimPartition(partition, topic_id, version, steal_from):
                ring = self._ring(OwnerRang(partition))
                return ownership.claim(me, partition, topic_id, version, ring, steal_from)
            case ReleasePartition(partition, held, offset):
                return ownership.release(me, partition, held, offset)
            case CommitOffsets(_, offsets):
                return ownership.commit(me, offsets)
            case VerifyOwner(partition, held):
                return ownership.verify(me, partition, held, self._ring(OwnerRang(partition)))

    def _reading_verb(self, source: Source, ring: Callable[[], None]) -> Verb[Any]:
        match source:
            case Source.MEMBERS:
                return members.names(self.settings.group, ring)
            case Source.PLAN:
                return plans.get(self.settings.group, ring)
            case Source.TOPICS:
                return _read_topics(self.settings.topics, ring)


def _is_there(path: str) -> Verb[bool]:
    stat = yield Exists(path)
    return stat is not None


def _read_topics(wanted: tuple[str, ...], ring: Callable[[], None]) -> Verb[dict[str, TopicBasis]]:
    """The subscribed topics that exist; `ring` rings when one comes, goes or gets partitions."""
    found: dict[str, TopicBasis] = {}
    existing = frozenset((yield from topics.names(ring)))
    for name in wanted:
        topic = (yield from topics.read(name, ring)) if name in existing else None
        if topic is not None:
            found[name] = TopicBasis(topic.topic_id, len(topic.partitions))
    return found
