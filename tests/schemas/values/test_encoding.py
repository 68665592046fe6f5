"""Which values a schema has room for, what they become, and what is said of the others."""

import io
import json
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from random import Random
from typing import Any
from uuid import UUID

import fastavro
import msgspec
import numpy as np
import pyarrow as pa
import pytest

from folkmoot.schemas.avro.mismatch import SchemaMismatch
from folkmoot.schemas.values.decoding import decoder
from folkmoot.schemas.values.encoding import encoder
from tests.schemas.values.random_values import Chance, text_of
from tests.seeds import fixed_seed

DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}
PRICE = DECIMAL | {"type": "fixed", "name": "P", "size": 3}
LOCAL = datetime.fromisoformat("2026-01-01")
MOMENT = datetime(2026, 5, 1, 12, 30, 0, 123456, UTC)


def logical(plain: str, kind: str) -> Any:
    return {"type": plain, "logicalType": kind}


def back(schema: Any, value: Any) -> Any:
    """What is read of what was written."""
    text = text_of(schema)
    body = encoder(text)(value)
    found, end = decoder(text)(body, 0)
    assert end == len(body)
    return found


class Few(IntEnum):
    TWO = 2


class Color(Enum):
    RED = "red"
    BLUE = "blue"


@pytest.mark.parametrize(
    ("schema", "value", "read"),
    [
        ("long", Few.TWO, 2),
        ("int", np.int64(-5), -5),
        ("double", 3, 3.0),
        ("double", np.float32(0.5), 0.5),
        ("float", 16_777_216, 16_777_216.0),
        ("bytes", bytearray(b"ab"), b"ab"),
        ({"type": "array", "items": "int"}, (1, 2), [1, 2]),
        ({"type": "enum", "name": "C", "symbols": ["red", "blue"]}, Color.BLUE, "blue"),
        (logical("long", "timestamp-micros"), MOMENT, MOMENT),
        (logical("long", "timestamp-micros"), 7, datetime(1970, 1, 1, 0, 0, 0, 7, UTC)),
        (
            logical("long", "timestamp-millis"),
            datetime(1969, 12, 31, 23, 59, 59, 999000, timezone(timedelta(hours=-3))),
            datetime(1970, 1, 1, 2, 59, 59, 999000, UTC),
        ),
        (logical("long", "local-timestamp-millis"), LOCAL, LOCAL),
        (logical("int", "date"), date(1, 1, 1), date(1, 1, 1)),
        (logical("int", "time-millis"), time(23, 59, 59, 999000), time(23, 59, 59, 999000)),
        (logical("long", "time-micros"), time(0, 0, 0, 1), time(0, 0, 0, 1)),
        (logical("string", "uuid"), UUID(int=7), UUID(int=7)),
        ({**logical("fixed", "uuid"), "name": "U", "size": 16}, UUID(int=7), UUID(int=7)),
        (DECIMAL, Decimal("-999.99"), Decimal("-999.99")),
        (DECIMAL, Decimal("1E+2"), Decimal("100.00")),
        (PRICE, Decimal("-0.01"), Decimal("-0.01")),
        (logical("long", "of-nobody"), 5, 5),
    ],
)
def test_a_value_of_its_type_is_read_as_it_was(schema: Any, value: Any, read: Any) -> None:
    assert back(schema, value) == read


@pytest.mark.parametrize(
    ("schema", "value", "said"),
    [
        ("int", 1.0, "an int is wanted, not float 1.0"),
        ("long", True, "a long is wanted, not True"),
        ("long", "5", "a long is wanted, not str '5'"),
        ("int", 2**31, "2147483648 does not fit into an int"),
        ("long", -(2**63) - 1, "does not fit into a long"),
        ("boolean", 1, "a boolean is wanted, not int 1"),
        ("double", 2**53 + 1, "is not exactly a double"),
        ("double", 10**400, "is not exactly a double"),
        ("double", Decimal("0.1"), "a double is wanted"),
        ("double", True, "a double is wanted, not True"),
        ("float", 1e39, "does not fit into a float"),
        ("null", 0, "null is wanted, not int 0"),
        ("bytes", "ab", "bytes are wanted, not str 'ab'"),
        ("string", b"ab", "a string is wanted, not bytes b'ab'"),
        ("string", "\ud800", "no text that UTF-8 can write"),
        ({"type": "fixed", "name": "F", "size": 2}, b"abc", "2 bytes are wanted"),
        ({"type": "enum", "name": "C", "symbols": ["red"]}, "blue", "one of red is wanted"),
        ({"type": "enum", "name": "C", "symbols": ["red"]}, ["red"], "one of red is wanted"),
        ({"type": "array", "items": "int"}, "ab", "a list is wanted"),
        ({"type": "array", "items": "int"}, [1, 2, None], r"at \[2\]: an int is wanted, not None"),
        ({"type": "array", "items": "null"}, [None] * 101, "items that take no bytes"),
        ({"type": "map", "values": "int"}, {"a": 1, "b": "x"}, r"at \['b'\]: an int is wanted"),
        ({"type": "map", "values": "int"}, {1: 1}, "a string is wanted, not int 1"),
        (logical("long", "timestamp-millis"), MOMENT, "finer than the milliseconds"),
        (logical("long", "timestamp-micros"), LOCAL, "has no time zone"),
        (logical("long", "local-timestamp-micros"), MOMENT, "has a time zone"),
        (logical("int", "time-millis"), time(0, 0, 0, 1), "finer than the milliseconds"),
        (logical("long", "time-micros"), time(0, tzinfo=UTC), "has a time zone"),
        (logical("int", "date"), MOMENT, "has a time of day"),
        (logical("string", "uuid"), "no-uuid", "is no UUID"),
        (DECIMAL, Decimal("0.001"), "does not fit into 5 digits, 2 of them behind the point"),
        (DECIMAL, Decimal("1000.00"), "does not fit into 5 digits"),
        (DECIMAL, Decimal("1E+999999"), "does not fit into 5 digits"),
        (DECIMAL, Decimal("NaN"), "is no number"),
        (DECIMAL, 1.5, "bytes are wanted"),
        (["null", "string"], 5, "a string is wanted, not int 5"),
        (["null", "string"], ("int", 5), "the union has no branch 'int': it has null, string"),
        (["int", "string"], 1.5, "fits no branch of the union: int, string"),
        (["int", "string"], ("int", "x"), "an int is wanted"),
    ],
)
def test_what_would_lose_something_is_refused(schema: Any, value: Any, said: str) -> None:
    with pytest.raises(SchemaMismatch, match=said) as refused:
        encoder(text_of(schema))(value)
    assert "\n" not in str(refused.value)


ORDER = text_of(
    {
        "type": "record",
        "name": "shop.Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "lines", "type": {"type": "array", "items": {
                "type": "record", "name": "Line", "fields": [
                    {"name": "what", "type": "string"},
                    {"name": "count", "type": "int", "default": 1},
                ]}}},
            {"name": "tags", "type": {"type": "map", "values": "Line"}, "default": {}},
            {"name": "after", "type": ["null", "Order"], "default": None},
            {"name": "blob", "type": "bytes", "default": "\u00ff"},
        ],
    }
)  # fmt: skip


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"id": 1}, "field lines of record shop.Order is missing, and has no default"),
        ({"id": 1, "lines": [], "price": 2}, "record shop.Order has no field 'price'"),
        ({"id": 1, "lines": [{"what": "tea"}, {"what": 5}]}, r"at \.lines\[1\]\.what: a string is"),
        ({"id": 1, "lines": [{"waht": "tea"}]}, r"at \.lines\[0\]: record shop.Line has no field 'waht'"),
        ({"id": 1, "lines": [], "tags": {"x": {}}}, r"at \.tags\['x'\]: field what"),
        ({"id": 1, "lines": [], "after": {"id": "x", "lines": []}}, r"at \.after\.id: a long"),
        ("tea", "a record shop.Order is wanted: a dict, dataclass or Struct, not str 'tea'"),
    ],
)  # fmt: skip
def test_the_path_to_what_does_not_fit_is_said(value: Any, said: str) -> None:
    with pytest.raises(SchemaMismatch, match=said):
        encoder(ORDER)(value)


def test_what_does_not_fit_is_one_line_also_of_objects_that_show_themselves_in_several() -> None:
    with pytest.raises(SchemaMismatch, match="not Table pyarrow") as refusal:
        encoder(ORDER)(pa.table({"id": [1]}))
    assert "\n" not in str(refusal.value)


def test_fields_that_are_left_out_have_their_defaults() -> None:
    body = encoder(ORDER)({"id": 1, "lines": [{"what": "tea"}]})
    assert decoder(ORDER)(body, 0)[0] == {
        "id": 1,
        "lines": [{"what": "tea", "count": 1}],
        "tags": {},
        "after": None,
        "blob": b"\xff",
    }


def test_a_value_that_holds_itself_is_an_error() -> None:
    endless: dict[str, Any] = {"id": 1, "lines": []}
    endless["after"] = endless
    with pytest.raises(RecursionError):
        encoder(ORDER)(endless)


@dataclass
class Line:
    what: str
    count: int


class Order(msgspec.Struct, rename="lower"):
    ID: int
    lines: list[Any]


def test_objects_are_written_by_their_fields_also_beside_dicts() -> None:
    encode = encoder(ORDER)
    order = {"id": 7, "lines": [{"what": "tea", "count": 2}, {"what": "rum", "count": 1}]}
    assert encode(Order(7, [Line("tea", 2), {"what": "rum"}])) == encode(order)


UNION = encoder(
    text_of(
        [
            *("null", "double", "long", "string"),
            {"type": "record", "name": "a.Wide", "fields": [
                {"name": "x", "type": "int"}, {"name": "y", "type": "int", "default": 0}]},
            {"type": "record", "name": "a.Narrow", "fields": [{"name": "x", "type": "int"}]},
            {"type": "map", "values": "int"},
            "bytes",
        ]
    )
)  # fmt: skip


@dataclass
class Wide:
    x: int


@pytest.mark.parametrize(
    ("value", "branch"),
    [
        (None, 0),
        (5, 2),  # although a double comes first
        (5.0, 1),
        ("5", 3),
        (b"5", 7),
        ({"x": 1}, 5),  # no field is left out
        ({"x": 1, "y": 2}, 4),
        ({"z": 1}, 6),
        (Wide(1), 4),  # by its name
        (("a.Wide", {"x": 1}), 4),
        (("Wide", {"x": 1}), 4),
        (("double", 5), 1),
    ],
)
def test_a_union_takes_the_branch_that_is_meant(value: Any, branch: int) -> None:
    assert UNION(value)[0] == branch * 2


def test_a_float_in_a_union_keeps_all_its_digits_where_there_is_a_branch_for_them() -> None:
    kinds = ["null", "float", "double"]
    assert encoder(text_of(kinds))(0.1) == b"\x04" + encoder(text_of("double"))(0.1)


@pytest.mark.parametrize(
    ("value", "body"),
    [
        (("array", ["a"]), "02 02 00 02 61 00"),  # not a list of two
        (("null", None), "00"),
        (("a", "b"), "02 04 00 02 61 00 02 62 00"),
        (["array", []], "02 04 00 0a 6172726179 02 00 00"),
    ],
)
def test_a_tuple_that_names_a_branch_is_no_list(value: Any, body: str) -> None:
    items = ["string", {"type": "array", "items": "string"}]
    nullable = encoder(text_of(["null", {"type": "array", "items": items}]))
    assert nullable(value) == bytes.fromhex(body)


def test_bodies_are_those_of_fastavro_and_are_read_as_it_reads_them() -> None:
    random = Random(fixed_seed())
    for _ in range(300):
        chance = Chance(random)
        schema = fastavro.parse_schema(json.loads(chance.text))
        encode, decode = encoder(chance.text), decoder(chance.text)
        for _ in range(5):
            value, body = chance.value(), io.BytesIO()
            fastavro.schemaless_writer(body, schema, value, strict=True)
            assert encode(value) == body.getvalue()
            body.seek(0)
            read = fastavro.schemaless_reader(body, schema, None)
            assert decode(body.getvalue(), 0) == (read, len(body.getvalue()))
