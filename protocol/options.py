"""Building a frozen config from keyword options, so that a typing slip is found where it was made.

A config is a dataclass; what its numbers may be is said where each is declared, by msgspec's `Meta`:
`batch_bytes: Annotated[int, Meta(ge=1)] = 512 * 1024`.
"""

import dataclasses
import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from math import isfinite
from numbers import Integral, Real
from types import NoneType
from typing import Any, NamedTuple, TypeVar, get_args, get_type_hints

from msgspec import Meta

from folkmoot.protocol.errors import ConfigError
from folkmoot.protocol.quantities import seconds, size

NONE = "none"

_Config = TypeVar("_Config")


class _Declared(NamedTuple):
    """What a field's annotation says."""

    kinds: tuple[type[Any], ...]
    ranges: tuple[Meta, ...]

    @property
    def is_number(self) -> bool:
        return all(kind in (int, float, NoneType) for kind in self.kinds)

    def allows(self, value: Any) -> bool:
        if value is None:
            return NoneType in self.kinds
        is_number = isinstance(value, Real if float in self.kinds else Integral)
        if isinstance(value, bool) or not is_number or not isfinite(value):
            return False
        return all(
            (each.ge is None or value >= each.ge)
            and (each.gt is None or value > each.gt)
            and (each.le is None or value <= each.le)
            for each in self.ranges
        )

    def __str__(self) -> str:
        """What to use, in words."""
        said = "a number" if float in self.kinds else "a whole number"
        for each in self.ranges:
            if each.ge is not None and each.le is not None:
                said += f" from {each.ge:.15g} to {each.le:.15g}"
                continue
            bounds = ((" of at least", each.ge), (" above", each.gt), (" of at most", each.le))
            said += "".join(f"{words} {end:.15g}" for words, end in bounds if end is not None)
        return f"{said}, or None" if NoneType in self.kinds else said


def build(config: type[_Config], options: Mapping[str, Any]) -> _Config:
    """A `config` of these options. Raises ConfigError for an unknown or missing one."""
    assert dataclasses.is_dataclass(config)
    fields = {field.name: field for field in dataclasses.fields(config)}
    for name in options:
        if name not in fields:
            raise unknown_option(name, fields)
    for name, field in fields.items():
        required = (
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        )
        if required and name not in options:
            raise ConfigError(f"option {name}=… is missing")
    built: _Config = config(**options)
    return built


def parse(config: type[Any], options: Mapping[str, str]) -> dict[str, Any]:
    """The values of options written as text, by the types of a config's fields. Raises ConfigError.

    Numbers as Python writes them, lengths of time also as `7d`, sizes also as `1GiB`; `none` where an
    option can be switched off.
    """
    return {name: _value(config, name, text) for name, text in options.items()}


def check_numbers(config: Any) -> None:
    """Raises ConfigError for an option declared as a number that is none, or outside its range."""
    kind: Any = type(config)
    for name, declared in _declarations(kind).items():
        value = getattr(config, name)
        if declared.is_number and not declared.allows(value):
            raise ConfigError(f"{name}={value!r} is not allowed: use {declared}")


def unknown_option(name: str, known: Iterable[str]) -> ConfigError:
    """The error for an option that does not exist, with the nearest one that does, or all."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(names)}"
    return ConfigError(f"option {name!r} is not known: {hint}")


def _value(config: Any, name: str, text: str) -> Any:
    known = _declarations(config)
    if name not in known:
        raise unknown_option(name, known)
    kinds = known[name].kinds
    if text.strip().lower() == NONE and NoneType in kinds:
        return None
    if not known[name].is_number:
        return text
    read: Callable[[str], float] = int
    what = "a whole number"
    if name.endswith("_ratio"):
        read, what = float, "a number"
    elif float in kinds:
        read, what = seconds, "a number of seconds (90s, 7d)"
    elif "bytes" in name:
        read, what = size, "a whole number (500MB, 1GiB)"
    try:
        return read(text)
    except ValueError:
        also = f" or {NONE!r}" if NoneType in kinds else ""
        raise ConfigError(f"{name}={text!r} is not allowed: use {what}{also}") from None


@cache
def _declarations(config: Any) -> Mapping[str, _Declared]:
    hints = get_type_hints(config, include_extras=True)
    found = {}
    for field in dataclasses.fields(config):
        parts = list(_parts(hints[field.name]))
        ranges = tuple(part for part in parts if isinstance(part, Meta))
        kinds = tuple(part for part in parts if not isinstance(part, Meta))
        found[field.name] = _Declared(kinds, ranges)
    return found


def _parts(hint: Any) -> Iterator[Any]:
    """The types and ranges in `int`, `float | None`, `Annotated[int, Meta(…)] | None` and their like."""
    if hasattr(hint, "__metadata__"):
        yield from _parts(hint.__origin__)
        yield from hint.__metadata__
    elif NoneType in get_args(hint):
        for each in get_args(hint):
            yield from _parts(each)
    else:
        yield hint
