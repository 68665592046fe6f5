"""A group's committed offsets, as one member knows them."""

from collections.abc import Mapping
from threading import Lock

from folkmoot.protocol.records import TopicPartition


class GroupOffsets:
    """The committed and the requested offsets of the partitions that one member owns.

    A group's offset does not go back: an offset below the highest committed or requested one since the claim
    is not requested. After a seek back, commits continue above it. The exception is a log that ends below
    (`cut`): offsets after its end count no more, or the group would never continue.

    Any thread may call.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._committed: dict[TopicPartition, int | None] = {}
        self._requested: dict[TopicPartition, int] = {}
        self._beyond: dict[TopicPartition, tuple[int, int]] = {}

    def claim(self, partition: TopicPartition, committed: int | None) -> None:
        """The partition is ours, from its committed offset on."""
        self.release(partition)
        with self._lock:
            self._committed[partition] = committed
            if committed is not None:
                self._requested[partition] = committed

    def release(self, partition: TopicPartition) -> None:
        with self._lock:
            for offsets in (self._committed, self._requested, self._beyond):
                offsets.pop(partition, None)

    def committed(self, partition: TopicPartition) -> int | None:
        """Return the offset in ZooKeeper of a partition of ours, None if there is none."""
        return self._committed.get(partition)

    def mark_committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        with self._lock:
            for partition, offset in offsets.items():
                if partition in self._committed:
                    self._committed[partition] = offset
                    if offset <= self._beyond.get(partition, (0, offset))[1]:
                        self._beyond.pop(partition, None)

    def cut(self, partition: TopicPartition, end: int) -> None:
        """The log ends there: a higher committed offset counts no more."""
        with self._lock:
            requested = self._requested.get(partition, 0)
            if requested > end:
                del self._requested[partition]
                self._committed[partition] = None
                self._beyond[partition] = requested, end

    def beyond(self) -> dict[TopicPartition, tuple[int, int]]:
        """Return the committed offsets after the end of their logs, each with the log's end."""
        with self._lock:
            return self._beyond.copy()

    def floor(self, partition: TopicPartition) -> int:
        """Return the highest committed or requested offset that counts; -1: none."""
        return self._requested.get(partition, -1)

    def request(
        self, offsets: Mapping[TopicPartition, int]
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """Request commits. Return those to send, and for lower offsets the one they are below."""
        forward, behind = {}, {}
        with self._lock:
            for partition, offset in offsets.items():
                requested = self._requested.get(partition, 0)
                if offset < requested:
                    behind[partition] = requested
                else:
                    forward[partition] = self._requested[partition] = offset
        return forward, behind
