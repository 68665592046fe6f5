"""Batches as the columns of a schema, for `poll_arrow(schema=…)`; importing this needs pyarrow."""

from collections.abc import Sequence
from typing import Final, cast

import numpy as np
import pyarrow as pa

from folkmoot.consumers.records.arrow import SCHEMA_WITH_HEADERS
from folkmoot.consumers.records.batch_view import RecordBatchView
from folkmoot.protocol.errors import ConfigError, DeserializationError
from folkmoot.schemas.avro.identity import Schema
from folkmoot.schemas.columns.deserializer import BadRow, ColumnDeserializer
from folkmoot.schemas.values.deserializer import AvroDeserializer
from folkmoot.schemas.values.serialization import VALUE
from folkmoot.schemas.values.wire import prepend_frames

BESIDE: Final = ("topic", "partition", "offset", "timestamp")
"""Columns beside a record's fields, each with the prefix `_`."""

_NO_RAW: Final = (
    "a table with a schema has no place for raw bytes: have on_decode_error raise or skip, or poll "
    "without a schema"
)


class TypedView(RecordBatchView):
    """Records of a batch as `batch`, without skipped ones."""

    __slots__ = ("batch",)

    batch: pa.RecordBatch


def columns_of(schema: object, values: object) -> ColumnDeserializer:
    """Return a schema's column deserializer; from a plain schema, with the look-ups of `values`.

    Raises ConfigError if `values` is no AvroDeserializer, InvalidSchema, SchemaNotFound.
    """
    if isinstance(schema, ColumnDeserializer):
        return schema
    if not isinstance(values, AvroDeserializer):
        raise ConfigError(
            f"schema={schema!r:.60} makes no columns: give ColumnDeserializer(registry, schema), or "
            "value_deserializer=AvroDeserializer(registry) to the consumer"
        )
    reader = cast("Schema | int | type", schema)
    return ColumnDeserializer(values.schemas, reader, subject=values.subject)


class TypedColumns:
    """The columns of one `poll_arrow`."""

    def __init__(self, schema: ColumnDeserializer, headers: bool, on_decode_error: object) -> None:
        """Raises ConfigError for a schema with a field named as a column beside it."""
        if on_decode_error == "raw":
            raise ConfigError(_NO_RAW)
        self._values = schema
        self._headers = headers
        self._skips = on_decode_error == "skip"
        self._beside = (*BESIDE, "headers") if headers else BESIDE
        self.skipped = 0
        """The number of skipped records."""
        fields = [schema.arrow_schema.field(name) for name in schema.arrow_schema.names]
        for name in self._beside:
            if f"_{name}" in schema.arrow_schema.names:
                raise ConfigError(f"the schema has a field _{name}, which the table has, too")
            fields.append(pa.field(f"_{name}", SCHEMA_WITH_HEADERS.field(name).type))
        self._schema = pa.schema(fields)

    def rows_of(self, view: RecordBatchView) -> tuple[TypedView, Exception | None]:
        """Return the columns of the rows before the first failure, and its error. Skipped rows do not
        count as failures."""
        cells = prepend_frames(VALUE, view.values, view.columns.headers)
        values, bad = self._values.decode(cells)
        count, failed = len(view), None
        if bad and not self._skips:
            count, failed = bad[0].row, self._error(view, bad[0])
        beside = view.arrow(headers=self._headers)
        arrays = [*values.columns, *(beside.column(name) for name in self._beside)]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        if bad and self._skips:
            self.skipped += len(bad)
            remaining = np.setdiff1d(
                np.arange(count, dtype=np.int64), [bad_row.row for bad_row in bad]
            )
            rows = [None, pa.py_buffer(remaining.astype(np.int64))]
            batch = batch.take(pa.Array.from_buffers(pa.int64(), len(remaining), rows))
        part = view.part(0, count)
        typed = TypedView(part.topic_partition, part.columns, part.offsets, part.append_time)
        typed.batch = batch.slice(0, count)
        return typed, failed

    def raw(self, row: RecordBatchView) -> RecordBatchView:
        """Raises ConfigError: the schema has no column for bytes."""
        raise ConfigError(f"{row.topic_partition}, offset {row.offsets[0]}: {_NO_RAW}")

    def batch_of(self, view: RecordBatchView) -> pa.RecordBatch | None:
        """Return the batch of a view of `rows_of`; None if all rows were skipped."""
        return view.batch if isinstance(view, TypedView) and view.batch.num_rows else None

    def table(self, batches: Sequence[pa.RecordBatch]) -> pa.Table:
        return pa.Table.from_batches(batches, schema=self._schema)

    def _error(self, view: RecordBatchView, bad: BadRow) -> DeserializationError:
        where = f"{view.topic_partition}, offset {view.offsets[bad.row]}"
        error = DeserializationError(f"{where}: {bad.error}")
        (error.record,) = view.part(bad.row, bad.row + 1)
        error.field, error.schema_id = VALUE, bad.schema_id
        return error
