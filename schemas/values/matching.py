"""What of a writer's schema is read as what of a reader's: Avro's rules for names, aliases and types.

Schemas are as `decoding.definition` has them: a list of branches, or an object whose type is a word.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

Json = Any

PROMOTED: Final = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
"""What a type may be promoted to."""
RECORDS: Final = ("record", "error")
_NAMED: Final = ("record", "enum", "fixed")
_UNITS: Final = {"millis": 1, "micros": 1_000, "nanos": 1_000_000}


def fits(writer: Json, reader: Json) -> bool:
    """Whether the two are of one kind, and named alike: the specification leaves namespaces out."""
    kinds = [RECORDS[0] if each["type"] in RECORDS else each["type"] for each in (writer, reader)]
    if kinds[0] != kinds[1] or kinds[0] not in _NAMED:
        return bool(kinds[0] == kinds[1])
    if writer["type"] == "fixed" and writer["size"] != reader["size"]:
        return False
    same = _short(writer["name"]) == _short(reader["name"])
    return same or writer["name"] in reader.get("aliases", ())


def promotes(writer: Json, reader: Json) -> bool:
    return reader["type"] in PROMOTED.get(writer["type"], ())


def chosen(writer: Json, branches: Sequence[Json]) -> int | None:
    """The branch of a reader's union: the same type, one that fits, one to be promoted to; or None."""
    places = range(len(branches))
    fit = [place for place in places if fits(writer, branches[place])]
    exact = [
        place
        for place in fit
        if writer.get("name") in (branches[place].get("name"), *branches[place].get("aliases", ()))
    ]
    promoted = [place for place in places if promotes(writer, branches[place])]
    return next(iter((*exact, *fit, *promoted)), None)


def sources(writer: Json, reader: Json) -> Mapping[str, int]:
    """The places of the reader's fields by the names of the writer's that are read as them.

    A field is read from the one of its name, or else of its first alias that nobody before it reads.
    """
    written = {field["name"] for field in writer["fields"]}
    own = {field["name"] for field in reader["fields"]}
    places: dict[str, int] = {}
    for place, field in enumerate(reader["fields"]):
        aliases = (each for each in field.get("aliases", ()) if each not in own)
        names = (each for each in (field["name"], *aliases) if each not in places)
        source = next((each for each in names if each in written), None)
        if source is not None:
            places[source] = place
    return places


def factor(writer: Json, reader: Json) -> float:
    """What a time is multiplied by, since a point in time is the same in whatever unit it is written."""
    (theirs, ours) = (str(each.get("logicalType")).rpartition("-") for each in (writer, reader))
    if theirs[0] != ours[0] or not {theirs[2], ours[2]} <= _UNITS.keys():
        return 1
    return _UNITS[ours[2]] / _UNITS[theirs[2]]


def _short(name: str) -> str:
    return name.rpartition(".")[2]
