"""Reading what one schema wrote as another one says: what fastavro needs to do it right.

fastavro resolves schemas value by value, and not always as Avro says: of a reader's union it takes the
first branch that a value can be promoted to, before the one that was written; it takes types of
different namespaces for one; it hands out defaults as they stand in the JSON, the same list each time.
So both schemas are rewritten for each other once, here. In what fastavro gets, every type of a reader
has the name of the type that it reads, every union only the branches that were chosen, and every
default is the value it means. Names are no part of the bytes, so that all of this is free.
"""

import copy
import functools
import struct
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from folkmoot.protocol.errors import IncompatibleSchema, InvalidSchema
from folkmoot.schemas.avro.apache import PROMOTIONS, Pairs, TooManyPairs, Type, matched, parsed
from folkmoot.schemas.avro.compatibility import chosen_branch, explained
from folkmoot.schemas.avro.defaults import Json, Misfit
from folkmoot.schemas.avro.identity import NAMED, marked, parse

Finish = Callable[[Any], Any]
Read = tuple[Json, Json, Finish | None]
"""How one type is read as another: the writer's, the reader's, what to do with the value."""

# Logical types of one family mean the same in different units: the writer's says which.
_FAMILIES = {
    "decimal": "decimal",
    "time-millis": "time",
    "time-micros": "time",
    "timestamp-millis": "timestamp",
    "timestamp-micros": "timestamp",
    "local-timestamp-millis": "local-timestamp",
    "local-timestamp-micros": "local-timestamp",
}
# In this order each number meets its own type before one that it can be promoted to.
_ORDER = ("int", "long", "float", "double")
_FLOAT = struct.Struct("<f")


class Reading(Struct, frozen=True):
    """What to hand to fastavro: `fastavro.schemaless_reader(body, reading.writer, reading.reader)`.

    `reader` is None where nothing has to be resolved. `finish`, if it is not None, makes the value that
    was meant of the one that fastavro returns. A value that has no place in the reader's schema, where
    others have one (a branch of a union, a symbol of an enum), makes fastavro raise.
    """

    writer: Any
    reader: Any | None
    finish: Finish | None


def reading(writer: str, reader: str | None = None) -> Reading:
    """How values of the schema `writer` become those of `reader`; both resolved texts.

    Raises InvalidSchema, and IncompatibleSchema where `reader` cannot read anything `writer` wrote.
    """
    if reader is None or reader == writer:
        return Reading(parse(writer), None, None)
    written, wanted = parsed(writer), parsed(reader)
    pairs = Pairs()
    try:
        pairs.readable(wanted, written)  # raises for what would take too long
        builder = _Builder(pairs)
        ours, theirs, finish = builder.pair(written, wanted)
    except _Unreadable:
        findings = [each for each in explained(pairs, wanted, written) if not each.warning]
        reason = findings[0].message if findings else "their types differ"
        raise IncompatibleSchema(f"the reader's schema does not fit: {reason}", findings) from None
    except (TooManyPairs, RecursionError):
        raise InvalidSchema("the schemas have too many types to be read as each other") from None
    same = (ours, builder.writer) == (theirs, builder.reader)
    return Reading(
        marked(ours, builder.writer),
        None if same else marked(theirs, builder.reader, "reader"),
        finish if builder.finishes else None,
    )


class _Unreadable(Exception):
    """Nothing of a writer's type can be read as the reader's."""


class _Builder:
    def __init__(self, pairs: Pairs) -> None:
        self._pairs = pairs
        self.writer: dict[str, Json] = {}
        self.reader: dict[str, Json] = {}
        self.finishes = False
        self._names: dict[tuple[int, int], str] = {}
        self._fields: dict[str, _Fields] = {}
        self._passed_over: dict[int, str] = {}
        self._count = 0

    def pair(self, writer: Type, reader: Type) -> Read:
        """How `writer` is read as `reader`. Raises _Unreadable."""
        if writer.type == "union":
            return self._union(writer, reader)
        if reader.type == "union":
            chosen = chosen_branch(self._pairs, reader, writer)
            if chosen is None:
                raise _Unreadable
            return self.pair(writer, reader.schemas[chosen])
        if set(self._pairs.local(reader, writer)) - {"MISSING_ENUM_SYMBOLS"}:
            raise _Unreadable
        if writer.type == "array":
            ours, theirs, finish = self.pair(writer.items, reader.items)
            each = finish and functools.partial(_each_item, finish)
            return {"type": "array", "items": ours}, {"type": "array", "items": theirs}, each
        if writer.type == "map":
            ours, theirs, finish = self.pair(writer.values, reader.values)
            value = finish and functools.partial(_each_value, finish)
            return {"type": "map", "values": ours}, {"type": "map", "values": theirs}, value
        if writer.type in NAMED:
            return self._named(writer, reader)
        return self._primitive(writer, reader)

    def _primitive(self, writer: Type, reader: Type) -> Read:
        if reader.type in ("float", "double") and writer.type != reader.type:
            if writer.type == "float":
                return "float", "float", None
            if reader.type == "double":
                return writer.type, "double", None
            self.finishes = True
            return writer.type, "float", _rounded
        # The bytes of an int are those of a long, those of a string are bytes.
        kind, logical = _logical(writer, reader)
        made = {"type": kind, **logical} if logical else kind
        return made, made, None

    def _named(self, writer: Type, reader: Type) -> Read:
        key = id(writer), id(reader)
        name = self._names.get(key)
        if name is None:
            name = self._names[key] = self._new_name(reader.name)
            try:
                self._define(name, writer, reader)
            except _Unreadable:
                del self._names[key]
                raise
        return name, name, self._fields.get(name)

    def _define(self, name: str, writer: Type, reader: Type) -> None:
        made: dict[str, Json] = {"type": writer.type, "name": name}
        if writer.type == "record":
            self._record(name, writer, reader)
        elif writer.type == "fixed":
            made |= {"size": writer.size, **_logical(writer, reader)[1]}
            self.writer[name] = self.reader[name] = made
        else:
            self.writer[name] = {**made, "symbols": writer.symbols}
            self.reader[name] = {**made, "symbols": reader.symbols}
            if reader.props.get("default"):
                self.reader[name]["default"] = reader.props["default"]

    def _record(self, name: str, writer: Type, reader: Type) -> None:
        finish = self._fields[name] = _Fields()
        fields = matched(reader, writer)
        readers = {id(written): field for field, written in fields if written is not None}
        ours: list[Json] = []
        theirs: list[Json] = []
        for number, written in enumerate(writer.fields):
            field = readers.get(id(written))
            if field is None:
                ours.append({"name": f"-{number}", "type": self._plain(written.type)})
                continue
            kind, wanted, then = self.pair(written.type, field.type)
            ours.append({"name": field.name, "type": kind})
            theirs.append({"name": field.name, "type": wanted})
            if then is not None:
                finish.steps.append((field.name, then))
        for field, written in fields:
            if written is None:
                value = _default(reader, field)
                if isinstance(value, list | dict):
                    # fastavro would hand out the one value again and again.
                    finish.added.append((field.name, functools.partial(copy.deepcopy, value)))
                    self.finishes = True
                else:
                    theirs.append({"name": field.name, "type": "null", "default": value})
        self.writer[name] = {"type": "record", "name": name, "fields": ours}
        self.reader[name] = {"type": "record", "name": name, "fields": theirs}

    def _union(self, writer: Type, reader: Type) -> Read:
        parts: list[Read | None] = []
        for branch in writer.schemas:
            try:
                parts.append(self.pair(branch, reader))
            except _Unreadable:
                parts.append(None)
        if not any(parts):
            raise _Unreadable
        ours = [
            part[0] if part else self._plain(branch)
            for part, branch in zip(parts, writer.schemas, strict=True)
        ]
        theirs = _in_order([part[:2] for part in parts if part])
        finishes = [part and part[2] for part in parts]
        clear = all(
            _taken(kind, theirs) == (part and part[1])
            for kind, part in zip(ours, parts, strict=True)
        )
        if clear and not any(finishes):
            return ours, theirs, None
        others = [i for i, branch in enumerate(writer.schemas) if branch.type != "null"]
        finish = finishes[others[0]] if len(others) == 1 else None
        if clear and finish is not None and len(writer.schemas) == 2:
            return ours, theirs, functools.partial(_unless_none, finish)
        return self._told_apart(ours, parts)

    def _told_apart(self, ours: list[Json], parts: list[Read | None]) -> Read:
        """Each branch in a record of one field, whose name is the number: it adds nothing to the bytes."""
        self.finishes = True
        names, theirs = [], []
        for number, (kind, part) in enumerate(zip(ours, parts, strict=True)):
            name = self._new_name("branch")
            names.append(name)
            made = {"type": "record", "name": name}
            self.writer[name] = made | {"fields": [{"name": str(number), "type": kind}]}
            if part is not None:
                self.reader[name] = made | {"fields": [{"name": str(number), "type": part[1]}]}
                theirs.append(name)
        finishes = {str(i): part and part[2] for i, part in enumerate(parts)}
        return names, theirs, functools.partial(_of_branch, finishes)

    def _plain(self, kind: Type) -> Json:
        """A type of the writer that no reader wants, so that it can be passed over."""
        if kind.type == "union":
            return [self._plain(each) for each in kind.schemas]
        if kind.type == "array":
            return {"type": "array", "items": self._plain(kind.items)}
        if kind.type == "map":
            return {"type": "map", "values": self._plain(kind.values)}
        if kind.type not in NAMED:
            return kind.type
        name = self._passed_over.get(id(kind))
        if name is None:
            name = self._passed_over[id(kind)] = self._new_name(kind.name)
            made: dict[str, Json] = {"type": kind.type, "name": name}
            if kind.type == "record":
                fields = enumerate(kind.fields)
                made["fields"] = [
                    {"name": f"-{i}", "type": self._plain(field.type)} for i, field in fields
                ]
            elif kind.type == "fixed":
                made["size"] = kind.size
            else:
                made["symbols"] = kind.symbols
            self.writer[name] = made
        return name

    def _new_name(self, name: str) -> str:
        self._count += 1
        return f"{name}_{self._count}"


def _logical(writer: Type, reader: Type) -> tuple[str, Json]:
    """The primitive type to read, and the logical type that makes a value of it.

    It is the reader's, as in Java; but where both are of one family, the writer's, since a reader in
    micros that takes millis for micros is a thousand times off.
    """
    ours, theirs = reader.props.get("logical", {}), writer.props.get("logical", {})
    family = _FAMILIES.get(ours.get("logicalType"))
    if family is not None and family == _FAMILIES.get(theirs.get("logicalType")):
        return writer.type, theirs
    return reader.type, ours


def _default(record: Type, field: Any) -> Any:
    if not field.has_default:
        raise _Unreadable
    try:
        return field.default()
    except Misfit as misfit:
        name = record.fullname.removeprefix("_.")
        raise InvalidSchema(f"the default of field {field.name} of {name}: {misfit}") from None


def _in_order(parts: list[tuple[Json, Json]]) -> list[Json]:
    """The reader's branches, those that are promoted to last."""
    exact = [theirs for ours, theirs in parts if _tag(ours) == _tag(theirs)]
    exact.sort(key=lambda each: _ORDER.index(_tag(each)) if _tag(each) in _ORDER else -1)
    found: list[Json] = []
    for each in (*exact, *(theirs for _, theirs in parts)):
        if each not in found:
            found.append(each)
    return found


def _taken(kind: Json, branches: list[Json]) -> Json | None:
    """The branch that fastavro reads `kind` as: the first that it matches."""
    tag = _tag(kind)
    tags = (tag, *PROMOTIONS.get(tag, ()))
    return next((each for each in branches if _tag(each) in tags), None)


def _tag(kind: Json) -> str:
    return kind if isinstance(kind, str) else kind["type"]


class _Fields:
    """Finishes a record in place: fields that need it, and those that were not written."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, Finish]] = []
        self.added: list[tuple[str, Callable[[], Any]]] = []

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        for name, finish in self.steps:
            record[name] = finish(record[name])
        for name, make in self.added:
            record[name] = make()
        return record


def _rounded(value: float) -> float:
    """A number as a float of 32 bits holds it."""
    return float(_FLOAT.unpack(_FLOAT.pack(value))[0])


def _each_item(finish: Finish, values: list[Any]) -> list[Any]:
    return [finish(each) for each in values]


def _each_value(finish: Finish, values: dict[str, Any]) -> dict[str, Any]:
    return {key: finish(each) for key, each in values.items()}


def _unless_none(finish: Finish, value: Any) -> Any:
    return None if value is None else finish(value)


def _of_branch(finishes: dict[str, Finish | None], value: dict[str, Any]) -> Any:
    ((number, inner),) = value.items()
    finish = finishes[number]
    return inner if finish is None else finish(inner)
