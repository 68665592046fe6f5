"""From the end of a micro-batch to its tasks, and from a limit to the quotas of partitions. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from typing import Final, Protocol

from folkmoot.consumers.fetch.range_reader import OffsetRange
from folkmoot.protocol.records import TopicPartition
from folkmoot.spark_apps.offsets.checkpoint import Range
from folkmoot.spark_apps.options.config import SourceConfig

EVEN_PART = 4
"""This fraction of a limit is divided evenly, the rest in proportion to lag."""

TASKS: Final = 8
"""Tasks of a batch, if that makes none too small …"""
SMALL_TASK: Final = 50_000
"""… with this many records: a task costs some ten milliseconds, as many as they do …"""
LARGE_TASK: Final = 250_000
LARGE_TASK_BYTES: Final = 32 * 1024 * 1024
"""… nor too large, in records and as they lie in the log."""


Task = tuple[OffsetRange, ...]
"""The ranges of one task, in order."""


class Logs(Protocol):
    """Leaders of partitions, and sizes of records."""

    def leader_address(self, partition: TopicPartition) -> str | None: ...
    def record_bytes(self, topic: str) -> float: ...


def task_records(sizes: Mapping[TopicPartition, int], config: SourceConfig, logs: Logs) -> int:
    """Return how many records each task gets, of a batch with these numbers of records."""
    records = sum(sizes.values())
    size = sum(count * logs.record_bytes(partition.topic) for partition, count in sizes.items())
    limits = [max(SMALL_TASK, ceil(records / TASKS)), LARGE_TASK]
    if size:
        limits.append(max(1, int(records * LARGE_TASK_BYTES / size)))
    if config.minPartitions:
        limits.append(max(1, records // config.minPartitions))
    if config.maxRecordsPerPartition:
        limits.append(config.maxRecordsPerPartition)
    return min(limits)


def tasks(
    ranges: Mapping[TopicPartition, Range],
    topic_ids: Mapping[str, str],
    records: int,
    logs: Logs,
    brokers: Iterable[str],
) -> list[Task]:
    """Return the tasks that read these ranges, each of at most `records`.

    Small slices of several partitions go into one, large ranges are split.

    The tasks follow only from the ranges and `records`, so that a replay has the same ones.
    """
    leading = {leader for each in ranges if (leader := logs.leader_address(each)) is not None}
    addresses = tuple(sorted({*brokers, *leading}))
    result: list[list[OffsetRange]] = []
    room = 0
    for partition, each in sorted(ranges.items()):
        leader, size = logs.leader_address(partition), logs.record_bytes(partition.topic)
        for first, end in _split_range(each, max(1, records)):
            if end - first > room:
                result.append([])
                room = max(1, records)
            room -= end - first
            topic_id = topic_ids[partition.topic]
            result[-1].append(
                OffsetRange(*partition, topic_id, first, end, leader, addresses, size)
            )
    return [tuple(each) for each in result]


def _split_range(range_: Range, limit: int) -> Sequence[tuple[int, int]]:
    """Split a range into equal pieces of at most `limit` offsets."""
    count = ceil(range_.size / limit)
    ends = [range_.first + range_.size * number // count for number in range(1, count + 1)]
    return list(zip([range_.first, *ends], ends, strict=False))


def split(limit: int | None, lags: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Return how many records of each partition come into a batch of at most `limit` (None: all).

    In proportion to lag, except that a small part is divided evenly: a partition with little to
    read does not wait for those that are far behind.
    """
    unread = {partition: lag for partition, lag in sorted(lags.items()) if lag > 0}
    if limit is None or sum(unread.values()) <= limit:
        return unread
    largest_first = sorted(unread, key=lambda partition: (-unread[partition], partition))
    if limit <= len(unread):
        return dict.fromkeys(largest_first[:limit], 1)
    even = max(1, limit // (EVEN_PART * len(unread)))
    quotas = {partition: min(lag, even) for partition, lag in unread.items()}
    remaining = limit - sum(quotas.values())
    remaining_lag = sum(unread.values()) - sum(quotas.values())
    for partition, lag in unread.items():
        quotas[partition] += (lag - quotas[partition]) * remaining // remaining_lag
    for partition in largest_first:  # what rounding down has left over
        room = min(limit - sum(quotas.values()), unread[partition] - quotas[partition])
        quotas[partition] += room
    return quotas
