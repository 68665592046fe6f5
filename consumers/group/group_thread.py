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
from typing import Any

from msgspec.structs import replace

from folkmoot.consumers.group.events import Committed, Notice, Replaced, Revoking
from folkmoot.consumers.group.liveness import PollState, Timing
from folkmoot.consumers.group.member_state import BackgroundWork, GroupMember, MemberSettings, Phase
from folkmoot.consumers.group.owned_partitions import EndSession, LogLine, Task
from folkmoot.consumers.group.pending_commits import PendingCommits
from folkmoot.consumers.group.polls import Polls
from folkmoot.consumers.group.sessions import Sessions
from folkmoot.coordination.wakeup import Wakeup
from folkmoot.coordination.zookeeper import operations
from folkmoot.coordination.zookeeper.execute import advance
from folkmoot.coordination.zookeeper.operations import Recipe, WatchCallback, ZooKeeperError
from folkmoot.coordination.zookeeper.session import Connect, Outcome, Session, SessionState
from folkmoot.protocol.errors import ClosedError, FolkmootError, ZooKeeperRefused
from folkmoot.protocol.process.thread_log import logging_aside, thread_log, wait_until_written
from folkmoot.protocol.records import TopicPartition

log = thread_log(__name__)


class Member:
    """A running member. Call `start` once and `stop` once. Any thread may `commit`; the other methods
    belong to the consumer's thread.

    A simulator calls `open` in place of `start`, and `run_once` at each event and when it is due, with its
    own `clock` and `random`: then there is no thread.
    """

    def __init__(
        self,
        settings: MemberSettings,
        connect: Connect,
        wake: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
        random: Random | None = None,
    ) -> None:
        self.notices: deque[Notice] = deque()
        self.sessions = Sessions(partial(connect, settings.session_timeout))
        self.state = GroupMember(
            settings, Timing(), random or Random(secrets.randbits(128)), self._watch
        )
        """Owned by the group thread; any thread may read it."""
        self.commits = PendingCommits()
        self.polls = Polls(wake, settings.max_processing_time)
        self.error: BaseException | None = None
        """The error that ended the group thread; raise `copy_error` of it."""
        self.replaced = False
        """Another process has our instance id, and this member has ended."""
        self._clock = clock
        self._wakeup = Wakeup()
        self._inbox: deque[tuple[int | None, Callable[..., None], tuple[Any, ...]]] = deque()
        """Calls for the group thread. One with a session's number is dropped after that session."""
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
        self._open(self.sessions.connect())

    def polled(self, now: float) -> None:
        """The application polls. Cheap: the group thread reads the time when it needs it."""
        self.polls.polled_at = now
        if self.state.liveness.poll_state is not PollState.ACTIVE:
            self._wakeup.wake()

    def commit(
        self,
        offsets: Mapping[TopicPartition, int],
        epochs: Mapping[TopicPartition, int],
        metadata: Mapping[TopicPartition, str] = MappingProxyType({}),
        *,
        is_awaited: bool = False,
    ) -> Future[Committed]:
        """Start a commit, from any thread. Return its outcome, which is also a notice.

        `epochs` are those of the Assigned notices that the consumer has taken: work under an earlier
        claim is not committed under a later one. A partition without an epoch is refused, and so is
        everything after the member's end. If the outcome `is_awaited`, the consumer is not woken for it.
        """
        known = {
            partition: (epochs.get(partition, 0), offset) for partition, offset in offsets.items()
        }
        token, outcome = self.commits.begin(offsets, self._clock(), is_awaited=is_awaited)
        self._post(None, self._feed, self.state.owned.commit, token, known, metadata)
        if self.commits.is_closed:
            self._refuse_calls()
        return outcome

    def draining(self, partition: TopicPartition, epoch: int) -> None:
        """Answer Revoking: the work under way is done; `drained` follows within the revoke timeout."""
        self._post(None, self._feed, self.state.owned.draining, partition, epoch, self._clock())

    def drained(self, partition: TopicPartition, epoch: int, offset: int | None) -> None:
        """Answer Revoking: no work is under way. Commit `offset`, if any, and release the partition."""
        self._post(None, self._feed, self.state.owned.drained, partition, epoch, offset)

    def remind(self, at: float) -> None:
        """Wake the consumer at that time (monotonic), in place of the time given before."""
        self.polls.remind_at = at
        self._wakeup.wake()

    def begin_to_leave(self, by: float = inf) -> None:
        """Revoke everything, then leave: the notice Left ends it. At `by` (monotonic) the session ends in
        any case."""
        self._end_at = by
        self._post(None, self._feed, self.state.leaving)

    def stop(self, timeout: float) -> None:
        """End the thread and the session, left or not."""
        self._end_at = -inf
        self._wakeup.wake()
        if self._thread.ident is not None:
            self._thread.join(timeout)
            wait_until_written()
        elif self.sessions.current is not None:  # the thread did not start
            self.sessions.current.close()
        if not self._thread.is_alive():
            self._wakeup.close()

    @property
    def name(self) -> str | None:
        """The member's name in the group; None while it has not joined."""
        return self.state.name

    @property
    def generation(self) -> int:
        """The generation of the last plan that was read."""
        return self.state.view.plan.plan.generation

    # -- the group thread -------------------------------------------------------------------------

    def _post(self, session: int | None, call: Callable[..., None], *arguments: Any) -> None:
        self._inbox.append((session, call, arguments))
        self._wakeup.wake()

    def _main(self) -> None:
        due = 0.0
        with logging_aside():
            try:
                while self.state.phase is not Phase.LEFT and (now := self._clock()) < self._end_at:
                    self._wakeup.wait(max(0.0, due - now))
                    due = self.run_once()
            except BaseException as error:
                is_plain = isinstance(error, ZooKeeperRefused)
                message = "the group thread of %s ended: %s"
                log.error(message, self.state.settings.group, error, exc_info=not is_plain)
                self.error = error
            finally:
                self.commits.is_closed = True
                if self.sessions.current is not None:
                    self.sessions.current.close()
                self._refuse_calls()
                self.polls.wake()

    def _refuse_calls(self) -> None:
        """After the thread's end: nothing takes the inbox any more. From any thread."""
        with suppress(IndexError):
            while True:
                _, call, arguments = self._inbox.popleft()
                if call == self._connected and not isinstance(arguments[0], Exception):
                    arguments[0].close()
        self.commits.refuse_all(self.notices.append)

    def run_once(self) -> float:
        """Take all events, and act. Return when the next turn is due without an event (infinite: never)."""
        wake_at = self.polls.wake_in_time(self._clock())
        session = self.sessions.current
        if session is None or session.state is SessionState.LOST:
            self._replace_session()
        liveness, polled_at = self.state.liveness, self.polls.polled_at
        if polled_at is not None and polled_at != liveness.polled_at:
            if liveness.poll_state is PollState.ACTIVE:
                liveness.polled_at = polled_at
            else:
                self._feed(self.state.polled, polled_at)
        for _ in range(len(self._inbox)):
            number, call, arguments = self._inbox.popleft()
            if number is None or number == self.sessions.number:
                call(*arguments)
        self._feed(self.state.tick)
        due = self.state.due
        if self.sessions.current is None:
            due = inf if self.sessions.is_connecting else self.sessions.due
        return min(due, wake_at, self._end_at)

    def _feed(self, event: Callable[..., None], *arguments: Any) -> None:
        """Give the member an event, and carry out the effects."""
        session, now = self.sessions.current, self._clock()
        acknowledged_at = 0.0 if session is None else session.last_acknowledged()
        effects = self.state.handle(now, acknowledged_at, event, *arguments)
        self.sessions.joined_as = self.state.schedule.view.name or self.sessions.joined_as
        wakes = False
        for effect in effects:
            match effect:
                case Task(recipe, given):
                    if self.sessions.current is not None:
                        self._advance(effect, recipe(*given), None)
                case EndSession(why, has_failed):
                    self._end_session(why, has_failed=has_failed)
                case LogLine(level, text):
                    log.log(level, "group %s%s", self.state.settings.group, text)
                case Committed():
                    self.notices.append(effect)  # before the outcome: its waiter finds the notice
                    wakes = not self.commits.end(effect, now) or wakes
                case _:
                    is_revoking = isinstance(effect, Revoking)
                    self.notices.append(replace(effect, at=now) if is_revoking else effect)
                    self.replaced = self.replaced or isinstance(effect, Replaced)
                    wakes = True
        if wakes:
            self.polls.wake()

    def _advance(self, task: Task, recipe: Recipe[Any], outcome: Outcome | None) -> None:
        """Give a recipe its last answer, and start its next step; at its end call `done`."""
        session = self.sessions.current
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
            number = self.sessions.number
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
            if self.commits.is_closed:
                self._refuse_calls()

        if self._thread.ident is None:
            run()
        else:
            Thread(target=run, name="folkmoot-group-work", daemon=True).start()

    # -- sessions ---------------------------------------------------------------------------------

    def _watch(self, event: Callable[..., None], *arguments: Any) -> WatchCallback:
        return self.sessions.watch(self._post, self._feed, event, *arguments)

    def _open(self, session: Session) -> None:
        """Begin in a new session, with a nonce that is unique in the world."""
        self.sessions.open(session)
        session.listen(lambda state: self._wakeup.wake())
        nonce = f"{self.state.schedule.random.getrandbits(64):016x}"
        self._feed(self.state.started, nonce, session.session_timeout, session.chroot)

    def _replace_session(self) -> None:
        """End a lost session, and open another when it is time."""
        sessions = self.sessions
        if sessions.current is not None:
            log.warning("group %s: the ZooKeeper session was lost", self.state.settings.group)
            self._end_session()
        if not sessions.is_connecting and self._clock() >= sessions.due:
            sessions.is_connecting = True
            self._run_in_thread(sessions.connect, None, self._connected)

    def _connected(self, result: Any) -> None:
        if isinstance(result, FolkmootError):  # it may go away, unlike at the start
            if self.sessions.fail(result, self._clock()):
                log.warning("group %s: %s", self.state.settings.group, result)
        elif isinstance(result, Exception):
            raise result
        else:
            self._open(result)

    def _end_session(self, why: str = "", *, has_failed: bool = False) -> None:
        """End the session and drop what it still answers. An alarm reports a failed request."""
        group = self.state.settings.group
        if why and not has_failed:
            log.warning("group %s: this member joins again: %s", group, why)
        self.sessions.end(group, why, self._clock(), has_failed=has_failed)
        self._feed(self.state.session_lost)


def copy_error(error: BaseException) -> BaseException:
    """Return a copy to raise: each raise adds a traceback to its object."""
    try:
        return copy.copy(error)
    except Exception:  # of an unusual class
        return ClosedError(f"the place in the group is lost: {error!r}")
