"""Which schema reads what another wrote, and what to do where it does not."""

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from folkmoot.protocol.errors import InvalidCompatibility
from folkmoot.schemas.avro.apache import (
    PROMOTIONS,
    Pairs,
    TooManyPairs,
    Type,
    branches,
    matched,
    parsed,
    shown,
)

LEVELS = (
    "NONE",
    "BACKWARD",
    "BACKWARD_TRANSITIVE",
    "FORWARD",
    "FORWARD_TRANSITIVE",
    "FULL",
    "FULL_TRANSITIVE",
)
"""What new schemas of a subject owe to the older ones; without _TRANSITIVE only to the last."""
MAX_FINDINGS = 100
"""Of one pair of schemas; there may be more where there are so many."""


class Finding(Struct, frozen=True):
    """One place where a reader's schema does not fit a writer's, or means something else.

    `kind` is Avro's name of it (`READER_FIELD_MISSING_DEFAULT_VALUE`), `path` a JSON pointer into the
    reader's schema and `writer_path` one into the writer's, in which a named type stands wherever it
    is used; `message` says what to do. What has a `warning` can be read, but may mean something else.
    """

    kind: str
    path: str
    writer_path: str
    message: str
    warning: bool = False


def compatible(reader: str, writer: str) -> list[Finding]:
    """What keeps `reader` from reading what `writer` wrote; both resolved texts.

    Empty, or warnings only: everything can be read. Raises InvalidSchema.
    """
    theirs, written = parsed(reader), parsed(writer)
    pairs = Pairs()
    try:
        pairs.readable(theirs, written)
        return _explained(pairs, theirs, written)
    except TooManyPairs:
        message = "the schemas have too many types to be compared: make their unions smaller"
        return [Finding("TOO_COMPLEX", "", "", message)]


def judge(level: str, new: str, previous: Sequence[str]) -> list[Finding]:
    """What keeps `new` from following `previous` (oldest first) at one of the LEVELS; resolved texts.

    Where both directions are asked for, those who read with `new` come first; the last version comes
    before older ones. Raises InvalidCompatibility for a level that does not exist, InvalidSchema.
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


def _explained(pairs: Pairs, reader: Type, writer: Type) -> list[Finding]:
    """Every finding, by the way to it; each pair of types once."""
    found: list[Finding] = []
    seen = set()
    stack = [(reader, writer, "", "")]
    while stack and len(found) < MAX_FINDINGS:
        reader, writer, path, writer_path = stack.pop()
        if (id(reader), id(writer)) in seen:
            continue
        seen.add((id(reader), id(writer)))
        inside = []
        if writer.type == "union":
            for i, branch in enumerate(writer.schemas):
                inside.append((reader, branch, path, f"{writer_path}/{i}"))
        elif reader.type == "union":
            chosen = _chosen(pairs, reader, writer)
            if chosen is None:
                message = (
                    f"the reader's union has no branch for the writer's {shown(writer)}: add it"
                )
                found.append(Finding("MISSING_UNION_BRANCH", path, writer_path, message))
            else:
                inside.append((reader.schemas[chosen], writer, f"{path}/{chosen}", writer_path))
        else:
            wrong = pairs.local(reader, writer)
            found.extend(_local(kind, reader, writer, path, writer_path) for kind in wrong)
            if not wrong:
                found.extend(_warnings(reader, writer, path, writer_path))
                if reader.type == writer.type:
                    found.extend(_missing(reader, writer, path, writer_path))
                    inside = list(_inside(reader, writer, path, writer_path))
        stack.extend(reversed(inside))
    return found[:MAX_FINDINGS]


def _chosen(pairs: Pairs, reader: Type, writer: Type) -> int | None:
    """The branch of a reader's union that reads a writer's type: the best that reads all of it.

    If none does, the best that might read some of it.
    """
    candidates = branches(reader, writer)
    for number in candidates:
        if pairs.readable(reader.schemas[number], writer):
            return number
    return candidates[0] if candidates else None


def _inside(
    reader: Type, writer: Type, path: str, writer_path: str
) -> Iterator[tuple[Type, Type, str, str]]:
    if reader.type == "array":
        yield reader.items, writer.items, f"{path}/items", f"{writer_path}/items"
    elif reader.type == "map":
        yield reader.values, writer.values, f"{path}/values", f"{writer_path}/values"
    elif reader.type == "record":
        places = {field.name: i for i, field in enumerate(writer.fields)}
        for number, (field, written) in enumerate(matched(reader, writer)):
            if written is not None:
                there = f"{writer_path}/fields/{places[written.name]}/type"
                yield field.type, written.type, f"{path}/fields/{number}/type", there


def _missing(reader: Type, writer: Type, path: str, writer_path: str) -> Iterator[Finding]:
    if reader.type == "record":
        for number, (field, written) in enumerate(matched(reader, writer)):
            if written is None and not field.has_default:
                yield Finding(
                    "READER_FIELD_MISSING_DEFAULT_VALUE",
                    f"{path}/fields/{number}",
                    f"{writer_path}/fields",
                    f"the reader's field {field.name} is not in the writer's record {shown(writer)}: "
                    "give it a default, or the former name as an alias",
                )


def _local(kind: str, reader: Type, writer: Type, path: str, writer_path: str) -> Finding:
    ours, theirs = shown(reader), shown(writer)
    if kind == "NAME_MISMATCH":
        message = (
            f"the reader's {ours} is not the writer's {theirs}: keep the name, or give the "
            f"reader's type the alias {theirs}"
        )
        return Finding(kind, f"{path}/name", f"{writer_path}/name", message)
    if kind == "FIXED_SIZE_MISMATCH":
        message = (
            f"the reader's {ours} has {reader.size} bytes, the writer's {writer.size}: keep the "
            "size, or add a field with another type"
        )
        return Finding(kind, f"{path}/size", f"{writer_path}/size", message)
    if kind == "MISSING_ENUM_SYMBOLS":
        there = set(reader.symbols)
        symbols = [each for each in writer.symbols if each not in there]
        message = (
            f"the reader's enum {ours} has no {some(symbols)}: add what is missing, or give the "
            "enum a default"
        )
        return Finding(kind, f"{path}/symbols", f"{writer_path}/symbols", message)
    others = ", ".join(sorted(PROMOTIONS.get(writer.type, ())))
    instead = f" ({others} would do)" if others else ""
    message = (
        f"the writer's {theirs} cannot be read as {ours}: keep the type{instead}, or add a field "
        "with another name and a default"
    )
    return Finding(kind, path, writer_path, message)


def some(names: Sequence[str]) -> str:
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")


def _warnings(reader: Type, writer: Type, path: str, writer_path: str) -> Iterator[Finding]:
    """What is read with another meaning than it was written with: logical types that changed."""
    ours, theirs = reader.props.get("logical", {}), writer.props.get("logical", {})
    name, written = ours.get("logicalType"), theirs.get("logicalType")
    if name == written == "decimal":
        here, there = (each.get("scale", 0) for each in (ours, theirs))
        if here != there:
            message = f"a decimal's scale changes from {there} to {here}: keep it, or add a field"
            yield Finding("DECIMAL_SCALE_CHANGED", path, writer_path, message, True)
        here, there = (_precision(each) for each in (ours, theirs))
        if here < there:
            message = f"a decimal's digits become fewer, {here} instead of {there}: keep as many"
            yield Finding("DECIMAL_PRECISION_REDUCED", path, writer_path, message, True)
    elif name != written:
        message = (
            f"{written or 'a plain ' + writer.type} is read as {name or 'a plain ' + reader.type}: "
            "keep the logical type, or add a field with another name"
        )
        yield Finding("LOGICAL_TYPE_CHANGED", path, writer_path, message, True)


def _precision(logical: dict[str, Any]) -> int:
    precision = logical.get("precision", 0)
    return precision if isinstance(precision, int) else 0
