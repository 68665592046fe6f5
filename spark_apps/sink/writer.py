"""Spark's side of the sink: from a task's RecordBatches to a writer that is kept from task to task."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
    TimestampType,
)

from folkmoot.protocol.errors import ConfigError, SerializationError
from folkmoot.protocol.names import check_name
from folkmoot.spark_apps.options.config import FORMAT, SinkConfig
from folkmoot.spark_apps.sink.attempt import check_tasks
from folkmoot.spark_apps.sink.batch_of_query import BatchOfQuery, batch_of_query
from folkmoot.spark_apps.sink.batch_writer import borrow_writer
from folkmoot.spark_apps.sink.rows import Rows
from folkmoot.spark_apps.typed.decoding import ERROR, METADATA, RAW, ResolvedSchema
from folkmoot.spark_apps.typed.encoding import encode_columns
from folkmoot.spark_apps.typed.writer_schema import stream_schema, writer_schema

_TEXT = (BinaryType(), StringType())
_COLUMNS: Final[dict[str, tuple[DataType, ...]]] = {
    "key": _TEXT,
    "value": _TEXT,
    "topic": (StringType(),),
    "partition": (IntegerType(),),
    "timestamp": (TimestampType(),),
}


_checked_runs: dict[str, str | None] = {}
"""The run of each query whose first batch this process has checked."""


@dataclass
class _TaskEnded(WriterCommitMessage):
    """A task has ended; `task` is its number, None if it had no rows."""

    batch: BatchOfQuery
    task: int | None


class FolkmootStreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream.format("folkmoot")`. A batch that runs again adds what is missing of it: each task of
    a query writes its batches as epochs under one name (batch_writer.py)."""

    def __init__(self, config: SinkConfig, schema: StructType, overwrite: bool) -> None:
        self._config = config
        self._schema = _check_schema(config, schema, overwrite, stream_schema)

    def write(self, iterator: Any) -> WriterCommitMessage:
        """In an executor, of RecordBatches: returns when all is acknowledged."""
        task, batch = TaskContext.get(), batch_of_query()
        if task is None or batch is None:
            raise ConfigError("Spark does not say which batch of which query this task is of")
        name = f"{_names(batch)}{task.partitionId()}"
        has_rows = _write(self._config, self._schema, iterator, (name, batch.number))
        return _TaskEnded(batch, task.partitionId() if has_rows else None)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """On the driver, when all tasks have ended: an attempt before may have had others.

        Raises RowsChanged, ZooKeeperUnreachable.
        """
        ended = [each for each in messages if isinstance(each, _TaskEnded)]
        if not ended or _checked_runs.get((batch := ended[0].batch).query) == batch.run:
            return  # only the first batch of a run can have run before
        tasks = {each.task for each in ended if each.task is not None}
        check_tasks(self._config.zookeeper, self._config.listener, _names(batch), batchId, tasks)
        _checked_runs[batch.query] = batch.run or None


class FolkmootWriter(DataSourceArrowWriter):
    """`df.write.format("folkmoot").mode("append")`: at least once, if tasks run again."""

    def __init__(self, config: SinkConfig, schema: StructType, overwrite: bool) -> None:
        self._config = config
        self._schema = _check_schema(config, schema, overwrite, writer_schema)

    def write(self, iterator: Any) -> WriterCommitMessage:
        """In an executor, of RecordBatches: returns when all is acknowledged."""
        _write(self._config, self._schema, iterator, None)
        return WriterCommitMessage()


# -- a task ------------------------------------------------------------------------------------------


def _write(
    config: SinkConfig,
    schema: ResolvedSchema | None,
    batches: Iterator[pa.RecordBatch],
    epoch: tuple[str, int] | None,
) -> bool:
    """Returns whether there were rows."""
    first = next(batches, None)
    if first is None:
        return False
    with borrow_writer(config.zookeeper, config.producer(), named=epoch is not None) as writer:
        writer.begin(*(epoch or ()))
        while first is not None:
            for topic, rows in _rows(config, schema, first):
                writer.write(topic, rows)
            first = next(batches, None)
        writer.end()
    return True


def _names(batch: BatchOfQuery) -> str:
    """The prefix of the names of a query's tasks."""
    return f"spark/{batch.query}/"


def _rows(
    config: SinkConfig, schema: ResolvedSchema | None, batch: pa.RecordBatch
) -> Iterator[tuple[str, Rows]]:
    """The rows of a RecordBatch by topic, each in their order. Raises SerializationError, InvalidName."""
    if schema is None:
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    else:
        columns = encode_columns(batch, schema)
    topics = None if config.topic else columns["topic"]
    rows = Rows(
        values=columns["value"],
        keys=columns.get("key"),
        timestamps=_timestamps(columns.get("timestamp")),
        headers=_headers(columns.get("headers")),
        partitions=columns.get("partition"),
        framed=schema is not None,
    )
    if topics is None:
        yield config.topic, rows
        return
    if topics.null_count:
        row = topics.to_pylist().index(None)
        raise SerializationError(
            f"row {row} of a RecordBatch has no topic: give one, or the option 'topic'"
        )
    texts = np.asarray(topics.to_pylist(), object)
    for topic in dict.fromkeys(texts):
        check_name("topic", topic)
        yield topic, rows.at(np.flatnonzero(texts == topic))


def _timestamps(column: Any) -> Any:
    """In ms; rows without one get the time of now."""
    if column is None:
        return None
    stamps = column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64())
    return stamps.fill_null(int(time.time() * 1000))


def _headers(column: Any) -> list[Any] | None:
    if column is None or column.null_count == len(column):
        return None
    return [
        [(header["key"], header["value"]) for header in row or ()] for row in column.to_pylist()
    ]


# -- what may be written -----------------------------------------------------------------------------


def _check_schema(
    config: SinkConfig,
    schema: StructType,
    overwrite: bool,
    typed_by: Callable[[SinkConfig, StructType], ResolvedSchema],
) -> ResolvedSchema | None:
    """The schema that rows are written by, where they are typed.

    Raises ConfigError, and why there is no such schema.
    """
    if overwrite:
        raise ConfigError(f"format {FORMAT} only appends: use mode 'append'")
    typed = config.valueFormat == "avro"
    ours = {field.name: field for field in schema.fields if not typed or field.name in METADATA}
    value_fields = StructType([field for field in schema.fields if field.name not in ours])
    kinds = {METADATA[name] if typed else name: each.dataType for name, each in ours.items()}
    if typed:
        kinds.pop("offset", None)  # where a row was read is no place to write it to
        _check_fields(value_fields)
    elif "value" not in kinds:
        raise ConfigError("there is no column 'value': rows need one, binary or string")
    mark = "_" if typed else ""
    if not config.topic and "topic" not in kinds:
        raise ConfigError(
            f"give option 'topic', or a column '{mark}topic' with the topic of each row"
        )
    for name, kind in kinds.items():
        if name == "headers":
            _check_headers(f"{mark}{name}", kind)
        elif name not in _COLUMNS:
            raise ConfigError(
                f"column {name!r} means nothing here: use {', '.join([*_COLUMNS, 'headers'])}"
            )
        elif kind not in _COLUMNS[name]:
            raise _wrong(f"{mark}{name}", _COLUMNS[name], kind)
    return typed_by(config, value_fields) if typed else None


def _check_fields(fields: StructType) -> None:
    """Raises ConfigError for columns that are no fields of values."""
    if not fields.fields:
        raise ConfigError(f"values have no field: there is no column beside {', '.join(METADATA)}")
    for name in (ERROR, RAW):
        if name in fields.names:
            raise ConfigError(
                f"column {name!r} marks values that could not be read, whose rows are nulls: leave these "
                f"out with .where('{ERROR} is null').drop('{ERROR}', '{RAW}')"
            )


def _check_headers(name: str, kind: DataType) -> None:
    fields = kind.elementType if isinstance(kind, ArrayType) else None
    shape = (
        [(field.name, field.dataType) for field in fields.fields]
        if isinstance(fields, StructType)
        else None
    )
    if shape != [("key", StringType()), ("value", BinaryType())]:
        raise ConfigError(
            f"column {name!r} is {kind.simpleString()}: cast it to "
            "array<struct<key:string,value:binary>>"
        )


def _wrong(name: str, allowed: Sequence[DataType], kind: DataType) -> ConfigError:
    names = " or ".join(each.simpleString() for each in allowed)
    return ConfigError(f"column {name!r} is {kind.simpleString()}, not {names}: cast it")
