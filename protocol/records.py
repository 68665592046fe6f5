"""A partition of a topic, a record in it, and the place of a record that was sent."""

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
    """A group's commit of a partition: the next offset, and the application's note."""

    offset: int
    metadata: str = ""


class Record(msgspec.Struct, Generic[K, V], frozen=True, gc=False):
    """A record as a consumer gets it: `Record[str, Order]` if deserialisers make these, else of bytes.

    `timestamp` is in milliseconds since the epoch: the producer's, or the broker's if
    `append_time`. Keys and values are bytes or None, or made of bytes by the consumer's deserialisers;
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
        """Return the last header of that name, or None (Kafka's `lastHeader`)."""
        return next((value for key, value in reversed(self.headers) if key == name), None)


class RecordMetadata(NamedTuple):
    """The place of an acknowledged record. With acks=0 the offset is not known: -1."""

    topic: str
    partition: int
    offset: int
    timestamp: int
