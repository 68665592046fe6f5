"""What becomes of records that cannot be deserialized, as `on_decode_error` says."""

import json
from contextlib import suppress
from typing import Any

import pytest

from folkmoot.consumers.client.async_consumer import AsyncConsumer
from folkmoot.consumers.client.consumer import Consumer
from folkmoot.protocol.errors import ConfigError, DeserializationError, RetriableError
from tests.consumers.parts import Bench
from tests.surfaces import both, eventually, run

each = both(Consumer, AsyncConsumer)
ways = pytest.mark.parametrize("word", ["poll", "iteration"])
BAD = b"\0\0\0\0\7{"


def fill(bench: Bench, *values: bytes | None) -> None:
    for number, value in enumerate(values):
        bench.producer.send(bench.topic, value, key=b"%d" % number, partition=0)
    bench.producer.flush(20.0)


async def read(consumer: Any, word: str, count: int) -> list[Any]:
    """The values of the next `count` records."""
    found: list[Any] = []

    async def enough() -> bool:
        if word == "poll":
            found.extend(each.value for each in await consumer.poll(0.2, count - len(found)))
        else:
            async for record in consumer:
                found.append(record.value)
                if len(found) == count:
                    break
        return len(found) >= count

    await eventually(enough, 20.0)
    return found


def raised_by(consumer: Any, kind: type[Exception]) -> Any:
    """What `poll` raises, where it hands nothing out before."""
    try:
        while True:
            assert consumer.poll(20.0)[1:] == []
    except kind as error:
        return error


def partition_0(client: Any, bench: Bench, **options: Any) -> Any:
    return client(zookeeper=bench.zookeeper, value_deserializer=json.loads, **options)


@each
@ways
def test_what_is_to_be_skipped_is_not_handed_out_and_is_behind_the_position(
    client: Any, bench: Bench, word: str
) -> None:
    fill(bench, BAD, b"1", BAD, BAD, b"4", BAD)

    async def scenario() -> None:
        async with partition_0(client, bench, on_decode_error="skip") as consumer:
            await consumer.assign([bench.partition(0)])
            assert await read(consumer, word, 2) == [1, 4]
            assert await consumer.poll(0.2) == []
            assert await consumer.position(bench.partition(0)) == 6
            assert consumer.metrics()["records_skipped"] == 4

    run(scenario)


@each
@ways
def test_raw_hands_out_the_bytes_of_what_cannot_be_made_and_the_rest_as_ever(
    client: Any, bench: Bench, word: str
) -> None:
    fill(bench, b"0", BAD, b"2")

    def number(data: bytes) -> int:
        return int(data)

    async def scenario() -> None:
        options = {"on_decode_error": "raw", "key_deserializer": number}
        async with partition_0(client, bench, **options) as consumer:
            await consumer.assign([bench.partition(0)])
            assert await read(consumer, word, 3) == [0, BAD, 2]
            await consumer.seek(bench.partition(0), 1)
            (record, *_) = await consumer.poll(20.0)
            assert (record.key, record.value, record.offset) == (1, BAD, 1)

    run(scenario)


@each
@ways
def test_a_callback_is_told_of_each_once_when_its_turn_has_come(
    client: Any, bench: Bench, word: str
) -> None:
    fill(bench, b"0", BAD, b"2", BAD, b"4", BAD)
    told: list[DeserializationError] = []
    answers: list[Any] = ["skip", "raw", None]

    async def scenario() -> None:
        def decide(consumer: Any, error: DeserializationError) -> Any:
            told.append(error)
            return answers[len(told) - 1]

        async with partition_0(client, bench, on_decode_error=decide) as consumer:
            await consumer.assign([bench.partition(0)])
            assert await read(consumer, word, 4) == [0, 2, BAD, 4]
            assert await consumer.poll(0.2) == []
            assert await consumer.position(bench.partition(0)) == 6

    run(scenario)
    assert [(each.record.offset, each.record.key, each.field) for each in told] == [
        *((1, b"1", "value"), (3, b"3", "value"), (5, b"5", "value"))
    ]
    assert told[0].record.value == BAD
    assert told[0].record.topic_partition == bench.partition(0)


@each
@ways
@pytest.mark.parametrize("what", ["skip", "raw"])
def test_keys_of_which_nothing_can_be_made_are_treated_alike(
    client: Any, bench: Bench, word: str, what: Any
) -> None:
    for key in (b"0", BAD, None, b"3"):
        bench.producer.send(bench.topic, b"1", key=key, partition=0)
    bench.producer.send(bench.topic, BAD, key=BAD, partition=0)
    bench.producer.send(bench.topic, b"5", key=b"5", partition=0)
    bench.producer.flush(20.0)
    told: list[tuple[Any, ...]] = []

    def decide(consumer: Any, error: DeserializationError) -> Any:
        told.append((error.field, error.record.offset, error.record.key, error.record.value))
        return what

    async def scenario() -> None:
        options = {"key_deserializer": json.loads, "on_decode_error": decide}
        async with partition_0(client, bench, **options) as consumer:
            await consumer.assign([bench.partition(0)])
            wanted = [1, 1, 1, 5] if what == "skip" else [1, 1, 1, 1, BAD, 5]
            assert await read(consumer, word, len(wanted)) == wanted
            assert await consumer.poll(0.2) == []
            assert await consumer.position(bench.partition(0)) == 6
            if what == "raw":
                await consumer.seek(bench.partition(0), 1)
                assert (await consumer.poll(20.0, 1))[0].key == BAD

    run(scenario)
    assert told[:2] == [("key", 1, BAD, b"1"), ("value", 4, BAD, BAD)]


def test_the_callback_of_an_event_loop_may_await(bench: Bench) -> None:
    fill(bench, BAD, b"1")
    letters: list[int] = []

    async def scenario() -> None:
        async def bury(consumer: Any, error: DeserializationError) -> None:
            assert await consumer.position(bench.partition(0)) is not None
            letters.append(error.record.offset)

        async with partition_0(AsyncConsumer, bench, on_decode_error=bury) as consumer:
            await consumer.assign([bench.partition(0)])
            assert await read(consumer, "iteration", 1) == [1]

    run(scenario)
    assert letters == [0]


@each
@pytest.mark.parametrize("answer", ["raise", "drop", RuntimeError("the store is away")])
def test_nothing_is_lost_when_a_callback_raises_or_says_so(
    client: Any, bench: Bench, answer: Any
) -> None:
    fill(bench, b"0", BAD, b"2")

    async def scenario() -> None:
        def decide(consumer: Any, error: DeserializationError) -> Any:
            if isinstance(answer, Exception):
                raise answer
            return answer

        async with partition_0(client, bench, on_decode_error=decide) as consumer:
            await consumer.assign([bench.partition(0)])
            assert await read(consumer, "poll", 1) == [0]
            expected = {"raise": DeserializationError, "drop": ConfigError}.get(
                str(answer), RuntimeError
            )

            async def is_raised() -> bool:
                try:
                    assert await consumer.poll(0.2) == []
                except expected:
                    return True
                return False

            await eventually(is_raised, 20.0)
            assert await consumer.position(bench.partition(0)) == 1
            await consumer.seek(bench.partition(0), 2)
            assert await read(consumer, "poll", 1) == [2]

    run(scenario)


def test_the_error_says_where_which_field_and_which_schema(bench: Bench) -> None:
    """The id is known where the deserializer says it."""
    from folkmoot.protocol.errors import SerializationError

    fill(bench, b"0", BAD)

    def fail(data: bytes) -> Any:
        if data == BAD:
            error = SerializationError("no value of schema 7")
            error.schema_id = 7
            raise error
        return data

    with bench.reader(value_deserializer=fail) as consumer:
        assert len(consumer.poll(20.0)) == 1
        error = raised_by(consumer, DeserializationError)
    assert (error.schema_id, error.field, error.record.offset) == (7, "value", 1)
    assert f"{bench.partition(0)}, offset 1: the value of a record" in str(error)
    assert "schema 7" in str(error)


@ways
def test_what_is_skipped_is_committed_with_what_is_processed_and_not_before(
    bench: Bench, word: str
) -> None:
    fill(bench, b"0", BAD, BAD, b"3", BAD)

    def skipping() -> Any:
        return bench.member(
            value_deserializer=json.loads, on_decode_error="skip", commit_interval=3600.0
        )

    with skipping() as consumer:
        if word == "poll":
            while not consumer.poll(0.2, 1):
                pass
            consumer.commit()
        else:
            for record in consumer:
                assert record.value == 0
                consumer.commit()
                break
        assert bench.committed() == 1  # those behind it have not had their turn
        while not (found := consumer.poll(0.2, 1)):
            pass
        assert found[0].value == 3
        assert consumer.poll(0.2) == []
    assert bench.committed() == 5  # none comes again, and there is no lag

    with skipping() as consumer:
        assert consumer.poll(0.5) == []
        assert consumer.metrics()["records_skipped"] == 0


def test_a_member_that_dies_gets_again_what_it_had_not_processed_behind_the_skipped(
    bench: Bench,
) -> None:
    fill(bench, b"0", BAD, b"2")

    class Death(Exception):
        """Of the application."""

    with (
        suppress(Death),
        bench.member(value_deserializer=json.loads, on_decode_error="skip") as member,
    ):
        consumer: Any = member
        for record in consumer:
            if record.value == 2:
                raise Death
    assert bench.committed() == 2


def test_what_may_go_by_itself_is_raised_whatever_is_said_of_decode_errors(bench: Bench) -> None:
    class Unreachable(RetriableError):
        """A registry is."""

    fill(bench, b"0")
    failures = [Unreachable("no answer")]

    def make(data: bytes) -> Any:
        if failures:
            raise failures.pop()
        return json.loads(data)

    with bench.reader(value_deserializer=make, on_decode_error="skip") as consumer:
        raised_by(consumer, Unreachable)
        found: Any = consumer.poll(20.0)
        assert [each.value for each in found] == [0]


def test_batches_have_the_bytes_and_are_not_asked_about(bench: Bench) -> None:
    fill(bench, b"0", BAD)
    with bench.reader(value_deserializer=json.loads, on_decode_error="skip") as consumer:
        view = consumer.poll_batch(20.0)
        assert view is not None
        assert list(view.values) == [b"0", BAD][: len(view)]


def test_another_word_is_refused(bench: Bench) -> None:
    with pytest.raises(ConfigError, match="on_decode_error='ignore' is not allowed: use 'raise'"):
        Consumer(zookeeper=bench.zookeeper, on_decode_error="ignore")  # type: ignore[arg-type]


@each
@pytest.mark.parametrize("word", ["raise", "skip", "raw"])
def test_records_before_one_that_cannot_be_made_come_again_if_their_loop_was_left(
    client: Any, bench: Bench, word: Any
) -> None:
    fill(bench, b"0", b"1", b"2", BAD, b"4")

    async def scenario() -> list[Any]:
        found: list[Any] = []
        async with partition_0(client, bench, on_decode_error=word) as consumer:
            await consumer.assign([bench.partition(0)])

            async def all_is_read() -> bool:
                with suppress(DeserializationError):
                    async for record in consumer:
                        found.append(record.value)
                        break
                    return len(found) == (4 if word == "skip" else 5)
                await consumer.seek(bench.partition(0), 4)
                found.append("raised")
                return False

            await eventually(all_is_read, 20.0)
        return found

    middle: dict[str, list[Any]] = {"raise": ["raised"], "skip": [], "raw": [BAD]}
    assert run(scenario) == [0, 1, 2, *middle[word], 4]
