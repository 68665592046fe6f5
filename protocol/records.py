"""The vocabulary: a partition of a topic, a record in it, where a record went."""

from typing import Any, NamedTuple

import msgspec

Headers = tuple[tuple[str, bytes | None], ...]


class TopicPartition(NamedTuple):
    """One partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Record(msgspec.Struct, frozen=True, gc=False):
    """A record as a consumer gets it.

    `timestamp` is in milliseconds since the epoch: the producer's, or the broker's if
    `append_time`. Keys and values are bytes or None, or what the consumer's deserialisers make of bytes;
    `value` None is a tombstone. Headers are ordered and may repeat.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: Any
    value: Any
    headers: Headers = ()
    append_time: bool = False

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def header(self, name: str) -> bytes | None:
        """The last header of that name, or None (Kafka's `lastHeader`)."""
        return next((value for key, value in reversed(self.headers) if key == name), None)


class RecordMetadata(NamedTuple):
    """Where an acknowledged record is. With acks=0 nobody knows: offset is -1."""

    topic: str
    partition: int
    offset: int
    timestamp: int
