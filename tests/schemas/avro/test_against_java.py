"""Our verdicts and readings beside those of Apache's libraries and fastavro, over random pairs of schemas.

The pairs are the same in every run; FOLKMOOT_SEED=n begins with that one, FOLKMOOT_PAIRS=n tries so many.
"""

import io
import json
import os
import random
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import fastavro
import pytest
from msgspec import Struct

from folkmoot.protocol.errors import InvalidSchema
from folkmoot.schemas.avro.compatibility import Finding, compatible
from folkmoot.schemas.avro.identity import parse
from folkmoot.schemas.avro.normal import normalize
from folkmoot.schemas.avro.references import resolve
from folkmoot.schemas.values.decoding import BROKEN, decoder, to_mismatch
from tests.schemas.avro import apache
from tests.schemas.avro.java import Java, java
from tests.schemas.avro.samples import Bodies, Samples, places, plain
from tests.seeds import fixed_seed

pytestmark = pytest.mark.schemas

PAIRS = int(os.environ.get("FOLKMOOT_PAIRS", "5000"))
BODIES = 3
Outcome = tuple[str, Any]
"""A word, and a value or an error."""


class Case(Struct):
    """One pair of schemas, and what became of some bytes."""

    writer: str
    reader: str
    findings: list[Finding]
    ours: Outcome = ("", None)
    javas: Outcome = ("", None)


@pytest.fixture(scope="module")
def jvm() -> Iterator[Java]:
    with java() as jvm:
        yield jvm


# -- why somebody differs -----------------------------------------------------------------------------


def _records(text: str) -> list[Any]:
    """The fields of each record."""
    kinds = (kind for kind, _ in places(json.loads(text)))
    return [each["fields"] for each in kinds if isinstance(each, dict) and each["type"] == "record"]


def takes_a_field_twice(case: Case) -> bool:
    """Two fields of the reader may read one of the writer by an alias, or one may read two."""
    written = [{field["name"] for field in fields} for fields in _records(case.writer)]
    for fields in _records(case.reader):
        names = Counter(field["name"] for field in fields)
        for field in fields:
            aliases = set(field.get("aliases", ()))
            names.update(aliases)
            if aliases and any(len((aliases | {field["name"]}) & each) > 1 for each in written):
                return True
        if any(count > 1 for count in names.values()):
            return True
    return False


def _full_names(text: str, *kinds: str) -> set[str]:
    found = (kind for kind, _ in places(json.loads(text)) if isinstance(kind, dict))
    return {kind["name"] for kind in found if kind["type"] in kinds}


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def moves_a_record_with_aliases(case: Case) -> bool:
    """A record of the reader has another full name than the writer's, and aliases for fields."""
    written = _full_names(case.writer, "record")
    kinds = (kind for kind, _ in places(json.loads(case.reader)) if isinstance(kind, dict))
    return any(
        kind["type"] == "record"
        and kind["name"] not in written
        and any(field.get("aliases") for field in kind["fields"])
        for kind in kinds
    )


def moves_to_another_namespace(case: Case) -> bool:
    """An enum or a fixed of the reader has the writer's name in another namespace."""
    written = _full_names(case.writer, "enum", "fixed")
    wanted = _full_names(case.reader, "enum", "fixed")
    return any(_short(a) == _short(b) for a in written for b in wanted - {a})


def has_a_name_in_two_namespaces(case: Case) -> bool:
    """Two types have one name, in other namespaces, or in the two schemas."""
    kinds = ("record", "enum", "fixed")
    names = _full_names(case.writer, *kinds) | _full_names(case.reader, *kinds)
    return len({_short(name) for name in names}) < len(names)


def reads_a_record_of_another_name(case: Case) -> bool:
    """What we refuse is that a record has another name."""
    kinds = {each.kind for each in case.findings}
    return case.ours[0] == "error" and not kinds.isdisjoint(
        ("NAME_MISMATCH", "MISSING_UNION_BRANCH")
    )


def may_be_empty(case: Case) -> bool:
    """Something inside of an array or a map cannot be read, and in these bytes there is nothing."""
    return case.ours[0] == "value" and bool(case.findings)


def has_a_default_for_a_union(case: Case) -> bool:
    """A union's default is not null, and may be of a later branch."""
    fields = (
        field
        for kind, _ in places(json.loads(case.reader))
        if isinstance(kind, dict)
        for field in kind.get("fields", ())
    )
    return any(
        isinstance(field["type"], list) and field.get("default") is not None for field in fields
    )


def has_bytes_that_are_no_text(case: Case) -> bool:
    """Bytes are read as a string: Java puts replacement characters where they are no UTF-8."""
    return case.ours[0] == "error" and "UTF-8" in case.ours[1]


def has_two_records_of_one_name(case: Case) -> bool:
    """Records of one name stand in two namespaces, and Java cannot read the one that it takes."""
    return case.javas[0] == "error" and has_a_name_in_two_namespaces(case)


def has_unions(case: Case) -> bool:
    return any(isinstance(kind, list) for kind, _ in places(json.loads(case.reader)))


def has_defaults(case: Case) -> bool:
    return '"default"' in case.reader


def has_floats(case: Case) -> bool:
    return '"float"' in case.reader


Reasons = dict[str, Callable[[Case], bool]]

OF_APACHES_VERDICT: Reasons = {
    "Apache's checkers let two fields read one; ours does as our reader does": takes_a_field_twice,
    "Apache's checkers try a union's types of other names; readers take that of the very name": (
        has_a_name_in_two_namespaces
    ),
}
OF_OUR_READER: Reasons = {
    "bytes are no text": has_bytes_that_are_no_text,
}
OF_JAVAS_READER: Reasons = {
    "Java's reader renames a field by an alias although its name is wanted": takes_a_field_twice,
    "Java's reader asks for a field's alias only in a record of one full name": (
        moves_a_record_with_aliases
    ),
    "Java's reader compares the namespaces of enums and fixed, unlike its checker": (
        moves_to_another_namespace
    ),
    "Java's reader does not compare the names of records, unlike its checker": (
        reads_a_record_of_another_name
    ),
    "Java's reader takes the first branch of a kind of JSON for a default": has_a_default_for_a_union,
    "Java's reader takes a union's record of the very name even if only another one can be read": (
        has_two_records_of_one_name
    ),
    "we refuse bytes that are no text, where Java replaces them": has_bytes_that_are_no_text,
}
OF_FASTAVRO: Reasons = {
    "fastavro takes the first branch that a value can be promoted to": has_unions,
    "fastavro hands out defaults of bytes, fixed, records and floats as JSON": has_defaults,
    "fastavro compares names without their namespaces": has_a_name_in_two_namespaces,
    "fastavro does not round a number to a float": has_floats,
    "fastavro matches {'type': 'bytes'} with no type of another spelling": lambda case: (
        '{"type": "' in case.writer
    ),
    "fastavro reads a field by a name and by an alias": takes_a_field_twice,
    "fastavro refuses items that cannot be read even where there are none": may_be_empty,
}


def reason(case: Case, reasons: Reasons) -> str:
    return next((name for name, holds in reasons.items() if holds(case)), "")


# -- what each of them says ---------------------------------------------------------------------------


def shaped(value: Any) -> Any:
    """A value that equals another only if it is of the same type, too."""
    if isinstance(value, float):
        return "float", struct.pack("<d", value)
    if isinstance(value, dict):
        return "record", tuple(sorted((key, shaped(each)) for key, each in value.items()))
    if isinstance(value, list):
        return "array", tuple(shaped(each) for each in value)
    return type(value).__name__, value


def outcome(read: Callable[[], Any]) -> Outcome:
    try:
        return "value", shaped(read())
    except BROKEN as error:
        return "error", str(to_mismatch(error))
    except Exception as error:
        return "error", f"{type(error).__name__}: {error}"


def read_here(writer: str, reader: str, body: bytes) -> Any:
    value, end = decoder(writer, reader)(body, 0)
    assert end == len(body)
    return value


def read_by_fastavro(writer: str, reader: str, body: bytes) -> Any:
    return fastavro.schemaless_reader(io.BytesIO(body), parse(writer), parse(reader))


def read_by_java(jvm: Java, writer: str, reader: str, body: bytes) -> Any:
    made = jvm.read(jvm.reader(writer, reader), reader, body)
    return fastavro.schemaless_reader(io.BytesIO(made), parse(reader), None)


def seeds() -> range:
    return range(fixed_seed(), fixed_seed() + PAIRS)


@pytest.mark.timeout(300)
def test_verdicts_and_readings_are_javas_but_for_listed_reasons(jvm: Java) -> None:
    tried = seeds()
    print(f"seeds {tried[0]}..{tried[-1]}")
    counts: Counter[str] = Counter()
    for seed in tried:
        try:
            writer, reader = (plain(resolve(each)) for each in Samples(seed).pair())
        except InvalidSchema:
            counts["no schema"] += 1  # a default of another type, a record that holds itself
            continue
        findings = [each for each in compatible(reader, writer) if not each.warning]
        case = Case(writer, reader, findings)
        compare_verdicts(seed, case, jvm, counts)
        bodies = Bodies(writer, random.Random(seed))
        for _ in range(BODIES):
            body = bodies.body()
            if body is not None:
                compare_readings(seed, case, jvm, body, counts)
    print("\n".join(f"{count:6} {name}" for name, count in counts.most_common()))
    if PAIRS >= 1000:
        assert counts["no schema"] < PAIRS / 10
        assert counts["verdict compatible"] > PAIRS / 4
        assert counts["verdict incompatible"] > PAIRS / 10
        assert counts["read alike by ours and Java's"] > PAIRS


def compare_verdicts(seed: int, case: Case, jvm: Java, counts: Counter[str]) -> None:
    ours = "incompatible" if case.findings else "compatible"
    counts[f"verdict {ours}"] += 1
    for name, is_compatible in (("Java", jvm.compatible), ("avro", apache.is_compatible)):
        try:
            theirs = "compatible" if is_compatible(case.reader, case.writer) else "incompatible"
        except ValueError as error:
            theirs = str(error)
        if ours != theirs:
            why = reason(case, OF_APACHES_VERDICT)
            pair = f"{case.writer}\n{case.reader}"
            assert why, f"seed {seed}: we say {ours}, {name} says {theirs}\n{pair}"
            counts[f"verdict of {name}: {why}"] += 1


def compare_readings(seed: int, case: Case, jvm: Java, body: bytes, counts: Counter[str]) -> None:
    writer, reader = case.writer, case.reader
    case.ours = outcome(lambda: read_here(writer, reader, body))
    case.javas = outcome(lambda: read_by_java(jvm, writer, reader, body))
    fast = outcome(lambda: read_by_fastavro(writer, reader, body))
    what = f"seed {seed}, {body!r}: {case.ours}\nJava {case.javas}\nfastavro {fast}\n{writer}\n{reader}"
    if case.ours[0] == "error" and not case.findings:
        why = reason(case, OF_OUR_READER)
        assert why, f"compatible, but not read: {what}"
        counts[f"read: {why}"] += 1
    for name, other, reasons in (
        ("Java's", case.javas, OF_JAVAS_READER),
        ("fastavro's", fast, OF_FASTAVRO),
    ):
        if case.ours == other:
            counts[f"read alike by ours and {name}"] += 1
        elif case.ours[0] == other[0] == "error":
            counts[f"refused alike by ours and {name}"] += 1
        else:
            why = reason(case, reasons)
            assert why, f"unlisted difference to {name}: {what}"
            counts[f"read: {why}"] += 1


def test_javas_avro_writes_what_normalize_wrote(jvm: Java) -> None:
    for seed in seeds()[:500]:
        try:
            text = normalize(Samples(seed).pair()[1])
        except InvalidSchema:
            continue
        assert jvm.written(text) == text, f"seed {seed}"
