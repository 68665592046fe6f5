"""Records with what the application makes of their bytes, and records of which nothing can be made."""

import json
from typing import Any

import pytest

from folkmoot.consumers.client.async_consumer import AsyncConsumer
from folkmoot.consumers.client.consumer import Consumer
from folkmoot.protocol.errors import ConfigError, RetriableError, SerializationError
from tests.consumers.parts import Bench
from tests.consumers.test_decode_errors import fill
from tests.surfaces import both, eventually, run

each = both(Consumer, AsyncConsumer)


class OfTopic:
    """Deserializes by the topic, too."""

    def deserialize(self, topic: str, data: bytes, /) -> Any:
        return topic, data.decode()


async def records(consumer: Any, count: int) -> list[Any]:
    found: list[Any] = []

    async def enough() -> bool:
        found.extend(await consumer.poll(0.2, count - len(found)))
        return len(found) >= count

    await eventually(enough, 20.0)
    return found


@each
def test_records_carry_what_is_made_of_their_bytes_and_batches_the_bytes(
    client: Any, bench: Bench
) -> None:
    fill(bench, b"1", b"[2]", None)
    options = {"key_deserializer": OfTopic(), "value_deserializer": json.loads}

    async def scenario() -> None:
        async with client(zookeeper=bench.zookeeper, **options) as consumer:
            await consumer.assign([bench.partition(0)])
            found = await records(consumer, 3)
            assert [record.value for record in found] == [1, [2], None]
            assert [record.key for record in found] == [(bench.topic, str(n)) for n in range(3)]
            await consumer.seek(bench.partition(0), 0)
            view = await consumer.poll_batch(20.0)
            assert list(view.values) == [b"1", b"[2]", None][: len(view)]
            await consumer.seek(bench.partition(0), 0)
            found = []
            async for record in consumer:
                found.append(record.value)
                if len(found) == 3:
                    consumer.stop()
            assert found == [1, [2], None]

    run(scenario)


@each
@pytest.mark.parametrize("word", ["poll", "iteration"])
def test_a_record_that_cannot_be_deserialized_stops_its_partition_behind_the_good_ones(
    client: Any, bench: Bench, word: str
) -> None:
    fill(bench, b"0", b"1", b"{", b"3")
    first, other = bench.partition(0), bench.partition(1)
    bench.send([7], partition=1)

    async def scenario() -> None:
        options = {"value_deserializer": json.loads}
        async with client(zookeeper=bench.zookeeper, **options) as consumer:
            await consumer.assign([first])
            good: list[Any] = []

            async def read() -> None:
                if word == "poll":
                    good.extend(record.value for record in await consumer.poll(1.0))
                else:
                    async for record in consumer:
                        good.append(record.value)

            async def is_told() -> bool:
                try:
                    await read()
                except SerializationError as error:
                    assert f"{first}, offset 2: the value of a record" in str(error)  # noqa: PT017
                    return True
                return False

            await eventually(is_told, 20.0)
            assert good == [0, 1]
            assert await consumer.position(first) == 2
            assert await consumer.poll(0.1) == []
            await consumer.assign([first, other])
            assert [record.value for record in await records(consumer, 1)] == [7]
            await consumer.seek(first, 3)
            assert [record.value for record in await records(consumer, 1)] == [3]

    run(scenario)


def test_an_iteration_that_is_left_in_front_of_a_bad_record_goes_on_where_it_was(
    bench: Bench,
) -> None:
    fill(bench, b"0", b"1", b"2", b"{")
    reading: Any = bench.member(value_deserializer=json.loads, commit_interval=3600.0)
    with reading as consumer:
        for record in consumer:
            assert record.value == 0
            break
        assert [each.value for each in consumer.poll(20.0, 1)] == [1]
        for record in consumer:
            assert record.value == 2
            break
        assert consumer.position(bench.partition(0)) == 3
    assert bench.committed() == 3


def test_what_may_go_by_itself_is_raised_and_tried_again(bench: Bench) -> None:
    class Unreachable(RetriableError):
        """A registry is."""

    fill(bench, b"0", b"1")
    failures = [Unreachable("no answer"), Unreachable("no answer")]

    def make(data: bytes) -> Any:
        if data == b"1" and failures:
            raise failures.pop()
        return json.loads(data)

    with bench.member(value_deserializer=make) as consumer:
        found: list[Any] = []
        told = 0
        while len(found) < 2:
            try:
                found += [record.value for record in consumer.poll(0.2)]
            except Unreachable:
                told += 1
        assert (found, told) == ([0, 1], 2)


def test_what_is_no_deserializer_is_refused(bench: Bench) -> None:
    for client in (Consumer, AsyncConsumer):
        with pytest.raises(ConfigError, match="value_deserializer"):
            client(zookeeper=bench.zookeeper, value_deserializer=7)  # type: ignore[arg-type]


def test_what_is_made_of_bytes_needs_no_cast_under_a_strict_type_checker(bench: Bench) -> None:
    """The checker runs over tests as well."""
    fill(bench, b"21")
    with Consumer(zookeeper=bench.zookeeper, value_deserializer=json.loads) as consumer:
        consumer.assign([bench.partition(0)])
        for record in consumer:
            assert record.value is not None
            doubled: int = record.value * 2
            assert doubled == 42
            consumer.stop()
