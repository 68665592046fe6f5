"""`done`, record by record, from any thread; and partitions that are revoked while records are under way."""

import asyncio
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from folkmoot.consumers.client.async_consumer import AsyncConsumer
from folkmoot.consumers.client.consumer import Consumer
from folkmoot.protocol.errors import ConfigError
from folkmoot.protocol.records import Record, TopicPartition
from tests.consumers.parts import PARTITIONS, Bench, in_thread, take, until, values
from tests.waiting import eventually

EXPLICIT: dict[str, Any] = {"explicit_done": True, "commit_interval": 0.05}


def records(consumer: Consumer, count: int) -> list[Record]:
    taken: list[Record] = []

    def enough() -> bool:
        taken.extend(consumer.poll(0.2, count - len(taken)))
        return len(taken) >= count

    eventually(enough, 20.0)
    return taken


def test_what_is_committed_ends_in_front_of_the_first_record_that_is_not_done(bench: Bench) -> None:
    bench.send(range(10))
    with bench.member(**EXPLICIT) as consumer:
        found = records(consumer, 10)
        for each in found[3:]:
            consumer.done(each)
        consumer.commit()
        assert not bench.committed()
        assert not consumer.poll(0.1), "asking for more finishes nothing"
        for each in found[:2]:
            assert in_thread(partial(consumer.done, each)) is None
        until(consumer, lambda: bench.committed() == 2)
    assert bench.committed() == 2, "closing finishes nothing"
    with bench.member() as successor:
        assert take(successor, 8) == [*range(2, 10)]


def test_an_iteration_and_batches_are_finished_in_the_same_way(bench: Bench) -> None:
    bench.send(range(20))
    with bench.member(**EXPLICIT) as consumer:
        for record in consumer:
            if record.offset != 4:
                consumer.done(record)
            if record.offset == 9:
                break
        consumer.commit()
        assert bench.committed() == 4
        while (batch := consumer.poll_batch(5.0)) is not None and batch.next_offset < 20:
            consumer.done(batch)
        assert batch is not None
        consumer.done(batch)
        consumer.commit()
        assert bench.committed() == 4
        consumer.seek(bench.partition(0), 4)
        consumer.done(records(consumer, 1)[0])
        consumer.commit()
        assert bench.committed() == 5


def test_the_consumer_for_event_loops_has_it_too(bench: Bench) -> None:
    bench.send(range(10))
    options = bench.settings(**EXPLICIT)

    async def work() -> None:
        async with AsyncConsumer(zookeeper=bench.zookeeper, **options) as consumer:
            async for record in consumer:
                if record.offset not in (5, 9):
                    consumer.done(record)
                if record.offset == 9:
                    break
            await consumer.commit()
            assert consumer.revoking() == {}

    asyncio.run(work())
    assert bench.committed() == 5


def test_a_record_that_was_left_out_is_done(bench: Bench) -> None:
    def digits(data: bytes) -> int:
        return int(data) // (int(data) % 3)

    bench.send(range(1, 8))
    options = {**EXPLICIT, "value_deserializer": digits, "on_decode_error": "skip"}
    with bench.member(**options) as consumer:
        for each in records(consumer, 5):
            consumer.done(each)
        consumer.commit()
        assert bench.committed() == 7
        assert consumer.metrics()["records_skipped"] == 2


class Workers:
    """A consumer that polls in a thread of its own, and what it has handed out."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.by_partition: dict[TopicPartition, list[Record]] = {}
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with self.consumer as consumer:
            while not self._ending.is_set():
                for each in consumer.poll(0.05):
                    self.by_partition.setdefault(each.topic_partition, []).append(each)

    def count(self) -> int:
        return sum(map(len, self.by_partition.values()))

    def close(self) -> None:
        self._ending.set()
        self._thread.join(20.0)


@pytest.fixture
def workers(bench: Bench) -> Iterator[Workers]:
    workers = Workers(bench.member(**EXPLICIT, max_processing_time=120.0))
    yield workers
    workers.close()


def test_a_partition_is_kept_until_its_records_are_done_and_the_others_are_read_on(
    bench: Bench, workers: Workers
) -> None:
    bench.send(range(30), partition=None)
    eventually(lambda: workers.count() == 30, 20.0)
    with bench.member() as successor:
        until(successor, lambda: bool(workers.consumer.revoking()))
        (going,) = workers.consumer.revoking()
        assert 100.0 < workers.consumer.revoking()[going] <= 120.0
        before = workers.count()
        bench.send(range(30, 60), partition=None)
        eventually(lambda: workers.count() == before + 20, 20.0)
        assert going not in successor.assignment()
        for each in workers.by_partition[going]:
            workers.consumer.done(each)
        until(successor, lambda: going in successor.assignment())
        assert bench.committed(going.partition) == 10
        assert workers.consumer.revoking() == {}
        kept = {bench.partition(number) for number in range(PARTITIONS)} - {going}
        assert workers.consumer.assignment() == kept


def test_a_partition_goes_when_its_time_is_over_with_what_is_done(bench: Bench) -> None:
    bench.send(range(30), partition=None)
    workers = Workers(bench.member(**EXPLICIT, max_processing_time=2.0))
    try:
        eventually(lambda: workers.count() == 30, 20.0)
        for each in workers.by_partition.values():
            workers.consumer.done(each[0])
        with bench.member() as successor:
            until(successor, lambda: bool(successor.assignment()))
            (going,) = successor.assignment()
            assert bench.committed(going.partition) == 1
    finally:
        workers.close()


def test_a_partition_that_is_to_go_is_not_resumed(bench: Bench) -> None:
    bench.send(range(30), partition=None)
    with bench.member(**EXPLICIT) as consumer:
        found = records(consumer, 30)
        with bench.member() as successor:
            polled: list[int] = []

            def is_revoked() -> bool:
                polled.extend(values(consumer.poll(0.05)))
                successor.poll(0.05)
                return bool(consumer.revoking())

            eventually(is_revoked, 20.0)
            (going,) = consumer.revoking()
            consumer.pause(*consumer.assignment())
            consumer.resume(*consumer.assignment())
            bench.send(range(30, 33), partition=going.partition)
            assert not polled
            assert not [each for each in consumer.poll(0.3) if each.topic_partition == going]
            for each in found:
                consumer.done(each)
            eventually(lambda: not consumer.poll(0.05) and not consumer.revoking(), 20.0)


@pytest.mark.parametrize("what", [7, None, "record"])
def test_done_is_for_records_and_batches_where_it_was_asked_for(bench: Bench, what: Any) -> None:
    bench.send(range(2))
    with bench.member() as consumer, pytest.raises(ConfigError, match="explicit_done"):
        consumer.done(records(consumer, 1)[0])
    with (
        bench.member(**EXPLICIT) as consumer,
        pytest.raises(ConfigError, match="a record or a batch"),
    ):
        consumer.done(what)
    with pytest.raises(ConfigError, match="group"):
        Consumer(zookeeper=bench.zookeeper, explicit_done=True)
