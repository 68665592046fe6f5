"""Tables by a schema: sent with a serialiser, read with a reader's schema, bad values as the option says."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

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
from folkmoot.schemas.values.deserializer import AvroDeserializer
from folkmoot.schemas.values.serializer import AvroSerializer
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


@dataclass
class Slip:
    """What some reader wants of an order: of a class the name does not matter."""

    number: int
    state: str = "open"


@each
def test_schemas_alone_do_where_the_clients_serialisers_know_the_registry(
    clients: Any, bench: Bench, registry: SchemaRegistry
) -> None:
    producing, consuming = clients

    async def scenario() -> None:
        serializer: Any = AvroSerializer(registry, OLD)
        async with producing(zookeeper=bench.zookeeper, value_serializer=serializer) as producer:
            where = {"partition": 0}
            sent = await producer.send_batch(bench.topic, rows(0, 2), **where)
            await sent.result(timeout=20.0)
        async with producing(zookeeper=bench.zookeeper) as producer:
            sent = await producer.send_batch(
                bench.topic, rows(2, 2), serializer=serializer, **where
            )
            await sent.result(timeout=20.0)
            with pytest.raises(TypeError, match=r"serializer=ColumnSerializer\(registry, schema\)"):
                await producer.send_batch(bench.topic, rows(0, 1))
        number = registry.version(f"{bench.topic}-value", "latest").id
        values = AvroDeserializer(registry)
        async with consuming(zookeeper=bench.zookeeper, value_deserializer=values) as consumer:
            await consumer.assign([bench.partition(0)])
            for schema in (NEW, json.loads(NEW), Slip, number):
                await consumer.seek(bench.partition(0), 0)
                found = await table(consumer, 4, schema=schema)
                assert [row["number"] for row in found] == [0, 1, 2, 3]
                assert [row.get("state", row.get("note")) for row in found] == (
                    ["open"] * 4 if schema is not number else ["n0", "n1", "n2", "n3"]
                )

    run(scenario)


@each
def test_a_schema_that_stands_in_a_records_header_is_what_its_bytes_are_read_by(
    clients: Any, bench: Bench, registry: SchemaRegistry
) -> None:
    """As Confluent's clients write it: the GUID in a header, the body alone as the value."""
    producing, consuming = clients
    value = AvroSerializer(registry, OLD).serialize(bench.topic, {"number": 7, "note": "x"})
    key = AvroSerializer(registry, '"string"', subject="k").serialize(bench.topic, "Zürich")
    marks = [
        b"\1" + UUID(registry.version(subject, 1).guid).bytes
        for subject in ("k", f"{bench.topic}-value")
    ]
    names = ("__key_schema_id", "__value_schema_id")
    headers = [("other", b"h"), *zip(names, marks, strict=True)]

    async def scenario() -> None:
        async with producing(zookeeper=bench.zookeeper) as producer:
            for body, beside in ((value, ()), (value[5:], headers), (None, headers)):
                await producer.send(
                    bench.topic, body, key if not beside else key[5:], 0, headers=beside
                )
            await producer.send(bench.topic, value[5:-1], key[5:], 0, headers=headers)
            await producer.flush()
        options = {name: AvroDeserializer(registry) for name in DESERIALIZERS}
        async with consuming(zookeeper=bench.zookeeper, **options) as consumer:
            await consumer.assign([bench.partition(0)])
            found: list[Any] = []

            async def stops() -> bool:
                try:
                    found.extend(await consumer.poll(0.2))
                except DeserializationError as error:
                    assert (error.record.value, error.record.key) == (value[5:-1], key[5:])  # noqa: PT017
                    assert f"schema {UUID(bytes=marks[1][1:])}: " in str(error)  # noqa: PT017
                    return True
                return False

            await eventually(stops, 20.0)
            assert [record.key for record in found] == ["Zürich"] * 3
            assert [record.value and record.value["number"] for record in found] == [7, 7, None]
            assert found[1].headers == tuple(headers)
            await consumer.seek(bench.partition(0), 0)
            found = await table(consumer, 3, schema=OLD)
            assert [row["note"] for row in found] == ["x", "x", None]

    run(scenario)


DESERIALIZERS = ("key_deserializer", "value_deserializer")


class Counted:
    """A registry, and how often it was asked."""

    def __init__(self, registry: SchemaRegistry) -> None:
        self.registry = registry
        self.asked: list[object] = []

    def resolved(self, id: int | UUID, *, subject: str | None = None) -> str:
        self.asked.append(id)
        return self.registry.resolved(id, subject=subject)


@pytest.mark.parametrize("columns", [True, False], ids=["columns", "records"])
def test_a_batch_costs_one_look_up_for_each_schema_and_none_if_it_is_known(
    bench: Bench, registry: SchemaRegistry, columns: bool
) -> None:
    schemas = Counted(registry)
    serializer = AvroSerializer[Any](registry, OLD)
    values = [
        serializer.serialize(bench.topic, {"number": number, "note": ""}) for number in range(300)
    ]
    values[100:200] = [b"\0\0\0\xff\xff" + value[5:] for value in values[100:200]]
    for _ in range(2):
        bench.producer.send_batch(bench.topic, values, partition=0).result(20.0)
    options: dict[str, Any] = {"on_decode_error": "skip"}
    reader: Any = bench.reader(value_deserializer=AvroDeserializer(schemas), **options)
    with reader as consumer:
        found: list[int] = []
        known, unknown = registry.version(f"{bench.topic}-value", 1).id, 0xFFFF
        for batches in (1, 2):
            while len(found) < 200 * batches:
                if columns:
                    some = consumer.poll_arrow(20.0, 300, schema=OLD)
                    found += some.column("number").to_pylist()
                else:
                    found += [record.value["number"] for record in consumer.poll(20.0)]
            assert schemas.asked[:2] == [known, unknown]
            assert schemas.asked[2:] in ([], [unknown])  # it might be known by the second batch
        assert found == [*range(100), *range(200, 300)] * 2


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


@each
def test_bad_values_are_skipped_where_the_option_says_so(
    clients: Any, bench: Bench, registry: SchemaRegistry
) -> None:
    bad_in_the_middle(bench, registry)
    asked: list[tuple[str, int, int, int | None]] = []

    def skip(_: Any, error: DeserializationError) -> str:
        record = error.record
        asked.append((record.topic, record.partition, record.offset, error.schema_id))
        return "skip"

    async def later(consumer: Any, error: DeserializationError) -> str:
        return skip(consumer, error)

    async def scenario() -> None:
        is_async = clients[1] is AsyncConsumer
        for option in ("skip", later if is_async else skip):
            options = {"zookeeper": bench.zookeeper, "on_decode_error": option}
            async with clients[1](**options) as consumer:
                await consumer.assign([bench.partition(0)])
                found = await table(consumer, 4, schema=ColumnDeserializer(registry, OLD))
                assert [row["number"] for row in found] == [0, 1, 3, 5]
                assert await consumer.position(bench.partition(0)) == 6
                assert consumer.metrics()["records_skipped"] == 2

    run(scenario)
    number = registry.version("orders", "latest").id
    assert asked == [(bench.topic, 0, 2, number), (bench.topic, 0, 4, 0xFFFF)]


def test_a_table_with_a_schema_has_no_place_for_bytes_or_for_two_columns_of_a_name(
    bench: Bench, registry: SchemaRegistry
) -> None:
    bad_in_the_middle(bench, registry)
    schema = ColumnDeserializer(registry, OLD)
    words = pytest.raises(ConfigError, match="give ColumnDeserializer")
    with bench.reader() as consumer, words:
        consumer.poll_arrow(0.0, schema=OLD)
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
