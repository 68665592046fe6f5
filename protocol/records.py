"""The vocabulary: a partition of a topic, a record in it, where a record went."""

from typing import TYPE_CHECKING, Generic, NamedTuple

import msgspec

if TYPE_CHECKING:  # typing's own has no default before Python 3.13
    from typing_extensions import TypeVar

    K = TypeVar("K", default=bytes)
    V = TypeVar("V", default=bytes)
else:
    from typing import TypeVar

    K, V = TypeVar("K"), TypeVar("V")

Headers = tuple[tuple[str, bytes | None], ...]


class TopicPartition(NamedTuple):
    """One partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class OffsetAndMetadata(NamedTuple):
    """What a group has committed of a partition: the next offset, and what was said beside it."""

    offset: int
    metadata: str = ""


class Record(msgspec.Struct, Generic[K, V], frozen=True, gc=False):
    """A record as a consumer gets it: `Record[str, Order]` where deserialisers make these, else bytes.

    `timestamp` is in milliseconds since the epoch: the producer's, or the broker's if
    `append_time`. Keys and values are bytes or None, or what the consumer's deserialisers make of bytes;
    `value` None is a tombstone. Headers are ordered and may repeat.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: K | None
    value: V | None
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
