"""Python values to Avro bodies, by functions that are made once per schema; every value is checked.

A value that would lose something is refused, with the path to it: a float or a bool for a whole number,
one that does not fit, a text for bytes, a field that the schema does not have. So there is nothing to
check beforehand, and checking as the bytes are made costs less than fastavro takes without.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from enum import Enum
from functools import lru_cache
from numbers import Real
from operator import attrgetter, index
from sys import maxsize
from typing import Any, Final

import msgspec

from folkmoot.schemas.avro.defaults import Json
from folkmoot.schemas.avro.identity import RECORDS
from folkmoot.schemas.avro.logical import Logical, logical
from folkmoot.schemas.avro.mismatch import SchemaMismatch, describe
from folkmoot.schemas.avro.parsed import ParsedSchema

Encode = Callable[[Any], bytes]
"""The Avro body of a value. Raises SchemaMismatch, RecursionError."""

MAX_EMPTY_ITEMS: Final = 100
"""Limit of arrays whose items take no bytes: any number of them would fit."""


def encoder(text: str) -> Encode:
    """Makes bodies of values of a schema, given as one resolved text."""
    schema = ParsedSchema(text)
    return _Encoders(schema).of(schema.root)


def default_body(kind: Json, default: Json, schema: ParsedSchema) -> bytes:
    """The body of a default as JSON has it, of a type of a schema.

    Raises ValueError for a default that does not fit.
    """
    encoders = _Encoders(schema)
    return encoders.of(kind)(encoders.default(kind, default))


def varint(number: int) -> bytes:
    """A whole number as Avro writes it."""
    remaining = (number << 1) ^ (number >> 63)
    encoded = bytearray()
    while remaining > 0x7F:
        encoded.append(remaining & 0x7F | 0x80)
        remaining >>= 7
    encoded.append(remaining)
    return bytes(encoded)


class _Varints(dict[int, bytes]):
    """Those that are frequent are there."""

    def __missing__(self, number: int) -> bytes:
        return varint(number)


_VARINTS: Final = _Varints()
_VARINTS.update((number, _VARINTS[number]) for number in range(-8192, 8192))


# -- plain types --------------------------------------------------------------------------------------


def _null(value: Any) -> bytes:
    if value is not None:
        raise SchemaMismatch(f"null is wanted, not {describe(value)}")
    return b""


def _boolean(value: Any) -> bytes:
    if value is True:
        return b"\1"
    if value is not False:
        raise SchemaMismatch(f"a boolean is wanted, not {describe(value)}")
    return b"\0"


def _integer(kind: str, bits: int) -> Encode:
    least, most = -(1 << (bits - 1)), (1 << (bits - 1)) - 1

    def encode(value: Any) -> bytes:
        if type(value) is int and least <= value <= most:
            return _VARINTS[value]
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise SchemaMismatch(f"{kind} is wanted, not {describe(value)}")
        number = index(value)  # numpy's, or an enum's
        if not least <= number <= most:
            raise SchemaMismatch(f"{number} does not fit into {kind}, which has {bits} bits")
        return _VARINTS[number]

    return encode


def _floating(kind: str, form: str) -> Encode:
    pack = struct.Struct(form).pack

    def encode(value: Any) -> bytes:
        number = value
        if type(value) is not float:
            if isinstance(value, bool) or not isinstance(value, Real):
                raise SchemaMismatch(f"{kind} is wanted, not {describe(value)}")
            try:
                number = float(value)
            except OverflowError:
                number = None
            if number != value == value:
                raise SchemaMismatch(f"{describe(value)} is not exactly {kind}")
        try:
            return pack(number)
        except OverflowError:
            raise SchemaMismatch(f"{describe(value)} does not fit into {kind}") from None

    return encode


def _string(value: Any) -> bytes:
    if not isinstance(value, str):
        raise SchemaMismatch(f"a string is wanted, not {describe(value)}")
    try:
        data = value.encode()
    except UnicodeEncodeError as error:
        raise SchemaMismatch(
            f"{describe(value)} is no text that UTF-8 can write: {error.reason}"
        ) from None
    return _VARINTS[len(data)] + data


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray):
        raise SchemaMismatch(f"bytes are wanted, not {describe(value)}")
    return _VARINTS[len(value)] + value


_PLAIN: Final[dict[str, Encode]] = {
    "null": _null,
    "boolean": _boolean,
    "int": _integer("an int", 32),
    "long": _integer("a long", 64),
    "float": _floating("a float", "<f"),
    "double": _floating("a double", "<d"),
    "bytes": _bytes,
    "string": _string,
}
_PYTHON: Final[dict[str, tuple[type, ...]]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "int": (int,),
    "long": (int,),
    "float": (float,),
    "double": (float,),
    "bytes": (bytes, bytearray),
    "string": (str,),
    "enum": (str, Enum),
    "fixed": (bytes, bytearray),
    "array": (list, tuple),
    "map": (Mapping,),
}
"""The natural Python types of each type; a union looks here first."""


def _fixed(size: int) -> Encode:
    def encode(value: Any) -> bytes:
        if not isinstance(value, bytes | bytearray) or len(value) != size:
            raise SchemaMismatch(f"{size} bytes are wanted, not {describe(value)}")
        return bytes(value)

    return encode


def _enum(symbols: list[str]) -> Encode:
    numbers = {symbol: _VARINTS[number] for number, symbol in enumerate(symbols)}

    def encode(value: Any) -> bytes:
        symbol = value.value if isinstance(value, Enum) else value
        number = numbers.get(symbol) if isinstance(symbol, str) else None
        if number is None:
            raise SchemaMismatch(f"one of {', '.join(symbols)} is wanted, not {describe(value)}")
        return number

    return encode


def _array(item: Encode) -> Encode:
    def encode(values: Any) -> bytes:
        if not isinstance(values, list | tuple):
            raise SchemaMismatch(f"a list is wanted, not {describe(values)}")
        if not values:
            return b"\0"
        parts = [_VARINTS[len(values)]]
        try:
            for value in values:
                parts.append(item(value))
        except SchemaMismatch as mismatch:
            raise mismatch.within(f"[{len(parts) - 1}]") from None
        if not parts[1] and len(values) > MAX_EMPTY_ITEMS:
            raise SchemaMismatch(
                f"{len(values)} items that take no bytes are more than {MAX_EMPTY_ITEMS}"
            )
        parts.append(b"\0")
        return b"".join(parts)

    return encode


def _map(item: Encode) -> Encode:
    def encode(values: Any) -> bytes:
        if not isinstance(values, Mapping):
            raise SchemaMismatch(f"a dict is wanted, not {describe(values)}")
        if not values:
            return b"\0"
        parts = [_VARINTS[len(values)]]
        for key, value in values.items():
            parts.append(_string(key))
            try:
                parts.append(item(value))
            except SchemaMismatch as mismatch:
                raise mismatch.within(f"[{key!r}]") from None
        parts.append(b"\0")
        return b"".join(parts)

    return encode


def _logical(logical_type: Logical, plain: Encode) -> Encode:
    python, write = logical_type.python, logical_type.write

    def encode(value: Any) -> bytes:
        return plain(write(value) if isinstance(value, python) else value)

    return encode


# -- records ------------------------------------------------------------------------------------------


@lru_cache(maxsize=1000)
def attributes(cls: type) -> tuple[tuple[str, str], ...] | None:
    """The fields of a dataclass or Struct: the name in a schema, and the attribute; None for others."""
    if issubclass(cls, msgspec.Struct):
        return tuple((each.encode_name, each.name) for each in msgspec.structs.fields(cls))
    if is_dataclass(cls):
        return tuple((each.name, each.name) for each in dataclass_fields(cls))
    return None


@lru_cache(maxsize=1000)
def _dict_maker(cls: type) -> Callable[[Any], dict[str, Any]] | None:
    """Makes a dict of an object of a class with fields."""
    found = attributes(cls)
    if not found:
        return None if found is None else lambda value: {}
    names = [name for name, _ in found]
    get = attrgetter(*(attribute for _, attribute in found))
    if len(names) == 1:
        return lambda value: {names[0]: get(value)}
    return lambda value: dict(zip(names, get(value), strict=True))


def _record(name: str, fields: dict[str, Encode], defaults: dict[str, Any]) -> Encode:
    """`fields` and `defaults` grow as the schema is read."""

    def with_defaults(value: Any) -> dict[str, Any]:
        """With all fields of the schema, and no other. Raises SchemaMismatch."""
        cls: type = type(value)
        read = _dict_maker(cls)
        field_values = value if read is None else read(value)
        if not isinstance(field_values, Mapping):
            raise SchemaMismatch(
                f"a record {name} is wanted: a dict, dataclass or Struct, not {describe(value)}"
            )
        for unknown in field_values.keys() - fields.keys():
            raise SchemaMismatch(f"record {name} has no field {unknown!r}")
        for missing in fields.keys() - field_values.keys() - defaults.keys():
            raise SchemaMismatch(f"field {missing} of record {name} is missing, and has no default")
        return {
            each: field_values[each] if each in field_values else defaults[each] for each in fields
        }

    def encode(value: Any) -> bytes:
        if type(value) is not dict or len(value) != len(fields):
            value = with_defaults(value)
        parts: list[bytes] = []
        field = ""
        try:
            for field, each in fields.items():
                parts.append(each(value[field]))
        except KeyError:
            with_defaults(value)  # says what is missing, or too much
            raise
        except SchemaMismatch as mismatch:
            raise mismatch.within(f".{field}") from None
        return b"".join(parts)

    return encode


# -- unions -------------------------------------------------------------------------------------------


def _nullable(null: int, branch: Encode, hinted: Encode) -> Encode:
    """A union of null and one other."""
    nothing, prefix = _VARINTS[null], _VARINTS[1 - null]

    def encode(value: Any) -> bytes:
        if value is None:
            return nothing
        if type(value) is tuple and value[:1] in (
            ("array",),
            ("null",),
        ):  # as an array it would fit, too
            return hinted(value)
        try:
            return prefix + branch(value)
        except SchemaMismatch:
            if type(value) is tuple:
                return hinted(value)
            raise

    return encode


class _Branch(msgspec.Struct, frozen=True):
    name: str
    prefix: bytes
    encode: Encode
    python: tuple[type, ...]
    size: int
    """The number of fields: of the records that fit, that with the fewest left out is meant."""

    def __call__(self, value: Any) -> bytes:
        return self.prefix + self.encode(value)

    def is_natural_for(self, value: Any) -> bool:
        cls: type = type(value)
        if self.size >= 0:
            return (
                isinstance(value, Mapping)
                if _dict_maker(cls) is None
                else cls.__name__ == self.short
            )
        return isinstance(value, self.python) and (cls is not bool or bool in self.python)

    @property
    def short(self) -> str:
        return self.name.rpartition(".")[2]


def _union(branches: list[_Branch]) -> Encode:
    """The branch that the value's type is meant for, else the first that takes it.

    A tuple of a branch's name and a value says itself which it is, as fastavro has it.
    """
    in_order = sorted(
        branches,  # a float of Python's is meant for a double
        key=lambda branch: (branch.size if branch.size >= 0 else maxsize, branch.name == "float"),
    )
    names = ", ".join(branch.name for branch in branches)

    def encode(value: Any) -> bytes:
        if type(value) is tuple and len(value) == 2 and isinstance(value[0], str):
            for branch in branches:
                if value[0] in (branch.name, branch.short):
                    return branch(value[1])
            raise SchemaMismatch(f"the union has no branch {value[0]!r:.80}: it has {names}")
        natural = [branch for branch in in_order if branch.is_natural_for(value)]
        for branch in (*natural, *(each for each in branches if each not in natural)):
            try:
                return branch(value)
            except SchemaMismatch:
                if len(natural) == 1 and branch is natural[0] and branch.size >= 0:
                    raise  # it says more
        raise SchemaMismatch(f"{describe(value)} fits no branch of the union: {names}")

    return encode


# -- schemas ------------------------------------------------------------------------------------------


class _Encoders:
    """Makes the functions of one schema."""

    def __init__(self, schema: ParsedSchema) -> None:
        self._schema = schema
        self._records: dict[str, Encode] = {}

    def of(self, kind: Json) -> Encode:
        schema = self._schema.of(kind)
        if isinstance(schema, list):
            return self._of_union(schema)
        if schema["type"] in RECORDS:
            return self._of_record(schema)
        plain, logical_type = self._plain(schema["type"], schema), logical(schema)
        return plain if logical_type is None else _logical(logical_type, plain)

    def _plain(self, kind: str, schema: Json) -> Encode:
        match kind:
            case "array":
                return _array(self.of(schema["items"]))
            case "map":
                return _map(self.of(schema["values"]))
            case "enum":
                return _enum(schema["symbols"])
            case "fixed":
                return _fixed(schema["size"])
        return _PLAIN[kind]

    def _of_record(self, schema: Json) -> Encode:
        name = schema["name"]
        if name not in self._records:
            fields: dict[str, Encode] = {}
            defaults: dict[str, Any] = {}
            self._records[name] = _record(name, fields, defaults)
            # Now that it is known: a record may be within itself.
            for field in schema["fields"]:
                fields[field["name"]] = self.of(field["type"])
            for field in schema["fields"]:
                if "default" in field:
                    defaults[field["name"]] = self.default(field["type"], field["default"])
        return self._records[name]

    def _of_union(self, schema: list[Json]) -> Encode:
        branches = []
        for number, each in enumerate(schema):
            encode = self.of(each)
            plain = self._schema.of(each)
            kind, logical_type = plain["type"], logical(plain)
            python = _PYTHON.get(kind, ()) if logical_type is None else logical_type.python
            size = len(plain["fields"]) if kind in RECORDS else -1
            name = plain.get("name", kind)
            branches.append(_Branch(name, _VARINTS[number], encode, python, size))
        union = _union(branches)
        names = [branch.name for branch in branches]
        if len(branches) == 2 and "null" in names:
            null = names.index("null")
            return _nullable(null, branches[1 - null].encode, union)
        return union

    def default(self, schema: Json, default: Json) -> Any:
        """The Python value of a default in JSON. Raises ValueError for one that cannot be."""
        if isinstance(schema, list):
            for branch in schema:
                try:
                    value = self.default(branch, default)
                    self.of(branch)(value)
                except ValueError:
                    continue
                plain = self._schema.of(branch)
                return (plain.get("name", plain["type"]), value)
            raise SchemaMismatch(f"{describe(default)} is no default of the union")
        plain = self._schema.of(schema)
        match plain["type"], default:
            case "bytes" | "fixed", str():
                return default.encode("latin-1")
            case "array", list():
                return [self.default(plain["items"], each) for each in default]
            case "map", dict():
                return {key: self.default(plain["values"], each) for key, each in default.items()}
            case "record" | "error", dict():
                types = {field["name"]: field["type"] for field in plain["fields"]}
                return {
                    key: self.default(types[key], each) if key in types else each
                    for key, each in default.items()
                }
        return default
