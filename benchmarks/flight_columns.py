"""Flights as Arrow, in the columns that their Avro schema has."""

from collections.abc import Iterator, Sequence
from typing import Any, Final
from uuid import UUID

import pyarrow as pa

from folkmoot.schemas.columns.deserializer import ColumnDeserializer

ROWS: Final = 20_000
"""In a batch of columns."""


class OneSchema:
    """A registry of one schema."""

    def __init__(self, text: str) -> None:
        self._text = text

    def resolved(self, id: int | UUID, *, subject: str | None = None) -> str:
        return self._text


def deserializer(text: str) -> ColumnDeserializer:
    return ColumnDeserializer(OneSchema(text), text)


def batches(rows: Sequence[dict[str, Any]], text: str) -> Iterator[pa.RecordBatch]:
    schema = deserializer(text).arrow_schema
    for start in range(0, len(rows), ROWS):
        yield pa.RecordBatch.from_pylist(rows[start : start + ROWS], schema=schema)
