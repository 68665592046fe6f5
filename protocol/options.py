"""Building a frozen config from keyword options, so that a typing slip is found where it was made.

A config is a dataclass; what its numbers may be is said where each is declared, by msgspec's `Meta`:
`batch_bytes: Annotated[int, Meta(ge=1)] = 512 * 1024`, and what it means in the docstring below that.
Of this one declaration are made: the constructor that takes it (`configured`), what `help()` says of it
(`explained`), `docs/configuration.md`, and what a command line or the environment may say.
"""

import ast
import dataclasses
import difflib
import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, wraps
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import (
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
_LARGEST: Final = 2**63
"""No number is: brokers are told of some, in 64 bits."""
_SHOWN: Final = 80
_NAMED: Final[dict[Any, str]] = {str: "a text", Path: "a Path", NoneType: "None"}

_Config = TypeVar("_Config")
_Self = TypeVar("_Self")
_Class = TypeVar("_Class", bound=type)
_P = ParamSpec("_P")


class Option(NamedTuple):
    """One option of a config, in words."""

    name: str
    kind: str
    """What it may be: "number of seconds, at least 0"; for what is no number, its annotation."""
    default: str
    """As Python writes it; empty for an option that has to be given."""
    meaning: str

    @property
    def is_number(self) -> bool:
        return self.kind.startswith(("number", "whole number"))

    @property
    def placeholder(self) -> str:
        """What stands for a value where its use is shown."""
        kinds = {"number of seconds": "TIME", "whole number of bytes": "SIZE", "Path": "DIR"}
        found = (word for kind, word in kinds.items() if self.kind.startswith(kind))
        return next(found, "N" if self.is_number else "TEXT")


class _Declared(NamedTuple):
    """What a field's annotation says."""

    kinds: tuple[type[Any], ...]
    ranges: tuple[Meta, ...]

    @property
    def is_number(self) -> bool:
        return all(kind in (int, float, NoneType) for kind in self.kinds)

    def allows(self, value: Any) -> bool:
        if not self.is_number:
            return any(_is_of(kind, value) for kind in self.kinds)
        if value is None:
            return NoneType in self.kinds
        is_number = isinstance(value, Real if float in self.kinds else Integral)
        if isinstance(value, bool) or not is_number or not abs(value) < _LARGEST:
            return False
        return all(
            (each.ge is None or value >= each.ge)
            and (each.gt is None or value > each.gt)
            and (each.le is None or value <= each.le)
            for each in self.ranges
        )

    def __str__(self) -> str:
        """What to use, in words."""
        if not self.is_number:
            *most, last = [words for kind in self.kinds for words in _words(kind)]
            return f"{', '.join(most)} or {last}" if most else last
        said = "a number" if float in self.kinds else "a whole number"
        said += self.range
        return f"{said}, or None" if NoneType in self.kinds else said

    @property
    def range(self) -> str:
        said = ""
        for each in self.ranges:
            if each.ge is not None and each.le is not None:
                said += f" from {each.ge:.15g} to {each.le:.15g}"
                continue
            bounds = ((" of at least", each.ge), (" above", each.gt), (" of at most", each.le))
            said += "".join(f"{words} {end:.15g}" for words, end in bounds if end is not None)
        return said


def configured(
    config: Callable[_P, _Config],
) -> Callable[[Callable[[_Self, _Config], None]], Callable[Concatenate[_Self, _P], None]]:
    """Has a constructor that is written for a config take the options of it.

    Type checkers see the options with their types. One that is unknown, or out of its range, is a
    ConfigError.
    """

    def decorate(
        init: Callable[[_Self, _Config], None],
    ) -> Callable[Concatenate[_Self, _P], None]:
        @wraps(init)
        def construct(self: _Self, /, *nothing: _P.args, **options: _P.kwargs) -> None:
            if nothing:
                raise TypeError(f"{type(self).__name__} takes options by their names: zookeeper=…")
            init(self, build(config, options))  # type: ignore[arg-type]

        made: Any = construct
        made.__signature__ = _signature(_class_of(config))
        return construct

    return decorate


def explained(config: Any) -> Callable[[_Class], _Class]:
    """Has `help()` of a class say what the options of its constructor are."""

    def decorate(cls: _Class) -> _Class:
        cls.__doc__ = _Help(cls.__doc__, config)  # type: ignore[assignment]
        return cls

    return decorate


class _Help:
    """A docstring that is made when it is read: sources are not parsed for those who do not ask."""

    def __init__(self, text: str | None, config: Any) -> None:
        self._text = text
        self._config = config

    def __get__(self, instance: object, owner: type) -> str:
        said = inspect.cleandoc(self._text or "")
        said += "\n\nOptions; a ConfigError names the one that is unknown or not allowed.\n"
        for option in documented(self._config):
            default = f"default {option.default}" if option.default else "required"
            meaning = textwrap.indent(option.meaning, "    ")
            said += f"\n{option.name}: {option.kind}; {default}\n{meaning}\n"
        return said


def given(config: Any) -> dict[str, Any]:
    """The options that make a config like this one."""
    return {each.name: getattr(config, each.name) for each in dataclasses.fields(config)}


def documented(config: Any) -> list[Option]:
    """The options of a config in words, in the order of their declaration; those that it inherits first.

    Read from its source, as only there stands what each means: without it there are none.
    """
    fields = {each.name: each for each in dataclasses.fields(config)}
    declared: dict[str, ast.AnnAssign] = {}
    meanings: dict[str, str] = {}
    for base in reversed(config.__mro__):
        if dataclasses.is_dataclass(base):
            for node, meaning in _declared_in(base):
                name = ast.unparse(node.target)
                declared[name] = node
                meanings[name] = meaning or meanings.get(name, "")
    return [
        Option(name, _kind(config, name, node), _default(fields[name], node), meanings[name])
        for name, node in declared.items()
        if name in fields
    ]


def build(config: type[_Config], options: Mapping[str, Any]) -> _Config:
    """A `config` of these options. Raises ConfigError for an unknown or missing one."""
    config = _class_of(config)
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

    Numbers as Python writes them, lengths of time also as `7d`, sizes also as `1GiB`, `true` or `false`,
    several of what can `parse` itself with commas between them; `none` where an option can be switched off.
    """
    return {name: _value(config, name, text) for name, text in options.items()}


def check_options(config: Any) -> None:
    """Raises ConfigError for an option that is not what it is declared as: a number in its range, a text,
    one of some words, True or False, a function. What else an option may be is for its owner to check."""
    kind: Any = type(config)
    for name, declared in _declarations(kind).items():
        value = getattr(config, name)
        if not declared.allows(value):
            raise ConfigError(f"{name}={shown(value)} is not allowed: use {declared}")


def shown(value: object) -> str:
    """As Python writes it, but for what is long."""
    try:
        text = repr(value)
    except ValueError:  # an int with more digits than Python writes
        return "too large"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def unknown_option(name: str, known: Iterable[str], what: str = "option") -> ConfigError:
    """The error for an option that does not exist, with the nearest one that does, or all."""
    names = list(known)
    written = name.replace("-", "_").replace(".", "_")
    near = difflib.get_close_matches(written, names, n=1, cutoff=0.7)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(names)}"
    return ConfigError(f"{what} {name!r} is not known: {hint}")


def _value(config: Any, name: str, text: str) -> Any:
    known = _declarations(config)
    if name not in known:
        raise unknown_option(name, known)
    kinds = known[name].kinds
    words = {str(each).lower(): each for kind in kinds for each in _choices(kind)}
    if text.strip().lower() == NONE and NoneType in kinds:
        return None
    if text.strip().lower() in words:
        return words[text.strip().lower()]
    if not known[name].is_number:
        if bool in kinds:
            raise ConfigError(f"{name}={text!r} is not allowed: use true or false")
        for kind in kinds:
            if get_origin(kind) is tuple:
                return tuple(map(get_args(kind)[0].parse, text.split(",")))
        if not (words or {str, Path} & {*kinds}):
            raise ConfigError(f"{name} cannot be written as text: only a program can give it")
        return text
    read: Callable[[str], float] = int
    what = "a whole number"
    if name.endswith("_ratio"):
        read, what = float, "a number"
    elif float in kinds:
        read, what = seconds, "a number of seconds (90s, 7d)"
    elif "bytes" in name.lower():
        read, what = size, "a whole number (500MB, 1GiB)"
    try:
        value = read(text)
    except ValueError:
        also = f" or {NONE!r}" if NoneType in kinds else ""
        raise ConfigError(f"{name}={text!r} is not allowed: use {what}{also}") from None
    if not known[name].allows(value):
        raise ConfigError(f"{name}={value!r} is not allowed: use {known[name]}")
    return value


def _choices(kind: Any) -> tuple[Any, ...]:
    if kind is bool:
        return (True, False)
    return get_args(kind) if get_origin(kind) is Literal else ()


def _is_of(kind: Any, value: Any) -> bool:
    """Whether a value can be of a kind."""
    if choices := _choices(kind):
        return any(type(value) is type(each) and value == each for each in choices)
    if get_origin(kind) is Callable:
        return callable(value)
    return isinstance(value, kind) if kind in _NAMED else True


def _words(kind: Any) -> Iterable[str]:
    """What a value of a kind is called."""
    if choices := _choices(kind):
        return map(repr, choices)
    return [_NAMED.get(kind, "a function")]


def _unit(name: str) -> str:
    """Of an option that is a float."""
    return "" if name.endswith("_ratio") else " of seconds"


def _signature(config: Any) -> inspect.Signature:
    """As `help()` shows it: names and defaults."""
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    empty = inspect.Parameter.empty
    options = inspect.signature(config).parameters.values()
    return inspect.Signature([own, *(each.replace(annotation=empty) for each in options)])


def _class_of(config: Any) -> Any:
    """`Config` of `Config[K, V]`."""
    return getattr(config, "__origin__", config)


def _declared_in(config: Any) -> Iterator[tuple[ast.AnnAssign, str]]:
    """The fields that a class declares itself, each with the docstring below it."""
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(config))).body
    except (OSError, TypeError):
        return
    assert isinstance(tree, ast.ClassDef)
    for node, below in zip(tree.body, [*tree.body[1:], ast.Pass()], strict=True):
        if isinstance(node, ast.AnnAssign):
            match below:
                case ast.Expr(ast.Constant(str(text))):
                    yield node, inspect.cleandoc(text)
                case _:
                    yield node, ""


def _kind(config: Any, name: str, node: ast.AnnAssign) -> str:
    declared = _declarations(config)[name]
    if not declared.is_number:
        return ast.unparse(node.annotation).replace("'", '"')
    if float in declared.kinds:
        said = f"number{_unit(name)}"
    elif name.endswith("_per_second"):
        said = "whole number of bytes per second"
    else:
        said = "whole number of bytes" if name.endswith("bytes") else "whole number"
    said += declared.range
    return f"{said}, or None" if NoneType in declared.kinds else said


def _default(field: "dataclasses.Field[Any]", node: ast.AnnAssign) -> str:
    if field.default is not dataclasses.MISSING:
        said = ast.unparse(node.value) if node.value is not None else ""
        value = f"{field.default:.15g}" if isinstance(field.default, float) else repr(field.default)
        names = any(isinstance(each, ast.Name) for each in ast.walk(node.value or node))
        return (value if names else said).replace("'", '"')
    return "" if field.default_factory is dataclasses.MISSING else "all defaults"


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
    elif get_origin(hint) in (Union, UnionType):
        for each in get_args(hint):
            yield from _parts(each)
    else:
        yield hint
