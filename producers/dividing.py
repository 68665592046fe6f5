"""Choosing partitions for the records of a chunk that the caller's thread did not divide."""

from random import Random
from typing import Protocol

from folkmoot.producers.chunks import Chunk
from folkmoot.producers.column_chunks import ColumnChunk
from folkmoot.producers.config import ProducerConfig
from folkmoot.producers.partitioners import FEW_KEYS, Partitioner
from folkmoot.protocol.errors import FolkmootError, SerializationError
from folkmoot.protocol.records import TopicPartition


class View(Protocol):
    """What the sender needs to know of the cluster; `network.cluster.Cluster` knows it."""

    def leader_address(self, partition: TopicPartition) -> str | None: ...

    def leader_epoch(self, partition: TopicPartition) -> int: ...

    def topic_id(self, topic: str) -> str | None: ...

    def partitions(self, topic: str) -> range: ...


class Division:
    """Remembers of each topic its partitioner, and how many partitions it had. Owner: the sender."""

    def __init__(self, config: ProducerConfig, view: View, random: Random) -> None:
        self._config = config
        self._view = view
        self._random = random
        self._partitioners: dict[str, Partitioner] = {}
        self._counts: dict[str, int] = {}

    def divide(self, chunk: Chunk) -> None:
        """Choose partitions. Raises PartitionerFailed."""
        topic = chunk.topic
        partitions = self._view.partitions(topic)
        # A topic that has vanished keeps the partitions it had, until it is back or time is over.
        count = self._counts[topic] = len(partitions) or self._counts.get(topic, 1)
        partitioner = self._partitioners.get(topic)
        if partitioner is None:
            config = self._config
            partitioner = Partitioner(self._random, config.batch_bytes, config.partitioner)
            self._partitioners[topic] = partitioner
        if self._config.partitioner == "key-hash" and len(chunk) > FEW_KEYS:
            if chunk.divide_by_key(count):
                return
        keyless = chunk.keyless
        available = self._available(topic, count) if partitioner.spreads or keyless else ()
        if isinstance(chunk, ColumnChunk):
            chosen = partitioner.choose_for_columns(chunk, count, available)
        else:
            chosen = partitioner.choose(
                chunk.keys,
                chunk.explicit,
                topic=topic,
                keyless=keyless,
                record_bytes=chunk.size // len(chunk),
                count=count,
                available=available,
            )
        chunk.divide(chosen)

    def _available(self, topic: str, count: int) -> list[int]:
        known = self._view.leader_address
        return [number for number in range(count) if known(TopicPartition(topic, number))]


def indivisible(chunk: Chunk, error: Exception) -> FolkmootError:
    """Why a chunk could not be divided, as an error of ours."""
    if isinstance(error, FolkmootError):
        return error
    failure = SerializationError(f"records for {chunk.topic} cannot be divided: {error!r}")
    failure.__cause__ = error
    return failure
