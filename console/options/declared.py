"""Options that a config declares, as flags: their names, units, ranges, defaults and meanings."""

import ast
import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import click

from folkmoot.console.options.values import ParsedType
from folkmoot.protocol.errors import ConfigError
from folkmoot.protocol.options import Declaration, declarations, parse


class DocumentedOption(NamedTuple):
    """An option of a config as its source declares it."""

    annotation: str
    default: str
    """As Python writes it; empty for an option that is required."""
    meaning: str


def read_documentation(config: Any) -> dict[str, DocumentedOption]:
    """Read the options of a config from its source, where their meanings are; inherited ones first."""
    found: dict[str, DocumentedOption] = {}
    bases: list[Any] = [each for each in reversed(config.__mro__) if is_dataclass(each)]
    for base in bases:
        (tree,) = ast.parse(inspect.getsource(base)).body
        assert isinstance(tree, ast.ClassDef)
        for node, below in pairwise([*tree.body, ast.Pass()]):
            if isinstance(node, ast.AnnAssign):
                name = ast.unparse(node.target)
                meaning = found[name].meaning if name in found else ""
                match below:
                    case ast.Expr(ast.Constant(str(text))):
                        meaning = inspect.cleandoc(text)
                annotation = ast.unparse(node.annotation).replace("'", '"')
                found[name] = DocumentedOption(
                    annotation, _default(base, name, node.value), meaning
                )
    return found


def _default(config: Any, name: str, value: ast.expr | None) -> str:
    """Return a default as the source has it, `64 * 1024 * 1024`, but the value of a named constant."""
    if value is None:
        return ""
    (default,) = (each.default for each in fields(config) if each.name == name)
    if default is MISSING:
        return "all defaults"
    if not any(isinstance(each, ast.Name) for each in ast.walk(value)):
        return ast.unparse(value).replace("'", '"')
    text = f"{default:.15g}" if isinstance(default, float) else repr(default)
    return text.replace("'", '"')


def config_options(
    config: Any, *names: str, unset: bool = False, **defaults: Any
) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Give a command flags for these options of a config: `--session-timeout` of `session_timeout`.

    `defaults` replace those of the config. With `unset` the value of a flag that is not given is None.
    """

    def decorate(function: Callable[..., int]) -> Callable[..., int]:
        known, options = declarations(config), read_documentation(config)
        config_defaults = {
            each.name: each.default for each in fields(config) if each.default is not MISSING
        }
        for name in reversed(names):
            kind = str(known[name]).removeprefix("a ")
            function = click.option(
                f"--{name.replace('_', '-')}",
                type=ParsedType(_placeholder(known[name]), partial(_parse_option, config, name)),
                default=None if unset else {**config_defaults, **defaults}.get(name),
                show_default=str(defaults.get(name, options[name].default)).strip('"'),
                help=options[name].meaning + (f" ({kind})" if known[name].is_number else ""),
            )(function)
        return function

    return decorate


def _placeholder(declaration: Declaration) -> str:
    for unit in declaration.units:
        return "time" if unit.name == "seconds" else "size"
    if declaration.is_number:
        return "n"
    return "dir" if Path in declaration.kinds else "text"


def _parse_option(config: Any, name: str, text: str) -> Any:
    return parse(config, {name: text})[name]


def set_option(client: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """`--set NAME=VALUE`, which `client_options` takes."""
    return click.option(
        *("--set", "settings"),
        multiple=True,
        metavar="NAME=VALUE",
        help=f"An option of the {client} (docs/configuration.md), such as request_timeout=1m; "
        "may be repeated.",
    )


def client_options(
    config: Any, own: Mapping[str, Any], settings: tuple[str, ...]
) -> dict[str, Any]:
    """Return a client's options: the command's `own`, and those of `--set`. Raises ConfigError."""
    texts = {}
    for word in settings:
        name, equals, text = word.partition("=")
        if not equals:
            raise ConfigError(f"--set {word} is not understood: write NAME=VALUE")
        if name in own:
            raise ConfigError(f"--set {word}: the command itself sets {name}")
        texts[name] = text
    return {**own, **parse(config, texts)}
