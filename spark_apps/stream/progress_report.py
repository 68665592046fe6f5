"""The source's latest offset in `query.lastProgress`."""

import os
import socket
from collections.abc import Mapping
from typing import Any

from folkmoot.consumers.lag import lag
from folkmoot.protocol.records import TopicPartition
from folkmoot.spark_apps.offsets.log_watch import End
from folkmoot.spark_apps.stream.group_member import GroupMember
from folkmoot.spark_apps.stream.held_partitions import HeldPartitions


def progress_report(
    partitions: HeldPartitions, ends: Mapping[TopicPartition, End], member: GroupMember
) -> dict[str, Any]:
    held = partitions.by_partition
    known = {each: end for each, end in sorted(ends.items()) if each in held}
    lags = {
        partition: unread
        for partition, end in known.items()
        if (offset := held[partition].committed_or_pending) is not None
        and (unread := lag(offset, end.start, end.offset)) is not None
    }
    behind = list(lags.values()) or [0]
    return {
        "ends": _by_topic({each: end.offset for each, end in known.items()}),
        "lag": _by_topic(lags),
        "minOffsetsBehindLatest": min(behind),
        "maxOffsetsBehindLatest": max(behind),
        "avgOffsetsBehindLatest": sum(behind) / len(behind),
        "droppedCommits": _by_topic(partitions.dropped_commits),
        "member": member.name or "",
        "generation": member.generation,
        "runner": {"host": socket.gethostname(), "pid": os.getpid()},
    }


def _by_topic(numbers: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """As Spark's Kafka source shows offsets: `{"flights": {"0": 7}}`."""
    found: dict[str, dict[str, int]] = {}
    for partition, number in sorted(numbers.items()):
        found.setdefault(partition.topic, {})[str(partition.partition)] = number
    return found
