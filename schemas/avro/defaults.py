"""Whether a field's default is a value of the field's type."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import date
from typing import Any
from uuid import UUID

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


_DAY = 86_400
_DAY_ONE = date(1970, 1, 1).toordinal()
_DATES = range(date.min.toordinal() - _DAY_ONE, date.max.toordinal() - _DAY_ONE + 1)
"""Days since 1970 that Python has dates for."""


def _is_uuid(value: str) -> bool:
    try:
        UUID(value)
    except ValueError:
        return False
    return True


def _seconds(unit: int) -> range:
    """Timestamps that Python has datetimes for; `unit` is in a second."""
    return range(_DATES.start * _DAY * unit, _DATES.stop * _DAY * unit)


_FITS: dict[tuple[str, str], Callable[[Json], bool]] = {
    ("uuid", "string"): _is_uuid,
    ("date", "int"): _DATES.__contains__,
    ("time-millis", "int"): range(_DAY * 1_000).__contains__,
    ("time-micros", "long"): range(_DAY * 1_000_000).__contains__,
    ("timestamp-millis", "long"): _seconds(1_000).__contains__,
    ("timestamp-micros", "long"): _seconds(1_000_000).__contains__,
    ("local-timestamp-millis", "long"): _seconds(1_000).__contains__,
    ("local-timestamp-micros", "long"): _seconds(1_000_000).__contains__,
}
"""Whether a value of the plain type is one of the logical type, as `schemas/values/logical.py` reads it."""


def _check_logical(default: Json, typed: Mapping[str, Json], plain: str) -> None:
    """Raises Misfit for a default that fits the plain type, and that no reader of ours can read."""
    name = typed.get("logicalType")
    if not isinstance(name, str):
        return
    if name == "decimal" and plain in ("bytes", "fixed"):
        precision = typed.get("precision")
        number = int.from_bytes(default.encode("latin-1"), "big", signed=True)
        # A larger precision stays plain bytes: see schemas/values/logical.py.
        if type(precision) is int and 0 < precision <= 10_000 and abs(number) >= 10**precision:
            raise Misfit(
                "", f"{_shown(default)} has more than the {precision} digits of the decimal"
            )
    elif (fits := _FITS.get((name, plain))) is not None and not fits(default):
        raise Misfit("", f"{_shown(default)} is no {name}")


class Defaults:
    """Whether JSON defaults are values of types, given the types that have names.

    A type that is None in `types` is defined elsewhere: nothing can be said about its values.
    """

    def __init__(self, types: Mapping[str, Json]) -> None:
        self._types = types
        # A value is tried against every branch of a union, at each level of nested ones again: without
        # this the tries multiply with each level. The keys live as long as what they are of.
        self._tried: dict[tuple[int, int], Misfit | int] = {}

    def check(self, default: Json, kind: Json) -> int:
        """Of how many values it is made, with the defaults of fields that it leaves out.

        Raises Misfit for what is no value of `kind`; of a union it may be one of any branch.
        """
        typed: dict[str, Json] = {}
        while isinstance(kind, dict) and kind["type"] in _IS:
            typed, kind = kind, kind["type"]
        if isinstance(kind, str) and kind in _IS:
            if not _IS[kind](default):
                raise Misfit("", f"{_shown(default)} is no {kind}")
            _check_logical(default, typed, kind)
            return 1
        if isinstance(kind, str):
            kind = self._types[kind]
            if kind is None:
                return 1
        key = id(default), id(kind)
        if key not in self._tried:
            self._tried[key] = Misfit("", "the default holds itself")
            try:
                self._tried[key] = 1 + self._complex(default, kind)
            except Misfit as misfit:
                self._tried[key] = misfit
        found = self._tried[key]
        if isinstance(found, Misfit):
            raise found
        return found

    def _inside(self, key: str | int, default: Json, kind: Json) -> int:
        try:
            return self.check(default, kind)
        except Misfit as misfit:
            raise Misfit(f"{pointer('', str(key))}{misfit.where}", str(misfit)) from None

    def _complex(self, default: Json, kind: Json) -> int:
        """How many values there are within."""
        if isinstance(kind, list):
            for branch in kind:
                with suppress(Misfit):
                    return self.check(default, branch)
            raise Misfit("", f"{_shown(default)} is of no branch of the union")
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
            raise Misfit("", f"{_shown(default)} is no {name} {kind.get('name', '')}".rstrip())
        if name == "fixed":
            _check_logical(default, kind, name)
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
                raise Misfit("", f"the record {kind['name']} needs a value of {name}")
        for name in default.keys() - {field["name"] for field in kind["fields"]}:
            raise Misfit(pointer("", name), f"the record {kind['name']} has no field {name:.80}")
        return within


def pointer(where: str, key: str) -> str:
    """A JSON pointer one key further."""
    return f"{where}/{key.replace('~', '~0').replace('/', '~1')}"


def _shown(value: Json) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
