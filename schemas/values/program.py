"""Programs that read or write values of schemas: lists of nodes, made once for all values.

A node reads (or writes) one place of the writer's schema; its children are named by their numbers.
Columns are read and written in C, node by node (`schemas/columns/`). To read single values, `decoding`
makes a function of each node.
"""

from dataclasses import dataclass, field
from enum import IntEnum

from folkmoot.schemas.avro.defaults import Json


class Op(IntEnum):
    """The kind of a step. `_speedups` has the same numbers."""

    NULL = 0
    BOOLEAN = 1
    INT = 2
    LONG = 3
    FLOAT = 4
    DOUBLE = 5
    BYTES = 6  # and strings
    FIXED = 7
    ENUM = 8  # children: the reader's number of each symbol, -1 for none
    RECORD = 9
    UNION = 10
    ARRAY = 11  # a map is an array of records of key and value
    CONSTANT = 12  # the child reads `data`, or `data` is written: a default
    FAIL = 13  # the reader has nothing for this; `data` says why


OPS = {
    "null": Op.NULL,
    "boolean": Op.BOOLEAN,
    "int": Op.INT,
    "long": Op.LONG,
    "float": Op.FLOAT,
    "double": Op.DOUBLE,
    "bytes": Op.BYTES,
    "string": Op.BYTES,
    "fixed": Op.FIXED,
    "enum": Op.ENUM,
    "record": Op.RECORD,
    "error": Op.RECORD,
    "array": Op.ARRAY,
    "map": Op.ARRAY,
}


@dataclass(slots=True)
class Node:
    """`size`: bytes of a fixed; what a number is multiplied by, or, written, its limit; of an array, 1 if
    its items take no bytes. `where` names the field.

    The fields after `data` are for single values: both definitions (the reader's is None for skipped ones),
    and for a record the index of each child in the reader's record, or -1.
    """

    op: Op
    where: str
    column: int = -1
    size: int = 0
    children: list[int] = field(default_factory=list)
    data: bytes = b""
    writer: Json = None
    reader: Json = None
    indexes: list[int] = field(default_factory=list)
