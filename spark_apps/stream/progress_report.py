"""The source's latest offset in `query.lastProgress`."""

import os
import socket
from collections.abc import Mapping
from typing import Any

from folkmoot.consumers.lag import lag
from folkmoot.protocol.records import TopicPartition
from folkmoot.spark_apps.offsets.log_watch import End
from folkmoot.spark_apps.stream.group_member import GroupMember
from folkmoot.spark_apps.stream.owned_partitions import OwnedPartitions


def progress_report(
    partitions: OwnedPartitions, ends: Mapping[TopicPartition, End], member: GroupMember
) -> dict[str, Any]:
    owned = partitions.by_partition
    known_ends = {each: end for each, end in sorted(ends.items()) if each in owned}
    lags = {
        partition: unread
        for partition, end in known_ends.items()
        if (offset := owned[partition].committed_or_pending) is not None
        and (unread := lag(offset, end.start, end.offset)) is not None
    }
    lag_values = list(lags.values()) or [0]
    return {
        "ends": _by_topic({each: end.offset for each, end in known_ends.items()}),
        "lag": _by_topic(lags),
        "minOffsetsBehindLatest": min(lag_values),
        "maxOffsetsBehindLatest": max(lag_values),
        "avgOffsetsBehindLatest": sum(lag_values) / len(lag_values),
        "droppedCommits": _by_topic(partitions.dropped_commits),
        "member": member.name or "",
        "generation": member.generation,
        "runner": {"host": socket.gethostname(), "pid": os.getpid()},
    }


def _by_topic(numbers: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """As Spark's Kafka source shows offsets: `{"flights": {"0": 7}}`."""
    result: dict[str, dict[str, int]] = {}
    for partition, number in sorted(numbers.items()):
        result.setdefault(partition.topic, {})[str(partition.partition)] = number
    return result
