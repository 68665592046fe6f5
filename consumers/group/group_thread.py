"""The group thread: feeds the pure member (member_state.py) from ZooKeeper, the clock and the consumer.

One thread owns the member, its session and all recipes under way. Watches, answers and the consumer's
wishes reach it through one inbox and a wakeup; what the consumer must know leaves through one queue of
notices and the consumer's own wakeup. Recipes run side by side, each waiting for its own answer, so that
many claims cost about as many round trips as one. What takes long, a session to be opened and partitions
to be assigned, is done on a thread of its own, whose result comes through the inbox.

A lost session is replaced by a new one under a new nonce; answers that belong to the old one are
thrown away. While there is none the consumer is answered all the same: nothing is owned then. What
ZooKeeper refuses for a reason that no recipe foresaw ends the session, and the next one comes after a pause
that grows. What it will refuse again (ZooKeeperRefused), and any other unforeseen error, ends the group
thread and is raised to the consumer at each of its calls.
"""

import copy
import itertools
import math
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from random import Random
from threading import Thread
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from folkmoot.consumers.group.events import Committed, Notice, Rebalanced, Replaced, Revoking
from folkmoot.consumers.group.liveness import PollState, Timing
from folkmoot.consumers.group.member_state import Beside, GroupMember, MemberSettings, Phase
from folkmoot.consumers.group.owned_partitions import EndSession, Task
from folkmoot.coordination import paths
from folkmoot.coordination.wakeup import Wakeup
from folkmoot.coordination.zookeeper import operations
from folkmoot.coordination.zookeeper.execute import advance
from folkmoot.coordination.zookeeper.operations import Create, Recipe, WatchCallback, ZooKeeperError
from folkmoot.coordination.zookeeper.session import Connect, Outcome, Session, SessionState
from folkmoot.protocol.errors import (
    ClosedError,
    FolkmootError,
    ZooKeeperRefused,
)
from folkmoot.protocol.process.thread_log import logging_aside, thread_log, wait_until_written
from folkmoot.protocol.records import TopicPartition

log = thread_log(__name__)

RECONNECT_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 30.0
"""Between two sessions, while ZooKeeper refuses what a member does in them. It doubles each time."""


class _Message(NamedTuple):
    """What is to be called in the group thread; what belongs to a session, only while it is the last."""

    session: int | None
    call: Callable[..., None]
    given: tuple[Any, ...]


class _Commit(NamedTuple):
    """A commit that somebody has asked for: when, and who waits for its outcome."""

    asked_at: float
    partitions: frozenset[TopicPartition]
    outcome: Future[Committed]


class Member:
    """A running member. `start` once, `stop` once; any thread may `commit`, and the other methods belong
    to the consumer's thread.

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
        self._connect = connect
        self._wake = wake
        self._clock = clock
        self._random = random or Random(secrets.randbits(128))
        self._wakeup = Wakeup()
        self._inbox: deque[_Message] = deque()
        self.state = GroupMember(settings, Timing(), self._random, self._watch)
        """What the member knows and owns: the group thread's, to be read from any other."""
        self._joined_as = ""
        self._watches: dict[tuple[Any, ...], WatchCallback] = {}
        self._session_number = 0
        self._session: Session | None = None
        self._connect_at = 0.0
        self._pause = RECONNECT_PAUSE
        self._connecting = False
        self._no_session = ""  # why none could be opened at the last attempt
        self._stopping = False
        self._over = False
        self.error: BaseException | None = None
        """What ended the group thread; `again` makes one to raise of it."""
        self._told: tuple[str, ...] = ()  # alarms, and the assignor that another member prefers
        self._other_assignor = ""
        self._remind_at = math.inf  # written by the consumer's thread
        self._reminded = [math.inf, math.inf]
        self._next_reminder = 0.0
        self.rebalances = self.commits = 0
        """Plans seen, and commits answered."""
        self.commit_seconds = 0.0
        """What these commits took together, from the asking on."""
        self._tokens = itertools.count(1)
        self._commits: dict[int, _Commit] = {}
        """Those without an outcome, by their tokens."""
        self.replaced = False
        """Another process has our instance id, and we are out for good. From any thread."""
        self.polled_at: float | None = None
        """When the application last asked for records, by our clock."""
        self._end_at = math.inf
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
        if self.state.liveness.poll_state is not PollState.ACTIVE:
            self._wakeup.wake()

    def commit(
        self,
        offsets: Mapping[TopicPartition, int],
        epochs: Mapping[TopicPartition, int],
        metadata: Mapping[TopicPartition, str] = MappingProxyType({}),
    ) -> Future[Committed]:
        """Ask for a commit. → its outcome, which comes as a notice, too. From any thread.

        `epochs` are those of the assignments that the consumer knows. Work done under an earlier
        claim is not committed under a later one; a partition without an epoch is refused, and so is
        everything once the member is over.
        """
        known = {each: (epochs.get(each, 0), offset) for each, offset in offsets.items()}
        token, outcome = next(self._tokens), Future[Committed]()
        outcome.set_running_or_notify_cancel()  # it comes, whoever has given up waiting for it
        self._commits[token] = _Commit(self._clock(), frozenset(offsets), outcome)
        self._post(None, self._feed, self.state.owned.commit, token, known, metadata)
        if self._over:
            self._refuse_commits()
        return outcome

    def draining(self, partition: TopicPartition, epoch: int) -> None:
        """Answer Revoking: what was under way is done, and `drained` follows within the revoke timeout."""
        self._post(None, self._feed, self.state.owned.draining, partition, epoch, self._clock())

    def drained(self, partition: TopicPartition, epoch: int, offset: int | None) -> None:
        """Answer Revoking: nothing of the partition is under way; commit `offset` and let it go."""
        self._post(None, self._feed, self.state.owned.drained, partition, epoch, offset)

    def remind(self, at: float) -> None:
        """Wake the consumer at that time (monotonic), whatever it does; no earlier time counts then."""
        self._remind_at = at
        self._wakeup.wake()

    def begin_to_leave(self, by: float = math.inf) -> None:
        """Ask for everything to be revoked; the notice Left tells when the member is gone.

        At `by` (monotonic) the session ends, though the application still holds something back.
        """
        self._end_at = by
        self._post(None, self._feed, self.state.leaving)

    def stop(self, timeout: float) -> None:
        """End the thread and the session, whether the member has left or not."""
        self._stopping = True
        self._wakeup.wake()
        if self._thread.ident is not None:
            self._thread.join(timeout)
            wait_until_written()
        elif self._session is not None:  # the thread could not be started
            self._session.close()
        if not self._thread.is_alive():
            self._wakeup.close()

    @property
    def name(self) -> str | None:
        """The member's name in the group while it has joined."""
        return self.state.name

    @property
    def generation(self) -> int:
        """The generation of the plan last seen."""
        return self.state.plan.plan.generation

    @property
    def alarms(self) -> tuple[str, ...]:
        """What somebody has to look at, such as partitions of ours that nobody can own."""
        return self.state.alarms

    @property
    def session(self) -> Session | None:
        """The ZooKeeper session of the moment, for reading what has no owner."""
        return self._session

    # -- the group thread -------------------------------------------------------------------------

    def _post(self, session: int | None, call: Callable[..., None], *given: Any) -> None:
        self._inbox.append(_Message(session, call, given))
        self._wakeup.wake()

    def _main(self) -> None:
        with logging_aside():
            self._work()

    def _work(self) -> None:
        try:
            while not self._stopping and self.state.phase is not Phase.LEFT:
                due, now = self.deadline(), self._clock()
                if now >= self._end_at:
                    break
                self._wakeup.wait(None if due is None else max(0.0, due - now))
                self.turn()
        except BaseException as error:
            is_plain = isinstance(error, ZooKeeperRefused)
            said = "the group thread of %s ended: %s"
            log.error(said, self.settings.group, error, exc_info=not is_plain)
            self.error = error
        finally:
            self._over = True
            if self._session is not None:
                self._session.close()
            self._refuse_commits()
            self._wake()

    def _refuse_commits(self) -> None:
        """The thread has ended: nothing of the inbox is taken in. From any thread."""
        with suppress(IndexError):
            while True:
                _, call, given = self._inbox.popleft()
                if call == self._connected and not isinstance(given[0], Exception):
                    given[0].close()
        with suppress(KeyError):
            while True:
                token, commit = self._commits.popitem()
                refused = Committed(token, {}, commit.partitions)
                self.notices.append(refused)
                commit.outcome.set_result(refused)

    def deadline(self) -> float | None:
        """When the next turn is due, if nothing happens before."""
        due = self._connect_at if not self._connecting else None
        if self._session is not None:
            due = self.state.due
        soonest = min(self._next_reminder, self._end_at)
        if soonest < math.inf:
            due = soonest if due is None else min(due, soonest)
        return due

    def turn(self) -> None:
        """Take in all that has happened, and act.

        The consumer is woken when it wanted to be (`remind`), and when half the time has passed that the
        application may stay away: an iteration that goes on by itself is cut, and shows itself with the
        next record.
        """
        half = (self.settings.max_processing_time or math.inf) / 2
        self._next_reminder, now = math.inf, self._clock()
        for kind, at in enumerate((self._remind_at, (self.polled_at or 0.0) + half)):
            if at != self._reminded[kind] and at <= now:
                self._reminded[kind] = at
                self._wake()
            elif at != self._reminded[kind]:
                self._next_reminder = min(self._next_reminder, at)
        if self._session is None or self._session.state is SessionState.LOST:
            self._replace_session()
        liveness = self.state.liveness
        if self.polled_at is not None and self.polled_at != liveness.polled_at:
            if liveness.poll_state is PollState.ACTIVE:
                liveness.polled_at = self.polled_at
            else:
                self._feed(self.state.polled, self.polled_at)
        for _ in range(len(self._inbox)):
            session, call, given = self._inbox.popleft()
            if session is None or session == self._session_number:
                call(*given)
        self._feed(self.state.tick)
        if self.state.alarms != self._told:
            for alarm in [each for each in self.state.alarms if each not in self._told]:
                log.error("group %s: %s", self.settings.group, alarm)
            self._told = self.state.alarms

    def _feed(self, happened: Callable[..., None], *given: Any) -> None:
        """Tell the member, after what its session has answered meanwhile, and do what follows."""
        told = False
        heard = 0.0 if self._session is None else self._session.last_acknowledged()
        effects = self.state.handle(self._clock(), heard, happened, *given)
        if self.state.name not in (None, self._joined_as):
            self._joined_as = self.state.name or ""
        for effect in effects:
            if isinstance(effect, Task):
                if self._session is not None:
                    self._advance(effect, effect.recipe(*effect.arguments), None)
            elif isinstance(effect, EndSession):
                self._end_session(effect.why, has_failed=effect.has_failed)
            else:
                told = True
                if isinstance(effect, Committed):
                    self._committed(effect)
                    continue
                if isinstance(effect, Revoking):
                    effect = replace(effect, at=self._clock())
                self.notices.append(effect)
                self.replaced = self.replaced or isinstance(effect, Replaced)
                if isinstance(effect, Rebalanced):
                    self.rebalances += 1
                    self._compare_assignors()
        if told:
            self._wake()

    def _committed(self, notice: Committed) -> None:
        """The notice comes first: who waits for the outcome finds what follows from it."""
        commit = self._commits.pop(notice.token)
        self.commits += 1
        self.commit_seconds += self._clock() - commit.asked_at
        self.notices.append(notice)
        commit.outcome.set_result(notice)

    def _compare_assignors(self) -> None:
        used, mine = self.state.plan.plan.assignor, self.state.info.assignors[:1]
        if used not in (*mine, "", self._other_assignor):
            self._other_assignor = used
            text = "group %s uses assignor %s, which the eldest member prefers, not %s"
            log.warning(text, self.settings.group, used, *mine)

    def _advance(self, task: Task, recipe: Recipe[Any], outcome: Outcome | None) -> None:
        """Give a recipe the answer to its last step and start the next; tell when it has ended."""
        session = self._session
        assert session is not None
        try:
            step: Any = advance(recipe, outcome)
        except StopIteration as stop:
            if self.state.phase is not Phase.LEFT:
                self._feed(task.done, stop.value)
        except operations.SessionLost:
            pass  # the session's own state says so, too
        except ZooKeeperRefused:
            raise
        except ZooKeeperError as error:
            if self.state.phase is not Phase.LEFT:
                self._feed(self.state.failed, task, error)
        else:
            number = self._session_number
            if isinstance(step, Beside):
                self._begin(step.work, number, self._done_beside, task, recipe)
            else:
                session.submit(step, partial(self._post, number, self._advance, task, recipe))

    def _done_beside(self, task: Task, recipe: Recipe[Any], found: Any) -> None:
        if isinstance(found, Exception):
            raise found
        self._advance(task, recipe, Outcome(found, None))

    def _begin(
        self, work: Callable[[], Any], session: int | None, call: Callable[..., None], *given: Any
    ) -> None:
        """Do something that takes long; `call` gets the result, or the exception, in this thread."""

        def run() -> None:
            try:
                found = work()
            except Exception as error:
                found = error
            if self._thread.ident is None:
                call(*given, found)
                return
            self._post(session, call, *given, found)
            if self._over:
                self._refuse_commits()

        if self._thread.ident is None:
            run()
        else:
            Thread(target=run, name="folkmoot-group-work", daemon=True).start()

    # -- sessions ---------------------------------------------------------------------------------

    def _watch(self, happened: Callable[..., None], *given: Any) -> WatchCallback:
        """What a watch calls, so that the member is told. The same one for the same, so that reading a
        node again and again sets one watch and not many."""
        number = self._session_number
        return self._watches.setdefault(
            (happened, *given), lambda: self._post(number, self._feed, happened, *given)
        )

    def _open(self, session: Session) -> None:
        """Begin in a new session. The nonce is new in all the world."""
        self._session_number += 1
        self._session = session
        self._watches.clear()
        session.listen(lambda state: self._wakeup.wake())
        nonce = f"{self._random.getrandbits(64):016x}"
        self._feed(self.state.started, nonce, session.session_timeout, session.chroot)

    def _replace_session(self) -> None:
        """End a session that is over, and have another one opened in time."""
        if self._session is not None:
            log.warning("group %s: the ZooKeeper session was lost", self.settings.group)
            self._end_session()
        if not self._connecting and self._clock() >= self._connect_at:
            self._connecting = True
            connect = partial(self._connect, self.settings.session_timeout)
            self._begin(connect, None, self._connected)

    def _connected(self, found: Any) -> None:
        self._connecting = False
        if isinstance(found, FolkmootError):  # at the start it was raised: this may go away
            if str(found) != self._no_session:
                log.warning("group %s: %s", self.settings.group, found)
            self._no_session = str(found)
            self._connect_at = self._clock() + RECONNECT_PAUSE
        elif isinstance(found, Exception):
            raise found
        else:
            self._no_session = ""
            self._open(found)

    def _end_session(self, why: str = "", *, has_failed: bool = False) -> None:
        """Nothing of this session counts any more; another is opened, at once if there was a member in it.

        If something `has_failed` there, which an alarm says, after a pause that doubles: until no failure
        comes for a while.
        """
        session, self._session = self._session, None
        self._session_number += 1
        if why and not has_failed:
            log.warning("group %s: this member joins again: %s", self.settings.group, why)
        if session is not None:
            if why and self._joined_as:
                note = paths.departure(self.settings.group, self._joined_as)
                session.submit(Create(note, why.encode()), lambda outcome: None)
            session.close()
        now = self._clock()
        if has_failed:
            is_again = now < self._connect_at + 2 * LONGEST_PAUSE
            self._pause = min(LONGEST_PAUSE, 2 * self._pause) if is_again else RECONNECT_PAUSE
            self._connect_at = now + self._pause
        else:
            self._connect_at = 0.0 if self._joined_as else now + RECONNECT_PAUSE
        self._joined_as = ""
        self._feed(self.state.session_lost)


def again(error: BaseException) -> BaseException:
    """Another object that says the same: the one that is raised grows by a traceback each time."""
    try:
        return copy.copy(error)
    except Exception:  # one of an unusual make
        return ClosedError(f"the place in the group is lost: {error!r}")
