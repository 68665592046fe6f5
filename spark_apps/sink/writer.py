"""Spark's side of the sink: from a task's RecordBatches to a writer that is kept from task to task."""

import os
import time
from collections.abc import Iterator, Sequence
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
from folkmoot.spark_apps.config import FORMAT, SinkConfig
from folkmoot.spark_apps.reading import put_back
from folkmoot.spark_apps.sink.rounds import RoundWriter, Rows

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
"""Local properties of the engine's jobs (StreamExecution.QUERY_ID_KEY, MicroBatchExecution.BATCH_ID_KEY)."""

_TEXT = (BinaryType(), StringType())
_COLUMNS: Final[dict[str, tuple[DataType, ...]]] = {
    "key": _TEXT,
    "value": _TEXT,
    "topic": (StringType(),),
    "partition": (IntegerType(),),
    "timestamp": (TimestampType(),),
}


class FolkmootStreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream.format("folkmoot")`. A batch that runs again adds what is missing of it: each task of
    a query writes its batches as rounds under one name (rounds.py)."""

    def __init__(self, config: SinkConfig, schema: StructType, overwrite: bool) -> None:
        _check(config, schema, overwrite)
        self._config = config

    def write(self, iterator: Any) -> WriterCommitMessage:
        """In an executor, of RecordBatches: returns when all is acknowledged."""
        task = TaskContext.get()
        query = None if task is None else task.getLocalProperty(QUERY_ID)
        batch = None if task is None else task.getLocalProperty(BATCH_ID)
        if task is None or query is None or batch is None:
            raise ConfigError("Spark does not say which batch of which query this task is of")
        name = f"spark/{query}/{task.partitionId()}"
        return _write(self._config, iterator, (name, int(batch)))


class FolkmootWriter(DataSourceArrowWriter):
    """`df.write.format("folkmoot").mode("append")`: at least once, if tasks run again."""

    def __init__(self, config: SinkConfig, schema: StructType, overwrite: bool) -> None:
        _check(config, schema, overwrite)
        self._config = config

    def write(self, iterator: Any) -> WriterCommitMessage:
        """In an executor, of RecordBatches: returns when all is acknowledged."""
        return _write(self._config, iterator, None)


# -- a task ------------------------------------------------------------------------------------------

_Key = tuple[int, SinkConfig, bool]
_idle: dict[_Key, RoundWriter] = {}
"""Of each process: a fork's are not its own."""


def _write(
    config: SinkConfig, batches: Iterator[pa.RecordBatch], round_: tuple[str, int] | None
) -> WriterCommitMessage:
    first = next(batches, None)
    if first is None:
        return WriterCommitMessage()
    key = (os.getpid(), config, round_ is not None)
    writer = _idle.pop(key, None)
    if writer is None:
        writer = RoundWriter(config.zookeeper, named=round_ is not None, **config.producer())
    try:
        writer.begin(*(round_ or ()))
        while first is not None:
            for topic, rows in _rows(config, first):
                writer.write(topic, rows)
            first = next(batches, None)
        writer.end()
    except BaseException:
        writer.close()
        raise
    put_back(_idle, key, writer)
    return WriterCommitMessage()


def _rows(config: SinkConfig, batch: pa.RecordBatch) -> Iterator[tuple[str, Rows]]:
    """The rows of a RecordBatch by topic, each in their order. Raises SerializationError, InvalidName."""
    names = batch.schema.names
    columns = {name: batch.column(number) for number, name in enumerate(names)}
    topics = None if config.topic else columns["topic"]
    rows = Rows(
        values=columns["value"],
        keys=columns.get("key"),
        timestamps=_timestamps(columns.get("timestamp")),
        headers=_headers(columns.get("headers")),
        partitions=columns.get("partition"),
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


def _check(config: SinkConfig, schema: StructType, overwrite: bool) -> None:
    """Raises ConfigError."""
    if overwrite:
        raise ConfigError(f"format {FORMAT} only appends: use mode 'append'")
    kinds = {field.name: field.dataType for field in schema.fields}
    if "value" not in kinds:
        raise ConfigError("there is no column 'value': rows need one, binary or string")
    if not config.topic and "topic" not in kinds:
        raise ConfigError("give option 'topic', or a column 'topic' with the topic of each row")
    for name, kind in kinds.items():
        if name == "headers":
            _check_headers(kind)
        elif name not in _COLUMNS:
            raise ConfigError(
                f"column {name!r} means nothing here: use {', '.join([*_COLUMNS, 'headers'])}"
            )
        elif kind not in _COLUMNS[name]:
            raise _wrong(name, _COLUMNS[name], kind)


def _check_headers(kind: DataType) -> None:
    fields = kind.elementType if isinstance(kind, ArrayType) else None
    shape = (
        [(field.name, field.dataType) for field in fields.fields]
        if isinstance(fields, StructType)
        else None
    )
    if shape != [("key", StringType()), ("value", BinaryType())]:
        raise ConfigError(
            f"column 'headers' is {kind.simpleString()}: cast it to "
            "array<struct<key:string,value:binary>>"
        )


def _wrong(name: str, allowed: Sequence[DataType], kind: DataType) -> ConfigError:
    said = " or ".join(each.simpleString() for each in allowed)
    return ConfigError(f"column {name!r} is {kind.simpleString()}, not {said}: cast it")
