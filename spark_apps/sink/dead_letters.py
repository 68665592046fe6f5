"""Records that cannot be read go into a topic of their own, before the rows behind them are handed on.

At least once: a task that runs again writes its letters again.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from folkmoot.schemas.columns.deserializer import BadRow
from folkmoot.spark_apps.options.config import SourceConfig
from folkmoot.spark_apps.sink.batch_writer import borrow_writer
from folkmoot.spark_apps.sink.rows import Rows
from folkmoot.spark_apps.tasks.planning import Task
from folkmoot.spark_apps.typed.decoding import ResolvedSchema, read_typed

PREFIX: Final = "dead-letter-"
"""Prefix of the added headers: `topic`, `partition`, `offset`, `timestamp` (ms), `schema-id` where the
record has one, and `error`, all of them text."""
MAX_ERROR: Final = 1000
LARGEST_RECORD: Final = 30 * 1024 * 1024
"""A record that a broker took is not refused here: the topic of dead letters has a limit of its own."""


def read_with_letters(
    task: Task, config: SourceConfig, names: Sequence[str], schema: ResolvedSchema
) -> Iterator[pa.RecordBatch]:
    """Read as `read_typed`, without the records that cannot be read. Raises also what the sink raises."""
    options = {
        "client_id": config.clientId,
        "listener": config.listener,
        "max_record_bytes": LARGEST_RECORD,
    }

    def write_dead_letters(records: pa.RecordBatch, bad: Sequence[BadRow]) -> None:
        with borrow_writer(config.zookeeper, options, named=False) as writer:
            # The name decides where letters without a key go: not all of them to one partition.
            writer.begin(f"{task[0].topic}/{task[0].partition}/{records.column('offset')[0]}")
            writer.write(config.deadLetterTopic, dead_letter_rows(records, bad))
            writer.end()

    return read_typed(task, config, names, schema, write_dead_letters)


def dead_letter_rows(records: pa.RecordBatch, bad: Sequence[BadRow]) -> Rows:
    """Return bad records as they were, with headers that say where from and why."""
    unreadable = records.take(pa.array([each.row for each in bad]))
    # As numbers, in ms: an application may give times that Python has no datetime for.
    stamps = unreadable.column("timestamp").cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
    unreadable = unreadable.set_column(
        unreadable.schema.names.index("timestamp"), "timestamp", stamps
    )
    return Rows(
        values=unreadable.column("value"),
        keys=unreadable.column("key"),
        headers=[_headers(*each) for each in zip(unreadable.to_pylist(), bad, strict=True)],
    )


def _headers(record: dict[str, Any], bad: BadRow) -> list[tuple[str, bytes | None]]:
    added = {
        "topic": record["topic"],
        "partition": record["partition"],
        "offset": record["offset"],
        "timestamp": record["timestamp"],
        **({} if bad.schema_id is None else {"schema-id": bad.schema_id}),
        "error": bad.error[:MAX_ERROR],
    }
    own_headers = [(each["key"], each["value"]) for each in record["headers"] or ()]
    return own_headers + [(f"{PREFIX}{name}", str(value).encode()) for name, value in added.items()]
