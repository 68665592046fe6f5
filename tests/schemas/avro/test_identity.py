"""Which schemas are the same, and which are none."""

import json
from typing import Any

import fastavro
import pytest

from folkmoot.protocol.errors import InvalidSchema
from folkmoot.schemas.avro.identity import canonical, parse
from tests.schemas.avro.test_compatibility import field, record


def test_spelling_does_not_make_another_schema() -> None:
    written = '{ "fields": [ ],\n "name":"R", "namespace" : "a.b", "type":"record"}'
    assert canonical(written) == canonical({"type": "record", "name": "a.b.R", "fields": []})


def test_a_primitive_in_an_object_of_its_own_is_the_primitive() -> None:
    assert canonical({"type": "long"}) == canonical('"long"') == '"long"'


def test_names_references_and_aliases_become_full() -> None:
    schema = record(
        field("kind", {"type": "enum", "name": "Kind", "symbols": ["A"], "aliases": ["Old"]}),
        field("again", ["null", "Kind"]),
        field("self", {"type": "array", "items": "R"}),
        namespace="a.b",
        aliases=["Former", "c.Elsewhere"],
    )
    resolved = json.loads(canonical(schema))
    assert resolved["name"] == "a.b.R"
    assert "namespace" not in resolved
    assert resolved["aliases"] == ["a.b.Former", "c.Elsewhere"]
    kind, again, self = (each["type"] for each in resolved["fields"])
    assert (kind["name"], kind["aliases"]) == ("a.b.Kind", ["a.b.Old"])
    assert again == ["null", "a.b.Kind"]
    assert self["items"] == "a.b.R"


def test_a_type_without_namespace_inside_a_namespace_stays_without() -> None:
    inner = {"type": "enum", "name": "E", "namespace": "", "symbols": ["A"]}
    text = canonical(record(field("e", inner), namespace="a.b"))
    assert canonical(text) == text
    assert "E" in parse(text)["__named_schemas"]
    assert "a.b.E" not in parse(text)["__named_schemas"]


@pytest.mark.parametrize(
    "more",
    [
        {"doc": "what it is"},
        {"default": 3},
        {"aliases": ["former"]},
        {"order": "descending"},
        {"x-owner": {"team": "tower"}},
    ],
)
def test_everything_written_about_a_field_is_kept_and_tells_schemas_apart(
    more: dict[str, Any],
) -> None:
    plain, with_more = (canonical(record(field("n", "int", **each))) for each in ({}, more))
    assert plain != with_more
    assert more.items() <= json.loads(with_more)["fields"][0].items()


def test_a_logical_type_tells_schemas_apart() -> None:
    assert canonical({"type": "long", "logicalType": "timestamp-millis"}) != canonical('"long"')


def test_the_canonical_text_is_its_own_canonical_text() -> None:
    text = canonical(record(field("m", {"type": "map", "values": ["null", "R"]}), namespace="x"))
    assert canonical(text) == text


def test_what_fastavro_adds_to_a_parsed_schema_is_left_out() -> None:
    schema = record(field("n", "int", default=1), namespace="a")
    assert canonical(fastavro.parse_schema(schema)) == canonical(schema)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("{", "not JSON"),
        ("[]", "at least one branch"),
        ("3", "a schema is a string"),
        ('"nothing"', "nothing"),
        ({}, 'no "type"'),
        ({"type": "array"}, 'at /: the array has no "items"'),
        ({"type": "map"}, 'the map has no "values"'),
        ({"type": "record", "fields": []}, 'the record has no "name"'),
        ({"type": "record", "name": "int", "fields": []}, "name of a type of Avro's own"),
        ({"type": "record", "name": "R"}, "at /fields: the fields of a record are an array"),
        ({"type": "enum", "name": "E"}, "symbols of an enum are an array"),
        ({"type": "enum", "name": "E", "symbols": ["A", "A"]}, "at /symbols/1: the enum has A"),
        ({"type": "enum", "name": "E", "symbols": ["A", "-"]}, "'-' is not a name"),
        ({"type": "fixed", "name": "F", "size": "x"}, "the size of a fixed is a number"),
        ({"type": "fixed", "name": "F", "size": 2**31}, "the size of a fixed is a number"),
        (record("n"), 'at /fields/0: a field is an object with "name" and "type"'),
        (record(field("a-b", "int")), "at /fields/0/name: 'a-b' is not a name"),
        (record(field("n", "int"), field("n", "int")), "at /fields/1/name: the record has"),
        (record(field("n", ["int", ["null"]])), "at /fields/0/type/1: a union cannot hold"),
        (record(field("n", ["int", "int"])), "the union has int twice"),
        (record(field("n", "int", default="x")), "not an Avro schema"),
        (record(field("n", "Unknown")), "Unknown"),
        (record(aliases="x"), "aliases are an array"),
        (record(namespace="a..b"), "is not a namespace"),
        (record(field("n", "double", default=float("nan"))), "cannot be written as JSON"),
    ],
)
def test_what_is_no_schema_is_refused_in_one_line_that_points_into_it(
    schema: Any, reason: str
) -> None:
    with pytest.raises(InvalidSchema) as refusal:
        canonical(schema)
    assert reason in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_schema_nested_without_end_is_refused() -> None:
    schema = '{"type":"array","items":' * 5000 + '"int"' + "}" * 5000
    with pytest.raises(InvalidSchema, match="nested too deeply"):
        canonical(schema)
