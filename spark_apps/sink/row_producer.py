"""A producer of rows whose partitions are chosen by its owner."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from folkmoot.producers.idempotence import ClaimedSequences, Identity
from folkmoot.producers.producer import Producer
from folkmoot.protocol.errors import FolkmootError
from folkmoot.protocol.records import TopicPartition
from folkmoot.spark_apps.sink.rows import Int64s, Rows

TopicShape = tuple[str | None, int]
"""A topic's id and its number of partitions."""


class RowProducer:
    """Sends rows, named or not. With a name it continues where earlier attempts have stopped.

    The producer itself is made anew where a topic has changed; sequences outlive it.
    """

    def __init__(self, *, named: bool, **options: Any) -> None:
        """`options` are the producer's. Raises ConfigError, ZooKeeperUnreachable, MissingExtra."""
        self._sequences = ClaimedSequences() if named else None
        self._partitioner = _FixedPartitioner()
        self._options = options | {"partitioner": self._partitioner}
        self._shapes: dict[str, TopicShape] = {}
        self._producer = self._start_producer()

    def _start_producer(self) -> Producer[Any, Any]:
        sequences = self._sequences

        class SignedProducer(Producer[Any, Any]):
            _sequences = sequences

        producer = SignedProducer(**self._options)
        producer.start()
        return producer

    def update_topic(self, topic: str, shape: TopicShape) -> None:
        """Before rows are sent to a topic: a producer that knows it otherwise would look for partitions
        that do not exist any more, or refuse new ones."""
        if self._shapes.setdefault(topic, shape) != shape:
            self._producer.close()
            self._producer, self._shapes = self._start_producer(), {topic: shape}

    def continue_at(self, identities: Mapping[TopicPartition, Identity]) -> None:
        """Sign the next batches of these partitions like this. None of them is in flight."""
        assert self._sequences is not None
        self._sequences.resume_at(identities)

    def send(self, topic: str, rows: Rows, partitions: Int64s) -> None:
        """Send each row to its partition. Raises what `Producer.send_batch` does."""
        self._partitioner.partitions = partitions
        self._producer.send_batch(
            *(topic, rows.values, rows.keys),
            timestamps=rows.timestamps,
            headers=rows.headers,
            serializer=_PRE_ENCODED if rows.framed else None,
        )

    def flush(self) -> None:
        """Wait until what was sent is acknowledged. Raises what records have failed with."""
        self._producer.flush()

    def close(self) -> None:
        """Let go of everything; what was not acknowledged fails, as it is reported to its senders."""
        with suppress(FolkmootError):
            self._producer.close(0.0)


class _FixedPartitioner:
    """A partitioner that returns what was chosen for the rows that are being sent."""

    partitions: Any = None

    def __call__(self, topic: str, keys: Any, count: int) -> Any:
        return self.partitions


class _PreEncoded:
    """A serialiser of values that begin with their schema's id already."""

    writes_schema_id: Final = True

    def serialize(self, topic: str, rows: Any, /) -> Any:
        return rows


_PRE_ENCODED: Final = _PreEncoded()
