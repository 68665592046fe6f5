"""The Avro schema that follows from a dataclass, a Struct, or any other annotation."""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, is_dataclass
from dataclasses import fields as dataclass_fields
from datetime import date, datetime, time
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Final, NamedTuple, NewType, Union, get_args, get_origin
from typing import get_type_hints as hints_of
from uuid import UUID

import msgspec

from folkmoot.protocol.errors import InvalidSchema
from folkmoot.schemas.avro.identity import canonical
from folkmoot.schemas.avro.logical import logical
from folkmoot.schemas.values.decoding import ValueFactory
from folkmoot.schemas.values.encoding import attributes

Json = Any

_TYPES: Final[dict[Any, Json]] = {
    NoneType: "null",
    bool: "boolean",
    int: "long",
    float: "double",
    str: "string",
    bytes: "bytes",
    datetime: {"type": "long", "logicalType": "timestamp-micros"},
    date: {"type": "int", "logicalType": "date"},
    time: {"type": "long", "logicalType": "time-micros"},
    UUID: {"type": "string", "logicalType": "uuid"},
}
_LOCAL: Final = {"type": "long", "logicalType": "local-timestamp-micros"}


class DerivedSchema(NamedTuple):
    """A schema, and what its values are made into."""

    text: str
    """Canonical."""
    classes: Mapping[str, ValueFactory]
    """By the names of the schema's records and enums."""


def derive(annotation: Any) -> DerivedSchema:
    """The schema of an annotation: a dataclass, a Struct, `list[Order]`, `Order | Refund`.

    int is a long, float a double, datetime is in microseconds with a time zone, `list[T]` an array,
    `dict[str, T]` a map, a default of the class is the field's; an Enum has to have texts as values.
    Other types need `Annotated[T, msgspec.Meta(extra={"avro": …})]`, with a schema. A Decimal needs it for
    its precision and scale. Raises InvalidSchema.
    """
    deriving = _Deriving()
    schema = deriving.of(annotation, getattr(annotation, "__name__", str(annotation)))
    return DerivedSchema(canonical(schema), deriving.classes)


def avro_schema(annotation: Any) -> str:
    """The text of the schema that follows from a class, as `derive` says. Raises InvalidSchema."""
    return derive(annotation).text


class _Field(NamedTuple):
    name: str
    attribute: str
    default: Any
    """MISSING if it has none."""


class _Deriving:
    def __init__(self) -> None:
        self.classes: dict[str, ValueFactory] = {}
        self._types: dict[str, type] = {}

    def of(self, annotation: Any, where: str) -> Json:
        if annotation is None:
            return "null"
        if annotation in _TYPES:
            return _TYPES[annotation]
        origin, inner = get_origin(annotation), get_args(annotation)
        if origin is Annotated:
            return self._annotated(inner[0], inner[1:], where)
        if origin in (Union, UnionType):
            return [self.of(each, where) for each in inner]
        if origin in (list, Sequence) and len(inner) == 1:
            return {"type": "array", "items": self.of(inner[0], f"{where}[]")}
        if origin in (dict, Mapping) and len(inner) == 2 and inner[0] is str:
            return {"type": "map", "values": self.of(inner[1], f"{where}[]")}
        if isinstance(annotation, NewType):
            return self.of(annotation.__supertype__, where)
        if isinstance(annotation, type) and origin is None:
            if issubclass(annotation, Enum):
                return self._enum(annotation, where)
            if is_dataclass(annotation) or issubclass(annotation, msgspec.Struct):
                return self._record(annotation, where)
        raise _underivable(where, f"{annotation!r} says no Avro type")

    def _annotated(self, plain: Any, notes: Sequence[Any], where: str) -> Json:
        for note in notes:
            if isinstance(note, msgspec.Meta):
                if note.extra is not None and "avro" in note.extra:
                    return note.extra["avro"]
                if plain is datetime and note.tz is False:
                    return _LOCAL
        return self.of(plain, where)

    def _is_defined(self, cls: type, where: str) -> bool:
        """Raises InvalidSchema if another class has its name."""
        if self._types.setdefault(cls.__name__, cls) is not cls:
            raise _underivable(where, f"two classes are called {cls.__name__}")
        return cls.__name__ in self.classes

    def _enum(self, cls: type[Enum], where: str) -> Json:
        if not self._is_defined(cls, where):
            symbols = [each.value for each in cls]
            if not all(isinstance(each, str) for each in symbols):
                raise _underivable(where, f"the values of {cls.__name__} are not all texts")
            self.classes[cls.__name__] = ValueFactory(cls, {})
            return {
                "type": "enum",
                "name": cls.__name__,
                "symbols": [str(each) for each in symbols],
            }
        return cls.__name__

    def _record(self, cls: Any, where: str) -> Json:
        if self._is_defined(cls, where):
            return cls.__name__
        fields = _fields_of(cls, where)
        self.classes[cls.__name__] = ValueFactory(
            cls, {each.name: each.attribute for each in fields}
        )
        try:
            hints = hints_of(cls, include_extras=True)
        except (NameError, TypeError) as error:
            raise _underivable(where, f"its annotations cannot be read: {error}") from None
        schema_fields = []
        for field in fields:
            field_path = f"{where}.{field.attribute}"
            schema = self.of(hints[field.attribute], field_path)
            if field.default is MISSING:
                schema_fields.append({"name": field.name, "type": schema})
                continue
            if isinstance(schema, list):  # a default is one of the first branch
                is_none = field.default is None
                schema = sorted(schema, key=lambda branch: (branch == "null") is not is_none)
            default = _json(
                field.default, schema[0] if isinstance(schema, list) else schema, field_path
            )
            schema_fields.append({"name": field.name, "type": schema, "default": default})
        return {"type": "record", "name": cls.__name__, "fields": schema_fields}


def _fields_of(cls: Any, where: str) -> list[_Field]:
    if issubclass(cls, msgspec.Struct):
        structs = msgspec.structs.fields(cls)
        return [
            _Field(each.encode_name, each.name, _default(each.default, each.default_factory))
            for each in structs
        ]
    fields = dataclass_fields(cls)
    for each in fields:
        if not each.init:
            raise _underivable(where, f"field {each.name} is not given to its constructor")
    return [
        _Field(each.name, each.name, _default(each.default, each.default_factory))
        for each in fields
    ]


def _default(value: Any, factory: Any) -> Any:
    if factory in (list, dict):
        return factory()
    # Other factories may return a new value each time, such as an id: no default of a schema.
    return MISSING if value is msgspec.NODEFAULT else value


def _json(value: Any, schema: Any, where: str) -> Json:
    """A default as a schema has it."""
    logical_type = logical(schema) if isinstance(schema, dict) else None
    if logical_type is not None and isinstance(value, logical_type.python):
        value = logical_type.write(value)
    match value:
        case Enum():
            return value.value
        case None | bool() | int() | float() | str():
            return value
        case bytes():
            return value.decode("latin-1")
        case list() | tuple() if isinstance(schema, dict) and "items" in schema:
            return [_json(each, schema["items"], where) for each in value]
        case dict() if isinstance(schema, dict) and "values" in schema:
            return {key: _json(each, schema["values"], where) for key, each in value.items()}
    cls: type = type(value)
    if (found := attributes(cls)) is not None:
        return {name: _json(getattr(value, each), None, where) for name, each in found}
    raise _underivable(where, f"{value!r:.80} is no default that a schema can have")


def _underivable(where: str, why: str) -> InvalidSchema:
    return InvalidSchema(f"no Avro schema follows from {where}: {why}; give a schema besides")
