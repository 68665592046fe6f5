"""Spark's view of the log: the data source `folkmoot` and its stream reader.

Instances are made and pickled in several processes; only the one that the engine calls joins the
group. So nothing is opened before the engine's first call, and what only that process needs (kazoo,
the group) is imported there.
"""

# ruff: noqa: N802 The names of methods are Spark's.

import signal
import threading
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from folkmoot.protocol.errors import FolkmootError
from folkmoot.spark_apps.drain import DRAIN_SIGNAL
from folkmoot.spark_apps.offsets.checkpoint import Ends, to_json
from folkmoot.spark_apps.options.columns import columns, select_columns
from folkmoot.spark_apps.options.config import (
    FORMAT,
    BatchConfig,
    SinkConfig,
    SourceConfig,
    StreamConfig,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from folkmoot.spark_apps.stream.query_member import QueryMember
    from folkmoot.spark_apps.tasks.planning import Task
    from folkmoot.spark_apps.typed.decoding import ResolvedSchema

MAX_ROWS = 2**31 - 1
"""The engine's limit where the options have none: `QueryMember` limits batches itself."""
LEAVE_TIMEOUT = 5.0


class FolkmootDataSource(DataSource):
    """`format("folkmoot")`; options in config.py, columns as Spark's Kafka source."""

    _reader_schema: "ResolvedSchema | None" = None
    """Looked up once, with the columns: all readers of this source have the same."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        """Spark asks at `load()`, where wrong options are reported.

        Only later is it known whether this is a stream or a batch.
        """
        try:
            config: SourceConfig = StreamConfig.of(self.options)
        except FolkmootError:
            if "group" in {name.lower() for name in self.options}:
                raise
            config = BatchConfig.of(self.options)
        return self._all_columns(config)

    def _all_columns(self, config: SourceConfig) -> StructType:
        """All columns that there are. Raises ConfigError, and why there is no schema of values."""
        if config.valueFormat != "avro":
            return columns(config.includeHeaders)
        from folkmoot.spark_apps.typed.reader_schema import (
            check_dead_letters,
            reader_schema,
            typed_columns,
        )

        if self._reader_schema is None:
            self._reader_schema = reader_schema(config)
            check_dead_letters(config)
        return typed_columns(self._reader_schema.text, config)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        config = StreamConfig.of(self.options)
        names = select_columns(schema, self._all_columns(config))
        return FolkmootStreamReader(config, names, self._reader_schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        config = BatchConfig.of(self.options)
        names = select_columns(schema, self._all_columns(config))
        return FolkmootReader(config, names, self._reader_schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        from folkmoot.spark_apps.sink.writer import FolkmootStreamWriter

        return FolkmootStreamWriter(SinkConfig.of(self.options), schema, overwrite)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from folkmoot.spark_apps.sink.writer import FolkmootWriter

        return FolkmootWriter(SinkConfig.of(self.options), schema, overwrite)


class _TaskReader:
    """The part of both readers that executors get."""

    def __init__(
        self,
        config: Any,
        names: tuple[str, ...],
        reader_schema: "ResolvedSchema | None" = None,
    ) -> None:
        self._config = config
        self._names = names
        self._reader_schema = reader_schema

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        config: SourceConfig = self._config
        task: Task | None = partition.value
        if task is None:  # Spark's own partition, where there is no task
            return iter(())
        if self._reader_schema is None:
            from folkmoot.spark_apps.tasks.reading import ReadOptions, read

            options = (config.clientId, config.listener, self._names, config.failOnDataLoss)
            return read(task, ReadOptions(*options))
        if config.deadLetterTopic:
            from folkmoot.spark_apps.sink.dead_letters import read_with_letters

            return read_with_letters(task, config, self._names, self._reader_schema)
        from folkmoot.spark_apps.typed.decoding import read_typed

        return read_typed(task, config, self._names, self._reader_schema)


class FolkmootReader(_TaskReader, DataSourceReader):
    """A read of what is there now, without a group: see batch.py."""

    _config: BatchConfig

    def partitions(self) -> Sequence[InputPartition]:
        from folkmoot.spark_apps.batch import tasks

        return [InputPartition(task) for task in tasks(self._config)]


class FolkmootStreamReader(_TaskReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A running query as a member of the group.

    The engine calls one method at a time, in a process of its own that lives as long as the query:
    there `QueryMember` does the work (its docstring has the order of commits and releases). Spark
    stops that process with SIGTERM, twice, and calls `stop` only if something failed; so SIGTERM is
    turned into an orderly exit, whose last act is `stop`: the group is left at once.

    Executors unpickle another instance for `read`, which needs nothing but its partition.
    """

    _config: StreamConfig
    _member: "QueryMember | None" = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_member": None}

    def initialOffset(self) -> dict[str, Any]:
        """Constant and empty: the first end has the starts of partitions."""
        return to_json(Ends(self._config.group))

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._config.maxOffsetsPerTrigger or MAX_ROWS)

    def prepareForTriggerAvailableNow(self) -> None:
        self._join().prepare()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return self._join().latest(start, _rows(limit))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None if self._member is None else self._member.report()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """From `end` alone: a replay after a restart reads the same, whichever member owns it by then."""
        return [InputPartition(task) for task in self._join().tasks(end)]

    def commit(self, end: dict[str, Any]) -> None:
        """`latestOffset` gets this end as its start, and commits it."""

    def stop(self) -> None:
        member, self._member = self._member, None
        if member is not None:
            member.leave(LEAVE_TIMEOUT)

    def _join(self) -> "QueryMember":
        if self._member is None:
            from folkmoot.spark_apps.stream.membership import query_member

            schema = self._reader_schema
            self._member = member = query_member(self._config, schema.id if schema else 0)
            _install_signal_handlers(member)
            member.start()
        return self._member


def _rows(limit: ReadLimit) -> int | None:
    """Spark passes our own limit back, or ReadAllAvailable, which overrides it."""
    if isinstance(limit, ReadMaxRows):
        return limit.max_rows
    assert isinstance(limit, ReadAllAvailable), f"an unknown limit: {limit}"
    return None


def _install_signal_handlers(member: "QueryMember") -> None:
    """SIGTERM ends this process in order; DRAIN_SIGNAL lets the query become idle."""
    if threading.current_thread() is not threading.main_thread():
        return  # signals belong to the owner of the main thread

    def terminate(number: int, frame: FrameType | None) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the second one must not interrupt `stop`
        raise SystemExit(0)

    def drain(number: int, frame: FrameType | None) -> None:
        member.is_draining = True

    signal.signal(signal.SIGTERM, terminate)
    signal.signal(DRAIN_SIGNAL, drain)
