"""The executor's side: the records of one task, from the brokers into Arrow.

```
fetch ─► whole batches, checked ─► cut to [first, end) and gathered (arrow.py) ─► RecordBatch
  ▲ the next chunk is asked for before this one is opened, and travels while Spark takes rows
  ▲ small ranges are all asked for at once
```

Executors know addresses of brokers and nothing else. Connections live as long as the worker process:
a read borrows them and puts them back.
"""

import gc
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa

from folkmoot.consumers.fetch.range_reader import PATIENCE, RangeReader
from folkmoot.consumers.records.arrow import SCHEMA
from folkmoot.network.client import Reply
from folkmoot.network.cluster import Cluster
from folkmoot.protocol.errors import OffsetOutOfRange
from folkmoot.spark_apps.arrow import Rows
from folkmoot.spark_apps.planning import Task

BEGUN_BYTES: Final = 4 * 1024 * 1024
"""Of the first fetches of a task's ranges, which are asked for together."""
MOST_AHEAD: Final = 32
CACHED = 4


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
    spare_collector()
    brokers = task[0].brokers
    key = (os.getpid(), brokers, options)
    cluster = _idle.pop(key, None)
    if cluster is None:
        cluster = Cluster.of(options, lambda: brokers)
    rows = Rows(options.columns)
    replies: dict[int, Reply] = {}
    patience, fails = options.patience, options.fail_on_data_loss
    readers = [
        RangeReader(part, cluster, replies, patience=patience, fail_on_data_loss=fails)
        for part in task
    ]
    try:
        begin(readers)
        for reading in readers:
            for chunk in reading.chunks():
                for header, data in chunk:
                    rows.add(reading.part, header, data)
                    if rows.full:
                        yield from rows.take()
        yield from rows.take()
    except OffsetOutOfRange as error:
        raise OffsetOutOfRange(f"{error}: set failOnDataLoss=false to go on without them") from None
    finally:
        put_back(_idle, key, cluster)


# -- the collector ------------------------------------------------------------------------------------

_spared: dict[int, int] = {}


def spare_collector() -> None:
    """PySpark collects garbage after each task, which looks at all that was imported, for longer than a
    small task takes: what there is by now is taken out of its sight, in each worker once for all that has
    been imported since."""
    imported = len(sys.modules)
    if _spared.get(os.getpid()) != imported:
        _spared[os.getpid()] = imported
        gc.freeze()


# -- connections that outlive a task -----------------------------------------------------------------

_Key = tuple[int, tuple[str, ...], ReadOptions]
_idle: dict[_Key, Cluster] = {}


def put_back(idle: dict[Any, Any], key: Any, kept: Any) -> None:
    """Keep it for the next task; of each kind one, and of kinds those that were put back last. Keys begin
    with the process id."""
    if key in idle:
        kept.close()
        return
    idle[key] = kept
    for other in list(idle)[:-CACHED]:
        forgotten = idle.pop(other)
        if other[0] == os.getpid():  # a socket of the process that forked us is not ours to close
            forgotten.close()


def begin(readers: Sequence[RangeReader]) -> None:
    """Have the first ranges asked for at once."""
    room = BEGUN_BYTES
    for each in readers[:MOST_AHEAD]:
        room -= each.room
        if room < 0:
            return
        each.begin()
