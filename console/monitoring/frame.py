"""One frame of `folkmoot top`: what two looks at a cluster say, as lines of text."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from folkmoot.admin.group_views import GroupSummary, describe_truncation
from folkmoot.admin.replica_moves import ReplicaSize
from folkmoot.console.tables import plain
from folkmoot.consumers.lag import is_beyond, lag
from folkmoot.coordination.cluster.cluster_status import ClusterStatus, PartitionStatus
from folkmoot.protocol.quantities import counted
from folkmoot.protocol.records import TopicPartition

UNKNOWN: Final = "-"
EVENTS: Final = 10
"""Rebalances that are kept."""
_UNITS: Final = ("", "k", "M", "G", "T", "P")


class Group(NamedTuple):
    """A group, and what it has committed."""

    summary: GroupSummary
    committed: Mapping[TopicPartition, int]


@dataclass(frozen=True, kw_only=True)
class ClusterSnapshot:
    """The cluster as it was `at` (seconds, monotonic), read piece by piece."""

    at: float
    cluster: ClusterStatus
    sizes: Sequence[ReplicaSize]
    groups: Sequence[Group]
    more_groups: int = 0
    """Groups that were not read."""

    def ends(self) -> dict[TopicPartition, int]:
        """The furthest end of each partition, as its live replicas tell."""
        found: dict[TopicPartition, int] = {}
        for each in self.sizes:
            found[each.partition] = max(each.log_end, found.get(each.partition, 0))
        return found

    def starts(self) -> dict[TopicPartition, int]:
        """The first offset of each partition that any of them has."""
        found: dict[TopicPartition, int] = {}
        for each in self.sizes:
            found[each.partition] = min(each.log_start, found.get(each.partition, each.log_start))
        return found

    def truncated(self) -> list[str]:
        """Committed offsets that no live replica has."""
        ends = self.ends()
        return [
            f"group {summary.name}: {describe_truncation(partition, at, ends[partition])}"
            for summary, committed in self.groups
            for partition, at in sorted(committed.items())
            if is_beyond(at, ends.get(partition))
        ]


class Section(NamedTuple):
    """A table, whose first rows are the ones to look at."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]

    def lines(self, limit: int | None) -> list[str]:
        if not self.rows:
            return []
        first_rows = self.rows[:limit]
        omitted = len(self.rows) - len(first_rows)
        return [
            *plain(self.columns, first_rows).splitlines(),
            *([f"… {omitted} more"] if omitted else []),
            "",
        ]


def frame(
    before: ClusterSnapshot, now: ClusterSnapshot, events: Iterable[str], limit: int | None = None
) -> list[str]:
    """One frame; at most `limit` rows of each table."""
    lines = [_headline(now), ""]
    for section in (_brokers(before, now), _topics(before, now), _groups(before, now)):
        lines += section.lines(limit)
    if truncated := now.truncated()[:limit]:
        lines += [*truncated, ""]
    if now.more_groups:
        lines += [f"{now.more_groups} more groups are not looked at", ""]
    event_lines = list(events)
    return [*lines, "rebalances, the last one first", *event_lines] if event_lines else lines[:-1]


def _headline(now: ClusterSnapshot) -> str:
    cluster, partitions = now.cluster, now.cluster.partitions
    counts = {
        "leaderless": sum(each.is_leaderless for each in partitions),
        "below min-in-sync": sum(each.is_below_minimum for each in partitions),
        "under-replicated": sum(each.is_under_replicated for each in partitions),
    }
    problems = (
        ", ".join(f"{count} {problem}" for problem, count in counts.items() if count)
        or "all in sync"
    )
    controller = cluster.controller
    if controller is None:
        controller_text = "NO CONTROLLER"
    elif controller.broker in cluster.brokers:
        controller_text = f"controller {controller.broker}"
    else:
        controller_text = "a controller alone"
    time = datetime.now(UTC).strftime("%H:%M:%S UTC")
    brokers = counted(len(cluster.brokers), "broker")
    return (
        f"{time}  {brokers}, {controller_text}, {counted(len(partitions), 'partition')}: {problems}"
    )


def _brokers(before: ClusterSnapshot, now: ClusterSnapshot) -> Section:
    sizes, earlier = _by_broker(now), _by_broker(before)
    partitions = now.cluster.partitions
    numbers = {number for each in partitions for number in each.replicas}
    rows = []
    for number in sorted(numbers | now.cluster.brokers.keys()):
        found = now.cluster.brokers.get(number)
        replicas = [each for each in partitions if number in each.replicas]
        rows.append(
            (
                number,
                "DOWN" if found is None else found.listeners.get("client"),
                sum(each.leader == number for each in partitions),
                len(replicas),
                sum(number not in each.in_sync for each in replicas),
                _amount(sizes.get(number)),
                _rate(sizes.get(number), earlier.get(number), now.at - before.at),
            )
        )
    columns = ("broker", "address", "leads", "replicas", "out of sync", "   bytes", " bytes/s")
    return Section(columns, rows)


def _topics(before: ClusterSnapshot, now: ClusterSnapshot) -> Section:
    ends, earlier = _by_topic(now.ends()), _by_topic(before.ends())
    sizes: dict[str, int] = {}
    for size in now.sizes:
        sizes[size.partition.topic] = sizes.get(size.partition.topic, 0) + size.bytes
    by_topic: dict[str, list[PartitionStatus]] = {}
    for each in now.cluster.partitions:
        by_topic.setdefault(each.topic, []).append(each)
    rows = []
    for name, partitions in by_topic.items():
        written = ends.get(name, 0) - earlier.get(name, 0)
        row = (
            name,
            len(partitions),
            sum(each.is_leaderless for each in partitions),
            sum(each.is_under_replicated for each in partitions),
            _amount(ends.get(name)),
            _rate(ends.get(name), earlier.get(name), now.at - before.at),
            _amount(sizes.get(name)),
        )
        rows.append((-written, name, row))
    columns = (
        *("topic", "partitions", "leaderless", "under-replicated"),
        *("     end", "   rec/s", "   bytes"),
    )
    return Section(columns, [row for _, _, row in sorted(rows)])


def _groups(before: ClusterSnapshot, now: ClusterSnapshot) -> Section:
    starts, ends = now.starts(), now.ends()
    earlier = {each.summary.name: sum(each.committed.values()) for each in before.groups}
    rows = []
    for summary, committed in now.groups:
        total_lag = sum(
            lag(at, starts.get(each, 0), ends.get(each)) or 0 for each, at in committed.items()
        )
        row = (
            summary.name,
            summary.state,
            summary.members,
            summary.generation,
            len(committed),
            _rate(sum(committed.values()), earlier.get(summary.name), now.at - before.at),
            _amount(total_lag if committed else None),
        )
        rows.append((-total_lag, summary.name, row))
    columns = ("group", "state", "members", "generation", "committed", "   rec/s", "     lag")
    return Section(columns, [row for _, _, row in sorted(rows)])


def _by_broker(snapshot: ClusterSnapshot) -> dict[int, int]:
    found: dict[int, int] = {}
    for each in snapshot.sizes:
        found[each.broker] = found.get(each.broker, 0) + each.bytes
    return found


def _by_topic(ends: Mapping[TopicPartition, int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for partition, end in ends.items():
        found[partition.topic] = found.get(partition.topic, 0) + end
    return found


def _rate(now: int | None, before: int | None, seconds: float) -> str:
    """Growth in a second; a value that shrinks, by retention or a silent broker, has none."""
    if now is None or before is None or now < before or seconds <= 0:
        return _amount(None)
    return _amount(round((now - before) / seconds))


def _amount(number: int | None) -> str:
    """In four digits at most, with a unit of a thousand; set to the right."""
    if number is None:
        return f"{UNKNOWN:>8}"
    value, unit = float(number), 0
    while value >= 9_999.5 and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    text = f"{value:.0f}" if not unit or value >= 100 else f"{value:.1f}"
    return f"{text + _UNITS[unit]:>8}"
