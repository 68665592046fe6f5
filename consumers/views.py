"""A batch, or a part of one, as its consumer gets it in columns."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import TYPE_CHECKING

from folkmoot.protocol import batch
from folkmoot.protocol.batch import BatchHeader
from folkmoot.protocol.columns import Columns
from folkmoot.protocol.records import Headers, Record, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa


class RecordBatchView:
    """Records of one partition, in order, column by column; no object per record is made.

    `values`, `keys`, `timestamps`, `headers` and `offsets` are sequences of one length. Iterating, or
    `records()`, gives `Record`s, made when they are asked for; `arrow()` gives a record batch.
    """

    __slots__ = ("_columns", "append_time", "offsets", "topic_partition")

    def __init__(
        self,
        topic_partition: TopicPartition,
        columns: Columns,
        offsets: Sequence[int],
        append_time: bool,
    ) -> None:
        self.topic_partition = topic_partition
        self.offsets = offsets
        self.append_time = append_time
        self._columns = columns

    @classmethod
    def of(
        cls, topic_partition: TopicPartition, header: BatchHeader, data: memoryview
    ) -> "RecordBatchView":
        """All records of a batch that `check` has passed. Raises CorruptBatch, UnsupportedCodec."""
        columns = batch.columns_of(header, data)
        return cls(
            topic_partition,
            columns,
            batch.offsets_of(header, columns),
            header.uses_append_time,
        )

    @property
    def topic(self) -> str:
        return self.topic_partition.topic

    @property
    def partition(self) -> int:
        return self.topic_partition.partition

    @property
    def next_offset(self) -> int:
        """The offset behind the last record."""
        return self.offsets[-1] + 1

    @property
    def values(self) -> Sequence[bytes | None]:
        return self._columns.values

    @property
    def keys(self) -> Sequence[bytes | None]:
        keys = self._columns.keys
        return [None] * len(self) if keys is None else keys

    @property
    def timestamps(self) -> Sequence[int]:
        """Milliseconds since the epoch."""
        stamps = self._columns.timestamps
        return [stamps] * len(self) if isinstance(stamps, int) else stamps

    @property
    def headers(self) -> Sequence[Headers]:
        headers = self._columns.headers
        return [()] * len(self) if headers is None else headers

    @property
    def columns(self) -> Columns:
        """The columns as the batch has them: what no record has is None, timestamps may be one."""
        return self._columns

    def records(self) -> list[Record]:
        columns = self._columns
        stamps = columns.timestamps
        return list(
            map(
                Record,
                repeat(self.topic),
                repeat(self.partition),
                self.offsets,
                repeat(stamps) if isinstance(stamps, int) else stamps,
                repeat(None) if columns.keys is None else columns.keys,
                columns.values,
                repeat(()) if columns.headers is None else columns.headers,
                repeat(self.append_time),
            )
        )

    def arrow(self, *, headers: bool = False) -> "pa.RecordBatch":
        """As Spark names the columns: key, value, topic, partition, offset, timestamp, timestampType.

        Raises MissingExtra without pyarrow.
        """
        from folkmoot.consumers.arrow import record_batch

        return record_batch(self, headers=headers)

    def part(self, start: int, end: int) -> "RecordBatchView":
        """The rows from `start` to before `end`."""
        if start <= 0 and end >= len(self):
            return self
        columns, rows = self._columns, slice(start, end)
        stamps = columns.timestamps
        return RecordBatchView(
            self.topic_partition,
            Columns(
                len(self.offsets[rows]),
                None if columns.keys is None else columns.keys[rows],
                columns.values[rows],
                stamps if isinstance(stamps, int) else stamps[rows],
                None if columns.headers is None else columns.headers[rows],
            ),
            self.offsets[rows],
            self.append_time,
        )

    def from_offset(self, offset: int) -> "RecordBatchView | None":
        """The rows at or behind an offset, if there are any."""
        start = bisect_left(self.offsets, offset)
        return self.part(start, len(self)) if start < len(self) else None

    def from_time(self, timestamp: int) -> "RecordBatchView | None":
        """The rows from the first one of that time (ms) or later on, if there is one."""
        stamps = self.timestamps
        start = next((row for row, stamp in enumerate(stamps) if stamp >= timestamp), None)
        return None if start is None else self.part(start, len(self))

    def __len__(self) -> int:
        return self._columns.count

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records())

    def __repr__(self) -> str:
        return f"RecordBatchView({self.topic_partition}, {self.offsets[0]} to {self.offsets[-1]})"
