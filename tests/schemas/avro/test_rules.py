"""What a new schema must not have, and where it is shown; what is stored is read without the rules."""

import json
from datetime import date
from typing import Any

import pytest

from folkmoot.protocol.errors import InvalidSchema
from folkmoot.schemas.avro.identity import MAX_BYTES, canonical
from folkmoot.schemas.avro.references import resolve
from folkmoot.schemas.values.decoding import decoder
from tests.schemas.avro.test_compatibility import field, record


def decimal(**more: Any) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 1} | more


ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
FIXED = {"type": "fixed", "name": "F", "size": 2}
INNER = record(field("x", "int"), field("y", "int", default=1), name="I")


def logical(plain: str, name: str) -> dict[str, Any]:
    return {"type": plain, "logicalType": name}


DAYS = date.max.toordinal() - date(1970, 1, 1).toordinal()
FIXED_DECIMAL = {**FIXED, "logicalType": "decimal", "precision": 2, "scale": 0}
UNREADABLE = [
    (logical("string", "uuid"), ""),
    (logical("int", "date"), DAYS + 1),
    (logical("int", "date"), -(2**31)),
    (logical("int", "time-millis"), -1),
    (logical("long", "time-micros"), 86_400_000_000),
    (logical("long", "timestamp-millis"), (DAYS + 1) * 86_400_000),
    (logical("long", "local-timestamp-micros"), 2**63 - 1),
    (decimal(), "\x7f\xff"),
    (FIXED_DECIMAL, "\x7f\xff"),
]
READABLE = [
    (logical("string", "uuid"), "{12345678-1234-5678-1234-567812345678}"),
    (logical("string", "uuid"), "12345678-1234-5678-1234-56781234567A"),
    (logical("int", "date"), DAYS),
    (logical("int", "time-millis"), 86_399_999),
    (logical("long", "time-micros"), 0),
    (logical("long", "timestamp-millis"), (DAYS + 1) * 86_400_000 - 1),
    (logical("long", "local-timestamp-micros"), -1),
    (decimal(), "\x27\x0f"),
    (FIXED_DECIMAL, "\x00\x63"),
    (logical("string", "something"), ""),
]


@pytest.mark.parametrize(
    ("kind", "default", "where"),
    [
        ("null", 0, ""),
        ("boolean", 1, ""),
        ("int", 1.0, ""),
        ("int", True, ""),
        ("int", 2**31, ""),
        ("long", 2**63, ""),
        ("long", "1", ""),
        ("float", "NaN", ""),
        ("double", False, ""),
        ("bytes", "Ā", ""),
        ("string", 1, ""),
        (ENUM, "C", ""),
        (FIXED, "abc", ""),
        ({"type": "array", "items": "int"}, {}, ""),
        ({"type": "array", "items": "int"}, [1, "x"], "/1"),
        ({"type": "map", "values": "int"}, {"a/b": None}, "/a~1b"),
        (INNER, {}, ""),
        (INNER, {"x": "1"}, "/x"),
        (INNER, {"x": 1, "z": 1}, "/z"),
        ({"type": "array", "items": INNER}, [{"x": 1}, {"x": None}], "/1/x"),
        (["int", "string"], None, ""),
        (["null", INNER], {"x": "1"}, ""),
        (decimal(), 1, ""),
        *((kind, default, "") for kind, default in UNREADABLE),
    ],
)
def test_a_default_that_is_none_of_its_type_is_refused_where_it_stands(
    kind: Any, default: Any, where: str
) -> None:
    with pytest.raises(InvalidSchema, match=f"at /fields/0/default{where}: "):
        resolve(record(field("f", kind, default=default)))


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        ("double", 1),
        ({"type": "double", "x": 1}, 1),
        ("bytes", "\xff"),
        (FIXED, "\x00\xff"),
        (["null", "int"], 1),
        (["int", "null"], None),
        (INNER, {"x": 1}),
        ({"type": "map", "values": ["null", INNER]}, {"a": None, "b": {"x": 2}}),
        (ENUM, "B"),
        ({"type": "long", "logicalType": "timestamp-millis"}, 0),
        (decimal(), "\x05"),
        *READABLE,
    ],
)
def test_a_default_of_its_type_is_taken(kind: Any, default: Any) -> None:
    resolve(record(field("f", kind, default=default)))


@pytest.mark.parametrize(
    ("kind", "default", "is_readable"),
    [*((*case, True) for case in READABLE), *((*case, False) for case in UNREADABLE)],
)
def test_the_rules_for_logical_defaults_are_those_of_reading(
    kind: Any, default: Any, is_readable: bool
) -> None:
    """Read by the decoder from a writer that lacks the field."""
    reader = canonical(record(field("f", kind, default=default)), strict=False)
    read = decoder(canonical(record()), reader)
    if is_readable:
        read(b"", 0)
    else:
        with pytest.raises((ValueError, ArithmeticError)):
            read(b"", 0)


def test_a_default_may_be_of_the_record_that_is_being_defined() -> None:
    resolve(record(field("f", {"type": "array", "items": "R"}, default=[{"f": []}])))
    with pytest.raises(InvalidSchema, match="at /fields/0/default/0/f: 1 is no array"):
        resolve(record(field("f", {"type": "array", "items": "R"}, default=[{"f": 1}])))


def test_a_default_that_holds_itself_is_refused() -> None:
    with pytest.raises(InvalidSchema, match="holds itself"):
        resolve(record(field("f", "R", default={})))


@pytest.mark.parametrize(
    ("schema", "where"),
    [
        (record(field("r", "R")), "/"),
        (record(field("a", "int"), field("u", ["R"])), "/"),
        ([record(field("i", record(field("r", ["R", "I"]), name="I")))], "/0"),
    ],
)
def test_a_record_that_always_holds_itself_is_refused(schema: Any, where: str) -> None:
    """fastavro does not survive reading one, whatever the bytes."""
    with pytest.raises(
        InvalidSchema, match=f"at {where}: the record R holds itself: it has no value"
    ):
        resolve(schema)
    resolve(schema, strict=False)


@pytest.mark.parametrize("kind", [["null", "R"], {"type": "array", "items": "R"}])
def test_a_record_that_may_hold_itself_is_taken(kind: Any) -> None:
    resolve(record(field("r", kind)))


def test_long_chains_of_records_are_checked_in_no_time() -> None:
    """A round for each record would take minutes."""
    chain = [record(field("n", f"R{i - 1}" if i else "int"), name=f"R{i}") for i in range(5_000)]
    assert len(resolve(chain)) > 300_000


def test_a_default_is_not_tried_again_for_every_way_through_nested_unions() -> None:
    """Ten kinds of records, each of which may hold any of them, and a value forty deep that fits none."""
    names = [f"B{i}" for i in range(10)]
    kinds: list[Any] = [record(field("n", ["null"]), name="B0")]
    for i in range(1, 10):
        kinds.append(record(field("n", ["null", *names[: i + 1]], default=None), name=names[i]))
    value: Any = "none"
    for _ in range(40):
        value = {"n": value}
    with pytest.raises(InvalidSchema, match="at /fields/1/default: "):
        resolve(record(field("k", kinds), field("v", names, default=value)))


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (decimal(precision=0), "at /precision: "),
        (decimal(precision="4"), "at /precision: "),
        ({"type": "bytes", "logicalType": "decimal"}, "at /precision: "),
        (decimal(scale=5), "at /scale: the scale of a decimal is from 0 to its 4 digits"),
        (decimal(scale=-1), "at /scale: "),
        (
            {**FIXED, "logicalType": "decimal", "precision": 5},
            "at /precision: 2 bytes hold 4 digits",
        ),
        ({**ENUM, "default": "C"}, "at /default: 'C' is no symbol of the enum"),
        (record(field("f", "int", order="up")), "at /fields/0/order: "),
        (record(field("f", "int", aliases=["a-b"])), "at /fields/0/aliases/0: 'a-b' is not a name"),
        (
            record(field("f", ENUM), field("g", ENUM)),
            "at /fields/1/type/name: the type E is defined",
        ),
        (record(field("f", "E"), field("g", ENUM)), "at /fields/0/type: no type E is defined"),
        ({"type": "record", "name": "map", "fields": []}, "at /name: map is the name of a type"),
        ({"type": {"type": "array", "items": "int"}, "doc": "d"}, "attributes of a type stand"),
        ('{"type": "int", "n": ' + "9" * 5000 + "}", "not JSON"),
        ('{"type": "int", "d": "\\ud800"}', "cannot be written as JSON"),
        ('{"type": "int"', "not JSON: Expecting"),
        (json.dumps({"type": "int", "doc": "x" * MAX_BYTES}), "more than 500000"),
        (record(doc="é" * (MAX_BYTES // 2)), "more than 500000"),
    ],
)
def test_what_breaks_a_rule_is_refused_in_one_line_that_points_at_it(
    schema: Any, reason: str
) -> None:
    with pytest.raises(InvalidSchema) as refusal:
        resolve(schema)
    assert reason in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 1_000


@pytest.mark.parametrize("depth", [300, 10_000, 100_000])
def test_what_is_nested_too_deeply_is_refused_as_text_and_as_values(depth: int) -> None:
    texts = [
        '{"type":"array","items":' * depth + '"int"' + "}" * depth,
        "[" * depth + "]" * depth,
        '{"type":"int","x":' + "[" * depth + "]" * depth + "}",
    ]
    for text in texts:
        with pytest.raises(InvalidSchema, match=r"nested too deeply|more than 500000"):
            resolve(text)
    value: Any = "int"
    for _ in range(depth):
        value = {"type": "array", "items": value}
    with pytest.raises(InvalidSchema, match="nested too deeply"):
        resolve(value)


def test_what_is_nested_as_deeply_as_is_allowed_goes_through_all_libraries() -> None:
    value: Any = "int"
    for _ in range(250):
        value = {"type": "array", "items": value}
    assert resolve(value).count("array") == 250


@pytest.mark.parametrize(
    "schema",
    [
        record(field("a-b", "int")),
        record(field("f", "int", default="x")),
        record(field("f", "int", order="up")),
        {"type": "fixed", "name": "1", "size": 2},
        {"type": "bytes", "logicalType": "decimal"},
    ],
)
def test_what_is_stored_is_read_without_the_rules(schema: Any) -> None:
    with pytest.raises(InvalidSchema):
        resolve(schema)
    text = resolve(schema, strict=False)
    assert canonical(text, strict=False) == text


@pytest.mark.parametrize(
    "schema", ["{", "[]", record(field("f", "Unknown")), {"type": "array"}, ["int", ["int"]]]
)
def test_what_cannot_be_read_is_refused_although_it_is_stored(schema: Any) -> None:
    with pytest.raises(InvalidSchema):
        resolve(schema, strict=False)
