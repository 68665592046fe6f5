"""Whether a field's default is a value of the field's type."""

from collections.abc import Callable, Mapping
from typing import Any

Json = Any
"""A JSON value as `json` makes it."""


class Misfit(ValueError):
    """A JSON value is none of a type. `where` is a JSON pointer into the value."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(reason)
        self.where = where


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


class Defaults:
    """Makes values of JSON defaults, as the types with the names in `types` have them.

    A type that is None in `types` is defined elsewhere: nothing can be said about its values.
    `logical` makes the value of a logical type, given the type and the plain value; may raise Misfit.
    """

    def __init__(
        self, types: Mapping[str, Json], logical: Callable[[Json, Any], Any] | None = None
    ) -> None:
        self._types = types
        self._logical = logical
        # A value is tried against every branch of a union, at each level of nested ones again: without
        # this the tries multiply with each level. The keys live as long as what they are of.
        self._tried: dict[tuple[int, int], Any] = {}

    def value(self, default: Json, kind: Json) -> Any:
        """What `default` means: bytes for bytes, a record with all its fields, a float for a float.

        In a union it is that of the first branch it fits. Raises Misfit.
        """
        if isinstance(kind, dict) and kind["type"] in _IS:
            return self._as_logical(kind, self.value(default, kind["type"]))
        if isinstance(kind, str) and kind in _IS:
            if not _IS[kind](default):
                raise Misfit("", f"{_shown(default)} is no {kind}")
            return self._primitive(default, kind)
        if isinstance(kind, str):
            kind = self._types[kind]
            if kind is None:
                return default
        key = id(default), id(kind)
        if key not in self._tried:
            self._tried[key] = Misfit("", "the default holds itself")
            try:
                self._tried[key] = self._complex(default, kind)
            except Misfit as misfit:
                self._tried[key] = misfit
        if isinstance(self._tried[key], Misfit):
            raise self._tried[key]
        return self._tried[key]

    def _inside(self, key: str | int, default: Json, kind: Json) -> Any:
        try:
            return self.value(default, kind)
        except Misfit as misfit:
            raise Misfit(f"{pointer('', str(key))}{misfit.where}", str(misfit)) from None

    def _primitive(self, default: Json, kind: str) -> Any:
        if kind == "bytes":
            return default.encode("latin-1")
        try:
            return float(default) if kind in ("float", "double") else default
        except OverflowError:
            return float("inf") if default > 0 else float("-inf")

    def _as_logical(self, kind: Json, value: Any) -> Any:
        return value if self._logical is None else self._logical(kind, value)

    def _complex(self, default: Json, kind: Json) -> Any:
        if isinstance(kind, list):
            for branch in kind:
                try:
                    return self.value(default, branch)
                except Misfit:
                    continue
            raise Misfit("", f"{_shown(default)} is of no branch of the union")
        name = kind["type"]
        if name == "array" and isinstance(default, list):
            return [self._inside(i, each, kind["items"]) for i, each in enumerate(default)]
        if name == "map" and isinstance(default, dict):
            return {key: self._inside(key, each, kind["values"]) for key, each in default.items()}
        if name == "enum" and default in kind["symbols"]:
            return default
        if name == "fixed" and _IS["bytes"](default) and len(default) == kind["size"]:
            return self._as_logical(kind, default.encode("latin-1"))
        if name in ("record", "error") and isinstance(default, dict):
            return self._record(default, kind)
        raise Misfit("", f"{_shown(default)} is no {name} {kind.get('name', '')}".rstrip())

    def _record(self, default: dict[str, Json], kind: Json) -> dict[str, Any]:
        made = {}
        for field in kind["fields"]:
            name = field["name"]
            if name in default:
                made[name] = self._inside(name, default[name], field["type"])
            elif "default" in field:
                made[name] = self.value(field["default"], field["type"])
            else:
                raise Misfit("", f"the record {kind['name']} needs a value of {name}")
        for name in default.keys() - made.keys():
            raise Misfit(pointer("", name), f"the record {kind['name']} has no field {name:.80}")
        return made


def pointer(where: str, key: str) -> str:
    """A JSON pointer one key further."""
    return f"{where}/{key.replace('~', '~0').replace('/', '~1')}"


def _shown(value: Json) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
