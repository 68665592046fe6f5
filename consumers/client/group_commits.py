"""A member's commits: by the application, by the clock, and with a partition's release."""

import time
from collections.abc import Mapping
from threading import Lock
from types import MappingProxyType
from typing import Any

from folkmoot.consumers.client.steps import Answer, Steps
from folkmoot.consumers.config import ConsumerConfig
from folkmoot.consumers.group.group_thread import Member, copy_error
from folkmoot.consumers.offsets.progress import Positions
from folkmoot.protocol.errors import CommitBehind, InstanceReplaced, NotOwner, RequestTimeout
from folkmoot.protocol.records import TopicPartition


class GroupCommits:
    """Commits of one member. Any thread may `commit`; the rest belongs to the polling thread.

    One lock covers noting offsets and giving them to the group thread: that gets them in the order of the
    notes, so that no offset goes back.

    `epochs` are the claims that the consumer knows, of the RebalanceListener.
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
        self._commit_lock = Lock()
        self._starts: dict[TopicPartition, int] = {}
        """Starts found by the reset policy, to be committed."""
        self._due_at = 0.0
        self._plan()

    def commit(
        self,
        offsets: Mapping[TopicPartition, int],
        metadata: Mapping[TopicPartition, str] = MappingProxyType({}),
        deadline: float | None = None,
    ) -> Steps[None]:
        """Commit what we own and what is ahead of the group, and wait until `deadline` (monotonic), if any.

        Raises NotOwner, CommitBehind, RequestTimeout, InstanceReplaced, and what ended the group thread.
        """
        self.check_member()
        self._member.polls.polled_at = time.monotonic()
        epochs = {**self._epochs}
        owned = {partition: offset for partition, offset in offsets.items() if partition in epochs}
        with self._commit_lock:
            forward, behind = self._positions.group.request(owned)
            outcome = None
            if forward:
                is_awaited = deadline is not None
                outcome = self._member.commit(forward, epochs, metadata, is_awaited=is_awaited)
        if outcome is not None and deadline is not None:
            try:
                yield Answer(outcome, max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                raise RequestTimeout(
                    "ZooKeeper did not answer a commit in time: it may still complete"
                ) from None
        refused = offsets.keys() - owned.keys()
        if outcome is not None and outcome.done():
            result = outcome.result()
            self._positions.group.mark_committed(result.offsets)
            refused |= result.refused
        if refused:
            self.check_member()
            names = ", ".join(map(str, sorted(refused)))
            raise NotOwner(
                f"not committed, since this consumer does not own it (any more): {names}"
            )
        for partition, committed in sorted(behind.items()):
            raise CommitBehind(
                f"not committed: {offsets[partition]} in {partition} lies before {committed}, "
                "which is committed already; only `folkmoot group reset` sets a group back"
            )

    def check_member(self) -> None:
        """Raises what ended the group thread, InstanceReplaced."""
        if self._member.error is not None:
            raise copy_error(self._member.error) from self._member.error
        if self._member.replaced:
            raise InstanceReplaced(
                f"fenced: a newer consumer of group {self._config.group} uses instance_id "
                f"{self._config.instance_id}"
            )

    def commit_due(self) -> None:
        """Commit what was processed, if it is time."""
        if self._config.auto_commit and time.monotonic() >= self._due_at:
            self._plan()
            with self._commit_lock:
                if offsets := self._positions.due(self._epochs):
                    self._member.commit(offsets, self._epochs)

    def _plan(self) -> None:
        """Set the time of the next automatic commit. The member reminds us, even during a long batch."""
        self._due_at = time.monotonic() + self._config.commit_interval
        if self._config.auto_commit:
            self._member.remind(self._due_at)

    def release(self, partitions: list[TopicPartition], *, is_done: bool) -> None:
        """Release partitions; commit what was processed if the application is done with them."""
        commits = is_done and self._config.auto_commit
        with self._commit_lock:
            final = self._positions.due(frozenset(partitions)) if commits else {}
            for partition in partitions:
                self._member.drained(partition, self._epochs[partition], final.get(partition))

    # -- starts found by the reset policy ---------------------------------------------------------

    def starts_at(self, partition: TopicPartition, offset: int) -> bool:
        """Take a start. Return whether it must be committed before the partition is read.

        Otherwise the next owner would look it up again, and "latest" would skip records.
        """
        is_committed = self._positions.group.committed(partition) is not None
        if partition not in self._epochs or is_committed:
            return False
        self._starts[partition] = offset
        return True

    def commit_starts(self) -> None:
        """Commit the found starts, with or without `auto_commit`; do not wait."""
        if self._starts:
            starts, self._starts = self._starts, {}
            with self._commit_lock:
                self._member.commit(self._positions.group.request(starts)[0], self._epochs)

    def forget(self, partition: TopicPartition) -> None:
        """The partition is no longer ours."""
        self._starts.pop(partition, None)
