"""The group thread: connects the pure member (member_state.py) with ZooKeeper, the clock and the consumer.

One thread owns the member, its session and all recipes in flight. Watches, answers and the consumer's calls
reach it through one inbox and a wakeup. Notices leave it through one queue and the consumer's wakeup.
Recipes run side by side, so that many claims cost about as many round trips as one. Slow work (opening a
session, assigning partitions) runs in a thread of its own, whose result comes through the inbox.

A lost session is replaced by a new one with a new nonce, and answers of the old one are dropped. Meanwhile
the consumer is still answered: nothing is owned. An unknown refusal of ZooKeeper ends the session, and the
next one opens after a growing pause. ZooKeeperRefused and other unknown errors end the group thread: each
call of the consumer raises them.
"""

import copy
import itertools
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from math import inf
from random import Random
from threading import Thread
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from folkmoot.consumers.group.events import Committed, Notice, Rebalanced, Replaced, Revoking
from folkmoot.consumers.group.liveness import PollState, Timing
from folkmoot.consumers.group.member_state import BackgroundWork, GroupMember, MemberSettings, Phase
from folkmoot.consumers.group.owned_partitions import EndSession, Task
from folkmoot.coordination import paths
from folkmoot.coordination.wakeup import Wakeup
from folkmoot.coordination.zookeeper import operations
from folkmoot.coordination.zookeeper.execute import advance
from folkmoot.coordination.zookeeper.operations import Create, Recipe, WatchCallback, ZooKeeperError
from folkmoot.coordination.zookeeper.session import Connect, Outcome, Session, SessionState
from folkmoot.protocol.errors import ClosedError, FolkmootError, ZooKeeperRefused
from folkmoot.protocol.process.thread_log import logging_aside, thread_log, wait_until_written
from folkmoot.protocol.records import TopicPartition

log = thread_log(__name__)

RECONNECT_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 30.0
"""Between two sessions, if ZooKeeper refuses a member's requests. The pause doubles each time."""


class _Commit(NamedTuple):
    """A commit without an outcome yet."""

    requested_at: float
    partitions: frozenset[TopicPartition]
    outcome: Future[Committed]


class Member:
    """A running member. Call `start` once and `stop` once. Any thread may `commit`; the other methods
    belong to the consumer's thread.

    A simulator calls `open` in place of `start`, and `run_once` at each event or `deadline`, with its own
    `clock` and `random`: then there is no thread.
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
        self._random = random or Random(secrets.randbits(128))
        self.state = GroupMember(settings, Timing(), self._random, self._watch)
        """Owned by the group thread; any thread may read it."""
        self.session: Session | None = None
        """The current ZooKeeper session; any thread may read in it."""
        self.error: BaseException | None = None
        """The error that ended the group thread; raise `copy_error` of it."""
        self.replaced = False
        """Another process has our instance id, and this member has ended."""
        self.polled_at: float | None = None
        """When the application last polled, by our clock."""
        self.rebalances = self.commits = 0
        """Plans read, and commits answered."""
        self.commit_seconds = 0.0
        """The duration of all answered commits together."""
        self._connect = connect
        self._wake = wake
        self._clock = clock
        self._wakeup = Wakeup()
        self._inbox: deque[tuple[int | None, Callable[..., None], tuple[Any, ...]]] = deque()
        """Calls for the group thread. One with a session's number is dropped after that session."""
        self._tokens = itertools.count(1)
        self._commits: dict[int, _Commit] = {}
        """By their tokens."""
        self._remind_at = inf  # written by the consumer's thread
        self._reminded = [inf, inf]
        self._next_reminder = 0.0
        self._joined_as = ""
        self._watches: dict[tuple[Any, ...], WatchCallback] = {}
        self._session_number = 0
        self._connect_at = 0.0
        self._pause = RECONNECT_PAUSE
        self._connecting = False
        self._connect_error = ""  # the error of the last attempt to open one
        self._logged: tuple[str, ...] = ()  # alarms
        self._logged_assignor = ""
        self._stopping = False
        self._has_ended = False
        self._end_at = inf
        self._thread = Thread(target=self._main, name="folkmoot-group", daemon=True)

    # -- the consumer's side ----------------------------------------------------------------------

    def start(self) -> None:
        """Open the first session and join. Raises ZooKeeperUnreachable."""
        self.open()
        self._thread.start()

    def open(self) -> None:
        """`start` without the thread."""
        self.polled(self._clock())
        self._open(self._connect(self.settings.session_timeout))

    def polled(self, now: float) -> None:
        """The application polls. Cheap: the group thread reads the time when it needs it."""
        self.polled_at = now
        if self.state.liveness.poll_state is not PollState.ACTIVE:
            self._wakeup.wake()

    def commit(
        self,
        offsets: Mapping[TopicPartition, int],
        epochs: Mapping[TopicPartition, int],
        metadata: Mapping[TopicPartition, str] = MappingProxyType({}),
    ) -> Future[Committed]:
        """Start a commit, from any thread. Return its outcome, which is also a notice.

        `epochs` are those of the Assigned notices that the consumer has taken: work under an earlier
        claim is not committed under a later one. A partition without an epoch is refused, and so is
        everything after the member's end.
        """
        known = {
            partition: (epochs.get(partition, 0), offset) for partition, offset in offsets.items()
        }
        token, outcome = next(self._tokens), Future[Committed]()
        outcome.set_running_or_notify_cancel()  # a waiter that gives up must not cancel it
        self._commits[token] = _Commit(self._clock(), frozenset(offsets), outcome)
        self._post(None, self._feed, self.state.owned.commit, token, known, metadata)
        if self._has_ended:
            self._refuse_commits()
        return outcome

    def draining(self, partition: TopicPartition, epoch: int) -> None:
        """Answer Revoking: the work under way is done; `drained` follows within the revoke timeout."""
        self._post(None, self._feed, self.state.owned.draining, partition, epoch, self._clock())

    def drained(self, partition: TopicPartition, epoch: int, offset: int | None) -> None:
        """Answer Revoking: no work is under way. Commit `offset`, if any, and release the partition."""
        self._post(None, self._feed, self.state.owned.drained, partition, epoch, offset)

    def remind(self, at: float) -> None:
        """Wake the consumer at that time (monotonic), in place of the time given before."""
        self._remind_at = at
        self._wakeup.wake()

    def begin_to_leave(self, by: float = inf) -> None:
        """Revoke everything, then leave: the notice Left ends it. At `by` (monotonic) the session ends in
        any case."""
        self._end_at = by
        self._post(None, self._feed, self.state.leaving)

    def stop(self, timeout: float) -> None:
        """End the thread and the session, left or not."""
        self._stopping = True
        self._wakeup.wake()
        if self._thread.ident is not None:
            self._thread.join(timeout)
            wait_until_written()
        elif self.session is not None:  # the thread did not start
            self.session.close()
        if not self._thread.is_alive():
            self._wakeup.close()

    @property
    def name(self) -> str | None:
        """The member's name in the group; None while it has not joined."""
        return self.state.name

    @property
    def generation(self) -> int:
        """The generation of the last plan that was read."""
        return self.state.plan.plan.generation

    # -- the group thread -------------------------------------------------------------------------

    def _post(self, session: int | None, call: Callable[..., None], *arguments: Any) -> None:
        self._inbox.append((session, call, arguments))
        self._wakeup.wake()

    def _main(self) -> None:
        with logging_aside():
            try:
                while not self._stopping and self.state.phase is not Phase.LEFT:
                    due, now = self.deadline(), self._clock()
                    if now >= self._end_at:
                        break
                    self._wakeup.wait(max(0.0, due - now))
                    self.run_once()
            except BaseException as error:
                is_plain = isinstance(error, ZooKeeperRefused)
                message = "the group thread of %s ended: %s"
                log.error(message, self.settings.group, error, exc_info=not is_plain)
                self.error = error
            finally:
                self._has_ended = True
                if self.session is not None:
                    self.session.close()
                self._refuse_commits()
                self._wake()

    def _refuse_commits(self) -> None:
        """After the thread's end: nothing takes the inbox any more. From any thread."""
        with suppress(IndexError):
            while True:
                _, call, arguments = self._inbox.popleft()
                if call == self._connected and not isinstance(arguments[0], Exception):
                    arguments[0].close()
        with suppress(KeyError):
            while True:
                token, commit = self._commits.popitem()
                refused = Committed(token, {}, commit.partitions)
                self.notices.append(refused)
                commit.outcome.set_result(refused)

    def deadline(self) -> float:
        """When the next turn is due without an event (infinite: never)."""
        due = inf if self._connecting else self._connect_at
        if self.session is not None:
            due = self.state.due
        return min(due, self._next_reminder, self._end_at)

    def run_once(self) -> None:
        """Take all events, and act.

        Wakes the consumer at the reminder's time, and after half of `max_processing_time`: that cuts an
        iteration, whose next record then counts as a poll.
        """
        half = (self.settings.max_processing_time or inf) / 2
        self._next_reminder, now = inf, self._clock()
        for kind, at in enumerate((self._remind_at, (self.polled_at or 0.0) + half)):
            if at != self._reminded[kind] and at <= now:
                self._reminded[kind] = at
                self._wake()
            elif at != self._reminded[kind]:
                self._next_reminder = min(self._next_reminder, at)
        if self.session is None or self.session.state is SessionState.LOST:
            self._replace_session()
        liveness = self.state.liveness
        if self.polled_at is not None and self.polled_at != liveness.polled_at:
            if liveness.poll_state is PollState.ACTIVE:
                liveness.polled_at = self.polled_at
            else:
                self._feed(self.state.polled, self.polled_at)
        for _ in range(len(self._inbox)):
            session, call, arguments = self._inbox.popleft()
            if session is None or session == self._session_number:
                call(*arguments)
        self._feed(self.state.tick)
        if self.state.alarms != self._logged:
            for alarm in [alarm for alarm in self.state.alarms if alarm not in self._logged]:
                log.error("group %s: %s", self.settings.group, alarm)
            self._logged = self.state.alarms

    def _feed(self, event: Callable[..., None], *arguments: Any) -> None:
        """Give the member an event, and carry out the effects."""
        acknowledged_at = 0.0 if self.session is None else self.session.last_acknowledged()
        effects = self.state.handle(self._clock(), acknowledged_at, event, *arguments)
        if self.state.name not in (None, self._joined_as):
            self._joined_as = self.state.name or ""
        has_notices = False
        for effect in effects:
            if isinstance(effect, Task):
                if self.session is not None:
                    self._advance(effect, effect.recipe(*effect.arguments), None)
            elif isinstance(effect, EndSession):
                self._end_session(effect.why, has_failed=effect.has_failed)
            else:
                has_notices = True
                self._notify(effect)
        if has_notices:
            self._wake()

    def _notify(self, notice: Notice) -> None:
        if isinstance(notice, Revoking):
            notice = replace(notice, at=self._clock())
        # Before a commit's outcome, so that its waiter finds the notice.
        self.notices.append(notice)
        match notice:
            case Committed(token):
                commit = self._commits.pop(token)
                self.commits += 1
                self.commit_seconds += self._clock() - commit.requested_at
                commit.outcome.set_result(notice)
            case Replaced():
                self.replaced = True
            case Rebalanced():
                self.rebalances += 1
                assignor, preferred = self.state.plan.plan.assignor, self.state.info.assignors[:1]
                if assignor not in (*preferred, "", self._logged_assignor):
                    self._logged_assignor = assignor
                    text = "group %s uses assignor %s, which the group leader prefers, not %s"
                    log.warning(text, self.settings.group, assignor, *preferred)

    def _advance(self, task: Task, recipe: Recipe[Any], outcome: Outcome | None) -> None:
        """Give a recipe its last answer, and start its next step; at its end call `done`."""
        session = self.session
        assert session is not None
        try:
            step: Any = advance(recipe, outcome)
        except StopIteration as stop:
            if self.state.phase is not Phase.LEFT:
                self._feed(task.done, stop.value)
        except operations.SessionLost:
            pass  # the session's state reports it, too
        except ZooKeeperRefused:
            raise
        except ZooKeeperError as error:
            if self.state.phase is not Phase.LEFT:
                self._feed(self.state.failed, task, error)
        else:
            number = self._session_number
            if isinstance(step, BackgroundWork):
                self._run_in_thread(step.work, number, self._work_done, task, recipe)
            else:
                session.submit(step, partial(self._post, number, self._advance, task, recipe))

    def _work_done(self, task: Task, recipe: Recipe[Any], result: Any) -> None:
        if isinstance(result, Exception):
            raise result
        self._advance(task, recipe, Outcome(result, None))

    def _run_in_thread(
        self,
        work: Callable[[], Any],
        session: int | None,
        call: Callable[..., None],
        *arguments: Any,
    ) -> None:
        """Work in another thread; `call` gets the result, or the exception, in this one."""

        def run() -> None:
            try:
                result = work()
            except Exception as error:
                result = error
            if self._thread.ident is None:
                call(*arguments, result)
                return
            self._post(session, call, *arguments, result)
            if self._has_ended:
                self._refuse_commits()

        if self._thread.ident is None:
            run()
        else:
            Thread(target=run, name="folkmoot-group-work", daemon=True).start()

    # -- sessions ---------------------------------------------------------------------------------

    def _watch(self, event: Callable[..., None], *arguments: Any) -> WatchCallback:
        """Make a watch's callback, the same one for the same arguments: repeated reads of a node then set
        one watch."""
        number = self._session_number
        return self._watches.setdefault(
            (event, *arguments), lambda: self._post(number, self._feed, event, *arguments)
        )

    def _open(self, session: Session) -> None:
        """Begin in a new session, with a nonce that is unique in the world."""
        self._session_number += 1
        self.session = session
        self._watches.clear()
        session.listen(lambda state: self._wakeup.wake())
        nonce = f"{self._random.getrandbits(64):016x}"
        self._feed(self.state.started, nonce, session.session_timeout, session.chroot)

    def _replace_session(self) -> None:
        """End a lost session, and open another when it is time."""
        if self.session is not None:
            log.warning("group %s: the ZooKeeper session was lost", self.settings.group)
            self._end_session()
        if not self._connecting and self._clock() >= self._connect_at:
            self._connecting = True
            connect = partial(self._connect, self.settings.session_timeout)
            self._run_in_thread(connect, None, self._connected)

    def _connected(self, result: Any) -> None:
        self._connecting = False
        if isinstance(result, FolkmootError):  # it may go away, unlike at the start
            if str(result) != self._connect_error:
                log.warning("group %s: %s", self.settings.group, result)
            self._connect_error = str(result)
            self._connect_at = self._clock() + RECONNECT_PAUSE
        elif isinstance(result, Exception):
            raise result
        else:
            self._connect_error = ""
            self._open(result)

    def _end_session(self, why: str = "", *, has_failed: bool = False) -> None:
        """End the session and drop what it still answers. The next one opens at once if we had joined.

        If a request `has_failed` (an alarm reports it), it opens after a pause, which doubles with each
        failure, and starts anew after some time without one.
        """
        session, self.session = self.session, None
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


def copy_error(error: BaseException) -> BaseException:
    """Return a copy to raise: each raise adds a traceback to its object."""
    try:
        return copy.copy(error)
    except Exception:  # of an unusual class
        return ClosedError(f"the place in the group is lost: {error!r}")
