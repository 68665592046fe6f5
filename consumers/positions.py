"""What the application has, has processed, and has committed, per partition.

Three offsets, each the *next* record: `handed_out` ≥ `processed` ≥ `committed`. Handed out becomes
processed when the application asks for more or says so; only processed offsets are committed.
Owned by the thread that polls the consumer.
"""

from collections.abc import Container, Iterable, Mapping

from folkmoot.protocol.records import Record, TopicPartition


class Positions:
    """The offsets of all partitions of a consumer."""

    def __init__(self) -> None:
        self._handed_out: dict[TopicPartition, int] = {}
        self._processed: dict[TopicPartition, int] = {}
        self._committed: dict[TopicPartition, int] = {}

    def hand_out(self, records: Iterable[Record]) -> None:
        """These records are with the application now."""
        for record in records:
            self._handed_out[record.topic_partition] = record.offset + 1

    def process_all(self) -> None:
        """The application is done with everything that it was handed."""
        self._processed.update(self._handed_out)

    def processed(self, partition: TopicPartition) -> int | None:
        return self._processed.get(partition)

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """These offsets are in ZooKeeper."""
        self._committed.update(offsets)

    def uncommitted(self, owned: Container[TopicPartition]) -> dict[TopicPartition, int]:
        """What is processed but not committed, of the partitions `owned`."""
        return {
            partition: offset
            for partition, offset in self._processed.items()
            if partition in owned and self._committed.get(partition) != offset
        }

    def forget(self, partition: TopicPartition) -> None:
        """The partition is no longer read here, or is read from elsewhere."""
        for offsets in (self._handed_out, self._processed, self._committed):
            offsets.pop(partition, None)
