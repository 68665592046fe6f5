"""Records that cannot be read go into a topic of their own, before the rows behind them are handed on.

Each task of a source writes under a name of its own, in rounds, as the sink does (rounds.py): a
micro-batch that runs again adds no record twice. Where the same task runs twice at a time (a frame that
is joined with itself, say) each fences the other and begins again, behind what is written by then. So
do tasks of two sources of a query with the same group, which have other records under the same name. A
batch read has no name that comes again: there a task that runs again writes again.
"""

import logging
import random
import time
from bisect import bisect
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any, Final
from zlib import crc32

import pyarrow as pa

from folkmoot.protocol.errors import OutOfOrderSequence, ProducerFenced, RowsChanged
from folkmoot.schemas.columns.deserializer import BadRow
from folkmoot.spark_apps.config import SourceConfig, StreamConfig
from folkmoot.spark_apps.planning import Task
from folkmoot.spark_apps.sink.batch_of_query import batch_of_query
from folkmoot.spark_apps.sink.kept import kept_writer
from folkmoot.spark_apps.sink.rounds import RoundWriter, Rows
from folkmoot.spark_apps.typed.decoding import KnownSchema, read_typed

PREFIX: Final = "dead-letter-"
"""Of all headers that say what became of a record: `topic`, `partition`, `offset`, `timestamp` (ms),
`schema-id` where it has one, and `error`, all of them text."""
MAX_ERROR: Final = 1000
LARGEST_RECORD: Final = 30 * 1024 * 1024
"""A record that a broker took is not refused here: the topic of dead letters has a limit of its own."""
ATTEMPTS: Final = 10
_PLACE: Final = ("_topic", "_partition", "_offset")

log = logging.getLogger(__name__)


def read_with_letters(
    number: int, task: Task, config: SourceConfig, names: Sequence[str], schema: KnownSchema
) -> Iterator[pa.RecordBatch]:
    """As `read_typed`, without the records that cannot be read; `number`: which task of its batch it is.

    Raises also what the sink raises.
    """
    asked = (*names, *(name for name in _PLACE if name not in names))
    handed: tuple[Any, ...] = ()
    for attempt in range(1, ATTEMPTS + 1):
        try:
            for batch in _read(number, task, config, asked, schema):
                rows = _behind(batch, handed)
                if rows.num_rows:
                    handed = _place(rows, rows.num_rows - 1)
                    yield rows.select(list(names))
        except (ProducerFenced, OutOfOrderSequence, RowsChanged) as error:
            if attempt == ATTEMPTS:
                raise
            log.info("dead letters of task %d, from the beginning: %s", number, error)
            time.sleep(random.random() * 0.1 * attempt)  # or two fence each other for ever
        else:
            return


def _behind(batch: pa.RecordBatch, place: tuple[Any, ...]) -> pa.RecordBatch:
    """The rows of records behind this place: by number they might be others when a task begins again,
    since a schema may have come by then. A task reads its partitions and offsets in order."""
    return batch.slice(bisect(range(batch.num_rows), place, key=lambda row: _place(batch, row)))


def _place(batch: pa.RecordBatch, row: int) -> tuple[Any, ...]:
    return tuple(batch.column(name)[row].as_py() for name in _PLACE)


def _read(
    number: int, task: Task, config: SourceConfig, names: Sequence[str], schema: KnownSchema
) -> Iterator[pa.RecordBatch]:
    writer: RoundWriter | None = None
    options = {
        "client_id": config.clientId,
        "listener": config.listener,
        "max_record_bytes": LARGEST_RECORD,
    }
    round_ = _round(number, config)

    def bury(records: pa.RecordBatch, bad: Sequence[BadRow]) -> None:
        nonlocal writer
        if writer is None:
            kept = kept_writer(config.zookeeper, options, named=bool(round_))
            writer = stack.enter_context(kept)
            writer.begin(*round_)
        writer.write(config.deadLetterTopic, letters(records, bad))
        writer.flush()

    with ExitStack() as stack:
        yield from read_typed(task, config, names, schema, bury)
        if writer is not None:
            writer.end()  # what was taken for written may have been letters of other records


def _round(number: int, config: SourceConfig) -> tuple[()] | tuple[str, int]:
    """The name of a task and the number of its batch; nothing in a batch read."""
    batch = batch_of_query()
    if batch is None:
        return ()
    group = config.group if isinstance(config, StreamConfig) else ""
    source = f"{group} {config.subscribe} {config.subscribePattern} {config.assign}"
    # A query may have several sources.
    return f"spark/{batch.query}/dead-{crc32(source.encode()):08x}/{number}", batch.number


def letters(records: pa.RecordBatch, bad: Sequence[BadRow]) -> Rows:
    """Bad records as they were, with headers that say where from and why."""
    some = records.take(pa.array([each.row for each in bad]))
    # As numbers, in ms: an application may give times that Python has no datetime for.
    stamps = some.column("timestamp").cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
    some = some.set_column(some.schema.names.index("timestamp"), "timestamp", stamps)
    return Rows(
        values=some.column("value"),
        keys=some.column("key"),
        headers=[_headers(*each) for each in zip(some.to_pylist(), bad, strict=True)],
    )


def _headers(record: dict[str, Any], bad: BadRow) -> list[tuple[str, bytes | None]]:
    said = {
        "topic": record["topic"],
        "partition": record["partition"],
        "offset": record["offset"],
        "timestamp": record["timestamp"],
        **({} if bad.schema_id is None else {"schema-id": bad.schema_id}),
        "error": bad.error[:MAX_ERROR],
    }
    given = [(each["key"], each["value"]) for each in record["headers"] or ()]
    return given + [(f"{PREFIX}{name}", str(value).encode()) for name, value in said.items()]
