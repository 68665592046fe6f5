"""Apache's `avro`: its schemas, and its checker, asked about one pair of types at a time.

Its checker recurses, and takes a pair that it is in the middle of for compatible. So a chain of types
ends Python's stack, and in a union the assumption outlives what it was made for. Here each pair is
decided by it once, with what is known of the pairs inside; what was assumed and turned out wrong is
decided again. That ends: a verdict only changes from compatible to incompatible, and only once.
"""

import json
from typing import Any

from folkmoot.protocol.errors import InvalidSchema
from folkmoot.schemas.avro.defaults import Json
from folkmoot.schemas.avro.extra import avro
from folkmoot.schemas.avro.identity import NAMED, PRIMITIVES, RECORDS

Type = Any
"""An `avro.schema.Schema`, each kind of which has attributes of its own."""
Result = avro.compatibility.SchemaCompatibilityResult
Kind = avro.compatibility.SchemaCompatibilityType

LOGICAL = ("logicalType", "precision", "scale")
MAX_STEPS = 300_000
"""Pairs that are looked at, a second or two; two unions of 500 types each need so many."""


def parsed(text: str) -> Type:
    """A resolved text as `avro` has it. Raises InvalidSchema.

    The names of its types have a namespace, `_` if they had none; logical types stand under "logical",
    where `avro` does not look for them.
    """
    try:
        return avro.schema.make_avsc_object(
            _shape(json.loads(text)), validate_enum_symbols=False, validate_names=False
        )
    except (avro.errors.AvroException, AttributeError, TypeError, ValueError) as error:
        raise InvalidSchema(f"not an Avro schema: {' '.join(str(error).split())[:400]}") from None
    except RecursionError:
        raise InvalidSchema("the schema is nested too deeply") from None


def _shape(kind: Json) -> Json:
    """What `avro` needs to see of a schema."""
    if isinstance(kind, str):
        return kind if kind in PRIMITIVES else _with_namespace(kind)
    if isinstance(kind, list):
        return [_shape(each) for each in kind]
    name = kind["type"]
    made: dict[str, Any] = {"type": name}
    if name in ("array", "map"):
        inner = "items" if name == "array" else "values"
        return made | {inner: _shape(kind[inner])}
    if "logicalType" in kind:
        made["logical"] = {key: kind[key] for key in LOGICAL if key in kind}
    if name in NAMED:
        made["name"] = _with_namespace(kind["name"])
        made["aliases"] = [_with_namespace(each) for each in kind.get("aliases", ())]
    if name == "enum":
        made["symbols"] = kind["symbols"]
        if kind.get("default") in kind["symbols"]:
            made["default"] = kind["default"]
    elif name == "fixed":
        made["size"] = kind["size"]
    elif name in RECORDS:
        made["type"] = "record"
        made["fields"] = [
            {key: field[key] for key in ("name", "default") if key in field}
            | {"type": _shape(field["type"]), "aliases": field.get("aliases", ())}
            for field in kind["fields"]
        ]
    return made


def _with_namespace(name: str) -> str:
    return name if "." in name else f"_.{name}"


class TooManyPairs(Exception):
    """Two schemas have more pairs of types than are looked at."""


# What each primitive may be read as besides itself.
PROMOTIONS: dict[str, frozenset[str]] = {
    "int": frozenset({"long", "float", "double"}),
    "long": frozenset({"float", "double"}),
    "float": frozenset({"double"}),
    "string": frozenset({"bytes"}),
    "bytes": frozenset({"string"}),
}
_WITH_OTHERS_INSIDE = frozenset({"array", "map", "record"})
_NO = Result(Kind.incompatible)


class Pairs(avro.compatibility.ReaderWriterCompatibilityChecker):
    """Which types of a reader can read which of a writer. Raises TooManyPairs."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._pairs: dict[tuple[int, int], tuple[Type, Type]] = {}
        self._verdicts: dict[tuple[int, int], bool] = {}
        # Who was decided with this verdict.
        self._users: dict[tuple[int, int], set[tuple[int, int]]] = {}
        self._open: list[tuple[int, int]] = []
        self._deciding: tuple[int, int] | None = None
        self.steps = 0

    def readable(self, reader: Type, writer: Type) -> bool:
        """Whether everything that was written as `writer` can be read as `reader`."""
        self._deciding = None
        self.get_compatibility(reader, writer)
        while self._open:
            key = self._open.pop()
            self._deciding = key
            if self._verdicts[key] and not self._decided(key):
                self._verdicts[key] = False
                self._open.extend(self._users[key])
        return self._verdicts[id(reader), id(writer)]

    def get_compatibility(
        self,
        reader: Type,
        writer: Type,
        reference_token: str = "/",
        location: list[str] | None = None,
    ) -> Result:
        """What is known of a pair: called by Apache's rules for the pairs inside of the one they decide."""
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise TooManyPairs
        key = id(reader), id(writer)
        if key not in self._verdicts:
            self._pairs[key] = reader, writer
            self._users[key] = set()
            self._verdicts[key] = True
            if not self._has_others_inside(reader, writer):
                self._verdicts[key] = self._decided(key)
            elif reader.type == writer.type == "record" and not _fits_by_name(reader, writer):
                self._verdicts[key] = False
            else:
                self._open.append(key)
        if self._deciding is not None:
            self._users[key].add(self._deciding)
        return avro.compatibility.CompatibleResult if self._verdicts[key] else _NO

    def check_reader_writer_record_fields(
        self, reader: Type, writer: Type, location: list[str]
    ) -> Result:
        """As Apache's, which looks at all fields of the writer for each of the reader's."""
        for field, written in matched(reader, writer):
            if written is None:
                if not field.has_default:
                    return _NO
            elif self.get_compatibility(field.type, written.type) is _NO:
                return _NO
        return avro.compatibility.CompatibleResult

    def local(self, reader: Type, writer: Type) -> list[str]:
        """Avro's kinds of what is wrong with two types themselves, neither of which is a union."""
        if reader.type == writer.type == "record":
            result = avro.compatibility.check_schema_names(reader, writer, [""])
        elif self._has_others_inside(reader, writer):
            return []
        else:
            result = self.calculate_compatibility(reader, writer, ["/"])
        return [each.name.upper() for each in result.incompatibilities]

    def _decided(self, key: tuple[int, int]) -> bool:
        result = self.calculate_compatibility(*self._pairs[key], ["/"])
        return result.compatibility is Kind.compatible

    def _has_others_inside(self, reader: Type, writer: Type) -> bool:
        if reader.type == "union" or writer.type == "union":
            return True
        return bool(reader.type == writer.type and reader.type in _WITH_OTHERS_INSIDE)


def _fits_by_name(reader: Type, writer: Type) -> bool:
    return bool(avro.compatibility.schema_name_equals(reader, writer))


def matched(reader: Type, writer: Type) -> list[tuple[Any, Any | None]]:
    """The reader's fields, each with the writer's field that it reads, if there is one.

    A name goes before an alias, and a field of the writer is read once.
    """
    left = writer.fields_dict
    direct = {field.name: left.pop(field.name, None) for field in reader.fields}
    found = []
    for field in reader.fields:
        written = direct[field.name]
        if written is None:
            written = next(
                (left.pop(each) for each in field.props["aliases"] if each in left), None
            )
        found.append((field, written))
    return found


def branches(reader: Type, writer: Type) -> list[int]:
    """The branches of a reader's union that may read a writer's type, the best first.

    That is the same type; then one of another namespace; then one that it can be promoted to.
    """
    ranks = []
    for number, branch in enumerate(reader.schemas):
        if branch.type == writer.type:
            if branch.type not in NAMED or writer.fullname in (
                branch.fullname,
                *branch.props["aliases"],
            ):
                ranks.append((0, number))
            elif branch.name == writer.name:
                ranks.append((1, number))
        elif branch.type in PROMOTIONS.get(writer.type, ()):
            ranks.append((2, number))
    return [number for _, number in sorted(ranks)]


def shown(kind: Type) -> str:
    """A type in messages: by its name, if it has one."""
    return kind.fullname.removeprefix("_.") if kind.type in NAMED else str(kind.type)
