"""What one schema wrote, read as another one says, where fastavro alone does it wrong."""

import datetime
import json
from decimal import Decimal
from io import BytesIO
from typing import Any

import fastavro
import pytest

from folkmoot.protocol.errors import IncompatibleSchema, InvalidSchema
from folkmoot.schemas.avro.identity import parse
from folkmoot.schemas.avro.reading import Reading, reading
from folkmoot.schemas.avro.references import resolve
from tests.schemas.avro.samples import zigzag


def record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def how(writer: Any, reader: Any) -> Reading:
    return reading(resolve(json.dumps(writer)), resolve(json.dumps(reader)))


def read(way: Reading, body: bytes) -> Any:
    stream = BytesIO(body)
    value = fastavro.schemaless_reader(stream, way.writer, way.reader)
    assert stream.read() == b""
    return value if way.finish is None else way.finish(value)


def by_fastavro(writer: Any, reader: Any, body: bytes) -> Any:
    parsed = (parse(resolve(json.dumps(each))) for each in (writer, reader))
    return fastavro.schemaless_reader(BytesIO(body), *parsed)


def same(one: Any, other: Any) -> bool:
    return repr(one) == repr(other)


NODE = record(field("v", "int"), field("next", ["null", "R"]))
E = {"type": "enum", "name": "x.E", "symbols": ["A", "B"]}
F = {"type": "fixed", "name": "x.F", "size": 1}


# Writer, reader, bytes, the value: each is something that fastavro 1.13 alone reads otherwise.
@pytest.mark.parametrize(
    ("writer", "reader", "body", "value"),
    [
        ("bytes", ["string", "bytes"], b"\x02\xff", b"\xff"),
        ("long", ["double", "long"], b"\x06", 3),
        (["string", "bytes"], ["bytes", "string"], b"\x00\x02a", "a"),
        (["int", "long"], ["double", "long"], b"\x02\x06", 3),
        (["int", "string"], ["string", "float", "double"], b"\x00" + zigzag(16777217), 16777216.0),
        ("long", "float", zigzag(2**24 + 1), 16777216.0),
        (
            [record(name="x.R"), record(field("q", "int"), name="y.R")],
            [record(field("q", "int"), name="y.R"), record(name="x.R")],
            b"\x00",
            {},
        ),
        (
            record(field("a", "int"), field("b", "int")),
            record(field("a", "int", aliases=["b"]), field("c", "int", default=9)),
            b"\x02\x04",
            {"a": 1, "c": 9},
        ),
        (record(), record(field("a", "bytes", default="\x00\xff")), b"", {"a": b"\x00\xff"}),
        (record(), record(field("a", F, default="\xfe")), b"", {"a": b"\xfe"}),
        (record(), record(field("a", "double", default=1)), b"", {"a": 1.0}),
        (record(), record(field("a", ["null", "bytes"], default="\xff")), b"", {"a": b"\xff"}),
        (
            record(),
            record(
                field(
                    "a",
                    record(field("p", "int"), field("q", F, default="z"), name="I"),
                    default={"p": 1},
                )
            ),
            b"",
            {"a": {"p": 1, "q": b"z"}},
        ),
        (
            record(),
            record(field("a", {"type": "int", "logicalType": "date"}, default=1)),
            b"",
            {"a": datetime.date(1970, 1, 2)},
        ),
        (
            record(),
            record(
                field(
                    "a",
                    {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 1},
                    default="\x05",
                )
            ),
            b"",
            {"a": Decimal("0.5")},
        ),
    ],
)
def test_what_fastavro_reads_otherwise_is_read_as_avro_says(
    writer: Any, reader: Any, body: bytes, value: Any
) -> None:
    assert same(read(how(writer, reader), body), value)
    try:
        alone = by_fastavro(writer, reader, body)
    except Exception:
        return
    assert not same(alone, value), "fastavro is right by now: is the rewriting still needed?"


@pytest.mark.parametrize(
    ("writer", "reader", "body", "value"),
    [
        (record(field("a", "int")), record(field("b", "long", aliases=["a"])), b"\x02", {"b": 1}),
        (record(name="x.Old"), record(name="y.New", aliases=["x.Old"]), b"", {}),
        (
            record(field("a", E)),
            record(field("a", {**E, "symbols": ["B"], "default": "B"})),
            b"\x00",
            {"a": "B"},
        ),
        (
            {"type": "array", "items": "int"},
            {"type": "array", "items": "double"},
            b"\x02\x02\x00",
            [1.0],
        ),
        (
            {"type": "map", "values": "string"},
            {"type": "map", "values": "bytes"},
            b"\x02\x02k\x02v\x00",
            {"k": b"v"},
        ),
        ("int", ["null", "long"], b"\x02", 1),
        (["null", "int"], "int", b"\x02\x02", 1),
        (
            record(field("skip", [F, {"type": "array", "items": E}]), field("a", "int")),
            record(field("a", "int")),
            b"\x02\x02\x00\x00\x04",
            {"a": 2},
        ),
        (["null", NODE], ["null", NODE], b"\x02\x02\x00", {"v": 1, "next": None}),
    ],
)
def test_evolved_values_are_read(writer: Any, reader: Any, body: bytes, value: Any) -> None:
    assert same(read(how(writer, reader), body), value)


def test_a_default_that_can_be_changed_is_a_new_one_for_every_value() -> None:
    way = how(record(), record(field("tags", {"type": "array", "items": "int"}, default=[1])))
    read(way, b"")["tags"].append(2)
    assert read(way, b"") == {"tags": [1]}


def test_what_is_missing_is_added_at_every_depth_of_a_recursive_type() -> None:
    reader = record(
        field("v", "float"),
        field("next", ["null", "R"]),
        field("m", {"type": "map", "values": "int"}, default={}),
    )
    body = zigzag(16777217) + b"\x02\x04\x00"
    inner: dict[str, Any] = {"v": 2.0, "next": None, "m": {}}
    assert read(how(NODE, reader), body) == {"v": 16777216.0, "next": inner, "m": {}}
    union = ["null", "string", NODE]
    assert read(how(union, ["string", reader, "null"]), b"\x04\x04\x00") == inner


def test_the_same_schema_needs_no_resolution() -> None:
    text = resolve(json.dumps(NODE))
    assert reading(text).reader is reading(text, text).reader is None
    renamed = resolve(
        json.dumps(record(field("v", "int"), field("next", ["null", "y.R"]), name="y.R"))
    )
    assert reading(text, renamed).reader is None
    assert reading(text, renamed).finish is None


def test_a_type_outside_of_records_is_parsed_once() -> None:
    """fastavro refuses some of what it has parsed itself when it parses it again."""
    union = [record(field("e", E), name="x.R"), {"type": "array", "items": "x.E"}, F]
    way = reading(resolve(json.dumps(union)))
    assert read(way, b"\x02\x02\x02\x00") == ["B"]
    assert read(way, b"\x00\x02") == {"e": "B"}
    assert read(way, b"\x04z") == b"z"


TIME = {"type": "long", "logicalType": "timestamp-millis"}
MICROS = {"type": "long", "logicalType": "timestamp-micros"}
MOMENT = datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("writer", "reader", "body", "value"),
    [
        (TIME, MICROS, zigzag(1000), MOMENT),
        (TIME, "long", zigzag(1000), 1000),
        ("long", TIME, zigzag(1000), MOMENT),
        ("int", TIME, zigzag(1000), MOMENT),
        (TIME, "double", zigzag(1000), 1000.0),
        ({"type": "int", "logicalType": "date"}, "int", b"\x02", 1),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 1},
            {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 3},
            b"\x02\x05",
            Decimal("0.5"),
        ),
    ],
)
def test_a_logical_type_is_the_reader_s_and_its_unit_the_writer_s(
    writer: Any, reader: Any, body: bytes, value: Any
) -> None:
    assert same(read(how(writer, reader), body), value)


def test_schemas_that_do_not_fit_at_all_are_refused_before_any_value() -> None:
    with pytest.raises(IncompatibleSchema, match="string cannot be read as int") as refusal:
        how(record(field("a", "string")), record(field("a", "int")))
    assert [each.path for each in refusal.value.findings] == ["/fields/0/type"]
    with pytest.raises(IncompatibleSchema, match=r"field b .* give it a default"):
        how(record(), record(field("b", "int")))


def test_what_fits_in_part_is_read_as_far_as_it_fits() -> None:
    way = how(record(field("a", ["null", "int", "string"])), record(field("a", ["null", "int"])))
    assert read(way, b"\x02\x02") == {"a": 1}
    with pytest.raises(fastavro.read.SchemaResolutionError):
        read(way, b"\x04\x02x")
    way = how(E, {**E, "symbols": ["B"]})
    assert read(way, b"\x02") == "B"
    with pytest.raises(fastavro.read.SchemaResolutionError):
        read(way, b"\x00")


def test_a_stored_default_that_does_not_fit_is_named() -> None:
    bad = resolve(record(field("a", "int", default="x")), strict=False)
    with pytest.raises(InvalidSchema, match="the default of field a of R: 'x' is no int"):
        reading(resolve(record()), bad)
