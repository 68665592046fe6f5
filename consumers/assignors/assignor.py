"""The interface of assignors.

The member that plans calls one assignor; the others only read the plan. So members need not run the same
code.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from folkmoot.protocol.records import TopicPartition


@dataclass(frozen=True, kw_only=True)
class Subscriber:
    """A member: its topics, and its rack, if any."""

    topics: frozenset[str]
    rack: str = ""


@dataclass(frozen=True, kw_only=True)
class AssignmentInput:
    """The partitions, and the members that they are divided among.

    `sizes` is the number of partitions of each topic; `subscribers` are the members by name; `previous` are
    the last owners; `racks` is the known rack of each partition's leader; `reserved` are partitions that wait
    for an absent member.
    """

    sizes: Mapping[str, int]
    subscribers: Mapping[str, Subscriber]
    previous: Mapping[TopicPartition, str] = field(default_factory=dict)
    racks: Mapping[TopicPartition, str] = field(default_factory=dict)
    reserved: frozenset[TopicPartition] = frozenset()

    def partitions(self) -> list[TopicPartition]:
        """Return the partitions to divide, sorted."""
        return [
            partition
            for topic in sorted(self.sizes)
            for number in range(self.sizes[topic])
            if (partition := TopicPartition(topic, number)) not in self.reserved
        ]

    def subscribed(self, topic: str) -> list[str]:
        """Return the members that subscribe to a topic, by name."""
        return sorted(
            name for name, subscriber in self.subscribers.items() if topic in subscriber.topics
        )


class Assignor(Protocol):
    """Divides partitions. The result depends on the input alone, in every process."""

    @property
    def name(self) -> str:
        """Its name in plans and members."""
        ...

    def assign(self, inputs: AssignmentInput) -> dict[TopicPartition, str]:
        """Return the owner of each partition with a subscriber."""
        ...
