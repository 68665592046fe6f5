"""What a reader's schema makes of what another one wrote, and what is said of bytes that are no value."""

from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pytest

from folkmoot.schemas.avro.mismatch import SchemaMismatch
from folkmoot.schemas.values.decoding import BROKEN, decoder, to_mismatch
from folkmoot.schemas.values.encoding import encoder
from tests.schemas.values.random_values import text_of


def record(*fields: Any, name: str = "R", **more: Any) -> Any:
    """A record of fields, each a name and a type, and a default if there is a third."""
    made = []
    for field, kind, *rest in fields:
        made.append({"name": field, "type": kind} | ({"default": rest[0]} if rest else {}))
    return {"type": "record", "name": name, "fields": made} | more


def enum(*symbols: str, name: str = "E", **more: Any) -> Any:
    return {"type": "enum", "name": name, "symbols": list(symbols)} | more


def logical(plain: str, kind: str, **more: Any) -> Any:
    return {"type": plain, "logicalType": kind} | more


def read(writer: Any, reader: Any, value: Any) -> Any:
    text = text_of(writer)
    body = encoder(text)(value)
    found, end = decoder(text, text_of(reader))(body, 0)
    assert end == len(body)
    return found


MILLIS, MICROS = logical("long", "timestamp-millis"), logical("long", "timestamp-micros")
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
WRITTEN = record(("a", "int"), ("b", ["null", "string"]), ("c", {"type": "array", "items": "long"}))
VALUE = {"a": 1, "b": "x", "c": [1, 2]}


@pytest.mark.parametrize(
    ("writer", "reader", "value", "found"),
    [
        # Fields: in another order, left out, added, renamed.
        (WRITTEN, record(("c", {"type": "array", "items": "double"}), ("a", "long")), VALUE,
         {"c": [1.0, 2.0], "a": 1}),
        (WRITTEN, record(), VALUE, {}),
        (WRITTEN, record(("a", "int"), ("new", "bytes", "\u00ff")), VALUE, {"a": 1, "new": b"\xff"}),
        (record(("a", "int")), record(("z", ["int", "null"], 5)), {"a": 1}, {"z": 5}),
        (record(("a", "int")), record(("d", logical("int", "date"), 0)), {"a": 1},
         {"d": date(1970, 1, 1)}),
        (record(("a", "int")), record(("r", record(("x", "int", 3), name="S"), {})), {"a": 1},
         {"r": {"x": 3}}),
        (record(("old", "int")), {**record(), "fields": [
            {"name": "new", "type": "int", "aliases": ["old"]}]}, {"old": 1}, {"new": 1}),
        # Names: of the same type in another namespace, and by alias.
        (record(("a", "int"), name="x.R"), record(("a", "int"), name="y.R"), {"a": 1}, {"a": 1}),
        (record(("a", "int"), name="x.Old"), record(("a", "int"), name="x.R", aliases=["Old"]),
         {"a": 1}, {"a": 1}),
        # Promotion.
        ("int", "float", 3, 3.0),
        ("long", "float", 2**60 + 1, float(2**60)),
        ("long", "double", 2**53 + 1, float(2**53)),
        ("float", "double", 0.5, 0.5),
        ("string", "bytes", "é", b"\xc3\xa9"),
        ("bytes", "string", b"\xc3\xa9", "é"),
        # Unions: the branch that was written before one that it could be promoted to.
        ("bytes", ["string", "bytes"], b"\xff", b"\xff"),
        ("long", ["double", "long"], 5, 5),
        ("int", ["string", "double"], 5, 5.0),
        (["null", "int"], "long", 5, 5),
        (["int", "string"], ["string", "long"], 5, 5),
        (["null", "string"], ["string", "null"], None, None),
        (record(("a", "int"), name="x.R"), [record(("a", "int"), name="y.R"), record(
            ("b", "int", 7), ("a", "int"), name="x.R")], {"a": 1}, {"a": 1, "b": 7}),
        # Enums.
        (enum("A", "B"), enum("B", "A"), "A", "A"),
        (enum("A", "B"), enum("C", "B", default="C"), "A", "C"),
        # Logical types: the same point in time, the same number, whatever the unit.
        (MILLIS, MICROS, NOON, NOON),
        (MICROS, MILLIS, NOON, NOON),
        (MILLIS, "long", NOON, 1_777_636_800_000),
        ("long", MILLIS, 0, datetime(1970, 1, 1, tzinfo=UTC)),
        (logical("int", "time-millis"), logical("long", "time-micros"), time(1), time(1)),
        (logical("bytes", "decimal", precision=9, scale=2), logical(
            "bytes", "decimal", precision=9, scale=4), Decimal("1.25"), Decimal("1.25")),
    ],
)  # fmt: skip
def test_a_reader_s_schema_says_what_becomes_of_a_value(
    writer: Any, reader: Any, value: Any, found: Any
) -> None:
    made = read(writer, reader, value)
    assert made == found
    assert type(made) is type(found)
    if isinstance(found, dict):
        assert list(made) == [field["name"] for field in _fields(reader)]


def _fields(reader: Any) -> Any:
    return (reader[-1] if isinstance(reader, list) else reader)["fields"]


@pytest.mark.parametrize(
    ("writer", "reader", "value", "said"),
    [
        ("string", "int", "x", "a string cannot be read as an int"),
        ("long", "int", 1, "a long cannot be read as an int"),
        (["null", "string"], "string", None, "null cannot be read as a string"),
        ("string", ["null", "int"], "x", "the reader's union has no branch for a string"),
        (enum("A", "B"), enum("B"), "A", "the reader's enum has no symbol A"),
        (WRITTEN, record(("z", "int")), VALUE, r"at \.z: the writer has no such field"),
        (WRITTEN, record(("b", "string")), VALUE | {"b": None}, r"at \.b: null cannot be read as a string"),
        (record(("a", "int"), name="A"), record(("a", "int"), name="B"), {"a": 1},
         "record A cannot be read as record B: give that an alias"),
    ],
)  # fmt: skip
def test_what_the_reader_has_no_place_for_is_an_error_where_it_was_written(
    writer: Any, reader: Any, value: Any, said: str
) -> None:
    with pytest.raises(SchemaMismatch, match=said):
        read(writer, reader, value)


def test_a_branch_that_the_reader_lacks_does_no_harm_until_it_comes() -> None:
    assert read(["null", "string"], "string", "x") == "x"


def test_a_default_is_a_new_one_for_each_value() -> None:
    decode = decoder(
        text_of(record()), text_of(record(("l", {"type": "array", "items": "int"}, [])))
    )
    decode(b"", 0)[0]["l"].append(1)
    assert decode(b"", 0)[0] == {"l": []}


def test_what_is_skipped_is_not_looked_at() -> None:
    """A text that is no UTF-8, and a date that Python has not, are nobody's business then."""
    writer = text_of(
        record(
            ("s", "string"), ("d", logical("int", "date")), ("u", ["null", "string"]), ("a", "int")
        )
    )
    body = b"\x02\xff" + b"\xff\xff\xff\xff\x0f" + b"\x02\x02\xff" + b"\x06"
    assert decoder(writer, text_of(record(("a", "int"))))(body, 0) == ({"a": 3}, len(body))
    with pytest.raises(SchemaMismatch, match=r"at \.s: a text is not UTF-8"):
        decoder(writer)(body, 0)


def test_a_record_within_itself_is_read_by_another_that_is() -> None:
    def linked(*fields: Any) -> Any:
        return record(*fields, ("next", ["null", "R"]))

    value = {"a": 1, "next": {"a": 2, "next": None}}
    found = read(linked(("a", "int")), linked(("b", "int", 7)), value)
    assert found == {"b": 7, "next": {"b": 7, "next": None}}


@pytest.mark.parametrize(
    ("schema", "body", "said"),
    [
        ("boolean", "02", "byte 2 is no boolean"),
        ("int", "ffffffff7f", "does not fit into an int"),
        ("long", "ff" * 10 + "01", "more than ten bytes"),
        ("long", "ff" * 9 + "7f", "more than 64 bits"),
        ("long", "ff", "the bytes end here"),
        ("double", "0000", "the bytes end here"),
        ("string", "08 61", "1 bytes are left, and 4 wanted"),
        ("bytes", "01", "are left, and -1 wanted"),
        ("string", "02 ff", "a text is not UTF-8"),
        ({"type": "fixed", "name": "F", "size": 2}, "61", "1 bytes are left, and 2 wanted"),
        (enum("A"), "02", "the enum E has no symbol 1"),
        (["null", "int"], "04", "the union has two branches, and none 2"),
        (["null", "int"], "01", "none -1"),
        (["null", "int", "string"], "06", "the union has 3 branches, and none 3"),
        ({"type": "array", "items": "int"}, "fe" + "ff" * 8 + "01 02", r"at \[1\]: the bytes end"),
        ({"type": "array", "items": "null"}, "ca01 00", "more than 100 items take no bytes"),
        ({"type": "array", "items": record()}, "fe" + "ff" * 8 + "01 00", "items take no bytes"),
        ({"type": "map", "values": "int"}, "02 02 61", r"at \['a'\]: the bytes end here"),
        (logical("int", "date"), "ffffffff0f", "ordinal must be"),
        (logical("long", "timestamp-micros"), "ff" * 9 + "01", "date value out of range"),
        (logical("int", "time-millis"), "01", "-1 is no time of day"),
        (logical("string", "uuid"), "02 61", "badly formed"),
        (logical("bytes", "decimal", precision=2), "04 7fff", "more than the 2 digits"),
        (logical("bytes", "decimal", precision=2), "80 80 04" + "7f" * 32_768, "more than the 2"),
        (record(("a", record(("b", "int"), name="S"))), "", r"at \.a\.b: the bytes end here"),
    ],
)  # fmt: skip
def test_bytes_that_no_such_value_can_have_are_an_error(schema: Any, body: str, said: str) -> None:
    with pytest.raises(BROKEN) as raised:
        decoder(text_of(schema))(bytes.fromhex(body), 0)
    assert to_mismatch(raised.value) is not None
    with pytest.raises(SchemaMismatch, match=said):
        raise to_mismatch(raised.value)


def test_blocks_of_an_array_may_say_their_size() -> None:
    body = bytes.fromhex("03 04 02 04  02 06  00")  # two of 2 bytes, one more
    decode = decoder(text_of({"type": "array", "items": "int"}))
    assert decode(body, 0) == ([1, 2, 3], len(body))


def test_what_is_nested_without_end_is_an_error() -> None:
    decode = decoder(text_of(record(("n", ["null", "R"]))))
    with pytest.raises(BROKEN) as raised:
        decode(b"\x02" * 100_000, 0)
    assert "nested too deeply" in str(to_mismatch(raised.value))


def test_a_branch_that_has_the_writer_s_name_as_an_alias_comes_before_one_of_another_namespace() -> (
    None
):
    wanted = [enum("X", name="C"), enum("A", name="z.C", aliases=["y.C"])]
    assert read(enum("A", name="y.C"), wanted, "A") == "A"


def test_of_two_fields_with_one_alias_the_first_reads_what_was_written() -> None:
    fields = [{"name": name, "type": "int", "aliases": ["a"], "default": 7} for name in ("x", "y")]
    assert read(record(("a", "int")), record() | {"fields": fields}, {"a": 1}) == {"x": 1, "y": 7}
    both = {"name": "x", "type": "int", "aliases": ["b", "a"]}
    for _ in range(3):
        assert read(
            record(("a", "int"), ("b", "int")), record() | {"fields": [both]}, {"a": 1, "b": 2}
        ) == {"x": 2}
