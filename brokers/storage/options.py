"""Options as text: what topics, files and the environment say, made into a config."""

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from folkmoot.brokers.storage.config import LogConfig
from folkmoot.protocol.errors import ConfigError
from folkmoot.protocol.options import unknown_option

NONE = "none"

_Config = TypeVar("_Config")


def topic_config(defaults: LogConfig, options: Mapping[str, str]) -> LogConfig:
    """The broker's defaults with a topic's own options over them. Raises ConfigError."""
    return dataclasses.replace(defaults, **parsed(LogConfig, options))


def parsed(config: type[_Config], options: Mapping[str, str]) -> dict[str, Any]:
    """The values of options written as text, by the types of a config's fields. Raises ConfigError.

    Numbers as Python writes them; `none` where an option can be switched off.
    """
    known = typing.get_type_hints(config)
    return {name: _value(name, text, known) for name, text in options.items()}


def _value(name: str, text: str, known: Mapping[str, Any]) -> Any:
    if name not in known:
        raise unknown_option(name, known)
    kinds = typing.get_args(known[name]) or (known[name],)
    if text.strip().lower() == NONE and types.NoneType in kinds:
        return None
    kind = next(each for each in kinds if each is not types.NoneType)
    if kind not in (int, float):
        return text
    try:
        return kind(text)
    except ValueError:
        unit = "" if name.endswith("_ratio") else " of seconds"
        what = "a whole number" if kind is int else f"a number{unit}"
        also = f" or {NONE!r}" if types.NoneType in kinds else ""
        raise ConfigError(f"{name}={text!r} is not allowed: use {what}{also}") from None
