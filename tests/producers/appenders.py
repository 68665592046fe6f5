"""Both appenders side by side, for tests that compare them or try each."""

import threading
from collections import defaultdict
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from folkmoot.producers import batch_builder, futures
from folkmoot.producers.columns import no_partition
from folkmoot.protocol import batch_header, record_batch, speedups
from folkmoot.protocol.errors import BufferFull, ClosedError, UnknownTopicOrPartition
from folkmoot.protocol.records import Record, TopicPartition

PLAIN: Any = batch_builder
COMPILED: Any = speedups.compiled("folkmoot.producers._speedups")

needs_compiled = pytest.mark.skipif(COMPILED is None, reason="no compiled appender is in use")
each_appender = pytest.mark.parametrize(
    "implementation",
    [
        pytest.param(PLAIN, id="plain"),
        pytest.param(COMPILED, id="compiled", marks=needs_compiled),
    ],
)


class Owner:
    """What an appender needs; it waits for nothing. `topics` are those that it may come to know."""

    def __init__(
        self, implementation: Any, partitions: int = 3, *, seed: int = 1, **options: Any
    ) -> None:
        self.lock = threading.RLock()
        self.completed = threading.Condition(self.lock)
        self.topics = {"t": partitions}
        self.opened: list[Any] = []
        self.full: set[Any] = set()
        self.closed = False
        settings = {"batch_bytes": 10_000, "buffer_bytes": 1 << 40, "max_record_bytes": 1 << 20}
        self.appender = implementation.Appender(
            self, random=Random(seed), **{**settings, **options}
        )

    def admit(self, topic: str, partition: int = -1) -> None:
        if self.closed:
            raise ClosedError("the producer is closed")
        if not isinstance(topic, str):
            raise TypeError(f"a topic is named by a str, not by {topic!r}")
        if topic not in self.topics:
            raise UnknownTopicOrPartition(f"topic {topic} was not found")
        if self.appender.used >= self.appender.limit:
            raise BufferFull("no room")
        if partition >= self.topics[topic]:
            raise no_partition(topic, partition, self.topics[topic])
        self.know(topic, self.topics[topic])

    def wait_for(self, done: Callable[[], bool], timeout: float | None) -> bool:
        with self.completed:
            return self.completed.wait_for(done, timeout)

    def know(self, topic: str, partitions: int, *available: int) -> None:
        self.topics[topic] = partitions
        self.appender.set_topic_partitions(topic, partitions, available or range(partitions))

    def register_batch(self, builder: Any) -> None:
        if builder not in self.opened:
            self.opened.append(builder)

    def register_full_batch(self, builder: Any) -> None:
        assert builder.closed
        self.full.add(builder)

    def batches(self) -> dict[TopicPartition, list[Any]]:
        """Of each partition, in the order in which they were opened."""
        self.appender.register_interrupted()
        found = defaultdict(list)
        for builder in self.opened:
            found[builder.topic_partition].append(builder)
        return dict(found)

    def bodies(self) -> dict[TopicPartition, list[tuple[Any, ...]]]:
        """All that is known of each batch, bytes included."""
        return {
            partition: [(each.count, each.size, *sealed(each), each.switches) for each in builders]
            for partition, builders in self.batches().items()
        }

    def records(self) -> dict[TopicPartition, list[Record]]:
        """What a consumer would read."""
        return {
            partition: [record for each in builders for record in read(each)]
            for partition, builders in self.batches().items()
        }

    def deliver(self) -> None:
        """Everything, with offsets from 0 on in each partition."""
        for builders in self.batches().values():
            offset = 0
            for builder in builders:
                if not builder.done:
                    size, count = builder.size, builder.count
                    for call, delivery in builder.finish(offset, None):
                        call(delivery)
                    self.appender.released(size)
                    offset += count
        with self.completed:
            self.completed.notify_all()


def sealed(builder: Any) -> tuple[bytes, int, int, int, int, int]:
    body, *rest = builder.body()
    return b"".join(body), *rest


def read(builder: Any) -> list[Record]:
    topic, partition = builder.topic_partition
    batch = batch_header.seal(builder.body())
    return record_batch.records_of(topic, partition, batch_header.check(batch), batch)


def rank_of(delivery: Any) -> tuple[Any, int, int]:
    """Where a record is, of a handle of either kind, once its batch was delivered at offset 0."""
    assert isinstance(delivery, futures.Delivery) or COMPILED is not None
    place = delivery.result(0)
    return place.topic, place.partition, place.offset
