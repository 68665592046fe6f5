"""The handed out, processed and committed offsets of each partition.

Each is that of the *next* record: `handed_out` ≥ `processed` ≥ committed. Records become processed with the
next poll or an explicit commit; only processed offsets are committed. With `explicit_done` they become
processed up to the first record without a `done`.
"""

from collections import deque
from collections.abc import Container, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING

from folkmoot.consumers.offsets.group_offsets import GroupOffsets
from folkmoot.consumers.offsets.unfinished import Unfinished
from folkmoot.protocol.records import TopicPartition

if TYPE_CHECKING:  # simulated groups have no records
    from folkmoot.consumers.records.batch_cursor import BatchCursor


@dataclass(slots=True)
class Progress:
    """The handed out and processed offsets of one partition; None before the first."""

    handed_out: int | None = None
    processed: int | None = None
    sought: int | None = None
    """The offset of the last seek, until a record is handed out."""
    unfinished: Unfinished | None = None
    """With `explicit_done`, from the first record on."""

    def finished(self) -> None:
        """Count the records before the first unfinished one as processed."""
        if self.unfinished is not None and self.unfinished.low > (self.processed or 0):
            self.processed = self.unfinished.low


class Positions:
    """The progress of all partitions of a consumer. Owned by the thread that polls; any may call `done`.

    After a release or a seek a partition has a new object: late writes to the old one are never committed.
    Only partitions looked at since the last `end_poll` can have new records: a poll costs nothing for
    thousands of others.
    """

    def __init__(self, *, explicit_done: bool = False) -> None:
        self.cursor: BatchCursor | None = None
        """The current iteration."""
        self._explicit_done = explicit_done
        self._done_lock = Lock()
        self._done: deque[tuple[TopicPartition, int, int]] = deque()
        """Ranges of offsets from `done`, until the owner looks."""
        self._progress: dict[TopicPartition, Progress] = {}
        self._in_hand: dict[TopicPartition, Progress] = {}
        self.group = GroupOffsets()

    # -- records of the application ---------------------------------------------------------------

    def of(self, partition: TopicPartition) -> Progress:
        """Return a partition's progress, to read and write."""
        progress = self._progress.get(partition)
        if progress is None:
            progress = self._progress[partition] = Progress()
        self._in_hand[partition] = progress
        return progress

    def hand_out(self, partition: TopicPartition, offsets: Sequence[int], behind: int) -> None:
        """The application gets the records of these offsets; there are no others before `behind`."""
        progress = self.of(partition)
        if self._explicit_done:
            if progress.unfinished is None:
                first = progress.handed_out
                first = (offsets[0] if offsets else behind) if first is None else first
                progress.unfinished = Unfinished(first)
            progress.unfinished.hand_out(offsets, behind)
            progress.finished()
        progress.handed_out = behind

    def settle(self) -> None:
        if self.cursor is None:
            return
        partition = self.cursor.view.topic_partition
        offsets, processed = self.cursor.progress()
        if offsets:
            self.hand_out(partition, offsets, offsets[-1] + 1)
        if processed is not None and not self._explicit_done:
            progress = self.of(partition)  # an explicit commit may have counted more
            progress.processed = max(progress.processed or 0, processed)

    def done(self, partition: TopicPartition, start: int, end: int) -> None:
        """The application is done with the records from offset `start` to before `end`. From any thread."""
        self._done.append((partition, start, end))

    def is_done(self, partition: TopicPartition) -> bool:
        """Return whether no record of the partition is under way, by `done`."""
        self._apply_done()
        progress = self._progress.get(partition)
        unfinished = None if progress is None else progress.unfinished
        return unfinished is None or unfinished.is_empty

    def _apply_done(self) -> None:
        """Apply the calls of `done`. Two threads may: on close a callback runs in one of its own."""
        if not self._done:
            return
        with self._done_lock:
            self.settle()  # they may be in the current iteration
            while self._done:
                partition, start, end = self._done[0]
                progress = self._progress.get(partition)
                if progress is not None and progress.unfinished is not None:
                    progress.unfinished.finish(start, end)
                    progress.finished()
                self._done.popleft()  # interrupted before, it is applied again

    def begin(self, partition: TopicPartition, offset: int) -> None:
        """A start was looked up: all before counts as processed, and is committed.

        Otherwise the next owner would look it up again, and "latest" would skip records.
        """
        progress = self.of(partition)
        if progress.handed_out is None:  # else records are in hand
            progress.handed_out = progress.processed = offset

    def process_all(self) -> None:
        """Count all handed out records as processed, without `explicit_done`."""
        if self._explicit_done:
            return
        for progress in self._in_hand.values():
            progress.processed = progress.handed_out

    def end_poll(self) -> None:
        """Mark everything processed, and invalidate the Progress objects handed out before."""
        if self._in_hand:
            self.process_all()
            self._in_hand.clear()

    def seek(self, partition: TopicPartition, offset: int | None) -> None:
        """The partition is read from `offset` on, or (None) from an offset that is looked up."""
        self._in_hand.pop(partition, None)
        self._progress[partition] = Progress(sought=offset)

    def forget(self, partition: TopicPartition) -> None:
        """The partition is no longer read, or read from elsewhere."""
        self._progress.pop(partition, None)
        self._in_hand.pop(partition, None)

    # -- commits ----------------------------------------------------------------------------------

    def claim(self, partition: TopicPartition, committed: int | None) -> None:
        """The partition is ours, from its committed offset on; drop the progress of an earlier claim."""
        self.forget(partition)
        self.group.claim(partition, committed)

    def release(self, partition: TopicPartition) -> None:
        self.forget(partition)
        self.group.release(partition)

    def cut(self, partition: TopicPartition, end: int, parts_at: int | None = None) -> None:
        """The log ends below the position, or the committed offset: higher offsets count no more.

        It has the read records up to `parts_at`, if that is known.
        """
        self._apply_done()  # before other records come at the same offsets
        read = self._progress.get(partition)
        self.forget(partition)
        if parts_at is not None and read is not None and read.handed_out is not None:
            now = self.of(partition)
            now.handed_out = min(read.handed_out, parts_at)
            now.processed = None if read.processed is None else min(read.processed, parts_at)
            now.unfinished = read.unfinished
            if now.unfinished is not None:
                now.unfinished.cut(parts_at)
        self.group.cut(partition, end)

    def uncommitted(
        self, owned: Container[TopicPartition], *, sought: bool = False
    ) -> dict[TopicPartition, int]:
        """Return processed offsets that differ from the committed ones, of the partitions `owned`.

        With `sought` also the offsets of seeks without a record since.
        """
        self._apply_done()
        offsets: dict[TopicPartition, int] = {}
        for partition, progress in self._progress.items():
            if progress.processed is None:
                if sought and progress.sought is not None:
                    offsets[partition] = progress.sought
            elif partition in owned and progress.processed != self.group.committed(partition):
                offsets[partition] = progress.processed
        return offsets

    def due(self, owned: Container[TopicPartition]) -> dict[TopicPartition, int]:
        """Return what to commit automatically: all that does not set the group back."""
        return self.group.request(self.uncommitted(owned))[0]
