"""What the application has, has processed, and has committed, per partition.

Three offsets, each the *next* record: `handed_out` ≥ `processed` ≥ committed. Handed out becomes
processed when the application asks for more or says so; only processed offsets are committed. With
`explicit_done` it becomes processed up to the first record for which `done` was not called.
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
    """What was handed out of one partition, and is processed; None as long as nothing is."""

    handed_out: int | None = None
    processed: int | None = None
    sought: int | None = None
    """The offset that the application has sought, as long as nothing was handed out since."""
    unfinished: Unfinished | None = None
    """With `explicit_done`, once something was handed out."""

    def finished(self) -> None:
        """Count as processed what lies before the first unfinished record."""
        if self.unfinished is not None and self.unfinished.low > (self.processed or 0):
            self.processed = self.unfinished.low


class Positions:
    """The progress of all partitions of a consumer. Owned by the thread that polls it; any may call `done`.

    A partition that is given up or read from elsewhere is forgotten, and begins with a new object:
    whoever still writes to the old one changes nothing that would be committed.

    Only what was looked at since the last `end_turn` can have been handed out since: asking for more
    costs nothing for the thousands of others.
    """

    def __init__(self, *, explicit_done: bool = False) -> None:
        self.cursor: BatchCursor | None = None
        """What is being iterated over."""
        self._explicit_done = explicit_done
        self._looking = Lock()
        self._done: deque[tuple[TopicPartition, int, int]] = deque()
        """What `done` was called for, as ranges of offsets, until the owner looks."""
        self._progress: dict[TopicPartition, Progress] = {}
        self._in_hand: dict[TopicPartition, Progress] = {}
        self.group = GroupOffsets()

    # -- what the application has -----------------------------------------------------------------

    def of(self, partition: TopicPartition) -> Progress:
        """The progress of a partition, to be read and written."""
        progress = self._progress.get(partition)
        if progress is None:
            progress = self._progress[partition] = Progress()
        self._in_hand[partition] = progress
        return progress

    def hand_out(self, partition: TopicPartition, offsets: Sequence[int], behind: int) -> None:
        """The application gets records of these offsets. No others lie before the offset `behind`."""
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
        """Write down how far the iteration has come."""
        if self.cursor is None:
            return
        partition = self.cursor.view.topic_partition
        offsets, processed = self.cursor.progress()
        if offsets:
            self.hand_out(partition, offsets, offsets[-1] + 1)
        if processed is not None and not self._explicit_done:
            progress = self.of(partition)  # what a commit has said to be processed stays so
            progress.processed = max(progress.processed or 0, processed)

    def done(self, partition: TopicPartition, start: int, end: int) -> None:
        """The application is done with its records from offset `start` to before `end`. From any thread."""
        self._done.append((partition, start, end))

    def is_done(self, partition: TopicPartition) -> bool:
        """Whether nothing of the partition is under way, as far as `done` says it."""
        self._look_at_done()
        progress = self._progress.get(partition)
        unfinished = None if progress is None else progress.unfinished
        return unfinished is None or unfinished.is_empty

    def _look_at_done(self) -> None:
        """Two threads may: on close a callback runs in one of its own."""
        if not self._done:
            return
        with self._looking:
            self.settle()  # what is done may be of the batch that is being iterated over
            while self._done:
                partition, start, end = self._done[0]
                progress = self._progress.get(partition)
                if progress is not None and progress.unfinished is not None:
                    progress.unfinished.finish(start, end)
                    progress.finished()
                self._done.popleft()  # interrupted before, it is looked at again

    def begin(self, partition: TopicPartition, offset: int) -> None:
        """Where reading begins was looked up: all before counts as processed, and is committed.

        Else the next owner would look it up anew and skip what came meanwhile ("latest").
        """
        progress = self.of(partition)
        if progress.handed_out is None:  # else records may be in hand
            progress.handed_out = progress.processed = offset

    def process_all(self) -> None:
        """The application is done with everything that it was handed, unless it says so by `done`."""
        if self._explicit_done:
            return
        for progress in self._in_hand.values():
            progress.processed = progress.handed_out

    def end_turn(self) -> None:
        """The same, and nobody writes to what `of` has given so far any more."""
        if self._in_hand:
            self.process_all()
            self._in_hand.clear()

    def seek(self, partition: TopicPartition, offset: int | None) -> None:
        """The partition is read from elsewhere: from `offset`, unless that is yet to be looked up."""
        self._in_hand.pop(partition, None)
        self._progress[partition] = Progress(sought=offset)

    def forget(self, partition: TopicPartition) -> None:
        """The partition is no longer read here, or is read from elsewhere."""
        self._progress.pop(partition, None)
        self._in_hand.pop(partition, None)

    # -- what is committed ------------------------------------------------------------------------

    def claim(self, partition: TopicPartition, committed: int | None) -> None:
        """The partition is ours, from its committed offset on; what was true in an earlier claim is not."""
        self.forget(partition)
        self.group.claim(partition, committed)

    def release(self, partition: TopicPartition) -> None:
        """The partition is no longer ours."""
        self.forget(partition)
        self.group.release(partition)

    def cut(self, partition: TopicPartition, end: int, parts_at: int | None = None) -> None:
        """The log ends there, below what was read, or committed: what lay behind the end counts no more.

        It has the records that were read up to `parts_at`, if that is known.
        """
        self._look_at_done()  # for what is on the log no more, others may come at the same offsets
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
        """What is processed but not committed, of the partitions `owned`; it may lie before that.

        With `sought` also where partitions go on of which nothing was handed out since a seek.
        """
        self._look_at_done()
        found: dict[TopicPartition, int] = {}
        for partition, progress in self._progress.items():
            if progress.processed is None:
                if sought and progress.sought is not None:
                    found[partition] = progress.sought
            elif partition in owned and progress.processed != self.group.committed(partition):
                found[partition] = progress.processed
        return found

    def due(self, owned: Container[TopicPartition]) -> dict[TopicPartition, int]:
        """What is to be committed without being asked for: all that would not set the group back."""
        return self.group.ask(self.uncommitted(owned))[0]
