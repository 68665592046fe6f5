"""Match a writer's schema with a reader's: Avro's rules for names, aliases and types.

Readers of values and of columns follow these rules, and so do verdicts about new schemas. Schemas are
definitions, as `ParsedSchema.of` returns them: a list of branches, or an object whose type is a word.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from folkmoot.schemas.avro.defaults import Json
from folkmoot.schemas.avro.identity import NAMED, RECORDS

PROMOTED: Final = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
"""The types to which each type may be promoted."""
_UNITS: Final = {"millis": 1, "micros": 1_000, "nanos": 1_000_000}


def kind_of(schema: Json) -> str:
    """The word for a type, the same for records and errors."""
    if isinstance(schema, list):
        return "union"
    return "record" if schema["type"] in RECORDS else str(schema["type"])


def fits(writer: Json, reader: Json) -> bool:
    """Return whether the two are of one kind, and have one name and size if they have any."""
    if kind_of(writer) != kind_of(reader) or not has_matching_name(writer, reader):
        return False
    return writer["type"] != "fixed" or bool(writer["size"] == reader["size"])


def has_matching_name(writer: Json, reader: Json) -> bool:
    """Return whether a reader's type has the writer's name, or an alias. The specification omits
    namespaces."""
    if _has_full_name(writer, reader):
        return True
    return _short(writer["name"]) == _short(reader["name"])


def _has_full_name(writer: Json, reader: Json) -> bool:
    if writer["type"] not in NAMED:
        return True
    return writer["name"] in (reader["name"], *reader.get("aliases", ()))


def promotes(writer: Json, reader: Json) -> bool:
    return reader["type"] in PROMOTED.get(writer["type"], ())


def choose_branch(writer: Json, branches: Sequence[Json]) -> int | None:
    """The branch of a reader's union that reads a writer's type; None if there is none.

    The same type comes first, then one of the same name in another namespace, then one to promote to.
    Readers do not look into the types, so neither do verdicts.
    """
    ranks: list[tuple[int, int]] = []
    for index, branch in enumerate(branches):
        if fits(writer, branch):
            ranks.append((0 if _has_full_name(writer, branch) else 1, index))
        elif promotes(writer, branch):
            ranks.append((2, index))
    return min(ranks)[1] if ranks else None


def sources(writer: Json, reader: Json) -> Mapping[str, int]:
    """The indexes of the reader's fields by the names of the writer's that are read as them.

    A field is read from the one of its name, or else of its first alias that no earlier field reads.
    """
    writer_names = {field["name"] for field in writer["fields"]}
    reader_names = {field["name"] for field in reader["fields"]}
    indexes: dict[str, int] = {}
    for index, field in enumerate(reader["fields"]):
        aliases = (each for each in field.get("aliases", ()) if each not in reader_names)
        names = (each for each in (field["name"], *aliases) if each not in indexes)
        source = next((each for each in names if each in writer_names), None)
        if source is not None:
            indexes[source] = index
    return indexes


def faults(reader: Json, writer: Json) -> list[str]:
    """Avro's words for what is wrong with two types themselves, of which neither is a union."""
    kind = kind_of(reader)
    if kind != kind_of(writer):
        return [] if promotes(writer, reader) else ["TYPE_MISMATCH"]
    result = []
    if not has_matching_name(writer, reader):
        result.append("NAME_MISMATCH")
    if kind == "fixed" and reader["size"] != writer["size"]:
        result.append("FIXED_SIZE_MISMATCH")
    has_default = kind == "enum" and reader.get("default") in reader["symbols"]
    if kind == "enum" and not has_default and missing_symbols(reader, writer):
        result.append("MISSING_ENUM_SYMBOLS")
    return result


def missing_symbols(reader: Json, writer: Json) -> list[str]:
    """The symbols of a writer's enum that the reader's enum has not."""
    reader_symbols = set(reader["symbols"])
    return [each for each in writer["symbols"] if each not in reader_symbols]


def missing_fields(reader: Json, writer: Json) -> list[int]:
    """The indexes of a reader's fields that nothing was written for, and that have no default."""
    if not kind_of(reader) == kind_of(writer) == "record":
        return []
    indexes = set(sources(writer, reader).values())
    return [
        index
        for index, field in enumerate(reader["fields"])
        if index not in indexes and "default" not in field
    ]


def unit_factor(writer: Json, reader: Json) -> float:
    """The factor between units of time."""
    (theirs, ours) = (str(each.get("logicalType")).rpartition("-") for each in (writer, reader))
    if theirs[0] != ours[0] or not {theirs[2], ours[2]} <= _UNITS.keys():
        return 1
    return _UNITS[ours[2]] / _UNITS[theirs[2]]


def _short(name: str) -> str:
    return name.rpartition(".")[2]
