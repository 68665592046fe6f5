"""Rows that an earlier attempt has written, and whether this attempt's rows are the same."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import Any

import numpy as np

from folkmoot.consumers.fetch.range_reader import OffsetRange, RangeReader
from folkmoot.network.ask_leaders import ask_leaders
from folkmoot.network.cluster import Cluster
from folkmoot.producers.columns import RecordColumns, encode_headers
from folkmoot.protocol import record_batch
from folkmoot.protocol.batch_header import BatchHeader
from folkmoot.protocol.columns import BinaryColumn
from folkmoot.protocol.messages import (
    Api,
    DescribeProducersEntry,
    DescribeProducersRequest,
    DescribeProducersResult,
)
from folkmoot.protocol.records import Headers, TopicPartition
from folkmoot.spark_apps.sink.rows import Rows

_NIL = np.int64(-1)


class RowsDigest:
    """A digest of keys, values and headers of rows in order, however they were cut into columns."""

    def __init__(self) -> None:
        self.count = 0
        self._hashes = [blake2b(digest_size=16) for _ in range(6)]

    def add(self, keys: Any, values: Any, headers: list[bytes] | None) -> None:
        """Columns of equal length: cells as in a batch, None for a column of nils."""
        count = len(values)
        self.count += count
        cells = keys, values, headers
        for number, column in enumerate(cells):
            lengths, run = _run(column, count)
            self._hashes[2 * number].update(lengths)
            self._hashes[2 * number + 1].update(run)

    def digest(self) -> bytes:
        return b"".join(each.digest() for each in self._hashes)


@dataclass
class WrittenRows:
    """The first `count` rows of an epoch in a partition, written by an earlier attempt.

    `stored` is of those that are still there, `compared` of this attempt's rows in their place.
    """

    count: int
    stored: RowsDigest
    compared: RowsDigest = field(default_factory=RowsDigest)

    @property
    def is_complete(self) -> bool:
        """Return whether all of them are still there."""
        return self.stored.count == self.count

    @property
    def remaining(self) -> int:
        """How many rows this attempt has not come to yet."""
        return self.count - self.compared.count

    def compare(self, rows: Rows) -> None:
        """Take this attempt's next rows, of those that are left."""
        cells = RecordColumns(rows.values, rows.keys, headers=rows.headers)
        self.compared.add(cells.keys, cells.values, cells.headers)

    def is_same(self) -> bool:
        """Return whether both attempts have the same rows, once nothing is left."""
        return self.compared.digest() == self.stored.digest()


def digest_records(
    batches: Iterator[tuple[BatchHeader, memoryview]], producer_id: int, since: int, rows: int
) -> RowsDigest:
    """Return a digest of the first `rows` records that a producer has in these batches since an epoch, or
    of fewer if there are no more."""
    digest = RowsDigest()
    for header, data in batches:
        if header.producer_id != producer_id or header.producer_epoch < since:
            continue
        columns = record_batch.columns_of(header, data)
        columns = columns.rows(0, rows - digest.count)
        digest.add(columns.keys, columns.values, _encode_headers(columns.headers))
        if digest.count >= rows:
            break
    return digest


def _encode_headers(headers: Any) -> list[bytes] | None:
    rows: list[Headers] | None = headers
    return None if rows is None else [encode_headers(row) for row in rows]


def _run(column: Any, count: int) -> tuple[bytes, Any]:
    if column is None:
        return np.full(count, _NIL).tobytes(), b""
    cells = column if isinstance(column, BinaryColumn) else BinaryColumn.of(list(column))
    lengths = np.diff(cells.offsets).astype(np.int64)
    if cells.nulls is not None:
        lengths[cells.nulls] = _NIL
    return lengths.tobytes(), cells.run()


# -- the brokers' logs --------------------------------------------------------------------------------


def describe_producer(
    cluster: Cluster, topic: str, count: int, producer_id: int, patience: float
) -> list[DescribeProducersResult]:
    """Return what the leaders of a topic's first `count` partitions know of a producer, in order.

    Raises why a leader did not answer, StaleTopicId.
    """
    topic_id = cluster.topic_id(topic) or ""

    def entry(number: int, epoch: int) -> DescribeProducersEntry:
        return DescribeProducersEntry(topic, topic_id, number, epoch, producer_id)

    entries = {TopicPartition(topic, number): partial(entry, number) for number in range(count)}
    requests = ask_leaders(
        *(cluster, Api.DESCRIBE_PRODUCERS, entries),
        *(lambda chunk, timeout: DescribeProducersRequest(timeout, chunk), patience),
    )
    for error in requests.failed.values():
        raise error
    return [requests.results[each] for each in entries]


def read_batches(
    cluster: Cluster, partition: TopicPartition, first: int, end: int
) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Read what is left of a range of offsets."""
    topic, number = partition
    topic_id = cluster.topic_id(topic) or ""
    leader = cluster.leader_address(partition)
    part = OffsetRange(topic, number, topic_id, first, end, leader, ())
    for chunk in RangeReader(part, cluster, {}, fail_on_data_loss=False).chunks():
        yield from chunk
