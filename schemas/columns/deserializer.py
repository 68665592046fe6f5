"""Columns of Avro values, in Confluent's wire format, to Arrow."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import pyarrow as pa

from folkmoot.schemas.avro.identity import Schema


class SchemaLookup(Protocol):
    """Where the schema of an id comes from: a registry, or a client that asks brokers."""

    def resolved(self, id: int) -> str: ...


class BadRow(NamedTuple):
    """A value that cannot be read: its row, the id that it begins with (None: none), and why."""

    row: int
    schema_id: int | None
    error: str


class ColumnDeserializer:
    """Values of any writers' schemas to the columns of one reader's schema.

    `schema` is the reader's: text, or an id that `schemas` knows. The fields of a record are the
    columns; of any other schema there is one column, `value`. A None cell (a tombstone) is a row of
    nulls. May be called from any thread.
    """

    def __init__(self, schemas: SchemaLookup, schema: Schema | int) -> None:
        """Raises InvalidSchema, SchemaNotFound."""
        self.arrow_schema: pa.Schema

    def __call__(self, values: "pa.Array | Sequence[bytes | None]") -> pa.RecordBatch:
        """Raises SerializationError that names the first bad row, and what the lookup raises."""
        raise NotImplementedError("columns are being built")

    def decode(
        self, values: "pa.Array | Sequence[bytes | None]"
    ) -> tuple[pa.RecordBatch, list[BadRow]]:
        """A row for each value, bad ones all null, and those in order. Raises what the lookup raises.

        A schema id that the lookup does not know (SchemaNotFound) makes a bad row.
        """
        raise NotImplementedError("columns are being built")
