"""The executor's side: the columns of values that say their schema, in front of them or in a header.

Ids are looked up at the brokers that the task names, once in each worker.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np

from folkmoot.consumers.broker_schemas import BrokerSchemas
from folkmoot.protocol.errors import SerializationError
from folkmoot.schemas.avro.parsed import ParsedSchema
from folkmoot.schemas.columns.deserializer import BadRow, ColumnDeserializer
from folkmoot.schemas.columns.extra import pa, pc
from folkmoot.schemas.columns.layout import Layout
from folkmoot.schemas.values.wire import schema_id
from folkmoot.spark_apps.options.config import SourceConfig
from folkmoot.spark_apps.tasks.arrow import FRAME
from folkmoot.spark_apps.tasks.planning import Task
from folkmoot.spark_apps.tasks.reading import ReadOptions, read

METADATA: Final[Mapping[str, str]] = {
    "_key": "key",
    "_topic": "topic",
    "_partition": "partition",
    "_offset": "offset",
    "_timestamp": "timestamp",
    "_headers": "headers",
}
"""The columns beside the fields, and what they are called where values are bytes."""
ERROR: Final = "_error"
RAW: Final = "_raw"

WriteDeadLetters = Callable[[pa.RecordBatch, Sequence[BadRow]], None]
"""Takes records and which of them cannot be read; returns when these are kept elsewhere."""

_REQUIRED: Final = ("value", FRAME, "topic", "partition", "offset")
_POSITION_COLUMNS: Final = ("topic", "partition", "offset")
MAX_CACHED: Final = 4


class ResolvedSchema(NamedTuple):
    """A resolved text, and its id; 0 if the registry was not asked."""

    text: str
    id: int = 0


def arrow_fields(text: str) -> pa.Schema:
    """The columns of a schema's fields, in types that Spark has. Raises InvalidSchema."""
    return _for_spark(Layout(ParsedSchema(text)).schema)


def read_typed(
    task: Task,
    config: SourceConfig,
    names: Sequence[str],
    schema: ResolvedSchema,
    write_dead_letters: WriteDeadLetters | None = None,
) -> Iterator[pa.RecordBatch]:
    """The records of a task in the columns named. Fields that are not named are not decoded.

    Raises SerializationError, what `read` raises, and what `write_dead_letters` raises, which gets the
    records that cannot be read.
    """
    required = (
        _REQUIRED if write_dead_letters is None else (*_REQUIRED, "key", "timestamp", "headers")
    )
    metadata = [METADATA[name] for name in names if name in METADATA]
    raw = tuple(dict.fromkeys((*required, *metadata)))
    options = ReadOptions(config.clientId, config.listener, raw, config.failOnDataLoss)
    fields = tuple(name for name in names if name not in (*METADATA, ERROR, RAW))
    decode = _deserializer(
        *(os.getpid(), schema.text, fields),
        *(task[0].brokers, config.clientId, config.subject_of_ids),
    )
    fails = config.onDecodeError == "fail"
    for batch in read(task, options):
        yield decode_values(
            batch, decode, names, fails=fails, write_dead_letters=write_dead_letters
        )


def decode_values(
    batch: pa.RecordBatch,
    decode: ColumnDeserializer,
    names: Sequence[str],
    *,
    fails: bool,
    write_dead_letters: WriteDeadLetters | None = None,
) -> pa.RecordBatch:
    """The columns named, of records with values in bytes, without dead letters.

    Raises SerializationError for a value that cannot be read, if it `fails`, and what asking brokers
    raises.
    """
    fields, bad = _decode(_prepend_frames(batch), decode)
    if bad and fails:
        row, number, error = bad[0]
        topic, partition, offset = (batch.column(name)[row].as_py() for name in _POSITION_COLUMNS)
        raise SerializationError(
            f"topic {topic}, partition {partition}, offset {offset}, schema id "
            f"{'none' if number is None else number}: {error}"
        )
    if bad and write_dead_letters is not None:
        write_dead_letters(batch, bad)
        readable = pa.array(np.delete(np.arange(batch.num_rows), [each.row for each in bad]))
        batch, fields, bad = batch.take(readable), fields.take(readable), []
    columns: dict[str, Any] = dict(zip(fields.schema.names, fields.columns, strict=True))
    columns |= {
        name: batch.column(raw) for name, raw in METADATA.items() if raw in batch.schema.names
    }
    columns[ERROR], columns[RAW] = _error_columns(batch.column("value"), bad)
    return pa.RecordBatch.from_arrays([columns[name] for name in names], names=list(names))


def _prepend_frames(batch: pa.RecordBatch) -> pa.Array:
    """Values with what says their schema in front of them."""
    values, marks = batch.column("value"), batch.column(FRAME)
    if marks.null_count == len(marks):
        return values
    return pc.binary_join_element_wise(marks.fill_null(b""), values, b"")


def _decode(values: pa.Array, decode: ColumnDeserializer) -> tuple[pa.RecordBatch, list[BadRow]]:
    """Columns in types that Spark has: a time that is none there makes a bad row, too."""
    fields, bad = decode.decode(values)
    schema = _for_spark(fields.schema)
    try:
        return _cast(fields, schema), bad
    except pa.ArrowInvalid:
        out_of_range = [
            BadRow(row, _id(values[row].as_py()), str(error))
            for row in range(len(values))
            if (error := _mismatch(fields.slice(row, 1), schema)) is not None
        ]
    rows = {each.row for each in out_of_range}
    cells = [None if row in rows else cell for row, cell in enumerate(values.to_pylist())]
    fields, bad = decode.decode(pa.array(cells, pa.binary()))
    return _cast(fields, schema), sorted([*bad, *out_of_range])


def _id(value: bytes) -> int | None:
    number = schema_id(value)
    return number if isinstance(number, int) else None


def _cast(fields: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    arrays = [
        column
        if column.type == field.type
        else column.cast(options=pc.CastOptions(field.type, allow_time_truncate=True))
        for column, field in zip(fields.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _mismatch(row: pa.RecordBatch, schema: pa.Schema) -> str | None:
    try:
        _cast(row, schema)
    except pa.ArrowInvalid as error:
        return str(error)
    return None


def _error_columns(values: pa.Array, bad: Sequence[BadRow]) -> tuple[pa.Array, pa.Array]:
    """Why rows could not be read, and their values."""
    count = len(values)
    if not bad:
        return pa.nulls(count, pa.string()), pa.nulls(count, pa.binary())
    errors: list[str | None] = [None] * count
    raw: list[bytes | None] = [None] * count
    for row, _, error in bad:
        errors[row], raw[row] = error, values[row].as_py()
    return pa.array(errors, pa.string()), pa.array(raw, pa.binary())


# -- types --------------------------------------------------------------------------------------------


def _for_spark(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(field.name, _type(field.type)) for field in schema])


def _type(kind: Any) -> Any:
    """The type that Spark has for one of a layout: instants in microseconds, times of day as they are
    written, numbers."""
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if pa.types.is_time32(kind):
        return pa.int32()
    if pa.types.is_time64(kind):
        return pa.int64()
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _type(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _type(kind.item_type))
    return pa.list_(_type(kind.value_type)) if pa.types.is_list(kind) else kind


# -- what outlives a task -----------------------------------------------------------------------------


@lru_cache(maxsize=MAX_CACHED)
def _deserializer(
    process: int,
    text: str,
    fields: tuple[str, ...],
    brokers: tuple[str, ...],
    client_id: str,
    subject: str | None,
) -> ColumnDeserializer:
    """One of this very process: a fork makes its own."""
    schemas = BrokerSchemas(brokers, client_id=client_id)
    return ColumnDeserializer(schemas, json.loads(text), subject=subject, fields=fields)
