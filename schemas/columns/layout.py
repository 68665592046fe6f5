"""Which Arrow columns the values of a schema make.

A record is a struct, nullable things are nullable. A union of several types is a struct with one
field for each, `member0` on, of which one has a value, as Spark has it. Enums and UUIDs are strings.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from folkmoot.protocol.columns import BinaryColumn
from folkmoot.protocol.errors import InvalidSchema
from folkmoot.schemas.avro.defaults import Json
from folkmoot.schemas.avro.parsed import ParsedSchema
from folkmoot.schemas.columns.extra import pa
from folkmoot.schemas.columns.program import Column, Kind

_DAY = 86_400_000
_PRIMITIVE: dict[str, tuple[Kind, Any]] = {
    "boolean": (Kind.BOOLEAN, pa.bool_()),
    "int": (Kind.INT32, pa.int32()),
    "long": (Kind.INT64, pa.int64()),
    "float": (Kind.FLOAT, pa.float32()),
    "double": (Kind.DOUBLE, pa.float64()),
    "bytes": (Kind.BINARY, pa.binary()),
    "string": (Kind.TEXT, pa.string()),
}
_LOGICAL: dict[tuple[str, str], tuple[Kind, Any, int]] = {
    ("int", "date"): (Kind.INT32, pa.date32(), 0),
    ("int", "time-millis"): (Kind.INT32, pa.time32("ms"), _DAY),
    ("long", "time-micros"): (Kind.INT64, pa.time64("us"), _DAY * 1000),
    ("string", "uuid"): (Kind.UUID, pa.string(), 0),
} | {
    ("long", f"{local}timestamp-{word}"): (Kind.INT64, pa.timestamp(unit, zone), 0)
    for word, unit in (("millis", "ms"), ("micros", "us"), ("nanos", "ns"))
    for local, zone in (("", "UTC"), ("local-", None))
}
MAX_COLUMNS = 10_000
"""A type that is named twice in the next has its columns twice: they double with each level."""
MAX_DIGITS = 38
"""Digits of an Arrow decimal of 128 bits. A decimal of more stays the bytes that it is written as."""


class Shape(NamedTuple):
    """An Arrow array to be: its type, its column (-1: nulls only), what is within, an enum's symbols."""

    type: Any
    column: int = -1
    children: tuple["Shape", ...] = ()
    symbols: tuple[str, ...] = ()


class Layout:
    """The columns of a schema. Raises InvalidSchema for a type that contains itself, and for too many."""

    def __init__(self, parsed: ParsedSchema) -> None:
        self.parsed = parsed
        self.columns: list[Column] = []
        self.levels = 1
        self.root = self._shape(parsed.root, 0, ())
        kind = parsed.of(parsed.root)
        self.is_record = isinstance(kind, dict) and kind["type"] in ("record", "error")
        self.schema = pa.schema(
            list(self.root.type) if self.is_record else [pa.field("value", self.root.type)]
        )

    def _column(self, kind: Kind, level: int, size: int = 0) -> int:
        if len(self.columns) >= MAX_COLUMNS:
            raise InvalidSchema(
                f"the schema has more than {MAX_COLUMNS} columns, those within others counted: read it "
                "with a schema of fewer fields, or record by record"
            )
        self.columns.append(Column(kind, level, size))
        return len(self.columns) - 1

    def _shape(self, schema: Json, level: int, around: tuple[str, ...]) -> Shape:
        schema = self.parsed.of(schema)
        if isinstance(schema, list):
            return self._union(schema, level, around)
        kind = schema["type"]
        if kind == "null":
            return Shape(pa.null())
        if kind in ("record", "error"):
            if schema["name"] in around:
                raise InvalidSchema(
                    f"record {schema['name']} contains itself: Arrow has no columns for that; read "
                    "it with a schema without the field, or record by record"
                )
            around = (*around, schema["name"])
            fields = [(each["name"], each["type"]) for each in schema["fields"]]
            return self._struct(fields, level, around)
        if kind == "array" or kind == "map":
            level, outer = self.levels, level
            self.levels += 1
            column = self._column(Kind.LIST, outer, level)
            if kind == "array":
                item = self._shape(schema["items"], level, around)
                return Shape(pa.list_(item.type), column, (item,))
            key = Shape(pa.string(), self._column(Kind.TEXT, level))
            value = self._shape(schema["values"], level, around)
            return Shape(pa.map_(key.type, value.type), column, (key, value))
        return self._leaf(schema, level)

    def _union(self, schema: list[Json], level: int, around: tuple[str, ...]) -> Shape:
        branches = [each for each in schema if self.parsed.of(each)["type"] != "null"]
        if len(branches) == 1:
            return self._shape(branches[0], level, around)
        if not branches:
            return Shape(pa.null())
        members = [(f"member{number}", branch) for number, branch in enumerate(branches)]
        return self._struct(members, level, around)

    def _struct(self, fields: list[tuple[str, Json]], level: int, around: tuple[str, ...]) -> Shape:
        column = self._column(Kind.GROUP, level)
        shapes = tuple(self._shape(each, level, around) for _, each in fields)
        names = [name for name, _ in fields]
        kinds = pa.struct([pa.field(n, s.type) for n, s in zip(names, shapes, strict=True)])
        return Shape(kinds, column, shapes)

    def _leaf(self, schema: Json, level: int) -> Shape:
        kind = schema["type"]
        digits = decimal_of(schema)
        if digits is not None:
            return Shape(pa.decimal128(*digits), self._column(Kind.DECIMAL, level, digits[0]))
        if kind == "enum":
            symbols = tuple(schema["symbols"])
            return Shape(pa.string(), self._column(Kind.INT32, level), symbols=symbols)
        if kind == "fixed":
            return Shape(pa.binary(schema["size"]), self._column(Kind.FIXED, level, schema["size"]))
        logical = schema.get("logicalType")
        if isinstance(logical, str) and (kind, logical) in _LOGICAL:
            column_kind, arrow, size = _LOGICAL[kind, logical]
            return Shape(arrow, self._column(column_kind, level, size))
        plain, arrow = _PRIMITIVE[kind]
        return Shape(arrow, self._column(plain, level))


def decimal_of(schema: Json) -> tuple[int, int] | None:
    """Digits and scale, where bytes or a fixed are a decimal that Arrow can have."""
    if schema["type"] not in ("bytes", "fixed") or schema.get("logicalType") != "decimal":
        return None
    digits, scale = schema.get("precision"), schema.get("scale", 0)
    if type(digits) is not int or type(scale) is not int or not 0 <= scale <= digits:
        return None
    return (digits, scale) if 0 < digits <= MAX_DIGITS else None


def string_array(strings: Sequence[str]) -> pa.Array:
    """An array of strings; `pa.array` would import pandas."""
    cells = BinaryColumn.of([each.encode() for each in strings])
    buffers = [None, pa.py_buffer(cells.offsets.astype(np.int32)), pa.py_buffer(cells.data)]
    return pa.Array.from_buffers(pa.string(), len(strings), buffers)
