"""What callers give, as the sender's thread can write it: a bad one would fail there with all of its
batch, so it is refused here."""

import operator
from collections.abc import Iterable, Mapping
from typing import Any

from folkmoot.protocol.errors import InvalidName
from folkmoot.protocol.names import check_name
from folkmoot.protocol.records import Headers

HeadersArgument = Mapping[str, bytes | None] | Iterable[tuple[str, bytes | None]]


def check_topic(given: object) -> None:
    """Raises TypeError for what is no str, InvalidName."""
    if not isinstance(given, str):
        raise TypeError(f"a topic is named by a str, not by {given!r}")
    check_name("topic", given)


def as_bytes(what: str, given: object) -> bytes | None:
    """A key or a value. Raises TypeError."""
    if given is None or given.__class__ is bytes:
        return given
    if isinstance(given, bytes | bytearray | memoryview):
        return bytes(given)  # of a subclass, too, which the sender's thread could not write
    raise TypeError(
        f"a record's {what} must be bytes or None, not {type(given).__name__}: encode it first"
    )


def as_int(what: str, given: Any) -> int:
    """Also where numpy made it. Raises TypeError, for a bool, too."""
    if isinstance(given, bool) or not hasattr(given, "__index__"):
        raise TypeError(f"a record's {what} must be an int, not {type(given).__name__}: {given!r}")
    return operator.index(given)


def as_headers(given: HeadersArgument) -> Headers:
    """Those of one record. Raises TypeError, InvalidName."""
    rows = []
    for header in given.items() if isinstance(given, Mapping) else given:
        match header:
            case (str(name), None | bytes() as value):
                pass
            case _:
                raise TypeError(
                    "headers must be a mapping, or pairs, of str and bytes or None: "
                    f"{header!r} is no header"
                )
        try:
            rows.append((name.encode().decode(), None if value is None else bytes(value)))
        except UnicodeEncodeError as error:
            raise InvalidName(f"a header's name must be Unicode text, not {name!r}") from error
    return tuple(rows)


def headers_of_rows(given: Any) -> list[Headers]:
    """Those of each record of many, None for one that has none. Raises TypeError, InvalidName."""
    if not hasattr(given, "__len__"):
        raise TypeError(f"headers must be a list of those of each row, not {type(given).__name__}")
    return [as_headers(row) if row else () for row in given]
