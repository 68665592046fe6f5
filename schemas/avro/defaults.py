"""Whether a field's default is a value of the field's type."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import copy
from typing import Any

from folkmoot.schemas.avro.logical import logical
from folkmoot.schemas.avro.mismatch import SchemaMismatch

Json = Any
"""A JSON value as `json` makes it."""


def _is_integer(bits: int) -> Callable[[Json], bool]:
    return lambda value: type(value) is int and -(1 << bits - 1) <= value < 1 << bits - 1


def _is_number(value: Json) -> bool:
    return type(value) is float or type(value) is int


_IS: dict[str, Callable[[Json], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "int": _is_integer(32),
    "long": _is_integer(64),
    "float": _is_number,
    "double": _is_number,
    "string": lambda value: isinstance(value, str),
    "bytes": lambda value: isinstance(value, str) and all(char <= "\xff" for char in value),
}


def _check_logical(default: Json, schema: Json) -> None:
    """Raises SchemaMismatch for a default that fits the plain type, and that no reader of ours can read."""
    logical_type = logical(schema)
    if logical_type is None:
        return
    plain = default.encode("latin-1") if schema["type"] in ("bytes", "fixed") else default
    try:
        logical_type.read(
            logical_type.write(plain) if isinstance(plain, logical_type.python) else plain
        )
    except (ValueError, ArithmeticError):
        name, digits = schema["logicalType"], schema.get("precision")
        why = f"has more than the {digits} digits of the decimal"
        why = why if name == "decimal" else f"is no {name}"
        raise SchemaMismatch(f"{_describe(default)} {why}") from None


class Defaults:
    """Check JSON defaults against types, given the named types.

    A type that is None in `types` is defined elsewhere: nothing can be said about its values.
    """

    def __init__(self, types: Mapping[str, Json]) -> None:
        self._types = types
        # A value is tried against every branch of a union, at each level of nested ones again: without
        # this the tries multiply with each level. The keys live as long as what they are of.
        self._tried: dict[tuple[int, int], SchemaMismatch | int] = {}

    def check(self, default: Json, kind: Json) -> int:
        """Return the number of values in it, with the defaults of fields that it leaves out.

        Raises SchemaMismatch for what is no value of `kind`; of a union it may be one of any branch.
        """
        plain = kind["type"] if isinstance(kind, dict) else kind
        if isinstance(plain, str) and plain in _IS:
            if not _IS[plain](default):
                raise SchemaMismatch(f"{_describe(default)} is no {plain}")
            if isinstance(kind, dict):
                _check_logical(default, kind)
            return 1
        if isinstance(kind, str):
            kind = self._types[kind]
            if kind is None:
                return 1
        key = id(default), id(kind)
        if key not in self._tried:
            self._tried[key] = SchemaMismatch("the default holds itself")
            try:
                self._tried[key] = 1 + self._complex(default, kind)
            except SchemaMismatch as mismatch:
                self._tried[key] = mismatch
        result = self._tried[key]
        if isinstance(result, SchemaMismatch):
            raise copy(result)  # its path grows on the way out
        return result

    def _inside(self, key: str | int, default: Json, kind: Json) -> int:
        try:
            return self.check(default, kind)
        except SchemaMismatch as mismatch:
            raise mismatch.within(pointer(str(key))) from None

    def _complex(self, default: Json, kind: Json) -> int:
        """How many values there are within."""
        if isinstance(kind, list):
            for branch in kind:
                with suppress(SchemaMismatch):
                    return self.check(default, branch)
            raise SchemaMismatch(f"{_describe(default)} is of no branch of the union")
        name = kind["type"]
        if name == "array" and isinstance(default, list):
            return sum(self._inside(n, each, kind["items"]) for n, each in enumerate(default))
        if name == "map" and isinstance(default, dict):
            return sum(self._inside(key, each, kind["values"]) for key, each in default.items())
        if name in ("record", "error") and isinstance(default, dict):
            return self._record(default, kind)
        if not (name == "enum" and default in kind["symbols"]) and not (
            name == "fixed" and _IS["bytes"](default) and len(default) == kind["size"]
        ):
            raise SchemaMismatch(
                f"{_describe(default)} is no {name} {kind.get('name', '')}".rstrip()
            )
        if name == "fixed":
            _check_logical(default, kind)
        return 0

    def _record(self, default: dict[str, Json], kind: Json) -> int:
        within = 0
        for field in kind["fields"]:
            name = field["name"]
            if name in default:
                within += self._inside(name, default[name], field["type"])
            elif "default" in field:
                within += self.check(field["default"], field["type"])
            else:
                raise SchemaMismatch(f"the record {kind['name']} needs a value of {name}")
        for name in default.keys() - {field["name"] for field in kind["fields"]}:
            unknown = SchemaMismatch(f"the record {kind['name']} has no field {name:.80}")
            raise unknown.within(pointer(name))
        return within


def pointer(key: str) -> str:
    """One step of a JSON pointer."""
    return f"/{key.replace('~', '~0').replace('/', '~1')}"


def _describe(value: Json) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
