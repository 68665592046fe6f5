"""Types that are named twice in the next one: the text grows by a line a level, what is meant doubles."""

from typing import Any

import pytest

from folkmoot.protocol.errors import InvalidSchema
from folkmoot.schemas.avro.identity import canonical
from folkmoot.schemas.avro.parsed import ParsedSchema
from folkmoot.schemas.avro.references import resolve as written_out
from folkmoot.schemas.columns.deserializer import ColumnDeserializer
from folkmoot.schemas.columns.layout import Layout
from folkmoot.schemas.values.resolution import resolve
from tests.schemas.columns.lookup import Known

LEVELS = 50
NUMBER = {"name": "x", "type": "long"}


def record(level: int, *fields: Any) -> Any:
    return {"type": "record", "name": f"T{level}", "fields": list(fields)}


def twice(kind: Any, name: str, **more: Any) -> list[Any]:
    """Fields of a type, and of the same by its name."""
    return [{"name": "a", "type": kind} | more, {"name": "b", "type": name} | more]


def doubled(*leaf: Any, **more: Any) -> Any:
    """T50 has two fields of T49, and so on; T0 has those of `leaf`."""
    made = record(0, *leaf)
    for level in range(1, LEVELS + 1):
        made = record(level, *twice(made, f"T{level - 1}", **more))
    return made


def optional() -> Any:
    """The same with null for each of them."""
    made = record(0, NUMBER)
    for level in range(1, LEVELS + 1):
        fields = twice(made, f"T{level - 1}")
        made = record(level, *({**each, "type": ["null", each["type"]]} for each in fields))
    return made


def nested(level: int, space: str, defined: set[str], *spaces: str) -> Any:
    """A record of one field, of the next level's record in each of the `spaces`."""
    name = f"{space}.T{level}"
    if name in defined:
        return name
    defined.add(name)
    inner = [nested(level + 1, each, defined, *spaces) for each in spaces if level < LEVELS]
    return {**record(level, {"name": "x", "type": inner or "long"}), "name": name}


def test_columns_without_end_are_refused() -> None:
    with pytest.raises(InvalidSchema, match="more than 10000 columns"):
        ColumnDeserializer(Known([]), optional())


def test_what_has_no_columns_is_read_over_however_it_doubles() -> None:
    reader = record(LEVELS, {"name": "n", "type": "int", "default": 7})
    columns = ColumnDeserializer(Known([canonical(optional())]), reader)
    assert columns([b"\0\0\0\0\1\0\0"]).to_pylist() == [{"n": 7}]


@pytest.mark.parametrize("leaf", [[], [NUMBER]], ids=["of nothing", "of numbers"])
def test_a_record_that_nobody_could_write_is_refused(leaf: list[Any]) -> None:
    with pytest.raises(InvalidSchema, match=r"smallest value of the record T.* more than 100000"):
        canonical(doubled(*leaf))


def test_the_same_is_refused_where_each_type_is_referred_to() -> None:
    texts = [canonical(record(0, NUMBER))]
    for level in range(1, 16):
        texts.append(
            canonical(
                record(level, *twice(f"T{level - 1}", f"T{level - 1}")), known=[f"T{level - 1}"]
            )
        )
        written_out(f'"T{level}"', texts)
    with pytest.raises(InvalidSchema, match=r"at /: the smallest value of the record T16"):
        written_out(record(16, *twice("T15", "T15")), texts)


def test_a_default_that_leaves_out_fields_without_end_is_refused() -> None:
    made = record(0, NUMBER | {"default": 0})
    for level in range(1, LEVELS + 1):
        fields = twice(made, f"T{level - 1}", default={})
        made = record(level, *({**each, "type": [each["type"], "null"]} for each in fields))
    with pytest.raises(InvalidSchema, match=r"at /fields.* more than 100000: one that leaves out"):
        canonical(made)


def test_whether_items_take_no_bytes_is_found_however_they_double() -> None:
    """What is stored may be older than the rule."""
    array = {"type": "array", "items": doubled()}
    layout = Layout(ParsedSchema(canonical({"type": "array", "items": record(LEVELS)})))
    nodes: list[Any] = []
    root = resolve(nodes, ParsedSchema(canonical(array, strict=False)), layout.parsed, layout.root)
    assert nodes[root].size == 1
    assert len(nodes) < 10 * LEVELS


def test_writers_that_nest_unions_of_like_named_records_make_one_program_a_level() -> None:
    layout = Layout(ParsedSchema(canonical(nested(0, "reader", set(), "reader"))))
    nodes: list[Any] = []
    writer = ParsedSchema(canonical(nested(0, "one", set(), "one", "two")))
    resolve(nodes, writer, layout.parsed, layout.root)
    assert len(nodes) < 10 * LEVELS
