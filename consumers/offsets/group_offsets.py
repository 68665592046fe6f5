"""What a group has committed, as one member knows it."""

from collections.abc import Mapping
from threading import Lock

from folkmoot.protocol.records import TopicPartition


class GroupOffsets:
    """What a group has committed of the partitions that one member owns, and what it was asked to commit.

    A group's offset does not go back: what lies before the highest offset that was committed, or asked
    to be, since the partition was claimed is not asked for. Reading may go back by a seek; what is read
    again is then committed from where it goes beyond. The exception is a log that ends below what was
    committed (`cut`): what is behind its end counts no more, or the group would never come back from there.

    Any thread may call: applications commit from all of theirs.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._committed: dict[TopicPartition, int | None] = {}
        self._asked: dict[TopicPartition, int] = {}
        self._beyond: dict[TopicPartition, tuple[int, int]] = {}

    def claim(self, partition: TopicPartition, committed: int | None) -> None:
        """It is ours, from its committed offset on."""
        self.release(partition)
        with self._lock:
            self._committed[partition] = committed
            if committed is not None:
                self._asked[partition] = committed

    def release(self, partition: TopicPartition) -> None:
        """It is no longer ours."""
        with self._lock:
            for each in (self._committed, self._asked, self._beyond):
                each.pop(partition, None)

    def committed(self, partition: TopicPartition) -> int | None:
        """The offset in ZooKeeper of a partition that is ours, None if there is none."""
        return self._committed.get(partition)

    def written(self, offsets: Mapping[TopicPartition, int]) -> None:
        """These offsets are in ZooKeeper."""
        with self._lock:
            for partition, offset in offsets.items():
                if partition in self._committed:
                    self._committed[partition] = offset
                    if offset <= self._beyond.get(partition, (0, offset))[1]:
                        self._beyond.pop(partition, None)

    def cut(self, partition: TopicPartition, end: int) -> None:
        """Its log ends there: what was committed behind that counts no more."""
        with self._lock:
            asked = self._asked.get(partition, 0)
            if asked > end:
                del self._asked[partition]
                self._committed[partition] = None
                self._beyond[partition] = asked, end

    def beyond(self) -> dict[TopicPartition, tuple[int, int]]:
        """Offsets that the group has committed and the log does not have, each with the log's end."""
        with self._lock:
            return self._beyond.copy()

    def floor(self, partition: TopicPartition) -> int:
        """What the group has committed, or was asked to; -1: nothing, as far as it still counts."""
        return self._asked.get(partition, -1)

    def ask(
        self, offsets: Mapping[TopicPartition, int]
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """Note that these are to be committed. → those that are, and how far it is of the others.

        The others lie before what was committed, or asked to be.
        """
        forward, behind = {}, {}
        with self._lock:
            for partition, offset in offsets.items():
                asked = self._asked.get(partition, 0)
                if offset < asked:
                    behind[partition] = asked
                else:
                    forward[partition] = self._asked[partition] = offset
        return forward, behind
