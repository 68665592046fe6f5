"""Tables that fit a schema become its values; what would lose something is refused, with row or column."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from folkmoot.protocol.errors import InvalidSchema, SerializationError
from folkmoot.schemas.columns import serializer
from folkmoot.schemas.columns.deserializer import ColumnDeserializer
from folkmoot.schemas.columns.serializer import ColumnEncoder, ColumnSerializer
from folkmoot.schemas.registry.schema_registry import SchemaRegistry
from tests.schemas.columns.lookup import Known
from tests.schemas.columns.test_bad_rows import record
from tests.schemas.sessions import memory_session

ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
UUID = {"type": "string", "logicalType": "uuid"}
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
LOCAL = {"type": "long", "logicalType": "local-timestamp-millis"}
MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}
SMALL = {"type": "fixed", "name": "D", "size": 1, "logicalType": "decimal", "precision": 2}


def back(kind: Any, array: pa.Array) -> list[Any]:
    """What is read of the values that a column was written as."""
    text = record(kind)
    written = ColumnEncoder(text, 1)(pa.table({"f0": array}))
    return [row["f0"] for row in ColumnDeserializer(Known([text]), text)(written).to_pylist()]


def test_a_column_is_written_by_the_schema_of_its_context() -> None:
    registry = SchemaRegistry(memory_session())
    registry.register("other", '"string"')  # has the same id in the default context
    serializer = ColumnSerializer(registry, record("int"), subject=":.staging:")
    rows = pa.table({"f0": [1, 2]})
    values = serializer.serialize("t", rows)
    assert registry.subjects(":.staging:") == [":.staging:t-value"]
    text = record("int")
    reading = ColumnDeserializer(registry, text, subject=":.staging:")
    assert reading(values).to_pylist() == rows.to_pylist()
    by_id = ColumnDeserializer(registry, 1, subject=":.staging:")
    assert by_id(values).to_pylist() == rows.to_pylist()


def test_encoders_of_few_topics_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serializer, "MAX_PREPARED", 2)
    writing = ColumnSerializer(SchemaRegistry(memory_session()), record("int"), subject="s")
    for number in range(5):
        for topic in ("a", f"t{number}"):
            assert len(writing.serialize(topic, pa.table({"f0": [1]}))) == 1
            assert len(writing._encoders) <= 2


MOMENT = datetime(2020, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)


@pytest.mark.parametrize(
    ("kind", "given", "made"),
    [
        ("long", pa.array([1, None][:1], pa.int8()), [1]),
        ("int", pa.array([5], pa.uint64()), [5]),
        ("double", pa.array([7], pa.int32()), [7.0]),
        ("double", pa.array([0.5], pa.float32()), [0.5]),
        ("string", pa.array(["é"], pa.large_string()), ["é"]),
        ("string", pa.array(["a", "b", "a"]).dictionary_encode(), ["a", "b", "a"]),
        (["null", "int"], pa.nulls(2), [None, None]),
        (["int", "null"], pa.array([1, None]), [1, None]),
        (["null", ENUM], pa.array(["B", None, "A"]), ["B", None, "A"]),
        (MILLIS, pa.array([MOMENT], pa.timestamp("us", "Europe/Paris")), [MOMENT]),
        (MILLIS, pa.array([1_577_934_245_678]), [MOMENT]),
        (LOCAL, pa.array([MOMENT.replace(tzinfo=None)]), [MOMENT.replace(tzinfo=None)]),
        ({"type": "int", "logicalType": "date"}, pa.array([date(2020, 1, 2)]), [date(2020, 1, 2)]),
        (MONEY, pa.array([Decimal("-12.3")], pa.decimal128(3, 1)), [Decimal("-12.30")]),
        ({"type": "array", "items": "int"}, pa.array([[1], []], pa.large_list(pa.int64())), [[1], []]),
        (["null", "string", "int"], pa.array([{"member0": None, "member1": 4}, None],
          pa.struct([("member0", pa.string()), ("member1", pa.int32())])),
         [{"member0": None, "member1": 4}, None]),
    ],
)  # fmt: skip
def test_columns_are_cast_where_no_value_changes(kind: Any, given: Any, made: list[Any]) -> None:
    assert back(kind, given) == made


@pytest.mark.parametrize(
    ("kind", "given", "said"),
    [
        ("int", pa.array([1.0]), "f0: int32 is wanted, not double"),
        ("int", pa.array([True]), "f0: int32 is wanted, not bool"),
        ("int", pa.array([1, 2**40]), "f0: int64 is not all int32: .*1099511627776"),
        ("long", pa.array(["1"]), "f0: int64 is wanted, not string"),
        ("float", pa.array([0.1]), "f0: float is wanted, not double"),
        ("string", pa.array([b"a"]), "f0: string is wanted, not binary"),
        ("bytes", pa.array(["a"]), "f0: binary is wanted, not string"),
        ("int", pa.array([1, None]), "row 1: f0: there is no value, and the schema allows no null"),
        (ENUM, pa.array(["A", "B", "C"]), "row 2: f0: 'C' is no symbol of E"),
        (UUID, pa.array(["x"]), "row 0: f0: 'x' is no UUID"),
        (MILLIS, pa.array([MOMENT.replace(tzinfo=None)]), "wanted, not timestamp"),
        (MILLIS, pa.array([MOMENT.replace(microsecond=1)]), "is not all timestamp"),
        (MONEY, pa.array([Decimal("1.234")]), "is not all decimal"),
        (MONEY, pa.array([Decimal("12345.67")]), "is not all decimal"),
        (SMALL, pa.array([Decimal("99"), None]), "row 1: f0: there is no value"),
        ("null", pa.array([1]), "f0: the schema has no place for other than null"),
        ({"type": "array", "items": "int"}, pa.array([[1, None]]), r"row 0: f0\[\]: there is no"),
        ({"type": "array", "items": "int"}, pa.array([1]), "f0: a list is wanted, not int64"),
        ({"type": "map", "values": "int"}, pa.array([1]), "f0: a map is wanted, not int64"),
        (["string", "int"], pa.array(["a"]), "f0: struct<member0.* is wanted, not string"),
        ({"type": "int", "logicalType": "time-millis"}, pa.array([-1]), "row 0: f0: a number is out"),
    ],
)  # fmt: skip
def test_what_would_lose_something_is_refused(kind: Any, given: Any, said: str) -> None:
    with pytest.raises(SerializationError, match=said):
        back(kind, given)


def test_a_decimal_that_does_not_fit_into_its_fixed_is_named() -> None:
    kind = SMALL | {"precision": 4}
    with pytest.raises(SerializationError, match="row 1: f0: the number does not fit"):
        back(kind, pa.array([Decimal(-128), Decimal(128)]))
    assert back(kind, pa.array([Decimal(-128), Decimal(127)])) == [-128, 127]


def test_columns_have_to_be_those_of_the_schema_but_for_defaults() -> None:
    text = json.dumps(
        {
            "type": "record",
            "name": "R",
            "fields": [
                {"name": "a", "type": "int"},
                {"name": "b", "type": ["string", "null"], "default": "none"},
            ],
        }
    )
    write = ColumnEncoder(text, 5)
    read = ColumnDeserializer(Known([text] * 5), text)
    assert read(write(pa.table({"b": ["x"], "a": [1]}))).to_pylist() == [{"a": 1, "b": "x"}]
    assert read(write(pa.table({"a": [1]}))).to_pylist() == [{"a": 1, "b": "none"}]
    with pytest.raises(SerializationError, match="a: there is no such column"):
        write(pa.table({"b": ["x"]}))
    with pytest.raises(SerializationError, match="the table has c: R has not"):
        write(pa.table({"a": [1], "c": [1]}))
    with pytest.raises(TypeError, match="rows must be an Arrow table, not list"):
        write([1])  # type: ignore[arg-type]


def test_rows_are_counted_over_the_chunks_of_a_table() -> None:
    table = pa.table({"f0": pa.chunked_array([[1, 2], [3, None]])})
    with pytest.raises(SerializationError, match="row 3: f0: "):
        ColumnEncoder(record("int"), 1)(table)
    with pytest.raises(SerializationError, match="row 3: f0: "):
        ColumnEncoder(record(ENUM), 1)(pa.table({"f0": pa.chunked_array([["A", "B"], ["A", "X"]])}))


def test_a_schema_that_contains_itself_is_refused() -> None:
    with pytest.raises(InvalidSchema, match="record R contains itself"):
        ColumnEncoder('{"type":"record","name":"R","fields":[{"name":"r","type":["null","R"]}]}', 1)


def test_a_table_without_rows_is_compared_with_the_schema_and_makes_no_values() -> None:
    encode = ColumnEncoder(record("int"), 1)
    empty = pa.RecordBatch.from_pylist([], pa.schema([("f0", pa.int32())]))
    assert encode(empty) == pa.array([], pa.binary())
    with pytest.raises(SerializationError, match="f0: int32 is wanted, not string"):
        encode(pa.RecordBatch.from_pylist([], pa.schema([("f0", pa.string())])))
