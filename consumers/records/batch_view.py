"""A batch, or a part of one, in columns."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from folkmoot.protocol import record_batch
from folkmoot.protocol.batch_header import BatchHeader
from folkmoot.protocol.columns import Columns
from folkmoot.protocol.record_iterator import RecordIterator
from folkmoot.protocol.records import Headers, Record, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa


class RecordBatchView:
    """Records of one partition, in order, in columns without an object per record.

    `values`, `keys`, `timestamps`, `headers` and `offsets` are sequences of one length. `columns` are those
    of the batch: an unused column is None, and timestamps may be a single one. Iteration and `records()` make
    `Record`s, `arrow()` makes a record batch.
    """

    __slots__ = ("append_time", "columns", "offsets", "topic_partition")

    def __init__(
        self,
        topic_partition: TopicPartition,
        columns: Columns,
        offsets: Sequence[int],
        append_time: bool,
    ) -> None:
        self.topic_partition = topic_partition
        self.columns = columns
        self.offsets = offsets
        self.append_time = append_time

    @property
    def topic(self) -> str:
        return self.topic_partition.topic

    @property
    def partition(self) -> int:
        return self.topic_partition.partition

    @property
    def next_offset(self) -> int:
        return self.offsets[-1] + 1

    @property
    def values(self) -> Sequence[bytes | None]:
        return self.columns.values

    @property
    def keys(self) -> Sequence[bytes | None]:
        keys = self.columns.keys
        return [None] * len(self) if keys is None else keys

    @property
    def timestamps(self) -> Sequence[int]:
        """Milliseconds since the epoch."""
        stamps = self.columns.timestamps
        return [stamps] * len(self) if isinstance(stamps, int) else stamps

    @property
    def headers(self) -> Sequence[Headers]:
        headers = self.columns.headers
        return [()] * len(self) if headers is None else headers

    def records(self) -> list[Record]:
        return list(iterator(self))

    def arrow(self, *, headers: bool = False) -> "pa.RecordBatch":
        """Return the columns of Spark's Kafka source. Raises MissingExtra without pyarrow."""
        from folkmoot.consumers.records.arrow import record_batch

        rows = self.headers if headers else None
        return record_batch(
            self.topic_partition, self.columns, self.offsets, self.append_time, headers=rows
        )

    def part(self, start: int, end: int) -> "RecordBatchView":
        if start <= 0 and end >= len(self):
            return self
        columns, offsets = self.columns.rows(start, end), self.offsets[start:end]
        return RecordBatchView(self.topic_partition, columns, offsets, self.append_time)

    def row_of_offset(self, offset: int) -> int:
        """Return the first row at or after an offset; the number of rows if there is none."""
        return bisect_left(self.offsets, offset)

    def row_of_time(self, timestamp: int, start: int = 0) -> int:
        """Return the first row from `start` on of that time (ms) or later; the number of rows without one."""
        stamps = self.timestamps
        rows = range(start, len(self))
        return next((row for row in rows if stamps[row] >= timestamp), len(self))

    def __len__(self) -> int:
        return self.columns.count

    def __iter__(self) -> Iterator[Record]:
        return iter(iterator(self))

    def __repr__(self) -> str:
        return f"RecordBatchView({self.topic_partition}, {self.offsets[0]} to {self.offsets[-1]})"


def view_of_batch(
    topic_partition: TopicPartition,
    header: BatchHeader,
    data: memoryview,
    body: bytes | bytearray | memoryview | None = None,
) -> RecordBatchView:
    """Return the records of a batch that `check` has passed. Raises CorruptBatch, UnsupportedCodec."""
    columns = record_batch.columns_of(header, data, body)
    offsets = record_batch.offsets_of(header, columns)
    return RecordBatchView(topic_partition, columns, offsets, header.uses_append_time)


def iterator(view: RecordBatchView) -> RecordIterator:
    """Return an iteration over its records, which can be cut."""
    topic, partition = view.topic_partition
    return RecordIterator(topic, partition, view.offsets, view.columns, view.append_time)
