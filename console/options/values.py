"""Types of options, and options that several commands have."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click

from folkmoot.protocol.errors import ConfigError
from folkmoot.protocol.quantities import duration, moment, seconds, size

LONGEST_WAIT: Final = 86_400.0


class ParsedType(click.ParamType):  # type: ignore[type-arg] # older versions of click are not generic
    """A value that a function of ours reads; its ConfigError becomes the usage error."""

    def __init__(self, name: str, read: Callable[[str], Any]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self._read(value) if isinstance(value, str) else value
        except ConfigError as error:
            self.fail(str(error), param, ctx)


def wait_time(text: str) -> float:
    """Read how many seconds to wait. Raises ConfigError."""
    number = seconds(text)
    if not 0 < number <= LONGEST_WAIT:
        raise ConfigError(f"{text!r} is no time to wait: give more than 0 seconds, and 1d at most")
    return number


def point_in_time(text: str) -> datetime:
    """Read a time, or how long ago it was: -15m. Raises ConfigError."""
    if not text.startswith("-"):
        return moment(text)
    try:
        return datetime.now(UTC) - duration(text[1:])
    except OverflowError:
        raise ConfigError(f"{text!r} is longer ago than any calendar reaches") from None


def pairs(words: tuple[str, ...], form: str = "NAME=VALUE") -> dict[str, str]:
    """Read words with an `=` in them. Raises ConfigError."""
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (name and equals):
            raise ConfigError(f"{word!r} is not understood: write {form}")
        found[name] = value
    return found


def at_most_one(**options: object) -> None:
    """Raise UsageError where several of these options are given."""
    used = [
        f"--{name.replace('_', '-')}"
        for name, value in options.items()
        if value is not None and value is not False
    ]
    if len(used) > 1:
        raise click.UsageError(f"{' and '.join(used)} exclude each other: give one of them.")


def _context(text: str) -> str:
    if text and (text[0] != "." or ":" in text):
        raise ConfigError(f"{text} is no context: write .NAME")
    return text and f":{text}:"


TIME: Final = ParsedType("time", wait_time)
SIZE: Final = ParsedType("size", size)
PORT: Final = click.IntRange(0, 65_535)
COUNT: Final = click.IntRange(min=1)
FILE: Final = click.Path(path_type=Path)

output_option = click.option(
    "-o", "--output", type=click.Choice(("table", "json")), default="table"
)
execute_option = click.option(
    "--execute", is_flag=True, help="Do it; without this the plan is only shown."
)
yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
partition_option = click.option(
    *("--partition", "partitions"),
    type=int,
    multiple=True,
    metavar="P",
    help="Only this partition; may be repeated.",
)
schema_context_option = click.option(
    "--schema-context",
    type=ParsedType("context", _context),
    metavar=".NAME",
    default="",
    help="The schemas' context, if not the default one.",
)
