"""A value that cannot be read is named by its row, says why, and costs only itself."""

import json
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from folkmoot.protocol.errors import (
    InvalidSchema,
    SchemaNotFound,
    SerializationError,
    ZooKeeperUnreachable,
)
from folkmoot.schemas.columns import deserializer
from folkmoot.schemas.columns.deserializer import ColumnDeserializer
from tests.schemas.columns.generated import framed
from tests.schemas.columns.lookup import Known


def record(*fields: Any) -> str:
    described = [{"name": f"f{place}", "type": kind} for place, kind in enumerate(fields)]
    return json.dumps({"type": "record", "name": "R", "fields": described})


def columns(*texts: str, reader: str | None = None) -> ColumnDeserializer:
    return ColumnDeserializer(Known(texts), reader or texts[0])


BAD: list[tuple[Any, bytes, str]] = [
    ("int", b"", "f0: the bytes end within it"),
    ("int", b"\x80", "f0: the bytes end within it"),
    ("int", b"\x02\x00", "bytes are left over behind the value"),
    ("int", b"\x80\x80\x80\x80\x20", "f0: a number is out of range"),
    ("long", b"\xff" * 9 + b"\x02", "f0: a number has more than 64 bits"),
    ("long", b"\xff" * 11, "f0: a number has more than 64 bits"),
    ("boolean", b"\x02", "f0: a boolean is neither 0 nor 1"),
    ("float", b"abc", "f0: the bytes end within it"),
    ("double", b"abcdefg", "f0: the bytes end within it"),
    ("string", b"\x03", "f0: a length is negative"),
    ("string", b"\x06ab", "f0: the bytes end within it"),
    ("bytes", b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", "f0: the bytes end within it"),
    ("string", b"\x02\xff", "f0: a string is not UTF-8"),
    ("string", b"\x12abcdefgh\xc3", "f0: a string is not UTF-8"),
    (["null", "int"], b"\x04", "f0: the union has no such branch"),
    (["null", "int"], b"\x01", "f0: the union has no such branch"),
    ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x02", "f0: the enum has no such symbol"),
    ({"type": "fixed", "name": "F", "size": 4}, b"abc", "f0: the bytes end within it"),
    ({"type": "array", "items": "int"}, b"\xfe\xff\xff\xff\x0f", "f0: the bytes end within it"),
    ({"type": "array", "items": "int"}, b"\x04\x02", "f0: the bytes end within it"),
    ({"type": "array", "items": "int"}, b"\x02\x80", "f0[]: the bytes end within it"),
    ({"type": "array", "items": "null"}, b"\xfe\xff\xff\xff\x0f\x00", "many items that take no"),
    ({"type": "array", "items": "int"}, b"\xff" * 9 + b"\x01", "f0: a length is negative"),
    ({"type": "map", "values": "int"}, b"\x02\x02\xff\x00\x00", "f0[]: a string is not UTF-8"),
    ({"type": "string", "logicalType": "uuid"}, b"\x02a", "f0: a string is no UUID"),
    ({"type": "int", "logicalType": "time-millis"}, b"\x01", "f0: a number is out of range"),
    (
        {"type": "bytes", "logicalType": "decimal", "precision": 2},
        b"\x02\x64",
        "f0: a decimal has too many digits",
    ),
]


@pytest.mark.parametrize(("kind", "body", "said"), BAD)
def test_a_bad_row_is_named_and_the_others_are_read(kind: Any, body: bytes, said: str) -> None:
    text = record(kind)
    good = sample(kind)
    values = [good, framed(1, body), good]
    batch, bad = columns(text).decode(values)
    batch.validate(full=True)
    alone = columns(text)([good]).to_pylist()
    assert batch.to_pylist() == [*alone, {"f0": None}, *alone]
    ((row, number, error),) = bad
    assert (row, number) == (1, 1)
    assert error.startswith("schema 1: ")
    assert said in error
    with pytest.raises(SerializationError, match=r"^row 1: schema 1: "):
        columns(text)(values)


def sample(kind: Any) -> bytes:
    """A good value."""
    bodies = {
        "int": b"\x02",
        "long": b"\x02",
        "boolean": b"\x01",
        "float": b"abcd",
        "double": b"abcdefgh",
        "string": b"\x02a",
        "bytes": b"\x02a",
    }
    if isinstance(kind, list):
        return framed(1, b"\x02\x04")
    if isinstance(kind, str):
        return framed(1, bodies[kind])
    if kind.get("logicalType") == "uuid":
        return framed(1, b"\x48" + b"12345678-1234-5678-1234-56781234ABCD")
    by_type = {"enum": b"\x00", "fixed": b"abcd", "array": b"\x00", "map": b"\x00"}
    return framed(1, by_type.get(kind["type"]) or bodies[kind["type"]])


@pytest.mark.parametrize(
    ("value", "number", "said"),
    [
        (b"", None, "0 bytes are too few"),
        (b"\x00\x00\x00\x00", None, "4 bytes are too few"),
        (b"\x01\x00\x00\x00\x01\x02", None, "6 bytes are too few"),
        (b"\x02\x00\x00\x00\x01\x02", None, "begins with byte 0 or 1, not 2"),
        (b"\x01" + bytes(15), None, "16 bytes are too few"),
        (b"\x01" + UUID(int=9).bytes + b"\x02", None, f"there is no schema {UUID(int=9)}"),
        (b"\x01" + UUID(int=1).bytes, None, f"schema {UUID(int=1)}: f0: the bytes end within it"),
        (framed(9, b"\x02"), 9, "there is no schema 9"),
        (framed(2**32 - 1, b"\x02"), 2**32 - 1, "there is no schema 4294967295"),
    ],
)
def test_a_wrong_frame_or_id_is_a_bad_row(value: bytes, number: int | None, said: str) -> None:
    good = framed(1, b"\x02")
    batch, ((row, found, error),) = columns(record("int")).decode([good, value, None, good])
    assert (row, found) == (1, number)
    assert said in error
    assert batch.to_pylist() == [{"f0": 1}, {"f0": None}, {"f0": None}, {"f0": 1}]


def test_rows_may_say_their_schemas_guid() -> None:
    texts = [record("int"), record("long")]
    reading = columns(*texts, reader=texts[1])
    guids = [b"\x01" + UUID(int=number).bytes for number in (1, 2)]
    values = [framed(1, b"\x02"), guids[0] + b"\x04", guids[0] + b"\x06", guids[1] + b"\x08"]
    values += [framed(2, b"\x0a"), guids[1] + b"\x0c"]
    assert [row["f0"] for row in reading(values).to_pylist()] == [1, 2, 3, 4, 5, 6]


def test_an_unknown_schema_is_asked_for_once_a_column_and_again_with_the_next() -> None:
    known = Known([record("int")])
    reading = ColumnDeserializer(known, known.texts[0])
    values = [framed(2, b"\x02"), framed(1, b"\x02"), framed(2, b"\x04")]
    assert [each.row for each in reading.decode(values)[1]] == [0, 2]
    assert known.asked == [2, 1]
    known.texts.append(known.texts[0])
    assert reading(values).to_pylist() == [{"f0": 1}, {"f0": 1}, {"f0": 2}]


def test_a_registry_that_cannot_be_reached_is_no_fault_of_a_row() -> None:
    class Away:
        def resolved(self, id: int | UUID, *, subject: str | None = None) -> str:
            raise ZooKeeperUnreachable("nobody is there")

    with pytest.raises(ZooKeeperUnreachable):
        ColumnDeserializer(Away(), record("int")).decode([framed(1, b"\x02")])
    with pytest.raises(SchemaNotFound):
        ColumnDeserializer(Known([]), 7)


def test_what_was_read_of_a_bad_row_within_arrays_is_forgotten() -> None:
    text = record({"type": "array", "items": {"type": "map", "values": "string"}}, "int")
    good = b"\x02\x02\x02k\x02v\x00\x00\x08"
    values = [framed(1, good), framed(1, good[:-1] + b"\xff"), framed(1, good)]
    batch, bad = columns(text).decode(values)
    batch.validate(full=True)
    assert [each.row for each in bad] == [1]
    assert batch.column("f0").to_pylist() == [[[("k", "v")]], None, [[("k", "v")]]]


def test_a_pair_that_does_not_fit_says_so_where_a_value_needs_it() -> None:
    writer, reader = record(["null", "string"], "int"), record(["null", "long"], "int")
    values = [framed(1, b"\x00\x02"), framed(1, b"\x02\x02a\x02")]
    batch, ((row, _, error),) = columns(writer, reader=reader).decode(values)
    assert row == 1
    assert "f0: the reader's union has no branch for a string" in error
    assert batch.to_pylist() == [{"f0": None, "f1": 1}, {"f0": None, "f1": None}]


@pytest.mark.parametrize(
    ("writer", "reader", "said"),
    [
        (record("string"), record("int"), "a string cannot be read as an int"),
        (
            record({"type": "array", "items": "int"}),
            record("long"),
            "an array cannot be read as a long",
        ),
        (record("int"), record("int", "int"), "f1: the writer has no such field"),
        (
            record({"type": "long", "logicalType": "timestamp-micros"}),
            record({"type": "long", "logicalType": "timestamp-millis"}),
            "timestamp-micros cannot be read as timestamp-millis, which is coarser",
        ),
        (
            record({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 1}),
            record({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}),
            "a decimal of scale 1 cannot be read as one of 2",
        ),
    ],
)
def test_what_no_value_survives_is_told_by_each_row(writer: str, reader: str, said: str) -> None:
    ((_, _, error),) = columns(writer, reader=reader).decode([framed(1, b"\x02\x01")])[1]
    assert said in error


def test_milliseconds_become_the_same_point_in_time_in_finer_units() -> None:
    writer = record({"type": "long", "logicalType": "timestamp-millis"})
    reader = record({"type": "long", "logicalType": "timestamp-micros"})
    values = [framed(1, b"\x02"), framed(1, b"\xfe" + b"\xff" * 8 + b"\x01")]
    batch, bad = columns(writer, reader=reader).decode(values)
    assert batch.column("f0").cast(pa.int64()).to_pylist() == [1000, None]
    assert "f0: a number is out of range" in bad[0].error


def test_a_reader_that_contains_itself_is_refused_and_a_writer_may() -> None:
    branches = ["null", "R"]
    writer = (
        '{"type":"record","name":"R","fields":[{"name":"f0","type":"int"},'
        f'{{"name":"next","type":{json.dumps(branches)}}}]}}'
    )
    with pytest.raises(InvalidSchema, match="record R contains itself"):
        ColumnDeserializer(Known([]), writer)
    reading = columns(writer, reader=record("int"))
    nested = b"\x02" + b"\x02\x04" * 100 + b"\x00"
    deep = b"\x02" + b"\x02\x04" * 100_000 + b"\x00"
    batch, bad = reading.decode([framed(1, nested), framed(1, deep)])
    assert batch.to_pylist() == [{"f0": 1}, {"f0": None}]
    assert "nested too deeply" in bad[0].error


def test_columns_may_be_slices_chunks_and_large_and_have_no_rows() -> None:
    reading = columns(record("int"))
    values = [None, framed(1, b"\x02"), framed(1, b"\x04"), None, framed(1, b"\x06")]
    array = pa.array(values, pa.binary())
    rows = [{"f0": 1}, {"f0": 2}, {"f0": None}, {"f0": 3}]
    assert reading(array.slice(1)).to_pylist() == rows
    assert reading(array.slice(1).cast(pa.large_binary())).to_pylist() == rows
    assert reading(pa.chunked_array([array.slice(1, 2), array.slice(3)])).to_pylist() == rows
    nothing: Any
    for nothing in ([], array.slice(0, 0), pa.array([], pa.binary())):
        assert reading(nothing).num_rows == 0
        assert reading(nothing).schema.equals(reading.arrow_schema)


def test_a_schema_that_is_no_record_has_one_column() -> None:
    batch = columns('"string"')([framed(1, b"\x02a"), None])
    assert batch.to_pylist() == [{"value": "a"}, {"value": None}]


def test_a_record_without_fields_has_rows_all_the_same() -> None:
    batch = columns(record())([framed(1, b""), None, framed(1, b"")])
    assert (batch.num_rows, batch.num_columns) == (3, 0)
    assert batch.schema.equals(columns(record()).arrow_schema)


def test_programs_that_are_too_many_to_keep_are_made_once_a_column(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(deserializer, "MAX_PROGRAMS", 1)
    known = Known([record("int")] * 3)
    reading = ColumnDeserializer(known, known.texts[0])
    values = [framed(number, b"\x02") for number in (1, 2, 3)] * 10
    assert reading(values).num_rows == 30
    assert known.asked == [1, 2, 3]


def test_a_schema_that_cannot_be_used_leaves_nothing_behind() -> None:
    known = Known([record("int"), record("int", "Missing")])
    reading = ColumnDeserializer(known, known.texts[0])
    for _ in range(3):
        (bad,) = reading.decode([framed(2, b"\x02"), framed(1, b"\x02")])[1]
        assert "schema 2 cannot be used" in bad.error
        assert len(reading._nodes) == 2
