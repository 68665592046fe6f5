"""Building a frozen config from keyword options, so that a typing slip is found where it was made."""

import dataclasses
import difflib
import types
from collections.abc import Iterable, Mapping
from math import isfinite
from numbers import Integral, Real
from typing import Any, TypeVar, get_args

from folkmoot.protocol.errors import ConfigError

_Config = TypeVar("_Config")


def build(config: type[_Config], options: Mapping[str, Any]) -> _Config:
    """A `config` (a dataclass) of these options. Raises ConfigError for an unknown or missing one."""
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


def unknown_option(name: str, known: Iterable[str]) -> ConfigError:
    """The error for an option that does not exist, with the nearest one that does."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    hint = f": did you mean {near[0]!r}?" if near else ""
    return ConfigError(f"option {name!r} is not known{hint}")


def check_numbers(config: Any) -> None:
    """Raises ConfigError for an option that is declared as a number and is none, or not a finite one."""
    for field in dataclasses.fields(config):
        kinds = get_args(field.type) or (field.type,)
        if not all(kind in (int, float, types.NoneType) for kind in kinds):
            continue
        value = getattr(config, field.name)
        if value is None and types.NoneType in kinds:
            continue
        is_number = isinstance(value, Real if float in kinds else Integral)
        if isinstance(value, bool) or not is_number or not isfinite(value):
            what = "a number" if float in kinds else "a whole number"
            also = ", or None" if types.NoneType in kinds else ""
            raise ConfigError(f"{field.name}={value!r} is not allowed: use {what}{also}")
