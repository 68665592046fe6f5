"""A consumer's place in its group, seen from the thread that polls.

Turns the group thread's notices into what the fetcher reads and into the application's callbacks,
and the application's progress into commits. Notices are taken in their order. Who waits for a commit
waits for the group thread alone, so that any thread may, and a callback.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from math import inf
from typing import Any, Final

from folkmoot.consumers.assignors.next_plan import assignors_of
from folkmoot.consumers.client.callbacks import CallbackRun, Callbacks
from folkmoot.consumers.client.group_commits import GroupCommits
from folkmoot.consumers.client.steps import Beside, Steps
from folkmoot.consumers.config import ConsumerConfig
from folkmoot.consumers.fetch.fetcher import Fetcher
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
from folkmoot.consumers.group.group_thread import Member, again
from folkmoot.consumers.group.member_state import MemberSettings
from folkmoot.consumers.offsets.progress import Positions
from folkmoot.consumers.offsets.seek_target import SeekTarget, go_on_at, place_of
from folkmoot.consumers.offsets.validation import partition_of
from folkmoot.protocol.errors import (
    ConfigError,
    NotAssigned,
)
from folkmoot.protocol.process.thread_log import thread_log
from folkmoot.protocol.records import TopicPartition

log = thread_log(__name__)

_LOOK: Final = 0.5


Starts = Mapping[TopicPartition, SeekTarget | None]
"""Where to go on, per partition; None: at the committed offset, as without an answer."""


def settings_of(config: ConsumerConfig[Any, Any]) -> MemberSettings:
    """What the member must know of its consumer's config, which has a group."""
    names = MemberSettings.__struct_fields__
    given = {name: getattr(config, name, None) for name in names}
    given["topics"], given["assignors"] = tuple(config.topics), assignors_of(config.assignors)
    given["pid"] = os.getpid()
    return MemberSettings(**{name: value for name, value in given.items() if value is not None})


class RebalanceListener:
    """Serves one member; owned by the polling thread, which takes its steps. Any thread may `commit`."""

    def __init__(
        self,
        config: ConsumerConfig[Any, Any],
        member: Member,
        fetcher: Fetcher,
        positions: Positions,
        call_back: Callable[[str, Any], CallbackRun],
    ) -> None:
        self.member = member
        self.epochs: dict[TopicPartition, int] = {}
        self.finishing: dict[TopicPartition, float] = {}
        """Partitions that are to be given up, each with the time (monotonic) until which what is under way
        may end. While no callback runs, `on_revoke` was called for none of them. Written by the owner,
        read by any thread."""
        self.commits = GroupCommits(config, member, positions, self.epochs)
        self.callbacks = Callbacks(call_back)
        self.ended: Left | Replaced | None = None
        """What has ended the membership. Where another process has our instance id, every call raises it."""
        self._config = config
        self._fetcher = fetcher
        self._positions = positions
        self._notices: deque[Notice] = deque()
        self._unaccepted: dict[TopicPartition, Assigned] = {}
        """Ours, but on_assign has failed for them: not read before it has succeeded."""
        self._leave_by: float | None = None

    def serve(self) -> None:
        """Act on what the group thread said since the last time, and commit when it is due.

        Raises what callbacks raise, what ended the group thread, InstanceReplaced.
        """
        self.member.polled(time.monotonic())
        self._pump()
        self.callbacks.serve()
        if self.finishing and not self.callbacks.is_busy:
            self._revoke_finished()
        while self._notices and not self.callbacks.is_busy:
            notice = self._notices.popleft()
            match notice:
                case Assigned():
                    self._assigned([notice, *self._more(Assigned)])
                case Revoking():
                    self._revoking([notice, *self._more(Revoking)])
                case Lost():
                    self._lost([notice, *self._more(Lost)])
                case Rebalanced():
                    self.callbacks.call("on_rebalance", notice, _raise_error)
                case Left():
                    self.ended = self.ended or notice
        if self.is_replaced:
            self.commits.check_member()
        if self._unaccepted and self._leave_by is None and not self.callbacks.is_busy:
            self._assigned([*self._unaccepted.values()])
        self.commits.commit_due()

    @property
    def is_replaced(self) -> bool:
        return isinstance(self.ended, Replaced)

    def time_to_answer(self, timeout: float) -> float:
        """How long a commit may be waited for: no longer than there is to leave."""
        by = self._leave_by
        return timeout if by is None else min(timeout, by - time.monotonic())

    def beyond_said(self) -> list[str]:
        """What the group has committed that its log does not have any more. From any thread."""
        return [
            f"{each}: the log ends at {end}, below {committed}, which the group has committed: it has lost "
            "records. A commit of what is there, or `folkmoot group reset`, ends that"
            for each, (committed, end) in sorted(self._positions.group.beyond().items())
        ]

    # -- the end ----------------------------------------------------------------------------------

    def leave(self, deadline: float) -> Steps[None]:
        """Give everything up, with the callbacks and the last commits, until `deadline` (monotonic).

        Whatever interrupts it, the member's thread and its session end. Raises what a callback
        raised, or what has ended the group thread, once all is given up.
        """
        self._leave_by = deadline
        abandon_at = deadline - min(1.0, (deadline - time.monotonic()) / 4)
        error: Exception | None = None
        try:
            self.member.begin_to_leave(deadline)
            while not (self._has_left or self.member.error):
                try:
                    if time.monotonic() >= abandon_at:
                        self.callbacks.abandon()
                    self.serve()
                except Exception as raised:
                    error = error or raised
                now = time.monotonic()
                if now >= deadline:
                    break
                if not isinstance(self.ended, Left):
                    until = max(now, abandon_at) if self.callbacks.is_busy else deadline
                    yield min(until - now, _LOOK)
        except BaseException:
            self.member.stop(0.0)
            raise
        yield Beside(partial(self.member.stop, max(0.0, deadline - time.monotonic())))
        if error is not None:
            raise error

    @property
    def _has_left(self) -> bool:
        return self.ended is not None and not (self.is_replaced and self._notices)

    # -- what the group thread says ---------------------------------------------------------------

    def _pump(self) -> None:
        """Take what the group thread said. Raises what ended it."""
        while self.member.notices:
            notice = self.member.notices.popleft()
            if not isinstance(notice, Committed):
                if isinstance(notice, Replaced):
                    self.ended = self.ended or notice
                self._notices.append(notice)
                continue
            self._positions.group.written(notice.offsets)
            for partition in notice.offsets:
                self._fetcher.committed(partition)
        if self.member.error is not None:
            raise again(self.member.error) from self.member.error

    def _more(self, kind: type[Any]) -> Iterator[Any]:
        """The notices of the same kind that follow at once: the application is called for all."""
        while self._notices and isinstance(self._notices[0], kind):
            yield self._notices.popleft()

    def _assigned(self, notices: list[Assigned]) -> None:
        """Nothing is fetched before the callback has returned: it may seek.

        If it fails, nobody knows where to go on: nothing of the partitions is read then, and `serve`
        calls it for them again before anything more is handed out.
        """
        try:
            for notice in notices:
                if notice.partition not in self._unaccepted:  # else it may have committed since
                    self._positions.claim(notice.partition, notice.offset)
                self.epochs[notice.partition] = notice.epoch
                self._fetcher.add(notice.partition, notice.offset, notice.topic_id)
                self._unaccepted.pop(notice.partition, None)
        except BaseException:
            self._reject(notices)
            raise
        partitions = [notice.partition for notice in notices]
        self.callbacks.call("on_assign", partitions, partial(self._accept, notices))

    def _accept(self, notices: list[Assigned], result: Callable[[], Any]) -> None:
        try:
            self._go_on(result())
        except BaseException:
            self._reject(notices)
            raise

    def _reject(self, notices: list[Assigned]) -> None:
        for notice in notices:
            self._fetcher.remove(notice.partition)
            self._positions.forget(notice.partition)
            self._unaccepted[notice.partition] = notice

    def _go_on(self, starts: Starts | None) -> None:
        """Go where the application says; all of it is checked before anything is moved."""
        if not isinstance(starts or {}, Mapping):
            raise ConfigError(f"on_assign must return places by partition, or None, not {starts!r}")
        named = ((partition_of(each), target) for each, target in (starts or {}).items())
        places = {each: place_of(each, target) for each, target in named if target is not None}
        for partition in places:
            if partition not in self.epochs or partition in self._unaccepted:
                raise NotAssigned(
                    f"on_assign returned a place in {partition}, which is not assigned to this consumer"
                )
        for partition, place in places.items():
            go_on_at(self._fetcher, self._positions, partition, place)

    def _revoking(self, notices: list[Revoking]) -> None:
        """The application finishes; what it has processed by then is committed with the release.

        Not with what was lost while it stayed away: that it is told next, and it owns nothing of it.
        Nor with what it has never taken over, since on_assign failed: nothing of that is under way.
        """
        gone = {each.partition for each in self._notices if isinstance(each, Lost)}
        named = [each.partition for each in notices]
        partitions = [each for each in named if each in self.epochs and each not in gone]
        accepted = [each for each in partitions if each not in self._unaccepted]
        self._release([each for each in partitions if each not in accepted], is_done=True)
        if not accepted:
            return
        asked_at = min((each.at for each in notices if each.at), default=time.monotonic())
        try:
            for each in accepted:
                self.finishing[each] = asked_at + (self._config.max_processing_time or 0.0)
                self._fetcher.pause(each, True)
        except BaseException:  # it must not keep the partitions from others
            self._release(accepted, is_done=False)
            raise
        self._revoke_finished()

    def _revoke_finished(self) -> None:
        """Go on with partitions of which nothing is under way any more, or which took too long."""
        now = inf if self._leave_by is not None else time.monotonic()
        gone = {each.partition for each in self._notices if isinstance(each, Lost)}
        partitions = [
            each
            for each, by in self.finishing.items()
            if each not in gone and (by <= now or self._positions.is_done(each))
        ]
        if not partitions:
            return
        try:
            for each in partitions:
                self.member.draining(each, self.epochs[each])
        except BaseException:  # it must not keep the partitions from others
            self._release(partitions, is_done=False)
            raise
        revoked = partial(self._revoked, partitions)
        self.callbacks.call("on_revoke", partitions, revoked, holds=False)

    def revoking(self) -> dict[TopicPartition, float]:
        """Partitions that are to be given up, with the seconds that are left. From any thread."""
        now = time.monotonic()
        return {each: max(0.0, by - now) for each, by in self.finishing.copy().items()}

    def _revoked(self, partitions: list[TopicPartition], result: Callable[[], Any]) -> None:
        try:
            result()
        except BaseException:  # it must not keep the partitions from others
            self._release(partitions, is_done=False)
            raise
        self._release(partitions, is_done=True)

    def _release(self, partitions: list[TopicPartition], *, is_done: bool) -> None:
        """Let go of partitions; what was processed is committed if the application is done with them."""
        self.commits.release(partitions, is_done=is_done)
        for each in partitions:
            self._give_up(each)

    def _lost(self, notices: list[Lost]) -> None:
        named = [each.partition for each in notices]
        partitions = [
            each for each in named if each in self.epochs and each not in self._unaccepted
        ]
        for notice in notices:
            log.warning("%s is no longer ours: %s", notice.partition, notice.reason)
            self._give_up(notice.partition)
        if partitions:
            self.callbacks.call("on_lost", partitions, _raise_error)

    def _give_up(self, partition: TopicPartition) -> None:
        self._fetcher.give_up(partition)
        self._positions.release(partition)
        self.commits.forget(partition)
        for kept in (self.epochs, self.finishing, self._unaccepted):
            kept.pop(partition, None)


def _raise_error(result: Callable[[], Any]) -> None:
    result()
