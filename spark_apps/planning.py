"""From the end of a micro-batch to its tasks, and from a row limit to shares. Pure."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from folkmoot.protocol.records import TopicPartition
from folkmoot.spark_apps.offsets import Ends

EVEN_SHARE = 4
"""One part in so many of a limit is divided evenly, the rest in proportion to lag."""


class Slice(NamedTuple):
    """What one task reads: offsets `[first, end)` of a partition, from whom, and whom else to ask.

    Executors are told everything: they know neither ZooKeeper nor the group. `leader` is where the
    partition was led when the batch was planned, None if nobody led it.
    """

    topic: str
    partition: int
    topic_id: str
    first: int
    end: int
    leader: str | None
    brokers: tuple[str, ...]


class Leaders(Protocol):
    """Who leads what; `network.cluster.Cluster` is one."""

    def leader_address(self, partition: TopicPartition) -> str | None: ...


def slices(ends: Ends, leaders: Leaders, brokers: Iterable[str]) -> list[Slice]:
    """The tasks of the batch that ends there: all that it says, whoever owns the partitions now."""
    leading = {leaders.leader_address(partition) for partition in ends.ranges}
    addresses = tuple(sorted({*brokers, *filter(None, leading)}))
    return [
        Slice(
            *(*partition, ends.topic_ids[partition.topic], *ends.ranges[partition]),
            leader=leaders.leader_address(partition),
            brokers=addresses,
        )
        for partition in sorted(ends.ranges)
        if ends.ranges[partition].size > 0
    ]


def split(limit: int | None, lags: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """How many records of each partition come into a batch of at most `limit` (None: all).

    In proportion to lag, except that a small part is divided evenly: a partition with little to
    read does not wait for those that are far behind.
    """
    behind = {partition: lag for partition, lag in sorted(lags.items()) if lag > 0}
    if limit is None or sum(behind.values()) <= limit:
        return behind
    largest_first = sorted(behind, key=lambda partition: (-behind[partition], partition))
    if limit <= len(behind):
        return dict.fromkeys(largest_first[:limit], 1)
    even = max(1, limit // (EVEN_SHARE * len(behind)))
    shares = {partition: min(lag, even) for partition, lag in behind.items()}
    left = limit - sum(shares.values())
    rest = sum(behind.values()) - sum(shares.values())
    for partition, lag in behind.items():
        shares[partition] += (lag - shares[partition]) * left // rest
    for partition in largest_first:  # what rounding down has left over
        room = min(limit - sum(shares.values()), behind[partition] - shares[partition])
        shares[partition] += room
    return shares
