"""The group thread: feeds the pure member (member_state.py) from ZooKeeper, the clock and the consumer.

One thread owns the member, its session and all recipes under way. Watches, answers and the consumer's
wishes reach it through one inbox and a wakeup; what the consumer must know leaves through one queue of
notices and the consumer's own wakeup. Recipes run side by side, each waiting for its own answer, so that
many claims cost about as many round trips as one. What takes long, a session to be opened and partitions
to be assigned, is done on a thread of its own, whose result comes through the inbox.

A lost session is replaced by a new one under a new nonce; answers that belong to the old one are
thrown away. While there is none the consumer is answered all the same: nothing is owned then. An
unforeseen error ends the group thread and is raised to the consumer at each of its calls.
"""

import logging
import math
import secrets
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from random import Random
from threading import Thread
from types import TracebackType
from typing import Any, Final

import msgspec

from folkmoot.consumers.assignors.assignor import Assignor
from folkmoot.consumers.assignors.next_plan import DEFAULT, next_plan
from folkmoot.consumers.group import events
from folkmoot.consumers.group.liveness import PollState, Timing
from folkmoot.consumers.group.member_state import GroupMember, Phase
from folkmoot.coordination import paths, topics
from folkmoot.coordination.groups import membership, ownership, planning
from folkmoot.coordination.groups.membership import MemberInfo, Superseded
from folkmoot.coordination.groups.ownership import Claimant
from folkmoot.coordination.groups.plan import PROTOCOL, TopicBasis
from folkmoot.coordination.wakeup import Wakeup
from folkmoot.coordination.zookeeper import operations
from folkmoot.coordination.zookeeper.operations import Create, Recipe, WatchCallback, ZooKeeperError
from folkmoot.coordination.zookeeper.recipes import Malformed
from folkmoot.coordination.zookeeper.session import Connect, Guarded, Outcome, Session, SessionState
from folkmoot.protocol.errors import ZooKeeperUnreachable
from folkmoot.protocol.records import TopicPartition

log = logging.getLogger(__name__)

RECONNECT_PAUSE: Final = 0.5
_TICK: Final = events.Tick()


class MemberSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a member is told; durations in seconds. As in ConsumerConfig."""

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

    def info(self) -> MemberInfo:
        """What the member publishes."""
        return MemberInfo(
            topics=self.topics,
            host=socket.gethostname(),
            revoke_timeout=self.revoke_timeout,
            protocol=self.protocol,
            pattern=self.pattern,
            assignors=tuple(each.name for each in self.assignors),
            rack=self.rack,
            rejoin_timeout=self.rejoin_timeout if self.instance_id is not None else 0.0,
        )


class _Beside(msgspec.Struct, frozen=True):
    """A recipe's step that is no operation of ZooKeeper: done beside the group thread."""

    work: Callable[[], Any]


class _Answer(msgspec.Struct, frozen=True):
    """A step of a recipe ended."""

    session: int
    task: events.Task
    recipe: Recipe[Any]
    result: Any
    error: Exception | None


class _WatchFired(msgspec.Struct, frozen=True):
    """A watch of a session."""

    session: int
    event: events.Event


class _Connected(msgspec.Struct, frozen=True):
    """An attempt to open a session ended."""

    found: Any  # Session | Exception


_Message = events.Event | _Answer | _WatchFired | _Connected


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
        self.notices: deque[events.Notice] = deque()
        self._connect = connect
        self._wake = wake
        self._clock = clock
        self._random = random or Random(secrets.randbits(128))
        self._wakeup = Wakeup()
        self._inbox: deque[_Message] = deque()
        self._info = settings.info()
        self._group = GroupMember(
            settings.group, self._info, Timing(), self._random, settings.max_processing_time
        )
        self._joined_as = ""
        self._published: dict[str, MemberInfo] = {}  # what is known of members, for planning
        self._watches: dict[events.Event, WatchCallback] = {}
        self._session_number = 0
        self._session: Session | None = None
        self._connect_at = 0.0
        self._acknowledged = 0.0
        self._connecting = False
        self._stopping = False
        self._over = False
        self._error: tuple[BaseException, TracebackType | None] | None = None
        self._told: tuple[str, ...] = ()  # alarms, and the assignor that another member prefers
        self._other_assignor = ""
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

    def polled(self, now: float) -> None:
        """The application asks for records. Cheap: the group thread looks when it has to know."""
        self.polled_at = now
        if self.poll_state is not PollState.ACTIVE:
            self._wakeup.wake()

    def commit(
        self,
        token: int,
        offsets: Mapping[TopicPartition, int],
        epochs: Mapping[TopicPartition, int],
    ) -> None:
        """Ask for a commit; its outcome comes as the notice Committed with this token.

        `epochs` are those of the assignments that the consumer knows. Work done under an earlier
        claim is not committed under a later one; a partition without an epoch is refused, and so is
        everything once the member is over.
        """
        known = {each: (epochs.get(each, 0), offset) for each, offset in offsets.items()}
        self._post(events.Commit(token, known))
        if self._over:
            self._refuse_commits()

    def drained(self, partition: TopicPartition, epoch: int, offset: int | None) -> None:
        """Answer Revoking: nothing of the partition is under way; commit `offset` and let it go."""
        self._post(events.Drained(partition, epoch, offset))

    def remind(self, at: float) -> None:
        """Wake the consumer at that time (monotonic), whatever it does; no earlier time counts then."""
        self._remind_at = at
        self._wakeup.wake()

    def begin_to_leave(self) -> None:
        """Ask for everything to be revoked; the notice Left tells when the member is gone."""
        self._post(events.Leaving())

    def stop(self, timeout: float) -> None:
        """End the thread and the session, whether the member has left or not."""
        self._stopping = True
        self._wakeup.wake()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        elif self._session is not None:  # the thread could not be started
            self._session.close()
        if not self._thread.is_alive():
            self._wakeup.close()

    @property
    def error(self) -> BaseException | None:
        """What ended the group thread, with the traceback that it had then: raise it as often as you like."""
        if self._error is None:
            return None
        error, traceback = self._error
        return error.with_traceback(traceback)

    @property
    def name(self) -> str | None:
        """The member's name in the group while it has joined."""
        return self._group.name

    @property
    def phase(self) -> Phase:
        return self._group.phase

    @property
    def poll_state(self) -> PollState:
        """Whether the application asks for records often enough."""
        return self._group.liveness.poll_state

    @property
    def is_fenced(self) -> bool:
        """ZooKeeper has been silent for so long that nothing is owned."""
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
        """How many commits were refused because another member owned the partition."""
        return self._group.owned.fenced_commits

    @property
    def lost_partitions(self) -> int:
        """How many partitions went without being given up."""
        return self._group.owned.lost

    @property
    def alarms(self) -> tuple[str, ...]:
        """What somebody has to look at, such as partitions of ours that nobody can own."""
        return self._group.alarms

    @property
    def session(self) -> Session | None:
        """The ZooKeeper session of the moment, for reading what has no owner."""
        return self._session

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
            self._error = error, error.__traceback__
        finally:
            self._over = True
            if self._session is not None:
                self._session.close()
            self._refuse_commits()
            self._wake()

    def _refuse_commits(self) -> None:
        """Nobody takes in any more what is in the inbox. From both threads: each message is taken once."""
        with suppress(IndexError):
            while True:
                match self._inbox.popleft():
                    case events.Commit(token, offsets):
                        self.notices.append(events.Committed(token, {}, frozenset(offsets)))
                    case _Connected(found) if not isinstance(found, Exception):
                        found.close()

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
        if self._session is not None:
            return self._group.deadline()
        return None if self._connecting else self._connect_at

    def turn(self) -> None:
        """Take in all that has happened, and act."""
        self._check_session()
        self._check_acknowledged()
        if self.polled_at is not None and self.polled_at != self._told_polled_at:
            self._told_polled_at = self.polled_at
            self._feed(events.Polled(self.polled_at))
        for _ in range(len(self._inbox)):
            message = self._inbox.popleft()
            self._check_acknowledged()
            match message:
                case _Answer():
                    if message.session == self._session_number:
                        self._advance(message)
                case _Connected(found):
                    self._connected(found)
                case _WatchFired():
                    if message.session == self._session_number:
                        self._feed(message.event)
                case _:
                    self._feed(message)
        self._feed(_TICK)
        if self._group.alarms != self._told:
            for alarm in [each for each in self._group.alarms if each not in self._told]:
                log.error("group %s: %s", self.settings.group, alarm)
            self._told = self._group.alarms

    def _feed(self, event: events.Event) -> None:
        told = False
        for effect in self._group.handle(event, self._clock()):
            if isinstance(effect, events.Task):
                if self._session is not None:
                    recipe = self._recipe(effect)
                    self._advance(_Answer(self._session_number, effect, recipe, None, None))
            elif isinstance(effect, events.EndSession):
                self._end_session(effect.why)
            else:
                self.notices.append(effect)
                told = True
                if isinstance(effect, events.Rebalanced):
                    self._compare_assignors()
        if told:
            self._wake()

    def _compare_assignors(self) -> None:
        used, mine = self._group.plan.plan.assignor, self._info.assignors[:1]
        if used not in (*mine, "", self._other_assignor):
            self._other_assignor = used
            text = "group %s divides by %s, as the eldest member wants, not by %s"
            log.warning(text, self.settings.group, used, *mine)

    def _advance(self, answer: _Answer) -> None:
        """Give a recipe its answer and start its next step; feed the member when it has ended."""
        session, task, recipe = self._session, answer.task, answer.recipe
        assert session is not None
        try:
            step: Any
            if answer.error is not None:
                step = recipe.throw(answer.error)
            else:
                step = recipe.send(answer.result)
        except StopIteration as stop:
            self._finished(task, stop.value, session)
        except operations.SessionLost:
            pass  # the session's own state says so, too
        except ZooKeeperError as error:
            log.exception("group %s: %s failed", self.settings.group, type(task).__name__)
            self._finished(task, events.Failed(str(error)), session)
        else:
            if isinstance(step, _Beside):
                self._begin(step.work, partial(self._answered, self._session_number, task, recipe))
            else:
                done = partial(self._submitted, self._session_number, task, recipe)
                session.submit(step, done)

    def _finished(self, task: events.Task, result: object, session: Session) -> None:
        if isinstance(task, events.Join) and isinstance(result, str):
            self._joined_as = result
            if isinstance(session, Guarded):  # then its guardian can say who has died
                session.note_death(paths.departure(self.settings.group, result))
        self._feed(events.Finished(task, result))

    def _submitted(
        self, session: int, task: events.Task, recipe: Recipe[Any], outcome: Outcome
    ) -> None:
        self._post(_Answer(session, task, recipe, outcome.result, outcome.error))

    def _answered(self, session: int, task: events.Task, recipe: Recipe[Any], found: Any) -> None:
        outcome = (None, found) if isinstance(found, Exception) else (found, None)
        answer = _Answer(session, task, recipe, *outcome)
        if self._thread.ident is None:
            self._advance(answer)
        else:
            self._post(answer)

    def _begin(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Do something that takes long; `done` is given the result, or the exception, on any thread."""

        def run() -> None:
            try:
                found = work()
            except Exception as error:
                found = error
            done(found)

        if self._thread.ident is None:
            run()
        else:
            Thread(target=run, name="folkmoot-group-work", daemon=True).start()

    # -- recipes ----------------------------------------------------------------------------------

    def _recipe(self, task: events.Task) -> Recipe[Any]:
        """What carries a task out; what it returns goes into the task's Finished."""
        group, name, settings = self.settings.group, self._group.name or "", self.settings
        me = Claimant(group, name, self._group.nonce, settings.revoke_timeout)
        match task:
            case events.Join():
                return self._joining(task)
            case events.Leave():
                return membership.leave(group, name)
            case events.Read():
                return self._reading(task)
            case events.MakePlan():
                return self._planning(task, name)
            case events.ClaimPartitions(wanted, version):
                return ownership.claim(me, wanted, version, self._owner_watch)
            case events.ReleasePartitions(held):
                return ownership.release(me, held)
            case events.CommitOffsets(_, offsets):
                return ownership.commit(me, offsets)
            case events.VerifyOwner(partition, held):
                return ownership.verify(me, partition, held, self._owner_watch(partition))
        raise AssertionError(f"no recipe for {task}")

    def _joining(self, task: events.Join) -> Recipe[str | Superseded]:
        group, nonce, instance = self.settings.group, self._group.nonce, self.settings.instance_id
        previous = f"was {task.last}: {task.why}" if task.last else ""
        info = msgspec.structs.replace(self._info, previous=previous)
        if instance is not None:
            return membership.join_as_static(group, instance, nonce, info, task.last)
        return membership.join(group, f"{self.settings.client_id}-{nonce}", info)

    def _reading(self, task: events.Read) -> Recipe[Any]:
        group = self.settings.group
        watch = self._watch(events.Changed(task.source)) if task.watched else None
        match task.source:
            case events.Source.OWN | events.Source.OLDER:
                return membership.exists(group, task.name, watch)
            case events.Source.MEMBERS:
                return membership.names(group, watch)
            case events.Source.PLAN:
                return planning.get(group, watch, self.settings.protocol)
            case events.Source.TOPICS:
                return self._reading_topics(watch)

    def _reading_topics(self, watch: WatchCallback | None) -> Recipe[dict[str, TopicBasis]]:
        """The topics that the group wants and that exist; `watch` tells when one comes, goes or grows."""
        plan = self._group.plan.plan
        found: dict[str, TopicBasis] = {}
        for name in (yield from topics.names(watch)):
            if plan.wants(name) or self._info.wants(name):
                with suppress(Malformed):
                    topic = yield from topics.read(name, watch)
                    if topic is not None:
                        found[name] = TopicBasis(topic.topic_id, len(topic.partitions))
        return found

    def _planning(self, task: events.MakePlan, name: str) -> Recipe[bool | operations.TooLarge]:
        """Read the group, divide beside this thread, and write, if nothing has changed meanwhile."""
        group, understands = self.settings.group, self.settings.protocol
        snapshot = yield from planning.read_snapshot(
            group, self._published, task.expired, task.seen, understands
        )
        if snapshot is None:
            return False
        step: Any = _Beside(partial(next_plan, snapshot, self.settings.assignors, understands))
        plan = yield step
        if plan is None:
            return False
        return (yield from planning.write(group, name, snapshot, plan))

    def _owner_watch(self, partition: TopicPartition) -> WatchCallback:
        return self._watch(events.OwnerChanged(partition))

    def _watch(self, event: events.Event) -> WatchCallback:
        """What a watch calls. The same one for the same event, so that reading a node again and
        again sets one watch and not many."""
        fired = _WatchFired(self._session_number, event)
        return self._watches.setdefault(event, lambda: self._post(fired))

    # -- sessions ---------------------------------------------------------------------------------

    def _open(self, session: Session) -> None:
        """Begin in a new session. The nonce is new in all the world."""
        self._session_number += 1
        self._session = session
        self._acknowledged = 0.0
        self._watches.clear()
        session.listen(lambda state: self._wakeup.wake())
        nonce = f"{self._random.getrandbits(64):016x}"
        self._feed(events.Started(nonce, session.session_timeout, session.chroot))

    def _check_session(self) -> None:
        """Replace a session that is over."""
        if self._session is not None and self._session.state is SessionState.LOST:
            log.warning("group %s: the ZooKeeper session was lost", self.settings.group)
            self._end_session()
        if self._session is None and not self._connecting and self._clock() >= self._connect_at:
            self._connecting = True
            self._begin(partial(self._connect, self.settings.session_timeout), self._opened)

    def _opened(self, found: Any) -> None:
        self._post(_Connected(found))
        if self._over:
            self._refuse_commits()

    def _connected(self, found: Any) -> None:
        self._connecting = False
        if isinstance(found, ZooKeeperUnreachable):
            log.warning("group %s: %s", self.settings.group, found)
            self._connect_at = self._clock() + RECONNECT_PAUSE
        elif isinstance(found, Exception):
            raise found
        else:
            self._open(found)

    def _end_session(self, why: str = "") -> None:
        """Nothing of this session counts any more; another is opened, at once if there was a member in it."""
        session, self._session = self._session, None
        self._session_number += 1
        if session is not None:
            if why and self._joined_as:
                note = paths.departure(self.settings.group, self._joined_as)
                session.submit(Create(note, why.encode()), lambda outcome: None)
            session.close()
        self._connect_at = 0.0 if self._joined_as else self._clock() + RECONNECT_PAUSE
        self._joined_as = ""
        self._feed(events.SessionLost())

    def _check_acknowledged(self) -> None:
        if self._session is not None:
            latest = self._session.last_acknowledged()
            if latest > self._acknowledged:
                self._acknowledged = latest
                self._feed(events.Acknowledged(latest))
