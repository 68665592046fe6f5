"""Builds a frozen config from keyword options, and refuses misspelt ones at once.

A config is a dataclass. The annotation of a field has its type, its unit and its range (msgspec's `Meta`):
`batch_bytes: Annotated[Bytes, Meta(gt=0)] = 512 * 1024`. The docstring below the field has its meaning.
Constructors, the command line, the environment and `docs/configuration.md` follow this declaration.
"""

import dataclasses
import difflib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache, wraps
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Concatenate,
    Final,
    Literal,
    NamedTuple,
    ParamSpec,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from msgspec import Meta

from folkmoot.protocol.errors import ConfigError
from folkmoot.protocol.quantities import seconds, size

NONE = "none"
_LIMIT: Final = 2**63
"""Numbers must fit into a signed 64-bit integer: some are sent to brokers."""
_SHOWN: Final = 80
_NAMED: Final[dict[Any, str]] = {str: "a text", Path: "a Path", NoneType: "None"}

_Config = TypeVar("_Config")
_Self = TypeVar("_Self")
_P = ParamSpec("_P")


class Unit(NamedTuple):
    """The unit of a number, and how people write it."""

    name: str
    read: Callable[[str], float]
    examples: str


Seconds = Annotated[float, Unit("seconds", seconds, "90s, 7d")]
Bytes = Annotated[int, Unit("bytes", size, "500MB, 1GiB")]
BytesPerSecond = Annotated[int, Unit("bytes per second", size, "500MB, 1GiB")]
Ratio = Annotated[float, Meta(ge=0, le=1)]


class Declaration(NamedTuple):
    """The values that the annotation of a field allows. As text it completes "use …"."""

    kinds: tuple[Any, ...]
    ranges: tuple[Meta, ...]
    units: tuple[Unit, ...]

    @property
    def is_number(self) -> bool:
        return all(kind in (int, float, NoneType) for kind in self.kinds)

    def allows(self, value: Any) -> bool:
        if not self.is_number:
            return any(_is_of(kind, value) for kind in self.kinds)
        if value is None:
            return NoneType in self.kinds
        is_number = isinstance(value, Real if float in self.kinds else Integral)
        if isinstance(value, bool) or not is_number or not abs(value) < _LIMIT:
            return False
        return all(
            (limits.ge is None or value >= limits.ge)
            and (limits.gt is None or value > limits.gt)
            and (limits.le is None or value <= limits.le)
            for limits in self.ranges
        )

    def __str__(self) -> str:
        if not self.is_number:
            *most, last = [words for kind in self.kinds for words in _words(kind)]
            return f"{', '.join(most)} or {last}" if most else last
        text = "a number" if float in self.kinds else "a whole number"
        text += "".join(f" of {unit.name}" for unit in self.units)
        for limits in self.ranges:
            both = limits.ge is not None and limits.le is not None
            lower, upper = ("from", "to") if both else ("of at least", "of at most")
            ends = ((lower, limits.ge), ("above", limits.gt), (upper, limits.le))
            text += "".join(f" {word} {end:.15g}" for word, end in ends if end is not None)
        return f"{text}, or None" if NoneType in self.kinds else text


def configured(
    config: Callable[_P, _Config],
) -> Callable[[Callable[[_Self, _Config], None]], Callable[Concatenate[_Self, _P], None]]:
    """Make a constructor that is written for a config take the options of that config.

    Type checkers see the options with their types, `help()` their names and defaults. ConfigError for
    an option that is unknown or out of its range.
    """

    def decorate(
        init: Callable[[_Self, _Config], None],
    ) -> Callable[Concatenate[_Self, _P], None]:
        @wraps(init)
        def construct(self: _Self, /, *positional: _P.args, **options: _P.kwargs) -> None:
            if positional:
                raise TypeError(f"{type(self).__name__} takes options by their names: zookeeper=…")
            init(self, build(config, options))  # type: ignore[arg-type]

        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        parameters = inspect.signature(get_origin(config) or config).parameters.values()
        plain = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters]
        construct.__signature__ = inspect.Signature([own, *plain])  # type: ignore[attr-defined]
        return construct

    return decorate


def options_of(config: Any) -> dict[str, Any]:
    """Return the options that make a config like this one."""
    return {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}


def build(config: type[_Config], options: Mapping[str, Any]) -> _Config:
    """Make a `config` of these options. Raises ConfigError for an unknown or missing one."""
    known = inspect.signature(get_origin(config) or config).parameters
    for name in options:
        if name not in known:
            raise unknown_option(name, known)
    for name, parameter in known.items():
        if parameter.default is parameter.empty and name not in options:
            raise ConfigError(f"option {name}=… is missing")
    return config(**options)


def parse(config: Any, options: Mapping[str, str]) -> dict[str, Any]:
    """Read options that are written as text, by the types of a config's fields. Raises ConfigError.

    Numbers as Python writes them, seconds also as `7d`, bytes also as `1GiB`, `true` or `false`, several
    of a type that can `parse` with commas between them; `none` where an option can be switched off.
    """
    known = declarations(config)
    for name in options:
        if name not in known:
            raise unknown_option(name, known)
    return {name: _value(name, known[name], text) for name, text in options.items()}


def check_options(config: Any) -> None:
    """Raise ConfigError for an option that is not what it is declared as: a number in its range, a text,
    one of some words, True or False, a function. Its owner checks options of other kinds."""
    kind: Any = type(config)
    for name, declared in declarations(kind).items():
        value = getattr(config, name)
        if not declared.allows(value):
            raise ConfigError(f"{name}={shown(value)} is not allowed: use {declared}")


def shown(value: object) -> str:
    """Return a value as Python writes it, shortened."""
    try:
        text = repr(value)
    except ValueError:  # an int with more digits than Python writes
        return "too large"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def unknown_option(name: str, known: Iterable[str], what: str = "option") -> ConfigError:
    """Return the error for an option that does not exist, with the nearest one that does, or all."""
    names = list(known)
    written = name.replace("-", "_").replace(".", "_")
    near = difflib.get_close_matches(written, names, n=1, cutoff=0.7)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(names)}"
    return ConfigError(f"{what} {name!r} is not known: {hint}")


@cache
def declarations(config: Any) -> Mapping[str, Declaration]:
    """Return what a config's fields allow, in their order."""
    hints = get_type_hints(config, include_extras=True)
    by_name = {}
    for field in dataclasses.fields(config):
        parts = list(_parts(hints[field.name]))
        ranges = tuple(part for part in parts if isinstance(part, Meta))
        units = tuple(part for part in parts if isinstance(part, Unit))
        kinds = tuple(part for part in parts if not isinstance(part, Meta | Unit))
        by_name[field.name] = Declaration(kinds, ranges, units)
    return by_name


def _parts(hint: Any) -> Iterator[Any]:
    """The types, units and ranges in `int`, `Seconds | None`, `Annotated[int, Meta(…)]` and their like."""
    if hasattr(hint, "__metadata__"):
        yield from _parts(hint.__origin__)
        yield from hint.__metadata__
    elif get_origin(hint) in (Union, UnionType):
        for part in get_args(hint):
            yield from _parts(part)
    else:
        yield hint


def _value(name: str, declared: Declaration, text: str) -> Any:
    kinds = declared.kinds
    words = {str(choice).lower(): choice for kind in kinds for choice in _choices(kind)}
    if NoneType in kinds:
        words[NONE] = None
    if text.strip().lower() in words:
        return words[text.strip().lower()]
    if declared.is_number:
        return _number(name, declared, text)
    if bool in kinds:
        raise ConfigError(f"{name}={text!r} is not allowed: use true or false")
    for kind in kinds:
        if get_origin(kind) is tuple:
            return tuple(map(get_args(kind)[0].parse, text.split(",")))
    if not (words.keys() - {NONE} or {str, Path} & {*kinds}):
        raise ConfigError(f"{name} cannot be written as text: only a program can give it")
    return text


def _number(name: str, declared: Declaration, text: str) -> Any:
    read: Callable[[str], float] = float if float in declared.kinds else int
    examples = ""
    for unit in declared.units:
        read, examples = unit.read, f" (such as {unit.examples})"
    value: Any = text
    with suppress(ValueError):
        value = read(text)
    if not declared.allows(value):
        raise ConfigError(f"{name}={shown(value)} is not allowed: use {declared}{examples}")
    return value


def _choices(kind: Any) -> tuple[Any, ...]:
    if kind is bool:
        return (True, False)
    return get_args(kind) if get_origin(kind) is Literal else ()


def _is_of(kind: Any, value: Any) -> bool:
    if choices := _choices(kind):
        return any(type(value) is type(choice) and value == choice for choice in choices)
    if get_origin(kind) is Callable:
        return callable(value)
    return isinstance(value, kind) if kind in _NAMED else True


def _words(kind: Any) -> Iterable[str]:
    """Names for values of a kind."""
    if choices := _choices(kind):
        return map(repr, choices)
    return [_NAMED.get(kind, "a function")]
