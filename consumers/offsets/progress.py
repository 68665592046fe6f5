"""What the application has, has processed, and has committed, per partition.

Three offsets, each the *next* record: `handed_out` ≥ `processed` ≥ committed. Handed out becomes
processed when the application asks for more or says so; only processed offsets are committed.
"""

from collections.abc import Container
from dataclasses import dataclass

from folkmoot.consumers.offsets.group_offsets import GroupOffsets
from folkmoot.protocol.records import TopicPartition


@dataclass(slots=True)
class Progress:
    """What was handed out of one partition, and is processed; None as long as nothing is."""

    handed_out: int | None = None
    processed: int | None = None
    sought: int | None = None
    """The offset that the application has sought, as long as nothing was handed out since."""

    def advance(self, handed_out: int | None, processed: int | None) -> None:
        """An iteration has come so far. What a commit has said to be processed stays so."""
        if handed_out is not None:
            self.handed_out = handed_out
        if processed is not None:
            self.processed = max(self.processed or 0, processed)


class Positions:
    """The progress of all partitions of a consumer. Owned by the thread that polls it.

    A partition that is given up or read from elsewhere is forgotten, and begins with a new object:
    whoever still writes to the old one changes nothing that would be committed.

    Only what was looked at since the last `end_turn` can have been handed out since: asking for more
    costs nothing for the thousands of others.
    """

    def __init__(self) -> None:
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

    def begin(self, partition: TopicPartition, offset: int) -> None:
        """Where reading begins was looked up: all before counts as processed, and is committed.

        Else the next owner would look it up anew and skip what came meanwhile ("latest").
        """
        progress = self.of(partition)
        if progress.handed_out is None:  # else records may be in hand
            progress.handed_out = progress.processed = offset

    def process_all(self) -> None:
        """The application is done with everything that it was handed."""
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
        read = self._progress.get(partition)
        self.forget(partition)
        if parts_at is not None and read is not None and read.handed_out is not None:
            now = self.of(partition)
            now.handed_out = min(read.handed_out, parts_at)
            now.processed = None if read.processed is None else min(read.processed, parts_at)
        self.group.cut(partition, end)

    def uncommitted(
        self, owned: Container[TopicPartition], *, sought: bool = False
    ) -> dict[TopicPartition, int]:
        """What is processed but not committed, of the partitions `owned`; it may lie before that.

        With `sought` also where partitions go on of which nothing was handed out since a seek.
        """
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
