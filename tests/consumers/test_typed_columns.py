"""Tables by a schema: sent with a serialiser, read with a reader's schema, bad values as the option says."""

import json
from collections.abc import Iterator
from typing import Any, cast

import pyarrow as pa
import pytest

from folkmoot.consumers.client.async_consumer import AsyncConsumer
from folkmoot.consumers.client.consumer import Consumer
from folkmoot.producers.async_producer import AsyncProducer
from folkmoot.producers.producer import Producer
from folkmoot.protocol.errors import (
    ConfigError,
    DeserializationError,
    IncompatibleSchema,
    SerializationError,
)
from folkmoot.schemas.columns.deserializer import ColumnDeserializer
from folkmoot.schemas.columns.serializer import ColumnSerializer
from folkmoot.schemas.registry.schema_registry import SchemaRegistry
from tests.consumers.parts import Bench
from tests.surfaces import Awaited, eventually, run


def awaited(kind: Any) -> Any:
    return lambda **options: Awaited(kind(**options))


each = pytest.mark.parametrize(
    "clients",
    [(awaited(Producer), awaited(Consumer)), (AsyncProducer, AsyncConsumer)],
    ids=["synchronous", "asynchronous"],
)


def order(*fields: tuple[str, Any, Any]) -> str:
    """A record's schema; a default of ... is none."""
    described = [
        {"name": name, "type": kind} | ({} if default is ... else {"default": default})
        for name, kind, default in fields
    ]
    return json.dumps({"type": "record", "name": "Order", "fields": described})


OLD = order(("number", "int", ...), ("note", "string", ...))
NEW = order(("number", "long", ...), ("state", "string", "open"))


@pytest.fixture
def registry(bench: Bench) -> Iterator[SchemaRegistry]:
    with SchemaRegistry(bench.zookeeper) as registry:
        yield registry


def rows(first: int, count: int) -> pa.Table:
    numbers = list(range(first, first + count))
    return pa.table({"note": [f"n{number}" for number in numbers], "number": numbers})


async def table(consumer: Any, count: int, **options: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    async def enough() -> bool:
        found.extend((await consumer.poll_arrow(0.2, **options)).to_pylist())
        return len(found) >= count

    await eventually(enough, 20.0)
    return found


@each
def test_a_table_that_was_sent_is_read_by_another_schema(
    clients: Any, bench: Bench, registry: SchemaRegistry
) -> None:
    producing, consuming = clients
    serializer = ColumnSerializer(registry, OLD)

    async def scenario() -> None:
        async with producing(zookeeper=bench.zookeeper) as producer:
            where = {"partition": 0, "timestamps": 1_700_000_000_000}
            sent = await producer.send_batch(
                bench.topic, rows(0, 50), serializer=serializer, **where
            )
            await sent.result(timeout=20.0)
            nothing = pa.table({"note": ["a"], "number": pa.nulls(1)})
            with pytest.raises(SerializationError, match="row 0: number: there is no value"):
                await producer.send_batch(bench.topic, nothing, serializer=serializer)
            other = ColumnSerializer(registry, order(("note", "int", ...)))
            with pytest.raises(IncompatibleSchema):
                await producer.send_batch(bench.topic, rows(0, 1), serializer=other)
        latest = registry.version(f"{bench.topic}-value", "latest")
        async with consuming(zookeeper=bench.zookeeper) as consumer:
            await consumer.assign([bench.partition(0)])
            schema = ColumnDeserializer(registry, NEW)
            found = await table(consumer, 50, schema=schema, headers=True)
            assert [row["number"] for row in found] == list(range(50))
            assert [row["_offset"] for row in found] == list(range(50))
            assert {row["state"] for row in found} == {"open"}
            assert {(row["_topic"], row["_partition"]) for row in found} == {(bench.topic, 0)}
            assert {row["_timestamp"].timestamp() for row in found} == {1_700_000_000.0}
            assert list(found[0])[-1] == "_headers"
            await consumer.seek(bench.partition(0), 48)
            found = await table(consumer, 2, schema=ColumnDeserializer(registry, latest.id))
            assert [row["note"] for row in found] == ["n48", "n49"]

    run(scenario)


def bad_in_the_middle(bench: Bench, registry: SchemaRegistry) -> None:
    """Offsets 0 to 5: two and four are no values."""
    values = ColumnSerializer(registry, OLD, subject="orders").serialize(bench.topic, rows(0, 6))
    cells = values.to_pylist()
    cells[2], cells[4] = cells[2][:-1], b"\x00\x00\x00\xff\xff"
    bench.producer.send_batch(bench.topic, cells, partition=0).result(20.0)


def test_a_bad_value_stops_its_partition_behind_the_good_ones_until_a_seek(
    bench: Bench, registry: SchemaRegistry
) -> None:
    bad_in_the_middle(bench, registry)
    schema = ColumnDeserializer(registry, OLD)
    with bench.reader() as consumer:
        assert consumer.poll_arrow(20.0, schema=schema).column("_offset").to_pylist() == [0, 1]
        with pytest.raises(DeserializationError) as caught:
            consumer.poll_arrow(20.0, schema=schema)
        assert f"{bench.partition(0)}, offset 2: schema " in str(caught.value)
        assert (caught.value.record.offset, caught.value.field) == (2, "value")
        assert caught.value.schema_id == registry.version("orders", "latest").id
        consumer.seek(bench.partition(0), 3)
        assert consumer.poll_arrow(20.0, schema=schema).column("number").to_pylist() == [3]
        with pytest.raises(DeserializationError, match="offset 4: "):
            consumer.poll_arrow(20.0, schema=schema)


def test_bad_values_are_skipped_where_the_option_says_so(
    bench: Bench, registry: SchemaRegistry
) -> None:
    bad_in_the_middle(bench, registry)
    asked: list[tuple[int, int | None]] = []

    def skip(_: Any, error: DeserializationError) -> str:
        asked.append((error.record.offset, error.schema_id))
        return "skip"

    schema = ColumnDeserializer(registry, OLD)
    for option in ("skip", skip):
        with bench.reader(on_decode_error=option) as consumer:
            found: list[int] = []
            while len(found) < 4:
                found += consumer.poll_arrow(20.0, schema=schema).column("number").to_pylist()
            assert found == [0, 1, 3, 5]
            assert consumer.position(bench.partition(0)) == 6
            assert consumer.metrics()["records_skipped"] == 2
    assert [offset for offset, _ in asked] == [2, 4]
    assert asked[1][1] == 0xFFFF


def test_a_table_with_a_schema_has_no_place_for_bytes_or_for_two_columns_of_a_name(
    bench: Bench, registry: SchemaRegistry
) -> None:
    bad_in_the_middle(bench, registry)
    schema = ColumnDeserializer(registry, OLD)
    words = pytest.raises(ConfigError, match="give ColumnDeserializer")
    with bench.reader() as consumer, words:
        consumer.poll_arrow(0.0, schema=cast("ColumnDeserializer", OLD))
    raw = pytest.raises(ConfigError, match="has no place for raw bytes")
    with bench.reader(on_decode_error="raw") as consumer, raw:
        consumer.poll_arrow(0.0, schema=schema)
    with bench.reader(on_decode_error=lambda consumer, error: "raw") as consumer:
        assert consumer.poll_arrow(20.0, 2, schema=schema).column("number").to_pylist() == [0, 1]
        with pytest.raises(ConfigError, match="offset 2: a table with a schema has no place"):
            consumer.poll_arrow(20.0, schema=schema)
        taken = ColumnDeserializer(registry, order(("_offset", "int", 0)))
        with pytest.raises(ConfigError, match="has a field _offset"):
            consumer.poll_arrow(0.0, schema=taken)
