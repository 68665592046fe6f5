"""What an assignor is asked and what it answers.

Whoever makes a plan asks one assignor; everybody else obeys the plan whatever has made it. So members
need not run the same code.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from folkmoot.protocol.records import TopicPartition


@dataclass(frozen=True, kw_only=True)
class Subscriber:
    """A member as an assignor sees it: the topics that it subscribes to, and its rack if it names one."""

    topics: frozenset[str]
    rack: str = ""


@dataclass(frozen=True, kw_only=True)
class AssignmentInput:
    """What has to be divided among whom.

    `sizes` is the number of partitions of each topic; `subscribers` are the members by their names;
    `previous` is who had what, as far as it is still there; `racks` is the rack of each partition's
    leader, as far as it is known; `kept` are partitions that wait for a member that is away.
    """

    sizes: Mapping[str, int]
    subscribers: Mapping[str, Subscriber]
    previous: Mapping[TopicPartition, str] = field(default_factory=dict)
    racks: Mapping[TopicPartition, str] = field(default_factory=dict)
    kept: frozenset[TopicPartition] = frozenset()

    def partitions(self) -> list[TopicPartition]:
        """All that is to be divided, in order."""
        return [
            partition
            for topic in sorted(self.sizes)
            for number in range(self.sizes[topic])
            if (partition := TopicPartition(topic, number)) not in self.kept
        ]

    def subscribed(self, topic: str) -> list[str]:
        """The members that subscribe to a topic, in the order of their names."""
        return sorted(name for name, each in self.subscribers.items() if topic in each.topics)


class Assignor(Protocol):
    """Divides partitions. The same input must always get the same answer, in every process."""

    @property
    def name(self) -> str:
        """By which plans and members name it."""
        ...

    def assign(self, given: AssignmentInput) -> dict[TopicPartition, str]:
        """The owner of each partition that somebody subscribes to; the others are left out."""
        ...
