"""Partitions without a leader, the brokers that they wait for, and log lines when that begins and ends."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Final

from folkmoot.protocol.process.thread_log import thread_log
from folkmoot.protocol.records import TopicPartition

REPORT_AFTER: Final = 2.0
"""Seconds without a leader after which a partition is logged. Elections normally end sooner."""
MOST_NAMED: Final = 5

Waiting = Mapping[TopicPartition, tuple[int, ...]]
"""Partitions without a leader, and the brokers that were in sync: one of them has to come back."""

_log = thread_log(__name__)


class Leaderless:
    """Logs partitions without a leader. Any thread may read `waiting`, which is replaced as a whole."""

    def __init__(self) -> None:
        self.waiting: Waiting = {}
        self._since: dict[TopicPartition, float] = {}
        self._logged: set[TopicPartition] = set()

    def update(self, waiting: Waiting, now: float) -> None:
        """Take in the last answer about all wanted topics."""
        self.waiting = waiting
        self._since = {partition: self._since.get(partition, now) for partition in waiting}
        new = {
            partition: brokers
            for partition, brokers in waiting.items()
            if partition not in self._logged and now - self._since[partition] >= REPORT_AFTER
        }
        recovered = sorted(self._logged - waiting.keys())
        self._logged = self._logged & waiting.keys() | new.keys()
        if new:
            _log.warning("%s", describe_waiting(new))
        if recovered:
            has = "has" if len(recovered) == 1 else "have"
            _log.warning("%s %s a leader again", _names(recovered), has)


def describe_waiting(waiting: Waiting) -> str:
    """One line: "orders-1 has no leader: it waits for broker 2"."""
    parts = []
    ordered = sorted(waiting, key=lambda partition: (waiting[partition], partition))
    for brokers, group in groupby(ordered, lambda partition: waiting[partition]):
        partitions = list(group)
        has, waits = ("has", "it waits") if len(partitions) == 1 else ("have", "they wait")
        replicas = " or ".join(map(str, brokers)) or "of its replicas"
        parts.append(f"{_names(partitions)} {has} no leader: {waits} for broker {replicas}")
    return "; ".join(parts)


def describe_unreadable(reasons: Mapping[TopicPartition, str]) -> Iterator[str]:
    """One line for each reason: "cannot fetch orders-1: broker 10.0.0.2:9191 is not reachable"."""
    for why in sorted({*reasons.values()}):
        partitions = sorted(partition for partition, its in reasons.items() if its == why)
        yield f"cannot fetch {_names(partitions)}: {why}"


def _names(partitions: Iterable[TopicPartition]) -> str:
    names = [str(partition) for partition in partitions]
    if len(names) > MOST_NAMED:
        names[MOST_NAMED:] = [f"{len(names) - MOST_NAMED} more"]
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]
