"""What an assignor is asked and what it answers.

Whoever makes a plan asks one assignor; everybody else obeys the plan whatever has made it. So the
members need not run the same code, but whoever may have to plan must have the assignor that all of
them support (agreement.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from folkmoot.protocol.records import TopicPartition


@dataclass(frozen=True, kw_only=True)
class Subscriber:
    """A member as an assignor sees it: what it wants to read, its weight, and where it stands."""

    topics: frozenset[str]
    weight: int = 1
    rack: str = ""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What has to be divided among whom.

    `sizes` is the number of partitions of each topic; `subscribers` are the members by their names;
    `previous` is who had what, as far as it is still there; `racks` is where a partition's leader
    stands, as far as that is known; `kept` is not for anybody here.
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


class Assignor(Protocol):
    """Divides partitions. The same question must always get the same answer, in every process."""

    @property
    def name(self) -> str:
        """By which members agree on it; one name, one way of dividing."""
        ...

    def assign(self, question: Question) -> dict[TopicPartition, str]:
        """The owner of each partition that somebody wants; the others are left out."""
        ...
