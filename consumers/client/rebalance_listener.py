"""A consumer's place in its group, seen from the thread that polls.

Turns the group thread's notices into reading and into the application's callbacks, and progress into
commits. Notices are taken in order. A waiting commit needs only the group thread, so that any thread and any
callback may wait for it.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from math import inf
from typing import Any, Final

from folkmoot.consumers.assignors.next_plan import assignors_of
from folkmoot.consumers.client.callbacks import Callbacks, Result
from folkmoot.consumers.client.group_commits import GroupCommits
from folkmoot.consumers.client.steps import BlockingWork, Steps
from folkmoot.consumers.config import ConsumerConfig
from folkmoot.consumers.fetch.fetcher import Fetcher
from folkmoot.consumers.group import events
from folkmoot.consumers.group.group_thread import Member, copy_error
from folkmoot.consumers.group.member_state import MemberSettings
from folkmoot.consumers.offsets.progress import Positions
from folkmoot.consumers.offsets.seek_target import SeekTarget, resolve_target, seek_to
from folkmoot.consumers.offsets.validation import partition_of
from folkmoot.protocol.errors import ConfigError, NotAssigned
from folkmoot.protocol.process.thread_log import thread_log
from folkmoot.protocol.records import TopicPartition

log = thread_log(__name__)

_LOOK: Final = 0.5


Starts = Mapping[TopicPartition, SeekTarget | None]
"""Starts by partition; None: the committed offset."""


def settings_of(config: ConsumerConfig[Any, Any]) -> MemberSettings:
    """Return the member's part of a consumer's config, which has a group."""
    names = MemberSettings.__struct_fields__
    options = {name: getattr(config, name, None) for name in names}
    options["topics"], options["assignors"] = tuple(config.topics), assignors_of(config.assignors)
    options["pid"] = os.getpid()
    return MemberSettings(**{name: value for name, value in options.items() if value is not None})


class RebalanceListener:
    """Serves one member. Owned by the polling thread; any thread may commit."""

    def __init__(
        self,
        config: ConsumerConfig[Any, Any],
        member: Member,
        fetcher: Fetcher,
        positions: Positions,
        call_back: Callable[[str, Any], "Future[Any]"],
    ) -> None:
        self.member = member
        self.epochs: dict[TopicPartition, int] = {}
        self.finishing: dict[TopicPartition, float] = {}
        """Revoked partitions, with the end (monotonic) of the time for work under way. Unless a callback
        runs, `on_revoke` has yet to be called for them. Any thread may read it."""
        self.commits = GroupCommits(config, member, positions, self.epochs)
        self.callbacks = Callbacks(call_back)
        self.ended: events.Left | events.Replaced | None = None
        """The notice that ended the membership. After Replaced every call raises."""
        self.leave_by = inf
        """Once it leaves, when that must end (monotonic)."""
        self._config = config
        self._fetcher = fetcher
        self._positions = positions
        self._notices: deque[events.Notice] = deque()
        self._unaccepted: dict[TopicPartition, events.Assigned] = {}
        """Ours, but on_assign failed: not read until it succeeds."""

    def serve(self) -> None:
        """Act on the group thread's notices, and commit when it is due.

        Raises what callbacks raise, what ended the group thread, InstanceReplaced.
        """
        self.member.polled(time.monotonic())
        self._take_notices()
        self.callbacks.serve()
        if self.finishing and not self.callbacks.is_busy:
            self._revoke_finished()
        while self._notices and not self.callbacks.is_busy:
            notice = self._notices.popleft()
            match notice:
                case events.Assigned():
                    self._assigned([notice, *self._more(events.Assigned)])
                case events.Revoking():
                    self._revoking([notice, *self._more(events.Revoking)])
                case events.Lost():
                    self._lost([notice, *self._more(events.Lost)])
                case events.Rebalanced():
                    self.callbacks.call("on_rebalance", notice, _raise_error)
                case events.Left():
                    self.ended = self.ended or notice
        if isinstance(self.ended, events.Replaced):
            self.commits.check_member()
        if self._unaccepted and self.leave_by == inf and not self.callbacks.is_busy:
            self._assigned([*self._unaccepted.values()])
        self.commits.commit_due()

    # -- the end ----------------------------------------------------------------------------------

    def leave(self, deadline: float) -> Steps[None]:
        """Release everything, with callbacks and last commits, until `deadline` (monotonic).

        The member's thread and its session end in any case. Raises what a callback raised, or what ended the
        group thread, after the release.
        """
        self.leave_by = deadline
        abandon_at = deadline - min(1.0, (deadline - time.monotonic()) / 4)
        error: Exception | None = None
        try:
            self.member.begin_to_leave(deadline)
            while not self.member.error:
                if self.ended and not (isinstance(self.ended, events.Replaced) and self._notices):
                    break
                try:
                    if time.monotonic() >= abandon_at:
                        self.callbacks.abandon()
                    self.serve()
                except Exception as raised:
                    error = error or raised
                now = time.monotonic()
                if now >= deadline:
                    break
                if not isinstance(self.ended, events.Left):
                    until = max(now, abandon_at) if self.callbacks.is_busy else deadline
                    yield min(until - now, _LOOK)
        except BaseException:
            self.member.stop(0.0)
            raise
        yield BlockingWork(partial(self.member.stop, max(0.0, deadline - time.monotonic())))
        if error is not None:
            raise error

    # -- notices ----------------------------------------------------------------------------------

    def _take_notices(self) -> None:
        """Raises what ended the group thread."""
        while self.member.notices:
            notice = self.member.notices.popleft()
            if isinstance(notice, events.Committed):
                self._positions.group.mark_committed(notice.offsets)
                for partition in notice.offsets:
                    self._fetcher.committed(partition)
                continue
            if isinstance(notice, events.Replaced):
                self.ended = self.ended or notice
            self._notices.append(notice)
        if self.member.error is not None:
            raise copy_error(self.member.error) from self.member.error

    def _more(self, kind: type[Any]) -> Iterator[Any]:
        """Yield the next notices of the same kind: one callback serves all."""
        while self._notices and isinstance(self._notices[0], kind):
            yield self._notices.popleft()

    def _assigned(self, notices: list[events.Assigned]) -> None:
        """Fetch nothing before the callback returns: it may seek.

        If it fails, the start is unknown: nothing is read, and `serve` calls it again before anything more
        is handed out.
        """
        try:
            for notice in notices:
                if notice.partition not in self._unaccepted:  # else it may have committed since
                    self._positions.claim(notice.partition, notice.offset)
                self.epochs[notice.partition] = notice.epoch
                self._fetcher.add(notice.partition, notice.offset, notice.topic_id)
                self._unaccepted.pop(notice.partition, None)
            partitions = [notice.partition for notice in notices]
            self.callbacks.call("on_assign", partitions, partial(self._accept, notices))
        except BaseException:
            self._reject(notices)
            raise

    def _accept(self, notices: list[events.Assigned], result: Result) -> None:
        """Start where the application wants; check all of it before anything is moved."""
        try:
            starts = result() or {}
            if not isinstance(starts, Mapping):
                raise ConfigError(
                    f"on_assign must return starts by partition, or None, not {starts!r}"
                )
            named = ((partition_of(partition), target) for partition, target in starts.items())
            start_positions = {
                partition: resolve_target(partition, target)
                for partition, target in named
                if target is not None
            }
            for partition in start_positions:
                if partition not in self.epochs or partition in self._unaccepted:
                    raise NotAssigned(
                        f"on_assign returned a start of {partition}, which is not assigned to this consumer"
                    )
            for partition, start in start_positions.items():
                seek_to(self._fetcher, self._positions, partition, start)
        except BaseException:
            self._reject(notices)
            raise

    def _reject(self, notices: list[events.Assigned]) -> None:
        for notice in notices:
            self._fetcher.remove(notice.partition)
            self._positions.forget(notice.partition)
            self._unaccepted[notice.partition] = notice

    def _revoking(self, notices: list[events.Revoking]) -> None:
        """Let the application finish; the release commits what it has processed by then.

        Skip partitions that were lost meanwhile: their notice comes next. Release partitions at once whose
        on_assign failed: no work is under way.
        """
        lost = {notice.partition for notice in self._notices if isinstance(notice, events.Lost)}
        named = [notice.partition for notice in notices]
        partitions = [
            partition for partition in named if partition in self.epochs and partition not in lost
        ]
        accepted = [partition for partition in partitions if partition not in self._unaccepted]
        self._release(
            [partition for partition in partitions if partition not in accepted], is_done=True
        )
        if not accepted:
            return
        requested_at = min((notice.at for notice in notices if notice.at), default=time.monotonic())
        try:
            for partition in accepted:
                self.finishing[partition] = requested_at + (self._config.max_processing_time or 0.0)
                self._fetcher.pause(partition, True)
        except BaseException:  # others wait for the partitions
            self._release(accepted, is_done=False)
            raise
        self._revoke_finished()

    def _revoke_finished(self) -> None:
        """Call on_revoke for partitions without work under way, or whose time is over."""
        now = inf if self.leave_by < inf else time.monotonic()
        lost = {notice.partition for notice in self._notices if isinstance(notice, events.Lost)}
        partitions = [
            partition
            for partition, by in self.finishing.items()
            if partition not in lost and (by <= now or self._positions.is_done(partition))
        ]
        if not partitions:
            return
        try:
            for partition in partitions:
                self.member.draining(partition, self.epochs[partition])
        except BaseException:  # others wait for the partitions
            self._release(partitions, is_done=False)
            raise
        revoked = partial(self._revoked, partitions)
        self.callbacks.call("on_revoke", partitions, revoked, holds=False)

    def _revoked(self, partitions: list[TopicPartition], result: Result) -> None:
        try:
            result()
        except BaseException:  # others wait for the partitions
            self._release(partitions, is_done=False)
            raise
        self._release(partitions, is_done=True)

    def _release(self, partitions: list[TopicPartition], *, is_done: bool) -> None:
        """Release partitions; commit what was processed if the application is done with them."""
        self.commits.release(partitions, is_done=is_done)
        for partition in partitions:
            self._forget(partition)

    def _lost(self, notices: list[events.Lost]) -> None:
        named = [notice.partition for notice in notices]
        partitions = [
            partition
            for partition in named
            if partition in self.epochs and partition not in self._unaccepted
        ]
        for notice in notices:
            log.warning("%s is no longer ours: %s", notice.partition, notice.reason)
            self._forget(notice.partition)
        if partitions:
            self.callbacks.call("on_lost", partitions, _raise_error)

    def _forget(self, partition: TopicPartition) -> None:
        self._fetcher.forget(partition)
        self._positions.release(partition)
        self.commits.forget(partition)
        for table in (self.epochs, self.finishing, self._unaccepted):
            table.pop(partition, None)


def _raise_error(result: Result) -> None:
    result()
