"""Which schema may follow which, and what is said where one may not."""

import json
import random
import re
from collections.abc import Sequence
from typing import Any

import pytest

from folkmoot.protocol.errors import InvalidCompatibility, InvalidSchema
from folkmoot.schemas.avro import compatibility
from folkmoot.schemas.avro.compatibility import LEVELS, Finding, compatible, judge
from folkmoot.schemas.avro.differences import Difference, differences
from folkmoot.schemas.avro.mismatch import SchemaMismatch
from folkmoot.schemas.avro.references import resolve
from folkmoot.schemas.values.decoding import BROKEN, decoder, to_mismatch
from tests.schemas.avro import apache
from tests.schemas.avro.samples import Bodies, Samples


def record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def enum(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": list(symbols), **more}


def text(schema: Any) -> str:
    return resolve(json.dumps(schema))


def found(reader: Any, writer: Any) -> list[Finding]:
    return compatible(text(reader), text(writer))


def decimal(precision: int, scale: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


@pytest.mark.parametrize(
    ("reader", "writer", "kind", "path", "writer_path", "says"),
    [
        (
            record(field("a", "int"), field("b", "int")),
            record(field("a", "int")),
            "READER_FIELD_MISSING_DEFAULT_VALUE",
            "/fields/1",
            "/fields",
            "field b .*: give it a default",
        ),
        (
            record(field("a", "int")),
            record(field("x", "null"), field("a", "string")),
            "TYPE_MISMATCH",
            "/fields/0/type",
            "/fields/1/type",
            r"string cannot be read as int: keep the type \(bytes would do\)",
        ),
        (
            {"type": "map", "values": {"type": "array", "items": enum("A")}},
            {"type": "map", "values": {"type": "array", "items": enum("A", "B")}},
            "MISSING_ENUM_SYMBOLS",
            "/values/items/symbols",
            "/values/items/symbols",
            "has no B: add what is missing, or give the enum a default",
        ),
        (
            {"type": "fixed", "name": "F", "size": 2},
            {"type": "fixed", "name": "F", "size": 3},
            "FIXED_SIZE_MISMATCH",
            "/size",
            "/size",
            "has 2 bytes, the writer's 3",
        ),
        (
            record(name="x.A"),
            record(name="x.B"),
            "NAME_MISMATCH",
            "/name",
            "/name",
            r"the alias x\.B",
        ),
        (
            record(field("u", ["null", "int"])),
            record(field("u", ["null", "int", "string"])),
            "MISSING_UNION_BRANCH",
            "/fields/0/type",
            "/fields/0/type/2",
            "no branch for the writer's string: add it",
        ),
        (
            ["null", record(field("a", "int"))],
            [record(field("a", "string")), "null"],
            "TYPE_MISMATCH",
            "/1/fields/0/type",
            "/0/fields/0/type",
            "string cannot be read as int",
        ),
    ],
)
def test_a_finding_has_avro_s_kind_both_places_and_what_to_do(
    reader: Any, writer: Any, kind: str, path: str, writer_path: str, says: str
) -> None:
    (finding,) = found(reader, writer)
    assert (finding.kind, finding.path, finding.writer_path) == (kind, path, writer_path)
    assert not finding.warning
    assert re.search(says, finding.message), finding.message


def test_all_that_is_wrong_is_found_each_once() -> None:
    node = record(field("next", ["null", "R"]), field("a", "int"), field("e", enum("A")))
    other = record(
        field("next", ["null", "R"]),
        field("a", "long"),
        field("e", enum("A", "B")),
        field("c", "int"),
    )
    kinds = [each.kind for each in found(node, other)]
    assert kinds == ["TYPE_MISMATCH", "MISSING_ENUM_SYMBOLS"]
    assert [each.kind for each in found(other, node)] == ["READER_FIELD_MISSING_DEFAULT_VALUE"]


def test_the_same_change_of_two_fields_is_found_at_both() -> None:
    reader = record(field("a", "int"), field("b", "int"))
    findings = found(reader, record(field("a", "string"), field("b", "string")))
    assert [each.path for each in findings] == ["/fields/0/type", "/fields/1/type"]


# What Karapace and the libraries once got wrong (issues 422, 524 and 535 of Karapace's).
@pytest.mark.parametrize(
    ("reader", "writer", "fits"),
    [
        (enum("A"), enum("A", "B"), False),
        (enum("A", "B"), enum("A"), True),
        (enum("A", default="A"), enum("A", "B"), True),
        (record(name="R", namespace="a.b"), record(name="a.b.R"), True),
        # avro.compatibility compares an alias without its namespace.
        (record(name="a.New", aliases=["Old"]), record(name="a.Old"), True),
        (record(name="a.New", aliases=["a.Old"]), record(name="a.Old"), True),
        (record(name="a.New", aliases=["b.Old"]), record(name="a.Old"), False),
        (record(name="New", aliases=["Old"]), record(name="Old"), True),
        (record(field("b", "int", aliases=["a"])), record(field("a", "int")), True),
        (record(name="b.R"), record(name="a.R"), True),
        ("bytes", "string", True),
        (["null", "long"], "int", True),
        ("int", ["int"], True),
        ("int", ["int", "null"], False),
        ({"type": "array", "items": "double"}, {"type": "array", "items": "int"}, True),
    ],
)
def test_what_others_got_wrong(reader: Any, writer: Any, fits: bool) -> None:
    assert (not found(reader, writer)) is fits


def test_a_field_of_the_writer_is_read_once() -> None:
    """Apache's checkers let a field and an alias read the same one; no reader does."""
    reader = record(field("a", "int"), field("b", "int", aliases=["a"]))
    (finding,) = found(reader, record(field("a", "int")))
    assert (finding.kind, finding.path) == ("READER_FIELD_MISSING_DEFAULT_VALUE", "/fields/1")
    assert not found(
        record(field("b", "int", aliases=["a"], default=1), field("a", "int")),
        record(field("a", "int")),
    )


def test_an_assumption_about_a_recursive_type_does_not_outlive_what_disproves_it() -> None:
    """In the midst of x.W, its inner N takes it for readable; x.W then turns out not to be.

    Apache's checker keeps its verdict about N, and takes y.W, which holds an N, for readable.
    """
    inner = record(field("w", ["null", "x.W"]), name="x.N")
    writer = record(field("n", inner), field("x", "string"), name="x.W")
    reader = [
        record(field("n", inner), field("x", "int"), name="x.W"),
        record(field("n", "x.N"), name="y.W"),
    ]
    assert found(reader, writer)
    assert apache.is_compatible(text(reader), text(writer))


def test_a_union_s_type_of_the_very_name_is_judged_even_if_another_one_could_be_read() -> None:
    """As readers do. Apache's checker takes y.W, which no reader would choose."""
    writer = record(field("a", "string"), name="x.W")
    reader = [record(field("a", "int"), name="x.W"), record(field("a", "string"), name="y.W")]
    (finding,) = found(reader, writer)
    assert (finding.kind, finding.path) == ("TYPE_MISMATCH", "/0/fields/0/type")
    assert apache.is_compatible(text(reader), text(writer))
    with pytest.raises(SchemaMismatch):
        decoder(text(writer), text(reader))(b"\2a", 0)


@pytest.mark.parametrize(
    ("reader", "writer", "kind"),
    [
        (decimal(6, 2), decimal(6, 1), "DECIMAL_SCALE_CHANGED"),
        (decimal(4, 2), decimal(6, 2), "DECIMAL_PRECISION_REDUCED"),
        (
            {"type": "long", "logicalType": "timestamp-micros"},
            {"type": "long", "logicalType": "timestamp-millis"},
            "LOGICAL_TYPE_CHANGED",
        ),
        ("int", {"type": "int", "logicalType": "date"}, "LOGICAL_TYPE_CHANGED"),
        ({"type": "string", "logicalType": "uuid"}, "string", "LOGICAL_TYPE_CHANGED"),
    ],
)
def test_a_logical_type_that_changes_its_meaning_is_a_warning(
    reader: Any, writer: Any, kind: str
) -> None:
    (finding,) = found(record(field("a", ["null", reader])), record(field("a", ["null", writer])))
    assert (finding.kind, finding.warning) == (kind, True)
    assert (finding.path, finding.writer_path) == ("/fields/0/type/1", "/fields/0/type/1")


def test_more_digits_of_a_decimal_are_no_warning() -> None:
    assert not found(decimal(8, 2), decimal(6, 2))


ONE = record(field("a", "int"))
WITH_DEFAULT = record(field("a", "int"), field("b", "int", default=0))
WITHOUT = record(field("a", "int"), field("b", "int"))
OTHER = record(field("a", "int"), field("b", "string", default=""))
LONG = record(field("a", "long"))


@pytest.mark.parametrize(
    ("previous", "new", "levels"),
    [
        ([ONE], WITH_DEFAULT, set(LEVELS)),
        ([ONE], WITHOUT, {"NONE", "FORWARD", "FORWARD_TRANSITIVE"}),
        ([WITHOUT], ONE, {"NONE", "BACKWARD", "BACKWARD_TRANSITIVE"}),
        ([ONE], LONG, {"NONE", "BACKWARD", "BACKWARD_TRANSITIVE"}),
        ([WITH_DEFAULT, ONE], OTHER, {"NONE", "BACKWARD", "FORWARD", "FULL"}),
        ([], OTHER, set(LEVELS)),
        ([OTHER, WITH_DEFAULT], LONG, {"NONE", "BACKWARD", "BACKWARD_TRANSITIVE"}),
    ],
)
def test_each_level_asks_for_what_it_promises(
    previous: Sequence[Any], new: Any, levels: set[str]
) -> None:
    texts = [text(each) for each in previous]
    assert {level for level in LEVELS if not judge(level, text(new), texts)} == levels


def test_a_level_that_does_not_exist_is_refused() -> None:
    with pytest.raises(
        InvalidCompatibility, match="'backward' is no level: use one of NONE, BACKWARD"
    ):
        judge("backward", text("int"), [])


def test_a_chain_of_types_as_long_as_a_schema_may_be_does_not_end_the_stack() -> None:
    chain = [record(field("n", f"R{i - 1}" if i else "int"), name=f"R{i}") for i in range(400)]
    assert not found(chain, chain)
    changed = [record(field("n", "string"), name="R0"), *chain[1:]]
    (finding,) = found([changed[0], *chain[1:]], chain)
    assert finding.kind == "TYPE_MISMATCH"


def test_types_that_would_take_too_long_to_compare_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compatibility, "MAX_STEPS", 1_000)
    wide = [{"type": "enum", "name": f"E{i}", "symbols": ["A"]} for i in range(100)]
    (finding,) = found(wide, wide[::-1])
    assert finding.kind == "TOO_COMPLEX"


def test_nested_unions_and_records_are_compared_in_steps_that_do_not_multiply(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Forty levels, in each of which two ways lead down: 2^40 ways in all."""
    kind: Any = record(field("a", "int"), name="R0")
    for i in range(1, 60):
        kind = record(field("a", ["null", kind]), field("b", ["null", f"R{i - 1}"]), name=f"R{i}")
    monkeypatch.setattr(compatibility, "MAX_STEPS", 2_000)
    assert not found(kind, kind)


# -- what changes -------------------------------------------------------------------------------------


def changes(old: Any, new: Any) -> list[Difference]:
    return differences(text(old), text(new))


def test_every_change_is_told_with_what_it_means_for_readers_and_writers() -> None:
    old = record(
        field("a", "int"),
        field("gone", "string"),
        field("e", enum("A", "B", default="A")),
        field("u", ["null", "int"]),
        field("same", "long"),
    )
    new = record(
        field("a", "long", doc="wider"),
        field("e", enum("A", default="A")),
        field("u", ["null", "int", "string"]),
        field("was", "long", aliases=["same"]),
        field("more", "int", default=7),
    )
    told = {(each.path, each.change): (each.readers, each.writers) for each in changes(old, new)}
    assert told.pop(("/fields/0", "the documentation changes")) == ("as before", "as before")
    readers, writers = told.pop(("/fields/0/type", "the type int becomes long"))
    assert readers == "as before"
    assert "long cannot be read as int" in writers
    assert told.pop(("/fields/1/type", "the symbols B are gone")) == ("get A instead", "as before")
    readers, writers = told.pop(("/fields/2/type", "of the union, string is added"))
    assert (readers, "string cannot be read" in writers or "no branch" in writers) == (
        "as before",
        True,
    )
    readers, writers = told.pop(("/fields/3", "the field same becomes was"))
    assert readers == "as before"
    assert "field same is not in" in writers
    assert told.pop(("/fields/3", "the aliases change")) is not None
    assert told.pop(("/fields/4", "the field more is added")) == (
        "get 7 from old values",
        "old readers pass it over",
    )
    readers, writers = told.pop(("/fields/1", "the field gone is gone"))
    assert readers == "pass it over"
    assert "field gone is not in" in writers
    assert not told


def test_nothing_changes_where_two_texts_mean_the_same() -> None:
    assert changes(ONE, json.loads(text(ONE))) == []


def test_a_change_inside_of_a_type_that_holds_itself_is_told_once() -> None:
    old = record(field("n", ["null", "R"]), field("x", "int"))
    new = record(field("n", ["null", "R"]), field("x", "long"))
    assert [each.path for each in changes(old, new)] == ["/fields/1/type"]


# -- random pairs -------------------------------------------------------------------------------------


def test_what_is_called_compatible_is_read_and_every_incompatibility_is_explained() -> None:
    tried = 0
    for seed in range(300):
        try:
            writer, reader = (resolve(each) for each in Samples(seed).pair())
        except InvalidSchema:
            continue
        tried += 1
        verdict = all(each.warning for each in compatible(reader, writer))
        # Apache's checker lets two fields read one, of which one has an alias.
        assert apache.is_compatible(reader, writer) is verdict or '"aliases"' in reader, seed
        assert bool(differences(writer, reader)) is (writer != reader), f"seed {seed}"
        if verdict:
            decode, bodies = decoder(writer, reader), Bodies(writer, random.Random(seed))
            for body in filter(None, (bodies.body() for _ in range(3))):
                try:
                    end = decode(body, 0)[1]
                except BROKEN as error:
                    if "UTF-8" in str(to_mismatch(error)):
                        continue  # bytes as a string
                    raise AssertionError(f"seed {seed}") from error
                assert end == len(body), f"seed {seed}"
    assert tried > 250
