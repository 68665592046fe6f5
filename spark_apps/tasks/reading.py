"""The executor's side: the records of one task, from the brokers into Arrow.

```
fetch ─► whole batches, checked ─► cut to [first, end) and gathered (arrow.py) ─► RecordBatch
  ▲ the next chunk is asked for before this one is opened, and travels while Spark takes rows
  ▲ small ranges are all asked for at once
```

Executors know addresses of brokers and nothing else. Connections live as long as the worker process.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from folkmoot.consumers.fetch.range_reader import PATIENCE, RangeReader
from folkmoot.consumers.records.arrow import SCHEMA
from folkmoot.network.client import Reply
from folkmoot.network.cluster import Cluster
from folkmoot.protocol.errors import OffsetOutOfRange
from folkmoot.spark_apps.tasks.arrow import Rows
from folkmoot.spark_apps.tasks.planning import Task
from folkmoot.spark_apps.tasks.worker_process import borrow

FIRST_FETCH_BYTES: Final = 4 * 1024 * 1024
"""Bytes of the first fetches of a task's ranges, which are requested together."""
MAX_AHEAD: Final = 32


class ReadOptions(NamedTuple):
    """How the ranges of a query are read; `patience` is how long it may take to get on, in seconds."""

    client_id: str = "spark"
    listener: str = "client"
    columns: tuple[str, ...] = tuple(SCHEMA.names)
    fail_on_data_loss: bool = True
    patience: float = PATIENCE


DEFAULTS: Final = ReadOptions()


def read(task: Task, options: ReadOptions = DEFAULTS) -> Iterator[pa.RecordBatch]:
    """The records of a task's ranges, each time the same.

    Raises OffsetOutOfRange, UnknownTopicOrPartition or StaleTopicId when some are gone,
    CorruptBatch, and what kept a broker from answering for longer than the patience.
    """
    with borrow(
        ("reader", task[0].brokers, options), lambda: Cluster.of(options, lambda: task[0].brokers)
    ) as cluster:
        rows = Rows(options.columns)
        replies: dict[int, Reply] = {}
        patience, fails = options.patience, options.fail_on_data_loss
        readers = [
            RangeReader(part, cluster, replies, patience=patience, fail_on_data_loss=fails)
            for part in task
        ]
        try:
            begin_fetches(readers)
            for reader in readers:
                for chunk in reader.chunks():
                    for header, data in chunk:
                        rows.add(reader.part, header, data)
                        if rows.is_full:
                            yield from rows.flush()
            yield from rows.flush()
        except OffsetOutOfRange as error:
            raise OffsetOutOfRange(
                f"{error}: set failOnDataLoss=false to continue without them"
            ) from None


def begin_fetches(readers: Sequence[RangeReader]) -> None:
    """Have the first ranges asked for at once."""
    room = FIRST_FETCH_BYTES
    for each in readers[:MAX_AHEAD]:
        room -= each.room
        if room < 0:
            return
        each.begin()
