"""A consumer's place in its group, seen from the thread that polls.

Turns the group thread's notices into what the fetcher reads and into the application's callbacks,
and the application's progress into commits. Notices are taken in their order. Who waits for a commit
waits for the group thread alone, so that any thread may, and a callback.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

from folkmoot.consumers.assignors.next_plan import assignors_of
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
from folkmoot.coordination.wakeup import Wakeup
from folkmoot.protocol.errors import (
    CommitBehind,
    ConfigError,
    InstanceReplaced,
    NotAssigned,
    NotOwner,
    RequestTimeout,
)
from folkmoot.protocol.process.thread_log import thread_log
from folkmoot.protocol.records import TopicPartition

log = thread_log(__name__)

_LOOK: Final = 0.5


class RunningCallback(Protocol):
    """An `on_revoke` that runs elsewhere, while the consumer hands out what does not move."""

    @property
    def is_over(self) -> bool: ...

    def wait(self, until: float) -> None:
        """Until it is over, or until a time (monotonic)."""
        ...

    def error(self) -> Exception | None:
        """What it raised, once it is over; before, that it is not."""
        ...


class _Revocation(NamedTuple):
    """Partitions that are given up when a callback is over."""

    callback: RunningCallback
    partitions: list[TopicPartition]


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
    """Serves one member; owned by the polling thread, which `wakeup` wakes. Any thread may `commit`."""

    def __init__(
        self,
        config: ConsumerConfig[Any, Any],
        member: Member,
        fetcher: Fetcher,
        positions: Positions,
        call_back: Callable[[str, Any], Any],
        wakeup: Wakeup,
    ) -> None:
        self.member = member
        self.epochs: dict[TopicPartition, int] = {}
        self.left = False
        self.replaced = False
        """Another process has our instance id: every call raises it from then on."""
        self._config = config
        self._fetcher = fetcher
        self._positions = positions
        self._call_back = call_back
        self._wakeup = wakeup
        self._notices: deque[Notice] = deque()
        self._revocation: _Revocation | None = None
        self._revocation_error: Exception | None = None
        """What its callback raised, until `serve` raises it."""
        self._unaccepted: dict[TopicPartition, Assigned] = {}
        """Ours, but on_assign has failed for them: not read before it has succeeded."""
        self._starts: dict[TopicPartition, int] = {}
        """Where the policy has partitions start: yet to be committed."""
        self._leave_by: float | None = None
        self._commit_at = 0.0
        self._plan_commit()

    def serve(self) -> None:
        """Act on what the group thread said since the last time, and commit when it is due.

        Raises what callbacks raise, what ended the group thread, InstanceReplaced.
        """
        self.member.polled(time.monotonic())
        self._pump()
        self.end_revocation()
        if (error := self._revocation_error) is not None:
            self._revocation_error = None
            raise error
        while self._notices and self._revocation is None:
            notice = self._notices.popleft()
            match notice:
                case Assigned():
                    self._assigned([notice, *self._more(Assigned)])
                case Revoking():
                    self._revoking([notice, *self._more(Revoking)])
                case Lost():
                    self._lost([notice, *self._more(Lost)])
                case Rebalanced():
                    self._call_back("on_rebalance", notice)
                case Left():
                    self.left = True
        if self.replaced:
            self._check_member()
        if self._unaccepted and self._leave_by is None and self._revocation is None:
            self._assigned([*self._unaccepted.values()])
        if self._config.auto_commit and time.monotonic() >= self._commit_at:
            self._plan_commit()
            if offsets := self._positions.due(self.epochs):
                self.member.commit(offsets, self.epochs)

    def beyond_said(self) -> list[str]:
        """What the group has committed that its log does not have any more. From any thread."""
        return [
            f"{each}: the log ends at {end}, below {committed}, which the group has committed: it has lost "
            "records. A commit of what is there, or `folkmoot group reset`, ends that"
            for each, (committed, end) in sorted(self._positions.group.beyond().items())
        ]

    # -- commits ----------------------------------------------------------------------------------

    def commit(
        self,
        offsets: Mapping[TopicPartition, int],
        timeout: float | None,
        metadata: Mapping[TopicPartition, str] = MappingProxyType({}),
    ) -> None:
        """Commit, and wait for the outcome at most `timeout` seconds; None: not at all. From any thread.

        Raises NotOwner, CommitBehind, RequestTimeout, InstanceReplaced, and what ended the group thread.
        """
        self._check_member()
        self.member.polled_at = time.monotonic()
        epochs = self.epochs.copy()
        ours = {each: offset for each, offset in offsets.items() if each in epochs}
        refused = offsets.keys() - ours.keys()
        forward, behind = self._positions.group.ask(ours)
        outcome = self.member.commit(forward, epochs, metadata) if forward else None
        if outcome is not None and timeout is not None:
            refused |= self._outcome(outcome, timeout).refused
        if refused:
            self._check_member()
            some = ", ".join(map(str, sorted(refused)))
            raise NotOwner(f"not committed, since this consumer does not own it (any more): {some}")
        for partition, committed in sorted(behind.items()):
            raise CommitBehind(
                f"not committed: {offsets[partition]} in {partition} lies before {committed}, which is "
                "committed already; only `folkmoot group reset` sets a group back"
            )

    def _outcome(self, outcome: Future[Committed], timeout: float) -> Committed:
        left = timeout
        if self._leave_by is not None:  # within on_revoke, on close
            left = min(left, self._leave_by - time.monotonic())
        try:
            found = outcome.result(max(0.0, left))
        except TimeoutError:
            raise RequestTimeout(
                f"ZooKeeper did not answer a commit within {timeout:g} s: it may still come to pass"
            ) from None
        self._positions.group.written(found.offsets)
        return found

    def _check_member(self) -> None:
        """Raises what ended the group thread, InstanceReplaced."""
        if self.member.error is not None:
            raise again(self.member.error) from self.member.error
        if self.member.replaced:
            raise InstanceReplaced(
                f"another process has joined group {self._config.group} as "
                f"{self._config.instance_id}, and it is the younger one"
            )

    def starts_at(self, partition: TopicPartition, offset: int) -> bool:
        """The policy has a partition start there; whether that is to be committed before it is read.

        Else whoever has it next would look it up again: "latest" would pass over what came meanwhile.
        """
        is_committed = self._positions.group.committed(partition) is not None
        if partition not in self.epochs or is_committed:
            return False
        self._starts[partition] = offset
        return True

    def commit_starts(self) -> None:
        """Commit the starts that were found, whatever `auto_commit` is, without waiting for it."""
        if self._starts:
            starts, self._starts = self._starts, {}
            self.member.commit(self._positions.group.ask(starts)[0], self.epochs)

    def _plan_commit(self) -> None:
        """The next automatic commit; the application may be busy with one batch for longer."""
        self._commit_at = time.monotonic() + self._config.commit_interval
        if self._config.auto_commit:
            self.member.remind(self._commit_at)

    # -- the end ----------------------------------------------------------------------------------

    def leave(self, deadline: float) -> None:
        """Give everything up, with the callbacks and the last commits, until `deadline` (monotonic).

        Whatever interrupts it, the member's thread and its session end. Raises what a callback
        raised, or what has ended the group thread, once all is given up.
        """
        self._leave_by = deadline
        error: Exception | None = None
        try:
            self.member.begin_to_leave(deadline)
            self._wait_for_revocation()
            while not (self.left or (self.replaced and not self._notices) or self.member.error):
                try:
                    self.serve()
                except Exception as raised:
                    error = error or raised
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    break
                if not self.left:
                    self._wakeup.wait(min(remaining, _LOOK))
        finally:
            self.member.stop(max(0.0, deadline - time.monotonic()))
        error = error or self._revocation_error
        if error is not None:
            raise error

    # -- what the group thread says ---------------------------------------------------------------

    def _pump(self) -> None:
        """Take what the group thread said. Raises what ended it."""
        while self.member.notices:
            notice = self.member.notices.popleft()
            if not isinstance(notice, Committed):
                self.replaced = self.replaced or isinstance(notice, Replaced)
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
            self._go_on(self._call_back("on_assign", [notice.partition for notice in notices]))
        except BaseException:
            for notice in notices:
                self._fetcher.remove(notice.partition)
                self._positions.forget(notice.partition)
                self._unaccepted[notice.partition] = notice
            raise

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
        running: RunningCallback | None = None
        try:
            for each in accepted:
                self.member.draining(each, self.epochs[each])
            if accepted:
                running = self._call_back("on_revoke", accepted)
        except BaseException:  # it must not keep the partitions from others
            self._release(partitions, is_done=False)
            raise
        if running is None:
            self._release(partitions, is_done=True)
            return
        self._release([each for each in partitions if each not in accepted], is_done=True)
        for each in accepted:
            self._fetcher.pause(each, True)
        self._revocation = _Revocation(running, accepted)
        self._wait_for_revocation()

    def end_revocation(self) -> None:
        """Give up what an `on_revoke` was called for, if it is over by now; `serve` raises its error."""
        revocation = self._revocation
        if revocation is not None and revocation.callback.is_over:
            self._revocation = None
            self._revocation_error = error = revocation.callback.error()
            self._release(revocation.partitions, is_done=error is None)

    def _wait_for_revocation(self) -> None:
        """While leaving: the last part of the time is the member's, to end its session."""
        if self._revocation is not None and self._leave_by is not None:
            callback, partitions = self._revocation
            now = time.monotonic()
            callback.wait(self._leave_by - min(1.0, (self._leave_by - now) / 4))
            self.end_revocation()
            if self._revocation is not None:
                self._revocation, self._revocation_error = None, callback.error()
                self._release(partitions, is_done=False)

    def _release(self, partitions: list[TopicPartition], *, is_done: bool) -> None:
        """Let go of partitions; what was processed is committed if the application is done with them."""
        commits = is_done and self._config.auto_commit
        final = self._positions.due(frozenset(partitions)) if commits else {}
        for partition in partitions:
            epoch = self.epochs[partition]
            self._give_up(partition)
            self.member.drained(partition, epoch, final.get(partition))

    def _lost(self, notices: list[Lost]) -> None:
        named = [each.partition for each in notices]
        partitions = [
            each for each in named if each in self.epochs and each not in self._unaccepted
        ]
        for notice in notices:
            log.warning("%s is no longer ours: %s", notice.partition, notice.reason)
            self._give_up(notice.partition)
        if partitions:
            self._call_back("on_lost", partitions)

    def _give_up(self, partition: TopicPartition) -> None:
        self._fetcher.give_up(partition)
        self._positions.release(partition)
        self.epochs.pop(partition, None)
        self._unaccepted.pop(partition, None)
        self._starts.pop(partition, None)
