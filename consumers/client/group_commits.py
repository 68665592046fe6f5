"""What a member commits: asked for by the application, due by the clock, or with a partition's release."""

import time
from collections.abc import Mapping, Set
from concurrent.futures import Future
from threading import Lock
from types import MappingProxyType
from typing import Any, NamedTuple

from folkmoot.consumers.config import ConsumerConfig
from folkmoot.consumers.group.events import Committed
from folkmoot.consumers.group.group_thread import Member, again
from folkmoot.consumers.offsets.progress import Positions
from folkmoot.protocol.errors import CommitBehind, InstanceReplaced, NotOwner
from folkmoot.protocol.records import TopicPartition


class PendingCommit(NamedTuple):
    """A commit that was asked for: what of it is not ours, where the group is further, and the outcome of
    the rest, if there is one."""

    offsets: Mapping[TopicPartition, int]
    not_ours: Set[TopicPartition]
    behind: Mapping[TopicPartition, int]
    outcome: Future[Committed] | None


class GroupCommits:
    """Commits of one member. Any thread may `begin` one and `end` it; the rest is the polling thread's.

    Offsets are noted and given to the group thread under one lock: that thread gets them in the order in
    which they were noted, so that none goes back.

    `epochs` are the claims that the consumer knows of; their owner is the RebalanceListener.
    """

    def __init__(
        self,
        config: ConsumerConfig[Any, Any],
        member: Member,
        positions: Positions,
        epochs: Mapping[TopicPartition, int],
    ) -> None:
        self._config = config
        self._member = member
        self._positions = positions
        self._epochs = epochs
        self._asking = Lock()
        self._starts: dict[TopicPartition, int] = {}
        """Where the policy has partitions start: yet to be committed."""
        self._due_at = 0.0
        self._plan()

    def begin(
        self,
        offsets: Mapping[TopicPartition, int],
        metadata: Mapping[TopicPartition, str] = MappingProxyType({}),
    ) -> PendingCommit:
        """Ask for a commit of what we own, where the group is not further.

        Raises InstanceReplaced, and what ended the group thread.
        """
        self.check_member()
        self._member.polled_at = time.monotonic()
        epochs = {**self._epochs}
        ours = {each: offset for each, offset in offsets.items() if each in epochs}
        with self._asking:
            forward, behind = self._positions.group.ask(ours)
            outcome = self._member.commit(forward, epochs, metadata) if forward else None
        return PendingCommit(offsets, offsets.keys() - ours.keys(), behind, outcome)

    def end(self, pending: PendingCommit) -> None:
        """Raises what kept a part of it from being committed, as far as that is known."""
        refused, outcome = pending.not_ours, pending.outcome
        if outcome is not None and outcome.done():
            written = outcome.result()
            self._positions.group.written(written.offsets)
            refused = refused | written.refused
        if refused:
            self.check_member()
            some = ", ".join(map(str, sorted(refused)))
            raise NotOwner(f"not committed, since this consumer does not own it (any more): {some}")
        for partition, committed in sorted(pending.behind.items()):
            raise CommitBehind(
                f"not committed: {pending.offsets[partition]} in {partition} lies before {committed}, "
                "which is committed already; only `folkmoot group reset` sets a group back"
            )

    def check_member(self) -> None:
        """Raises what ended the group thread, InstanceReplaced."""
        if self._member.error is not None:
            raise again(self._member.error) from self._member.error
        if self._member.replaced:
            raise InstanceReplaced(
                f"another process has joined group {self._config.group} as "
                f"{self._config.instance_id}, and it is the younger one"
            )

    def commit_due(self) -> None:
        """Commit what was processed, if it is time."""
        if self._config.auto_commit and time.monotonic() >= self._due_at:
            self._plan()
            with self._asking:
                if offsets := self._positions.due(self._epochs):
                    self._member.commit(offsets, self._epochs)

    def _plan(self) -> None:
        """The next automatic commit; the application may be busy with one batch for longer."""
        self._due_at = time.monotonic() + self._config.commit_interval
        if self._config.auto_commit:
            self._member.remind(self._due_at)

    def release(self, partitions: list[TopicPartition], *, is_done: bool) -> None:
        """Let others have them; what was processed is committed if the application is done with them."""
        commits = is_done and self._config.auto_commit
        with self._asking:
            final = self._positions.due(frozenset(partitions)) if commits else {}
            for each in partitions:
                self._member.drained(each, self._epochs[each], final.get(each))

    # -- starts that the policy has found -----------------------------------------------------------

    def starts_at(self, partition: TopicPartition, offset: int) -> bool:
        """The policy has a partition start there; whether that is to be committed before it is read.

        Else its next owner would look it up again: "latest" would pass over what came meanwhile.
        """
        is_committed = self._positions.group.committed(partition) is not None
        if partition not in self._epochs or is_committed:
            return False
        self._starts[partition] = offset
        return True

    def commit_starts(self) -> None:
        """Commit the starts that were found, whatever `auto_commit` is, without waiting for it."""
        if self._starts:
            starts, self._starts = self._starts, {}
            with self._asking:
                self._member.commit(self._positions.group.ask(starts)[0], self._epochs)

    def forget(self, partition: TopicPartition) -> None:
        """The partition is no longer ours."""
        self._starts.pop(partition, None)
