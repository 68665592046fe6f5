"""Schemas that name types of others become one text that needs nobody."""

import json
from typing import Any

import pytest

from folkmoot.protocol.errors import InvalidSchema
from folkmoot.schemas.avro.identity import canonical
from folkmoot.schemas.avro.normal import normalize
from folkmoot.schemas.avro.references import resolve

COLOUR = json.dumps({"type": "enum", "name": "p.Colour", "symbols": ["RED"]})


def record(name: str, *kinds: Any, **more: Any) -> dict[str, Any]:
    fields = [{"name": f"f{i}", "type": kind} for i, kind in enumerate(kinds)]
    return {"type": "record", "name": name, "fields": fields, **more}


def test_a_type_of_a_reference_is_written_out_where_it_is_used_first() -> None:
    text = resolve(record("p.Car", "Colour", {"type": "array", "items": "p.Colour"}), [COLOUR])
    first, second = (each["type"] for each in json.loads(text)["fields"])
    assert first == json.loads(COLOUR)
    assert second["items"] == "p.Colour"
    assert canonical(text) == text


def test_a_reference_brings_its_own_references_and_what_is_not_used_is_left_out() -> None:
    paint = json.dumps(record("p.Paint", "Colour"))
    text = resolve(record("Car", "p.Paint"), [COLOUR, paint, json.dumps(record("Unused"))])
    assert json.loads(text)["fields"][0]["type"]["fields"][0]["type"] == json.loads(COLOUR)
    assert "Unused" not in text


def test_two_references_may_hold_the_same_type_if_they_define_it_alike() -> None:
    left, right = (resolve(record(f"p.{name}", "Colour"), [COLOUR]) for name in ("Left", "Right"))
    text = resolve(record("Both", "p.Left", "p.Right"), [left, right])
    assert text.count("RED") == 1
    other = json.dumps({"type": "enum", "name": "p.Colour", "symbols": ["BLUE"]})
    with pytest.raises(InvalidSchema, match=r"p\.Colour in different ways"):
        resolve(
            record("Both", "p.Left", "p.Right"),
            [left, resolve(record("p.Right", "Colour"), [other])],
        )


def test_identity_leaves_the_names_of_references_as_they_are() -> None:
    car = record("p.Car", "Colour")
    assert canonical(car, known=["p.Colour"]) == canonical(
        record("p.Car", "p.Colour"), known=["p.Colour"]
    )
    assert "RED" not in canonical(car, known=["p.Colour"])


def test_a_missing_reference_is_named_where_it_is_used() -> None:
    with pytest.raises(InvalidSchema, match=r"at /fields/1/type: no type p\.Paint is defined"):
        resolve(record("p.Car", "Colour", "Paint"), [COLOUR])


def test_references_in_a_circle_are_refused() -> None:
    left, right = json.dumps(record("Left", "Right")), json.dumps(record("Right", "Left"))
    with pytest.raises(InvalidSchema, match=r"reference 1: .* no type Right is defined"):
        resolve(record("Both", "Left", "Right"), [left, right])
    with pytest.raises(InvalidSchema, match="no type Both is defined"):
        resolve(record("Both", "Left"), [json.dumps(record("Left", "Both"))])


def test_a_name_that_a_reference_defines_cannot_be_defined_again() -> None:
    with pytest.raises(InvalidSchema, match="Colour is defined twice, here and in a reference"):
        resolve(record("Car", {"type": "fixed", "name": "p.Colour", "size": 1}), [COLOUR])


def test_a_default_of_a_type_of_a_reference_is_checked() -> None:
    for default, fits in (("RED", True), ("BLUE", False)):
        car = record("Car")
        car["fields"] = [{"name": "c", "type": "p.Colour", "default": default}]
        if fits:
            resolve(car, [COLOUR])
        else:
            with pytest.raises(InvalidSchema, match="at /fields/0/default: 'BLUE' is no enum"):
                resolve(car, [COLOUR])


def test_a_reference_without_namespace_keeps_it_inside_of_a_namespace() -> None:
    inner = resolve(
        record("a.Outer", {"type": "enum", "name": "E", "namespace": "", "symbols": ["S"]})
    )
    text = resolve(record("b.Top", "a.Outer"), [inner])
    assert canonical(text) == text
    assert '"name":"E","namespace":""' in text


def test_references_cannot_grow_a_schema_without_end() -> None:
    texts = [json.dumps(record("T0", doc="x" * 60_000))]
    texts += [json.dumps(record(f"T{i}", doc="x" * 60_000)) for i in range(1, 10)]
    with pytest.raises(InvalidSchema, match="more than 500000"):
        resolve(record("All", *(f"T{i}" for i in range(10))), texts)


# The first two are of Confluent's own tests (AvroSchemaTest).
@pytest.mark.parametrize(
    ("given", "normal"),
    [
        (
            '{"type":"record","name":"myrecord","doc":"hi\\"there","fields":'
            '[{"type":"string","name":"f1","doc":"bye\\"now"}]}',
            '{"type":"record","name":"myrecord","doc":"hi\\"there","fields":'
            '[{"name":"f1","type":"string","doc":"bye\\"now"}]}',
        ),
        (
            '{"connect.name": "s.Envelope", "fields": [{"default": null, "name": "before", "type": '
            '["null", {"connect.name": "s.Value", "fields": [{"name": "at", "type": {"connect.version": 1,'
            ' "connect.name": "io.Timestamp", "type": "long"}}, {"name": "n", "type": "long"}], '
            '"name": "Value", "type": "record"}]}, {"default": null, "name": "after", "type": '
            '["null", "Value"]}], "name": "Envelope", "namespace": "s", "type": "record"}',
            '{"type":"record","name":"Envelope","namespace":"s","fields":[{"name":"before","type":'
            '["null",{"type":"record","name":"Value","fields":[{"name":"at","type":{"type":"long",'
            '"connect.name":"io.Timestamp","connect.version":1}},{"name":"n","type":"long"}],'
            '"connect.name":"s.Value"}],"default":null},{"name":"after","type":["null","Value"],'
            '"default":null}],"connect.name":"s.Envelope"}',
        ),
        (
            '{"type":"fixed","name":"x.F","size":4,"doc":"","aliases":["x.B","y.A"],"b":1,"a":2,'
            '"scale":2,"precision":4,"logicalType":"decimal"}',
            '{"type":"fixed","name":"F","namespace":"x","size":4,"logicalType":"decimal","precision":4,'
            '"scale":2,"a":2,"b":1,"aliases":["B","y.A"]}',
        ),
    ],
)
def test_a_schema_is_normalised_as_confluent_s_registry_does(given: str, normal: str) -> None:
    assert normalize(given) == normal
    assert normalize(normal) == normal


def test_spelling_order_and_empty_words_are_gone_from_a_normal_text() -> None:
    spelt = record("a.R", "int", aliases=["B", "a.A"], doc="")
    spelt["fields"][0] |= {"order": "ascending", "aliases": ["z", "y"]}
    other = record("R", {"type": "int"}, namespace="a", aliases=["A", "B"])
    other["fields"][0]["aliases"] = ["y", "z"]
    assert normalize(spelt) == normalize(other)
    assert canonical(spelt) != canonical(other)
