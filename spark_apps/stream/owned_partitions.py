"""The partitions that a query holds, and the commits of what it has processed."""

import logging
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

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
from folkmoot.consumers.group.group_thread import copy_error
from folkmoot.protocol.errors import InstanceReplaced
from folkmoot.protocol.records import TopicPartition
from folkmoot.spark_apps.offsets.checkpoint import NO_EPOCH, Ends, Range
from folkmoot.spark_apps.offsets.log_watch import End, ReadPosition
from folkmoot.spark_apps.options.config import StreamConfig
from folkmoot.spark_apps.stream.group_member import GroupMember

log = logging.getLogger(__name__)


@dataclass(slots=True)
class OwnedPartition:
    """A partition of ours.

    `position` is the next offset to read, None before it is looked up, and `epoch` the leader epoch
    under which all before it was read. `claim` is the fencing token, `reset` the mark of the last reset.

    Invariant: everything below `position` is committed, or may be. It goes back only where records are
    gone that were read, and the options allow that.
    """

    topic_id: str
    claim: int
    committed: int | None
    position: int | None
    reset: str = ""
    epoch: int = NO_EPOCH
    last_checkpoint_range: Range | None = None
    pending: int | None = None
    """An offset whose commit was not answered yet."""
    is_revoked: bool = False

    @property
    def committed_or_pending(self) -> int | None:
        return self.committed if self.pending is None else self.pending

    @property
    def has_uncommitted(self) -> bool:
        """Return whether more is processed than committed, or the start that was found is not committed."""
        return self.position is not None and (
            self.committed is None or self.position > self.committed
        )

    def note_epoch(self, end: End) -> None:
        """Take the leader's epoch for what lies before the position, if its log has that."""
        if self.epoch == NO_EPOCH and self.position is not None and end.offset >= self.position:
            self.epoch = end.epoch

    def rewind(self, offset: int) -> None:
        """Continue at an earlier offset; the next commit goes back to it, too."""
        self.position, self.epoch, self.committed, self.pending = offset, NO_EPOCH, None, None


class OwnedPartitions:
    """The partitions that the group has assigned to this query.

    Commits are fenced and go forward only. One that is refused, or that cannot be made since the
    partition was lost while its batch ran, is dropped and counted: its new owner reads those records itself.
    """

    def __init__(self, member: GroupMember, config: StreamConfig) -> None:
        self.by_partition: dict[TopicPartition, OwnedPartition] = {}
        self.dropped_commits: Counter[TopicPartition] = Counter()
        """How often ranges were processed but not committed, since the partition was gone by then."""
        self.has_left = False
        self._member = member
        self._config = config
        self._is_leaving = False

    # -- the group's events -------------------------------------------------------------------------

    def process_events(self) -> None:
        """Show the group that the engine calls, and apply what has happened there.

        Raises InstanceReplaced, and the error that has ended the group's thread.
        """
        self._member.polled(time.monotonic())
        while self._member.notices:
            self._apply(self._member.notices.popleft())
        if self._member.error is not None:
            raise copy_error(self._member.error) from self._member.error

    def _apply(self, notice: Notice) -> None:
        match notice:
            case Assigned(partition, topic_id, offset, claim, reset):
                owned = OwnedPartition(topic_id, claim, offset, offset, reset)
                owned.is_revoked = self._is_leaving
                self.by_partition[partition] = owned
            case Revoking(partition):
                if partition in self.by_partition:
                    self.by_partition[partition].is_revoked = True
            case Lost(partition, reason):
                if self.by_partition.pop(partition, None) is not None:
                    log.warning("%s is no longer ours: %s", partition, reason)
            case Committed(_, offsets, refused):
                self._settle(offsets, refused)
            case Rebalanced(generation, members, partitions):
                ours = ", ".join(map(str, partitions)) or "nothing"
                log.info("generation %d of %d members: %s", generation, members, ours)
            case Replaced():
                raise InstanceReplaced(
                    f"another process has joined group {self._config.group} as "
                    f"{self._config.instanceId}, and it is the younger one"
                )
            case Left():
                self.has_left = True

    def _settle(
        self, offsets: Mapping[TopicPartition, int], refused: frozenset[TopicPartition]
    ) -> None:
        for partition, offset in offsets.items():
            owned = self.by_partition.get(partition)
            if owned is not None and owned.pending == offset:
                owned.committed, owned.pending = offset, None
        self.dropped_commits.update(refused)
        for partition in refused & self.by_partition.keys():
            self.by_partition[partition].pending = None

    # -- what was processed ---------------------------------------------------------------------------

    def mark_processed(self, batch: Ends) -> None:
        """Move positions behind a finished batch: it is not read again, even if it was not committed."""
        for partition, owned in self.by_partition.items():
            processed = batch.processed_range(partition, owned.topic_id, owned.reset)
            if processed is None or processed == owned.last_checkpoint_range:
                continue
            owned.last_checkpoint_range = processed
            if owned.position is None or owned.position <= processed.end:
                owned.position, owned.epoch = processed.end, processed.epoch

    def count_dropped(self, batch: Ends) -> None:
        """Count the ranges of a finished batch that cannot be committed."""
        for partition, processed in batch.ranges.items():
            owned = self.by_partition.get(partition)
            if processed.size and (owned is None or owned.last_checkpoint_range != processed):
                self.dropped_commits[partition] += 1

    def commit(self) -> None:
        """Have the group's offsets brought up to the positions, without waiting for it."""
        offsets: dict[TopicPartition, int] = {}
        for partition, owned in self.by_partition.items():
            if not owned.is_revoked and owned.has_uncommitted and owned.pending != owned.position:
                assert owned.position is not None
                offsets[partition] = owned.pending = owned.position
        if offsets:
            self._member.commit(offsets, {p: self.by_partition[p].claim for p in offsets})

    def has_committed(self) -> bool:
        """Return whether no commit is pending."""
        return all(owned.pending is None for owned in self.by_partition.values())

    def has_committed_starts(self) -> bool:
        """Return whether all starts that were found are committed."""
        return all(
            owned.committed is not None
            for owned in self.by_partition.values()
            if owned.position is not None
        )

    def release_revoked(self) -> None:
        """Release what is revoked, at its position. Only between two batches: nothing is in flight."""
        for partition, owned in list(self.by_partition.items()):
            if owned.is_revoked:
                final = owned.position if owned.has_uncommitted else None
                self._member.drained(partition, owned.claim, final)
                del self.by_partition[partition]

    def begin_to_leave(self) -> None:
        """Leave the group, and release everything that is held or still assigned."""
        self._is_leaving = True
        for owned in self.by_partition.values():
            owned.is_revoked = True
        self._member.begin_to_leave()

    # -- where to read ----------------------------------------------------------------------------------

    def without_position(self) -> dict[TopicPartition, str]:
        """Return partitions whose start must be looked up, with their topics' ids."""
        return {
            partition: owned.topic_id
            for partition, owned in self.by_partition.items()
            if owned.position is None
        }

    def read_positions(self) -> dict[TopicPartition, ReadPosition]:
        """Return where to read next, of partitions whose start is committed."""
        return {
            partition: ReadPosition(owned.topic_id, owned.position, owned.epoch)
            for partition, owned in self.by_partition.items()
            if owned.position is not None and owned.committed is not None
        }
