"""Rows of one topic, as columns, and the partitions that they go to."""

from dataclasses import dataclass
from typing import Any, Final
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from folkmoot.producers.appender import by_key
from folkmoot.producers.columns import RecordColumns, no_partition

ROWS_PER_TURN: Final = 4096
"""How many rows without a key go to one partition, before as many go to the next."""
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Columns of equal length for one topic: Arrow arrays of binary or string, `timestamps` of int64 in
    ms, `partitions` of int32; headers as `Producer.send_batch` takes them. `framed`: each value begins
    with its schema's id."""

    values: Any
    keys: Any = None
    timestamps: Any = None
    headers: list[Any] | None = None
    partitions: Any = None
    framed: bool = False

    def __len__(self) -> int:
        return len(self.values)

    def at(self, rows: Any) -> "Rows":
        """Return some of them, by number."""
        index = pa.array(rows)
        return Rows(
            **{
                name: None if column is None else column.take(index)
                for name, column in (
                    *(("values", self.values), ("keys", self.keys)),
                    *(("timestamps", self.timestamps), ("partitions", self.partitions)),
                )
            },
            headers=None if self.headers is None else [self.headers[row] for row in rows],
            framed=self.framed,
        )

    def named_partitions(self) -> Int64s:
        """Return the partitions that rows name, without those of rows that name none."""
        if self.partitions is None:
            return np.zeros(0, np.int64)
        row_partitions = self.partitions.drop_null().to_numpy(zero_copy_only=False)
        return np.asarray(row_partitions, np.int64)


class Placement:
    """Chooses the partition that a row names, by its key, or by turns; the same when rows come again."""

    def __init__(self, topic: str, name: str, count: int) -> None:
        """Rows go to the first `count` partitions, unless they name one; turns begin by the writer's name."""
        self._topic = topic
        self._count = count
        self._first = crc32(name.encode())
        self._unkeyed_rows = 0

    def partitions(self, rows: Rows, count: int) -> Int64s:
        """Return the partition of each row; the topic has `count`. Raises UnknownTopicOrPartition."""
        row_partitions = rows.named_partitions()
        wrong = row_partitions[(row_partitions < 0) | (row_partitions >= count)]
        if len(wrong):
            raise no_partition(self._topic, int(wrong[0]), count)
        result = np.full(len(rows), -1, np.int64)
        if len(row_partitions):
            result[rows.partitions.is_valid().to_numpy(False)] = row_partitions
        if rows.keys is not None:
            keyed = np.flatnonzero((result < 0) & rows.keys.is_valid().to_numpy(False))
            if len(keyed):
                keys = rows.keys.take(pa.array(keyed))
                cells: Any = RecordColumns(keys).values  # without nils
                result[keyed] = by_key(cells, self._count)
        unassigned = np.flatnonzero(result < 0)
        steps = (self._unkeyed_rows + np.arange(len(unassigned))) // ROWS_PER_TURN
        result[unassigned] = (self._first + steps) % self._count
        self._unkeyed_rows += len(unassigned)
        return result
