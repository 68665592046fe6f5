"""Offsets as callers give them: whole numbers, of whatever type."""

from operator import index
from typing import Final

from folkmoot.protocol.errors import ConfigError

HIGHEST: Final = 2**63 - 1


def whole(name: str, value: object) -> int:
    """`value` as an int, also where numpy made it. Raises ConfigError, which begins with `name`.

    What is written for a group is read by all of its members: neither 1.5 nor True nor a number that
    no offset can be may get there.
    """
    try:
        number = None if isinstance(value, bool) else index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or not 0 <= number <= HIGHEST:
        raise ConfigError(f"{name} is {value!r}: give a whole number from 0 to {HIGHEST}")
    return number
