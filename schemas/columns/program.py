"""Columns that programs read into and write from, and errors of rows.

Each column has one slot per row, or, within arrays and maps (a level below), one per item.
"""

from dataclasses import dataclass
from enum import IntEnum


class Kind(IntEnum):
    """How the values of a column are kept. `_speedups` has the same numbers."""

    GROUP = 0  # of records and unions: only whether there is one
    BOOLEAN = 1
    INT32 = 2
    INT64 = 3
    FLOAT = 4
    DOUBLE = 5
    BINARY = 6
    TEXT = 7
    UUID = 8
    FIXED = 9
    DECIMAL = 10
    LIST = 11


WIDTHS = {Kind.BOOLEAN: 1, Kind.INT32: 4, Kind.INT64: 8, Kind.FLOAT: 4, Kind.DOUBLE: 8} | {
    Kind.DECIMAL: 16
}


@dataclass(frozen=True, slots=True)
class Column:
    """`size`: bytes of a fixed, digits of a decimal, level of a list's items, limit of a time of day."""

    kind: Kind
    level: int = 0
    size: int = 0


class Fault(IntEnum):
    """The error of a row. `_speedups` has the same numbers."""

    FRAME = 1
    SCHEMA = 2
    CUT = 3
    LEFT_OVER = 4
    VARINT = 5
    RANGE = 6
    BOOLEAN = 7
    BRANCH = 8
    SYMBOL = 9
    TEXT = 10
    UUID = 11
    DECIMAL = 12
    LENGTH = 13
    EMPTY_ITEMS = 14
    DEPTH = 15
    FAIL = 16
    MISSING = 17
    SIZE = 18


MESSAGES = {
    Fault.CUT: "the bytes end within it",
    Fault.LEFT_OVER: "bytes are left over behind the value",
    Fault.VARINT: "a number has more than 64 bits",
    Fault.RANGE: "a number is out of range",
    Fault.BOOLEAN: "a boolean is neither 0 nor 1",
    Fault.BRANCH: "the union has no such branch",
    Fault.SYMBOL: "the enum has no such symbol",
    Fault.TEXT: "a string is not UTF-8",
    Fault.UUID: "a string is no UUID",
    Fault.DECIMAL: "a decimal has too many digits",
    Fault.LENGTH: "a length is negative",
    Fault.EMPTY_ITEMS: "an array has too many items that take no bytes",
    Fault.DEPTH: "it is nested too deeply",
    Fault.MISSING: "there is no value, and the schema allows no null",
    Fault.SIZE: "the number does not fit into the fixed",
}

MAX_DEPTH = 500
"""Depth of skipped values; read values are as deep as their schema."""
MOST = 2**31 - 1
"""More bytes, or items, an Arrow column cannot have."""
