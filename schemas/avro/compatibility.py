"""Which schema reads what another wrote, and what to do where it does not."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from msgspec import Struct

from folkmoot.protocol.errors import InvalidCompatibility
from folkmoot.schemas.avro.defaults import Json
from folkmoot.schemas.avro.identity import INNER, NAMED, PRIMITIVES
from folkmoot.schemas.avro.matching import (
    PROMOTED,
    choose_branch,
    faults,
    kind_of,
    missing_fields,
    missing_symbols,
    sources,
)
from folkmoot.schemas.avro.parsed import ParsedSchema

LEVELS = (
    "NONE",
    "BACKWARD",
    "BACKWARD_TRANSITIVE",
    "FORWARD",
    "FORWARD_TRANSITIVE",
    "FULL",
    "FULL_TRANSITIVE",
)
"""Compatibility levels of a subject. Without _TRANSITIVE only the last version counts."""
MAX_FINDINGS = 100
"""Findings for one pair of schemas; a pair may have more."""
MAX_STEPS = 300_000
"""Types that are compared, in a second or two. Two unions of 500 types each need as many."""


class Finding(Struct, frozen=True):
    """One place where a reader's schema does not fit a writer's, or means something else.

    `kind` is Avro's name of it (`READER_FIELD_MISSING_DEFAULT_VALUE`), `path` a JSON pointer into the
    reader's schema and `writer_path` one into the writer's, in which a named type stands wherever it
    is used; `message` says what to do. A finding with `warning` can be read, but may mean something else.
    """

    kind: str
    path: str
    writer_path: str
    message: str
    warning: bool = False


class _Pair(NamedTuple):
    """A type of each schema, and the JSON pointers to them."""

    reader: Json
    writer: Json
    path: str = ""
    writer_path: str = ""

    def within(self, reader: Json, writer: Json, path: str, writer_path: str) -> "_Pair":
        """Two types inside of these, with the steps to them."""
        return _Pair(reader, writer, self.path + path, self.writer_path + writer_path)


def compatible(reader: str, writer: str) -> list[Finding]:
    """Return why `reader` cannot read values of `writer`; both are resolved texts.

    Findings are in the order of the reader's schema, for each pair of definitions once. Empty, or warnings
    only: everything can be read.
    """
    ours, theirs = ParsedSchema(reader), ParsedSchema(writer)
    found: list[Finding] = []
    seen: set[tuple[int, int]] = set()
    steps = 0
    stack = [_Pair(ours.root, theirs.root)]
    while stack and len(found) < MAX_FINDINGS:
        pair = stack.pop()
        pair = pair._replace(reader=ours.of(pair.reader), writer=theirs.of(pair.writer))
        key = id(pair.reader), id(pair.writer)
        if key in seen:
            continue
        if not PRIMITIVES & {kind_of(pair.reader), kind_of(pair.writer)}:
            seen.add(key)
        steps += 1 + (len(pair.reader) if isinstance(pair.reader, list) else 0)
        if steps > MAX_STEPS:
            message = "the schemas have too many types to be compared: make their unions smaller"
            return [Finding("TOO_COMPLEX", "", "", message)]
        findings, parts = _compare(pair, ours)
        found += findings
        stack += reversed(parts)
    return found[:MAX_FINDINGS]


def judge(level: str, new: str, previous: Sequence[str]) -> list[Finding]:
    """Return why `new` cannot follow `previous` (oldest first) at one of the LEVELS; resolved texts.

    With both directions, readers with `new` come first; the last version comes before older ones. Raises
    InvalidCompatibility for a level that does not exist.
    """
    if level not in LEVELS:
        raise InvalidCompatibility(f"{level!r:.80} is no level: use one of {', '.join(LEVELS)}")
    found: dict[Finding, None] = {}
    if level != "NONE":
        for old in reversed(previous if level.endswith("_TRANSITIVE") else previous[-1:]):
            if not level.startswith("FORWARD"):
                found.update(dict.fromkeys(compatible(new, old)))
            if not level.startswith("BACKWARD"):
                found.update(dict.fromkeys(compatible(old, new)))
    return list(found)


def _compare(pair: _Pair, ours: ParsedSchema) -> tuple[list[Finding], list[_Pair]]:
    """What is wrong with two types themselves, and the pairs that must be readable for them to be."""
    reader, writer = pair.reader, pair.writer
    if isinstance(writer, list):
        return [], [pair.within(reader, each, "", f"/{i}") for i, each in enumerate(writer)]
    if isinstance(reader, list):
        branch = choose_branch(writer, [ours.of(each) for each in reader])
        if branch is None:
            return [_missing_branch(pair)], []
        return [], [pair.within(reader[branch], writer, f"/{branch}", "")]
    if wrong := faults(reader, writer):
        return [_fault(kind, pair) for kind in wrong], []
    findings = [*_warnings(pair), *_missing_fields(pair)]
    parts = []
    if kind_of(reader) == kind_of(writer) == "record":
        numbers = {field["name"]: number for number, field in enumerate(writer["fields"])}
        for name, index in sorted(sources(writer, reader).items(), key=lambda item: item[1]):
            number = numbers[name]
            types = reader["fields"][index]["type"], writer["fields"][number]["type"]
            parts.append(pair.within(*types, f"/fields/{index}/type", f"/fields/{number}/type"))
    elif reader["type"] in INNER:  # and the writer's is the same
        inner = INNER[reader["type"]]
        parts = [pair.within(reader[inner], writer[inner], f"/{inner}", f"/{inner}")]
    return findings, parts


def _missing_branch(pair: _Pair) -> Finding:
    message = f"the reader's union has no branch for the writer's {_describe(pair.writer)}: add it"
    return Finding("MISSING_UNION_BRANCH", pair.path, pair.writer_path, message)


def _missing_fields(pair: _Pair) -> Iterator[Finding]:
    for index in missing_fields(pair.reader, pair.writer):
        yield Finding(
            "READER_FIELD_MISSING_DEFAULT_VALUE",
            f"{pair.path}/fields/{index}",
            f"{pair.writer_path}/fields",
            f"the reader's field {pair.reader['fields'][index]['name']} is not in the writer's "
            f"record {_describe(pair.writer)}: give it a default, or the former name as an alias",
        )


def _fault(kind: str, pair: _Pair) -> Finding:
    reader, writer = pair.reader, pair.writer
    ours, theirs, where = _describe(reader), _describe(writer), ""
    if kind == "NAME_MISMATCH":
        where = "/name"
        message = (
            f"the reader's {ours} is not the writer's {theirs}: keep the name, or give the "
            f"reader's type the alias {theirs}"
        )
    elif kind == "FIXED_SIZE_MISMATCH":
        where = "/size"
        message = (
            f"the reader's {ours} has {reader['size']} bytes, the writer's {writer['size']}: keep "
            "the size, or add a field with another type"
        )
    elif kind == "MISSING_ENUM_SYMBOLS":
        where = "/symbols"
        message = (
            f"the reader's enum {ours} has no {abbreviate(missing_symbols(reader, writer))}: add what is "
            "missing, or give the enum a default"
        )
    else:
        promoted_types = ", ".join(sorted(PROMOTED.get(writer["type"], ())))
        instead = f" ({promoted_types} would do)" if promoted_types else ""
        message = (
            f"the writer's {theirs} cannot be read as {ours}: keep the type{instead}, or add a "
            "field with another name and a default"
        )
    return Finding(kind, pair.path + where, pair.writer_path + where, message)


def _describe(kind: Json) -> str:
    """A type in messages: its name, if it has one."""
    has_name = not isinstance(kind, list) and kind["type"] in NAMED
    return str(kind["name"]) if has_name else kind_of(kind)


def abbreviate(names: Sequence[str]) -> str:
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")


def _warnings(pair: _Pair) -> Iterator[Finding]:
    """Return logical types that changed, so values are read with another meaning."""
    reader, writer = pair.reader, pair.writer
    if kind_of(reader) in ("array", "map"):
        return
    reader_name, writer_name = reader.get("logicalType"), writer.get("logicalType")
    if reader_name == writer_name == "decimal":
        ours, theirs = reader.get("scale", 0), writer.get("scale", 0)
        if ours != theirs:
            message = f"a decimal's scale changes from {theirs} to {ours}: keep it, or add a field"
            yield Finding("DECIMAL_SCALE_CHANGED", pair.path, pair.writer_path, message, True)
        ours, theirs = _precision(reader), _precision(writer)
        if ours < theirs:
            message = f"a decimal's digits become fewer, {ours} instead of {theirs}: keep as many"
            yield Finding("DECIMAL_PRECISION_REDUCED", pair.path, pair.writer_path, message, True)
    elif reader_name != writer_name:
        message = (
            f"{writer_name or 'a plain ' + kind_of(writer)} is read as "
            f"{reader_name or 'a plain ' + kind_of(reader)}: "
            "keep the logical type, or add a field with another name"
        )
        yield Finding("LOGICAL_TYPE_CHANGED", pair.path, pair.writer_path, message, True)


def _precision(decimal: Json) -> int:
    precision = decimal.get("precision", 0)
    return precision if isinstance(precision, int) else 0
