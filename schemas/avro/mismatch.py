"""An error inside a value, with its path."""

from reprlib import Repr
from typing import Any, Self

_short = Repr()
_short.maxstring = _short.maxother = 60


class SchemaMismatch(ValueError):
    """A value that its schema has no place for, or bytes that are no value of it.

    `path` leads to it from the outside, as Python would write it: `.lines[3].price`.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = ""

    def within(self, step: str) -> Self:
        """The same, seen from outside of what holds it."""
        self.path = step + self.path
        return self

    def __str__(self) -> str:
        return f"at {self.path}: {self.reason}" if self.path else self.reason


def describe(value: Any) -> str:
    """A value in a few words, with its type."""
    if value is None or isinstance(value, bool):
        return repr(value)
    text = " ".join(_short.repr(value).splitlines())  # of tables it has several lines
    return f"{type(value).__name__} {text}"
