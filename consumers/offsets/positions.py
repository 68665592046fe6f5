"""What the application has, has processed, and has committed, per partition.

Three offsets, each the *next* record: `handed_out` ≥ `processed` ≥ `committed`. Handed out becomes
processed when the application asks for more or says so; only processed offsets are committed.
Owned by the thread that polls the consumer.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass

from folkmoot.protocol.records import TopicPartition


@dataclass(slots=True)
class Progress:
    """The three offsets of one partition; None as long as there is none."""

    handed_out: int | None = None
    processed: int | None = None
    committed: int | None = None


class Positions:
    """The progress of all partitions of a consumer.

    A partition that is given up or read from elsewhere is forgotten, and begins with a new object:
    whoever still writes to the old one changes nothing that would be committed.

    Only what was looked at since the last `end_turn` can have been handed out since: asking for more
    costs nothing for the thousands of others.
    """

    def __init__(self) -> None:
        self._progress: dict[TopicPartition, Progress] = {}
        self._in_hand: dict[TopicPartition, Progress] = {}

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
        self.process_all()
        self._in_hand.clear()

    def processed(self, partition: TopicPartition) -> int | None:
        progress = self._progress.get(partition)
        return None if progress is None else progress.processed

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """These offsets are in ZooKeeper."""
        for partition, offset in offsets.items():
            if partition in self._progress:
                self._progress[partition].committed = offset

    def uncommitted(self, owned: Container[TopicPartition]) -> dict[TopicPartition, int]:
        """What is processed but not committed, of the partitions `owned`."""
        return {
            partition: progress.processed
            for partition, progress in self._progress.items()
            if partition in owned and progress.processed not in (None, progress.committed)
        }

    def forget(self, partition: TopicPartition) -> None:
        """The partition is no longer read here, or is read from elsewhere."""
        self._progress.pop(partition, None)
        self._in_hand.pop(partition, None)
