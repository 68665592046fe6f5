"""Values with schemas as columns, without a Spark."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import LongType

from folkmoot.protocol.errors import ConfigError, InvalidSchema, SchemaNotFound, SerializationError
from folkmoot.schemas.columns.deserializer import ColumnDeserializer
from folkmoot.schemas.columns.extra import pa
from folkmoot.schemas.columns.serializer import ColumnEncoder
from folkmoot.spark_apps.options.config import BatchConfig
from folkmoot.spark_apps.source import FolkmootDataSource
from folkmoot.spark_apps.typed.decoding import arrow_fields, decode_values

OPTIONS = {"zookeeper": "localhost:2181", "subscribe": "flights", "valueFormat": "avro"}
FIELDS: list[dict[str, Any]] = [
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "tail", "type": {"type": "fixed", "name": "Tail", "size": 2}},
    {"name": "stops", "type": {"type": "array", "items": "int"}},
]
FLIGHT = json.dumps({"type": "record", "name": "Flight", "fields": FIELDS})
GUID = UUID(int=7)
MOMENT = datetime(2025, 1, 1, tzinfo=UTC)
NAMES = ["tail", "at", "stops", "_offset", "_error", "_raw"]


class Schemas:
    def resolved(self, id: int | UUID, *, subject: str | None = None) -> str:
        if id not in (7, GUID):
            raise SchemaNotFound(f"no schema has the id {id}")
        return FLIGHT


def values(*instants: int) -> list[bytes]:
    table = pa.table(
        {
            "at": pa.array(instants, pa.timestamp("ms", "UTC")),
            "tail": pa.array([b"ab"] * len(instants), pa.binary(2)),
            "stops": pa.array([[1, 2]] * len(instants), pa.list_(pa.int32())),
        }
    )
    return list(ColumnEncoder(FLIGHT, 7)(table).to_pylist())


def records(*cells: bytes | None, frames: Sequence[bytes | None] = ()) -> pa.RecordBatch:
    """With what their headers say of their schemas, where they say something."""
    count = len(cells)
    return pa.record_batch(
        {
            "value": pa.array(cells, pa.binary()),
            "frame": pa.array(frames or [None] * count, pa.binary()),
            "topic": pa.array(["flights"] * count),
            "partition": pa.array([3] * count, pa.int32()),
            "offset": pa.array(range(10, 10 + count), pa.int64()),
        }
    )


def decode(*cells: bytes | None, fails: bool = False) -> pa.RecordBatch:
    reader = ColumnDeserializer(Schemas(), FLIGHT)
    return decode_values(records(*cells), reader, NAMES, fails=fails)


def test_fields_become_columns_in_types_that_spark_has() -> None:
    kinds = from_arrow_schema(arrow_fields(FLIGHT), prefer_timestamp_ntz=True)
    assert kinds.simpleString() == "struct<at:timestamp,tail:binary,stops:array<int>>"
    found = decode(*values(int(MOMENT.timestamp() * 1000)), None, fails=True)
    assert found.schema.names == NAMES
    assert found.schema.field("at").type == pa.timestamp("us", "UTC")
    row = {"tail": b"ab", "at": MOMENT, "stops": [1, 2], "_offset": 10}
    nothing = dict.fromkeys(NAMES)
    assert found.to_pylist() == [nothing | row, nothing | {"_offset": 11}]


def test_a_value_that_cannot_be_read_is_told_with_its_place() -> None:
    unknown = bytes([0, 0, 0, 0, 9]) + values(0)[0][5:]
    with pytest.raises(SerializationError) as refusal:
        decode(*values(0), unknown, b"x", fails=True)
    said = str(refusal.value)
    assert said.startswith(
        "topic flights, partition 3, offset 11, schema id 9: no schema has the id 9"
    )
    assert "\n" not in said


def test_values_that_cannot_be_read_may_be_nulls_with_the_reason_and_the_bytes() -> None:
    far = values(2**62)[0]
    found = decode(b"x", far, *values(0)).to_pylist()
    assert [row["_raw"] for row in found] == [b"x", far, None]
    assert [row["tail"] for row in found] == [None, None, b"ab"]
    assert found[0]["_error"]
    assert "out of bounds" in found[1]["_error"]
    assert found[2]["_error"] is None


def test_a_header_says_the_schema_of_a_value_that_has_none_in_front() -> None:
    """As Confluent's clients write it: the GUID in a header, the body alone as the value."""
    reader, mark = ColumnDeserializer(Schemas(), FLIGHT), b"\1" + GUID.bytes
    plain, far = values(0)[0], values(2**62)[0][5:]
    given = records(plain, plain[5:], None, far, b"x", frames=[b"", mark, mark, mark, None])
    found = decode_values(given, reader, NAMES, fails=False).to_pylist()
    assert [row["tail"] for row in found] == [b"ab", b"ab", None, None, None]
    assert [row["_raw"] for row in found] == [None, None, None, far, b"x"]
    assert "out of bounds" in found[3]["_error"]
    with pytest.raises(SerializationError, match=f"offset 11, schema id none: schema {GUID}: "):
        decode_values(records(plain, far[:-1], frames=[b"", mark]), reader, NAMES, fails=True)


def test_columns_beside_the_fields_are_offered_and_others_refused() -> None:
    source = FolkmootDataSource(OPTIONS | {"readerSchema": FLIGHT, "onDecodeError": "null"})
    beside = ["_key", "_topic", "_partition", "_offset", "_timestamp", "_error", "_raw"]
    assert source.schema().names == ["at", "tail", "stops", *beside]
    with pytest.raises(ConfigError, match="there is no column 'value': choose from at, tail"):
        source.reader(type(source.schema())().add("value", LongType()))


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (
            {"type": "record", "name": "R", "fields": [{"name": "_Topic", "type": "int"}]},
            "field '_Topic' of the schema is called like a column of format folkmoot",
        ),
        ({"type": "rekord"}, "option 'readerSchema': "),
    ],
)
def test_a_schema_that_makes_no_columns_is_refused(schema: dict[str, Any], said: str) -> None:
    with pytest.raises((ConfigError, InvalidSchema)) as refusal:
        FolkmootDataSource(OPTIONS | {"readerSchema": json.dumps(schema)}).schema()
    assert str(refusal.value).startswith(said)
    assert "\n" not in str(refusal.value)


def test_a_subject_and_a_version_are_named_with_a_colon() -> None:
    for text, found in (
        ("latest", ("flights-value", "latest")),
        (":.cargo:orders:3", (":.cargo:orders", "3")),
    ):
        assert BatchConfig.of(OPTIONS | {"readerSchema": text}).schema_version() == found


def test_fields_that_nobody_asks_for_are_not_decoded() -> None:
    node = {
        "type": "record",
        "name": "Node",
        "fields": [{"name": "next", "type": ["null", "Node"]}],
    }
    fields = [*FIELDS, {"name": "chain", "type": node}, {"name": "same", "type": "Tail"}]
    schema = json.dumps({"type": "record", "name": "Flight", "fields": fields})
    reader = ColumnDeserializer(Schemas(), schema, fields=("same", "tail"))
    assert reader.arrow_schema.names == ["tail", "same"]
    reader = ColumnDeserializer(Schemas(), FLIGHT, fields=("stops",))
    found = decode_values(records(*values(2**62), b"x"), reader, ["stops", "_offset"], fails=False)
    assert found.to_pylist() == [{"stops": [1, 2], "_offset": 10}, {"stops": None, "_offset": 11}]
