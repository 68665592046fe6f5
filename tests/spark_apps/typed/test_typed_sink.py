"""Columns of Spark as Avro values, without a Spark."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from folkmoot.protocol.errors import (
    ConfigError,
    RegistryError,
    SerializationError,
)
from folkmoot.schemas.avro.identity import canonical
from folkmoot.schemas.columns.deserializer import ColumnDeserializer
from folkmoot.schemas.columns.extra import pa
from folkmoot.schemas.registry.schema_registry import SchemaRegistry
from folkmoot.spark_apps.options.config import BatchConfig, SinkConfig
from folkmoot.spark_apps.sink import writer
from folkmoot.spark_apps.sink.writer import FolkmootStreamWriter, FolkmootWriter
from folkmoot.spark_apps.typed import writer_schema
from folkmoot.spark_apps.typed.decoding import ResolvedSchema, arrow_fields
from folkmoot.spark_apps.typed.encoding import encode_columns
from folkmoot.spark_apps.typed.writer_schema import schema_for, schema_from_columns
from tests.schemas.sessions import memory_session

OPTIONS = {"zookeeper": "localhost:2181", "topic": "flights", "valueFormat": "avro"}
INT, TEXT, BYTES, MONEY = IntegerType(), StringType(), BinaryType(), DecimalType(9, 2)


def fields(nullable: bool = True, /, **kinds: DataType) -> StructType:
    return StructType([StructField(name, kind, nullable) for name, kind in kinds.items()])


class Schemas:
    def __init__(self, text: str) -> None:
        self.text = text

    def resolved(self, id: int | UUID, *, subject: str | None = None) -> str:
        return self.text


def read_back(schema: ResolvedSchema, values: pa.Array) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = ColumnDeserializer(Schemas(schema.text), schema.text)(
        values
    ).to_pylist()
    return rows


def test_the_schema_of_columns_has_the_types_that_reading_it_makes_of_them() -> None:
    given = fields(
        late=BooleanType(),
        legs=ArrayType(fields(to=TEXT)),
        fare=MONEY,
        at=TimestampType(),
        local=TimestampNTZType(),
        day=DateType(),
        more=MapType(TEXT, DoubleType()),
        raw=BYTES,
        big=LongType(),
        ratio=FloatType(),
    ).add("tail", TEXT, nullable=False)
    text = canonical(schema_from_columns(given, "air.Flight"))
    made = from_arrow_schema(arrow_fields(text), prefer_timestamp_ntz=True)
    assert made.simpleString() == given.simpleString()
    schema = json.loads(text)
    assert schema["name"] == "air.Flight"
    late, legs = schema["fields"][:2]
    assert late == {"name": "late", "type": ["null", "boolean"], "default": None}
    assert legs["type"][1]["items"][1]["name"] == "air.Flight.legs"
    assert schema["fields"][-1] == {"name": "tail", "type": "string"}


def test_a_type_that_avro_does_not_have_is_named_with_its_column() -> None:
    for kind, said in (
        (fields(b=DayTimeIntervalType()), r"column 'a.b' is interval day to second, which"),
        (MapType(INT, INT), "column 'a' is map<int,int>, which Avro does not have"),
    ):
        with pytest.raises(ConfigError, match=said):
            schema_from_columns(fields(a=kind))


def test_values_are_made_of_the_columns_that_say_nothing_about_the_record() -> None:
    schema = ResolvedSchema(canonical(schema_from_columns(fields(tail=TEXT, fare=MONEY))), 7)
    row = {"tail": "a", "fare": Decimal("1.50")}
    batch = pa.RecordBatch.from_pylist(
        [
            {"_key": b"k", **row, "_timestamp": datetime(2025, 1, 1, tzinfo=UTC)},
            {"_key": b"k", "tail": None, "fare": Decimal("2.50"), "_timestamp": None},
        ]
    )
    found = encode_columns(batch, schema)
    assert list(found) == ["key", "timestamp", "value"]
    assert found["value"].to_pylist()[0][:5] == b"\0\0\0\0\x07"
    assert read_back(schema, found["value"]) == [row, {"tail": None, "fare": Decimal("2.50")}]


def test_a_row_of_nulls_is_a_tombstone_as_it_is_read() -> None:
    schema = ResolvedSchema(canonical(schema_from_columns(fields(False, a=TEXT, b=INT))), 7)
    kinds = pa.schema([("a", pa.string()), ("b", pa.int32()), ("_key", pa.binary())])
    rows: list[dict[str, Any]] = [{"a": "x", "b": 1}, {"_key": b"k"}, {"a": "y", "b": 2}, {}]
    values = encode_columns(pa.RecordBatch.from_pylist(rows, kinds), schema)["value"]
    assert values.is_null().to_pylist() == [False, True, False, True]
    assert [row["a"] for row in read_back(schema, values)] == ["x", None, "y", None]
    with pytest.raises(SerializationError, match="row 1: b"):
        encode_columns(pa.RecordBatch.from_pylist([{"a": "x", "b": 1}, {"a": "y"}], kinds), schema)


def test_what_was_read_as_bytes_fits_a_type_of_fixed_size() -> None:
    fixed = {"type": "fixed", "name": "Tail", "size": 2}
    record = {"type": "record", "name": "R", "fields": [{"name": "tail", "type": fixed}]}
    schema = ResolvedSchema(json.dumps(record), 7)
    values = encode_columns(pa.record_batch({"tail": pa.array([b"ab"])}), schema)["value"]
    assert read_back(schema, values) == [{"tail": b"ab"}]
    with pytest.raises(SerializationError, match="tail: binary is not all fixed_size_binary"):
        encode_columns(pa.record_batch({"tail": pa.array([b"abc"])}), schema)


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        (fields(a=INT, _error=TEXT), {}, "'_error' marks values that could not be read"),
        (fields(a=INT, _raw=BYTES), {}, "'_raw' marks values that could not be read"),
        (fields(_key=BYTES), {}, "values have no field: there is no column beside _key"),
        (fields(a=INT), {"topic": "", "subject": "s"}, "give option 'topic', or a column '_topic'"),
        (fields(a=INT, _key=INT), {}, "column '_key' is int, not binary or string: cast it"),
        (fields(a=INT, _headers=TEXT), {}, "column '_headers' is string: cast it to"),
        (fields(a=INT, _partition=LongType()), {}, "column '_partition' is bigint, not int"),
    ],
)
def test_columns_that_cannot_be_written_are_named(
    columns: StructType, options: dict[str, str], said: str
) -> None:
    with pytest.raises(ConfigError) as refusal:
        FolkmootWriter(SinkConfig.of(OPTIONS | options), columns, overwrite=False)
    assert said in str(refusal.value)
    assert "\n" not in str(refusal.value)


FLIGHT = json.dumps(
    {"type": "record", "name": "air.Flight", "fields": [{"name": "id", "type": "long"}]}
)
ID = fields(False, id=LongType())


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry(memory_session()) as made:
        made.register("flights-value", FLIGHT)
        yield made


def test_a_schema_is_registered_or_named(registry: SchemaRegistry) -> None:
    first = registry.version("flights-value", 1).id
    for said in ("latest", str(first), "flights-value:1", FLIGHT):
        config = SinkConfig.of(OPTIONS | {"writerSchema": said})
        assert schema_for(ID, config, registry) == (canonical(FLIGHT), first)
    # What is made of columns is called like the one before, so that it may follow.
    more = StructType([*ID.fields]).add("tail", TEXT)
    found = schema_for(more, SinkConfig.of(OPTIONS), registry)
    assert json.loads(found.text)["name"] == "air.Flight"
    assert registry.version("flights-value", "latest").id == found.id
    anew = schema_for(ID, SinkConfig.of(OPTIONS | {"subject": "new"}), registry)
    assert json.loads(anew.text)["name"] == "Row"


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        (fields(id=TEXT), {}, "option 'writerSchema' is 'columns': "),
        (
            fields(id=LongType(), more=INT),
            {"writerSchema": "latest"},
            "columns do not fit schema 1: the table has more: air.Flight has not",
        ),
        (fields(id=TEXT), {"writerSchema": "latest"}, "do not fit schema 1: id: int64 is wanted"),
        (fields(more=INT), {"writerSchema": "1"}, "the table has more: air.Flight has not"),
        (ID, {"writerSchema": "987654"}, "option 'writerSchema' is '987654': "),
        (ID, {"writerSchema": '{"type": "rekord"}'}, "rekord"),
        (fields(id=LongType(), **{"a b": INT}), {}, "a b"),
        (ID, {"subject": "none", "writerSchema": "latest"}, "subject none has no schema"),
        (ID, {"writerSchema": "flights-value:7"}, "option 'writerSchema' is 'flights-value:7': "),
    ],
)
def test_a_schema_that_rows_cannot_be_written_by_is_told_in_one_line(
    registry: SchemaRegistry, columns: StructType, options: dict[str, str], said: str
) -> None:
    with pytest.raises((ConfigError, RegistryError)) as refusal:
        schema_for(columns, SinkConfig.of(OPTIONS | options), registry)
    assert said in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert registry.versions("flights-value") == [1]


def test_a_stream_asks_once_for_a_schema_that_stays_and_each_time_for_the_latest(
    registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def connected(zookeeper: str, timeout: float) -> SchemaRegistry:
        opened.append(zookeeper)
        return registry

    monkeypatch.setattr(writer_schema, "SchemaRegistry", connected)
    monkeypatch.setattr(SchemaRegistry, "close", lambda _: None)
    for said, asked in (("columns", 1), (FLIGHT, 1), ("1", 1), ("flights-value:1", 1)):
        options = OPTIONS | {"writerSchema": said, "zookeeper": f"that of {said}"}
        for _ in range(3):  # as Spark does it for each batch
            FolkmootStreamWriter(SinkConfig.of(options), ID, overwrite=False)
        assert opened == [options["zookeeper"]] * asked
        FolkmootStreamWriter(SinkConfig.of(options), fields(id=LongType()), overwrite=False)
        FolkmootWriter(SinkConfig.of(options), ID, overwrite=False)
        assert len(opened) == asked + 2
        opened.clear()
    for said in ("latest", "flights-value:latest"):
        for _ in range(3):
            options = OPTIONS | {"writerSchema": said}
            FolkmootStreamWriter(SinkConfig.of(options), ID, overwrite=False)
    assert len(opened) == 6


def test_ids_are_those_of_the_subjects_context(registry: SchemaRegistry) -> None:
    subject = ":.staging:flights"
    for other in ("other", ":.staging:other"):
        registry.register(other, '"string"')
    number = registry.register(subject, FLIGHT).id
    assert registry.resolved(number) != registry.resolved(number, subject=subject)
    for options in ({"writerSchema": str(number)}, {"writerSchema": "latest"}):
        config = SinkConfig.of(OPTIONS | {"subject": subject} | options)
        assert schema_for(ID, config, registry) == (canonical(FLIGHT), number)
    for given, context in (
        ({"subject": subject}, subject),
        ({"readerSchema": f"{subject}:1"}, subject),
        ({"readerSchema": "7", "subject": subject}, subject),
        ({"readerSchema": FLIGHT, "subject": subject}, subject),
        ({"readerSchema": "7"}, None),
        ({"readerSchema": FLIGHT}, None),
    ):
        read = {"zookeeper": "z", "subscribe": "flights", "valueFormat": "avro"}
        assert BatchConfig.of(read | given).subject_of_ids == context


def test_a_typed_row_without_a_topic_is_named() -> None:
    schema = ResolvedSchema(canonical(schema_from_columns(fields(a=INT))), 7)
    config = SinkConfig.of(OPTIONS | {"topic": "", "subject": "s"})
    kinds = pa.schema([("a", pa.int32()), ("_topic", pa.string())])
    rows = pa.RecordBatch.from_pylist([{"a": 1, "_topic": "t"}, {"a": 2}], kinds)
    with pytest.raises(SerializationError, match="row 1 of a RecordBatch has no topic: give one"):
        list(writer._rows(config, schema, rows))
