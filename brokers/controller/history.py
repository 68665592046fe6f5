"""The changes that a controller sees, as events for people."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from math import inf
from typing import Final

import msgspec

from folkmoot.brokers.controller.cluster_reader import BROKERS, ClusterReader
from folkmoot.coordination.brokers import Registration
from folkmoot.coordination.cluster.events import ClusterEvent
from folkmoot.coordination.partition_states import PartitionState, TopicIdPartition
from folkmoot.coordination.topics import TopicInfo

logger = logging.getLogger(__name__)

RECORD_AFTER: Final = 1.0
"""Seconds for which events wait for further ones, so that a burst becomes one node."""
MOST_AT_ONCE: Final = 100
"""Events of one comparison that are kept and logged; further ones are only counted."""


class History:
    """Logs the changes between two reads, and keeps them until they are recorded in ZooKeeper.

    The first `compare` has nothing to compare with: it notes the controller, and which brokers are away.
    Owner: the controller's thread.
    """

    def __init__(self, name: str = "") -> None:
        """`name` is the controller's (`Controller.describe`)."""
        self._name = name
        self._is_first = True
        self._brokers: dict[int, Registration] = {}
        self._topics: dict[str, TopicInfo] = {}
        self._states: dict[TopicIdPartition, PartitionState] = {}
        self._names: dict[str, str] = {}
        self._events: list[tuple[float, ClusterEvent]] = []
        self.due = inf
        """When to call `take`; inf: there is nothing to record."""

    def compare(self, reader: ClusterReader, changed: Iterable[object], now: float) -> None:
        """Note the changes of the nodes in `changed`."""
        events = list(self._changes(reader, changed))
        if self._is_first:
            self._is_first = False
            events = self._beginning()
        if len(events) > MOST_AT_ONCE:
            left_out = len(events) - MOST_AT_ONCE
            more = ClusterEvent("more", f"and {left_out} changes more")
            events = [*events[:MOST_AT_ONCE], more]
        for event in events:
            level = logging.WARNING if event.kind == "unclean-election" else logging.INFO
            logger.log(level, "%s", event.text)
        if events:
            self._events += ((now, event) for event in events)
            self.due = min(self.due, now + RECORD_AFTER)

    def _beginning(self) -> list[ClusterEvent]:
        replicas = {
            broker
            for topic in self._topics.values()
            for partition in topic.partitions
            for broker in partition
        }
        return [
            ClusterEvent("controller-elected", f"elected as the controller: {self._name}"),
            *(
                ClusterEvent("broker-left", f"broker {broker} is away", broker=broker)
                for broker in sorted(replicas - self._brokers.keys())
            ),
        ]

    def take(self, now: float) -> list[ClusterEvent]:
        """Return the events to record, once, with their ages."""
        events, self._events, self.due = self._events[: 10 * MOST_AT_ONCE], [], inf
        return [
            msgspec.structs.replace(event, age_ms=round((now - noted_at) * 1000))
            for noted_at, event in events
        ]

    def _changes(self, reader: ClusterReader, changed: Iterable[object]) -> Iterator[ClusterEvent]:
        for each in changed:
            if each is BROKERS:
                yield from _of_brokers(self._brokers, reader.brokers)
                self._brokers = dict(reader.brokers)
            elif isinstance(each, str):
                before, after = self._topics.get(each), reader.topics.get(each)
                yield from _of_topic(each, before, after)
                self._know(each, before, after)
            elif isinstance(each, TopicIdPartition):
                known, found = self._states.get(each), reader.states.get(each)
                if found is None:
                    self._states.pop(each, None)
                    continue
                self._states[each] = found.state
                if known is not None and (name := self._names.get(each.topic_id)) is not None:
                    yield from _of_state(name, each.partition, known, found.state)

    def _know(self, name: str, before: TopicInfo | None, after: TopicInfo | None) -> None:
        if before is not None and (after is None or after.topic_id != before.topic_id):
            self._names.pop(before.topic_id, None)
            for number in range(len(before.partitions)):
                self._states.pop(TopicIdPartition(before.topic_id, number), None)
        if after is None:
            self._topics.pop(name, None)
        else:
            self._topics[name] = after
            self._names[after.topic_id] = name


def _of_brokers(
    before: Mapping[int, Registration], after: Mapping[int, Registration]
) -> Iterator[ClusterEvent]:
    for broker in sorted(before.keys() - after.keys()):
        yield ClusterEvent("broker-left", f"broker {broker} left", broker=broker)
    for broker, found in sorted(after.items()):
        known = before.get(broker)
        if known is None or known.epoch != found.epoch:
            addresses = ", ".join(f"{name}={at}" for name, at in sorted(found.listeners.items()))
            text = f"broker {broker} joined in epoch {found.epoch}, at {addresses}"
            yield ClusterEvent("broker-joined", text, broker=broker)
        elif found.leaving and not known.leaving:
            text = f"broker {broker} is stopping"
            yield ClusterEvent("broker-stopping", text, broker=broker)


def _of_topic(
    name: str, before: TopicInfo | None, after: TopicInfo | None
) -> Iterator[ClusterEvent]:
    if before is not None and (after is None or after.topic_id != before.topic_id):
        text = f"topic {name} deleted, or gone from ZooKeeper (id {before.topic_id})"
        yield ClusterEvent("topic-deleted", text, name)
        before = None
    if after is None:
        return
    if before is None:
        count = len(after.partitions)
        text = f"topic {name} created: partitions {count}, replicas {after.replicas}, id {after.topic_id}"
        yield ClusterEvent("topic-created", text, name)
        return
    if len(after.partitions) > len(before.partitions):
        text = (
            f"topic {name} grew from {len(before.partitions)} to {len(after.partitions)} partitions"
        )
        yield ClusterEvent("topic-grown", text, name)
    options = [
        f"{option}={after.config.get(option, '(default)')}"
        for option in sorted(before.config.keys() | after.config.keys())
        if before.config.get(option) != after.config.get(option)
    ]
    if options:
        text = f"options of topic {name} changed: {', '.join(options)}"
        yield ClusterEvent("topic-changed", text, name)
    for number in sorted(before.reassignments.keys() | after.reassignments.keys()):
        yield from _of_move(name, number, before, after)


def _of_move(name: str, number: int, before: TopicInfo, after: TopicInfo) -> Iterator[ClusterEvent]:
    known, found = before.reassignments.get(number), after.reassignments.get(number)
    if found is None:
        text = f"reassignment of {name}-{number} ended: replicas {after.partitions[number]}"
        yield ClusterEvent("reassignment-ended", text, name, number)
    elif found.is_cancelled and (known is None or not known.is_cancelled):
        text = f"reassignment of {name}-{number} cancelled: back to {found.target}"
        yield ClusterEvent("reassignment-cancelled", text, name, number)
    elif known is None:
        text = f"reassignment of {name}-{number} started: to replicas {found.target}"
        yield ClusterEvent("reassignment-started", text, name, number)


def _of_state(
    name: str, number: int, before: PartitionState, after: PartitionState
) -> Iterator[ClusterEvent]:
    # A partition's first leader is part of its topic's creation.
    if after.active and after.leader_epoch > max(before.leader_epoch, 1):
        text = f"broker {after.leader} leads {name}-{number} in epoch {after.leader_epoch}"
        kind = "leader-elected"
        if after.unclean_epoch == after.leader_epoch:
            kind, text = "unclean-election", f"unclean election, records may be lost: {text}"
        yield ClusterEvent(kind, text, name, number, after.leader)
    if set(after.isr) != set(before.isr):
        text = f"in sync for {name}-{number}: {list(after.isr)}, before {list(before.isr)}"
        yield ClusterEvent("in-sync", text, name, number)
