"""Partitions that nobody leads: which, whom they wait for, and one log line when that begins and ends."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Final

from folkmoot.protocol.process.thread_log import thread_log
from folkmoot.protocol.records import TopicPartition

TOLD_AFTER: Final = 2.0
"""An election takes less."""
MOST_NAMED: Final = 5

Waiting = Mapping[TopicPartition, tuple[int, ...]]
"""Partitions without a leader, and the brokers of which one has to come back: those that were in sync."""

_log = thread_log(__name__)


class Leaderless:
    """Kept by who takes metadata in. `waiting` is replaced as a whole: any thread may read it."""

    def __init__(self) -> None:
        self.waiting: Waiting = {}
        self._since: dict[TopicPartition, float] = {}
        self._told: set[TopicPartition] = set()

    def update(self, waiting: Waiting, now: float) -> None:
        """What the last answer says of all topics that are wanted."""
        self.waiting = waiting
        self._since = {each: self._since.get(each, now) for each in waiting}
        new = {
            each: brokers
            for each, brokers in waiting.items()
            if each not in self._told and now - self._since[each] >= TOLD_AFTER
        }
        over = sorted(self._told - waiting.keys())
        self._told = self._told & waiting.keys() | new.keys()
        if new:
            _log.warning("%s", said_of(new))
        if over:
            has = "has" if len(over) == 1 else "have"
            _log.warning("%s %s a leader again", _names(over), has)


def said_of(waiting: Waiting) -> str:
    """In one line: "orders-1 has no leader: it waits for broker 2"."""

    def brokers(partition: TopicPartition) -> tuple[int, ...]:
        return waiting[partition]

    parts = []
    for awaited, alike in groupby(sorted(waiting, key=lambda each: (brokers(each), each)), brokers):
        partitions = list(alike)
        has, waits = ("has", "it waits") if len(partitions) == 1 else ("have", "they wait")
        whom = " or ".join(map(str, awaited)) or "of its replicas"
        parts.append(f"{_names(partitions)} {has} no leader: {waits} for broker {whom}")
    return "; ".join(parts)


def unreadable_said(troubles: Mapping[TopicPartition, str]) -> Iterator[str]:
    """One sentence for each reason: "nothing comes of orders-1: broker 10.0.0.2:9191 is not reachable"."""
    for why in sorted({*troubles.values()}):
        alike = sorted(each for each, its in troubles.items() if its == why)
        yield f"nothing comes of {_names(alike)}: {why}"


def _names(partitions: Iterable[TopicPartition]) -> str:
    names = [str(each) for each in partitions]
    if len(names) > MOST_NAMED:
        names[MOST_NAMED:] = [f"{len(names) - MOST_NAMED} more"]
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]
