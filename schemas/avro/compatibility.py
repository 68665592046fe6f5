"""Which schema reads what another wrote, and what to do where it does not."""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from folkmoot.protocol.errors import InvalidCompatibility
from folkmoot.schemas.avro.defaults import Json
from folkmoot.schemas.avro.identity import NAMED, PRIMITIVES
from folkmoot.schemas.avro.matching import (
    PROMOTED,
    faults,
    kind_of,
    missing_fields,
    missing_symbols,
)
from folkmoot.schemas.avro.parsed import ParsedSchema
from folkmoot.schemas.avro.verdicts import Pair, TooManyPairs, Verdicts, is_choice, is_union

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


def compatible(reader: str, writer: str) -> list[Finding]:
    """Return why `reader` cannot read values of `writer`; both are resolved texts.

    Empty, or warnings only: everything can be read.
    """
    try:
        return _explain(Verdicts(ParsedSchema(reader), ParsedSchema(writer)))
    except TooManyPairs:
        message = "the schemas have too many types to be compared: make their unions smaller"
        return [Finding("TOO_COMPLEX", "", "", message)]


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


def _explain(verdicts: Verdicts) -> list[Finding]:
    """Every finding, in the order of the reader's schema; each pair with a definition once."""
    found: list[Finding] = []
    seen = set()
    stack = [verdicts.root]
    while stack and len(found) < MAX_FINDINGS:
        pair = stack.pop()
        if pair.key in seen:
            continue
        if not PRIMITIVES & {kind_of(pair.reader), kind_of(pair.writer)}:
            seen.add(pair.key)
        parts: list[Pair] = []
        if is_choice(pair):
            best = verdicts.best(pair)
            if best is None:
                found.append(_missing_branch(pair))
            else:
                parts = [best]
        elif is_union(pair):
            parts = list(verdicts.parts(pair))
        elif wrong := faults(pair.reader, pair.writer):
            found.extend(_fault(kind, pair) for kind in wrong)
        else:
            found.extend(_warnings(pair))
            found.extend(_missing_fields(pair))
            parts = list(verdicts.parts(pair))
        stack.extend(each.within(pair) for each in reversed(parts))
    return found[:MAX_FINDINGS]


def _missing_branch(pair: Pair) -> Finding:
    message = f"the reader's union has no branch for the writer's {_describe(pair.writer)}: add it"
    return Finding("MISSING_UNION_BRANCH", pair.path, pair.writer_path, message)


def _missing_fields(pair: Pair) -> Iterator[Finding]:
    for index in missing_fields(pair.reader, pair.writer):
        yield Finding(
            "READER_FIELD_MISSING_DEFAULT_VALUE",
            f"{pair.path}/fields/{index}",
            f"{pair.writer_path}/fields",
            f"the reader's field {pair.reader['fields'][index]['name']} is not in the writer's "
            f"record {_describe(pair.writer)}: give it a default, or the former name as an alias",
        )


def _fault(kind: str, pair: Pair) -> Finding:
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


def _warnings(pair: Pair) -> Iterator[Finding]:
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
