"""Columns of Avro values, in Confluent's wire format, to Arrow."""

import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np

from folkmoot.coordination.schemas.names import context_of
from folkmoot.protocol.columns import BinaryColumn
from folkmoot.protocol.errors import (
    BatchTooLarge,
    InvalidSchema,
    SchemaNotFound,
    SerializationError,
)
from folkmoot.schemas.avro.identity import Schema, canonical
from folkmoot.schemas.avro.parsed import ParsedSchema
from folkmoot.schemas.columns.extra import _speedups, pa
from folkmoot.schemas.columns.layout import Layout, Shape, string_array
from folkmoot.schemas.columns.program import MESSAGES, WIDTHS, Fault, Kind
from folkmoot.schemas.values.derivation import avro_schema
from folkmoot.schemas.values.deserializer import SchemaLookup
from folkmoot.schemas.values.program import Node
from folkmoot.schemas.values.resolution import resolve
from folkmoot.schemas.values.wire import schema_id

MAX_PROGRAMS = 1_000
"""Programs of writers' schemas that are kept; others are made again."""


class BadRow(NamedTuple):
    """A value that cannot be read: its row, the id that it begins with (None: none, or a GUID), and why."""

    row: int
    schema_id: int | None
    error: str


class ColumnDeserializer:
    """Values of any writers' schemas to the columns of one reader's schema.

    `schema` is the reader's: text, an id that `schemas` knows, or a class that it is derived from, for
    which a record's name does not matter. Ids are those of the context of `subject` (`":.staging:"`),
    and a value may begin with a GUID in place of one. The fields of a record are the columns, or those
    of them in `fields`: what others hold is passed over. Any other schema has one column, `value`. A None
    cell (a tombstone) is a row of nulls. May be called from any thread.
    """

    def __init__(
        self,
        schemas: SchemaLookup,
        schema: Schema | int | type,
        *,
        subject: str | None = None,
        fields: Collection[str] | None = None,
    ) -> None:
        """Raises InvalidSchema, also for a schema that contains itself; SchemaNotFound, InvalidSubject."""
        context_of(subject)
        self._of_any_name = isinstance(schema, type)
        if isinstance(schema, type):
            text = avro_schema(schema)
        elif isinstance(schema, int):
            text = schemas.resolved(schema, subject=subject)
        else:
            text = canonical(schema, strict=False)
        self._schemas = schemas
        self._subject = subject
        parsed = ParsedSchema(text)
        if fields is not None and isinstance(parsed.root, dict) and "fields" in parsed.root:
            selected = [each for each in parsed.root["fields"] if each["name"] in fields]
            parsed.root = parsed.root | {"fields": selected}
        self._layout = Layout(parsed)
        self.arrow_schema: pa.Schema = self._layout.schema
        self._lock = threading.Lock()
        self._nodes: list[Node] = []
        self._roots: dict[int | bytes, int] = {}

    def __call__(
        self, values: "pa.Array | pa.ChunkedArray | Sequence[bytes | None]"
    ) -> pa.RecordBatch:
        """Raises SerializationError that names the first bad row, and what the lookup raises."""
        batch, bad = self.decode(values)
        if bad:
            more = f" (and {len(bad) - 1} more rows)" if len(bad) > 1 else ""
            raise SerializationError(f"row {bad[0].row}: {bad[0].error}{more}")
        return batch

    def decode(
        self, values: "pa.Array | pa.ChunkedArray | Sequence[bytes | None]"
    ) -> tuple[pa.RecordBatch, list[BadRow]]:
        """A row for each value, bad ones all null, and those in order. Raises what the lookup raises.

        A schema id that the lookup does not know (SchemaNotFound) makes a bad row. Raises
        BatchTooLarge where a column would have more than 2 GiB.
        """
        cells = values if isinstance(values, BinaryColumn) else _cells(values)
        layout, count, unknown = self._layout, len(cells), dict[int | bytes, str]()
        decoder = _speedups.Decoder(layout.columns, layout.levels, count)
        with self._lock:
            nodes, roots = self._nodes, self._roots

        def root_of(number: int | bytes) -> int:
            if number in unknown:
                return -1
            try:
                root = self._root(number, nodes, roots)
            except (SchemaNotFound, InvalidSchema, SerializationError) as error:
                unknown[number] = str(error)
                return -1
            with self._lock:
                decoder.load(nodes)
            return root

        offsets = np.ascontiguousarray(cells.offsets, np.int64)
        bad = decoder.run(offsets, cells.data, cells.nulls, root_of)
        try:
            arrays = [_array(layout, decoder, shape, count) for shape in self._shapes()]
        except OverflowError as error:
            raise BatchTooLarge(f"{count} values: {error}; decode fewer at a time") from None
        # As a struct: a record batch of no columns would have no rows.
        kind = pa.struct(list(self.arrow_schema))
        rows = pa.Array.from_buffers(kind, count, [None], children=arrays)
        return pa.RecordBatch.from_struct_array(rows), [
            BadRow(
                row, _id(number), _error_message(cells, row, number, node, fault, nodes, unknown)
            )
            for row, number, node, fault in bad
        ]

    def _shapes(self) -> Sequence[Shape]:
        return self._layout.root.children if self._layout.is_record else (self._layout.root,)

    def _root(self, number: int | bytes, nodes: list[Node], roots: dict[int | bytes, int]) -> int:
        """The first node for values of a schema, by its id or its GUID's bytes.

        Raises SerializationError, and what the lookup raises.
        """
        with self._lock:
            if number in roots:
                return roots[number]
        identifier = UUID(bytes=number) if isinstance(number, bytes) else number
        text = self._schemas.resolved(identifier, subject=self._subject)
        with self._lock:
            node_count = len(nodes)
            try:
                roots[number] = resolve(
                    nodes,
                    ParsedSchema(text),
                    self._layout.parsed,
                    self._layout.root,
                    of_any_name=self._of_any_name,
                )
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                del nodes[node_count:]
                message = f"schema {identifier} cannot be used: {error!r:.200}"
                raise SerializationError(message) from None
            if nodes is self._nodes and len(roots) >= MAX_PROGRAMS:
                self._nodes, self._roots = [], {}
            return roots[number]


def _error_message(
    cells: BinaryColumn,
    row: int,
    number: int | bytes | None,
    node: int,
    fault: int,
    nodes: Sequence[Node],
    unknown: Mapping[int | bytes, str],
) -> str:
    """The error of a row."""
    if number is None:
        try:
            schema_id(cells[row] or b"")
        except SerializationError as error:
            return str(error)
        return ""
    if fault == Fault.SCHEMA:
        return unknown[number]
    message = nodes[node].data.decode() if fault == Fault.FAIL else MESSAGES[Fault(fault)]
    where = f"{nodes[node].where}: " if nodes[node].where else ""
    identifier = UUID(bytes=number) if isinstance(number, bytes) else number
    return f"schema {identifier}: {where}{message}"


def _id(number: int | bytes | None) -> int | None:
    return None if isinstance(number, bytes) else number


def _cells(values: Any) -> BinaryColumn:
    """Raises TypeError for what is no column of bytes."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if not isinstance(values, pa.Array):
        return BinaryColumn.of(values)
    if values.type != pa.binary():
        values = values.cast(pa.binary())
    validity, offsets, data = values.buffers()
    count, start = len(values), values.offset
    if not count:
        return BinaryColumn(np.zeros(1, np.int64), b"")
    nulls = None
    if values.null_count:
        bits = np.unpackbits(np.frombuffer(validity, np.uint8), bitorder="little")
        nulls = bits[start : start + count] == 0
    starts = np.frombuffer(offsets, np.int32)[start : start + count + 1]
    return BinaryColumn(starts, b"" if data is None else memoryview(data), nulls)


# -- arrays -------------------------------------------------------------------------------------------


def _array(layout: Layout, decoder: Any, shape: Shape, count: int) -> pa.Array:
    """The values in a shape's columns, `count` slots. Raises OverflowError."""
    if shape.column < 0:
        return pa.nulls(count)
    column = layout.columns[shape.column]
    valid, offsets, values = decoder.take(shape.column)
    flags = np.frombuffer(valid, np.bool_, count)
    nulls = count - int(np.count_nonzero(flags))
    validity = pa.py_buffer(np.packbits(flags, bitorder="little")) if nulls else None
    if column.kind is Kind.GROUP:
        children = [_array(layout, decoder, each, count) for each in shape.children]
        return pa.Array.from_buffers(shape.type, count, [validity], nulls, 0, children)
    if column.kind is Kind.LIST:
        items = decoder.count(column.size)
        children = [_array(layout, decoder, each, items) for each in shape.children]
        if pa.types.is_map(shape.type):
            entries = [shape.type.key_field, shape.type.item_field]
            children = [pa.StructArray.from_arrays(children, fields=entries)]
        buffers = [validity, pa.py_buffer(offsets)]
        return pa.Array.from_buffers(shape.type, count, buffers, nulls, 0, children)
    if shape.symbols:
        numbers = pa.Array.from_buffers(pa.int32(), count, [validity, pa.py_buffer(values)], nulls)
        symbols = string_array(shape.symbols)
        return pa.DictionaryArray.from_arrays(numbers, symbols).dictionary_decode()
    if column.kind is Kind.BOOLEAN:
        values = np.packbits(np.frombuffer(values, np.bool_, count), bitorder="little")
    if column.kind is Kind.FIXED or column.kind in WIDTHS:
        buffers = [validity, pa.py_buffer(values)]
    else:
        buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(values)]
    return pa.Array.from_buffers(shape.type, count, buffers, nulls)
