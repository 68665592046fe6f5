"""The source's offset in Spark's checkpoint: an end that says all that its micro-batch contains.

```
{"v": 1, "g": "delays", "p": {"flights/0": [120, 180], "flights/7": [33, 33]}, "t": {"flights": "<id>"}}
```

Spark keeps the JSON, compares it as text (different text = a batch to run) and never looks inside.
So each end carries the whole range `[from, to)` of every partition in its batch, and is all that a
replay needs, whoever owns the partitions by then. What follows for whoever makes ends: keys are
sorted, and an old range that is not empty never appears in a new end.

`to` is trusted once Spark hands the end back as the start of the next batch: everything below it has
gone through the sink. It counts only for the topic of the same id. The group stands inside because a
checkpoint is of no use to another one. Pure.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from folkmoot.protocol.errors import ConfigError
from folkmoot.protocol.records import TopicPartition

VERSION = 1


class Range(NamedTuple):
    """Offsets of a partition in one micro-batch: `first` is read, `end` is not."""

    first: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.first


class Ends(msgspec.Struct, frozen=True):
    """The end offset of a micro-batch: its ranges, and the ids of the topics that they are of."""

    group: str
    ranges: Mapping[TopicPartition, Range] = {}
    topic_ids: Mapping[str, str] = {}

    def processed(self, partition: TopicPartition, topic_id: str) -> int | None:
        """Everything below went through the sink, if these are the ends of a finished batch."""
        if self.topic_ids.get(partition.topic) != topic_id or partition not in self.ranges:
            return None
        return self.ranges[partition].end


class _Json(msgspec.Struct, frozen=True):
    """The JSON as it stands in the checkpoint."""

    v: int
    g: str
    p: dict[str, tuple[int, int]] = {}
    t: dict[str, str] = {}


def to_json(ends: Ends) -> dict[str, Any]:
    """What the engine gets: keys sorted, so that the same ends are the same text."""
    ranges = {
        f"{partition.topic}/{partition.partition}": [*ends.ranges[partition]]
        for partition in sorted(ends.ranges)
    }
    return {
        "g": ends.group,
        "p": ranges,
        "t": dict(sorted(ends.topic_ids.items())),
        "v": VERSION,
    }


def from_json(found: Mapping[str, Any], group: str) -> Ends:
    """Read an offset back. Raises ConfigError if it is none of ours, or another group's."""
    try:
        read = msgspec.convert(found, _Json)
        ranges = {_partition(name): Range(*bounds) for name, bounds in read.p.items()}
        if any(not 0 <= each.first <= each.end for each in ranges.values()):
            raise ValueError("a range runs backwards")
        if {partition.topic for partition in ranges} - read.t.keys():
            raise ValueError("a topic has no id")
    except (msgspec.ValidationError, ValueError) as error:
        raise ConfigError(
            f"the checkpoint does not hold offsets of format folkmoot ({error}): use another one"
        ) from None
    if read.v != VERSION:
        raise ConfigError(
            f"the checkpoint holds offsets of version {read.v}, known here is {VERSION}"
        )
    if read.g != group:
        raise ConfigError(
            f"the checkpoint belongs to group {read.g!r}, the option says {group!r}: "
            "each group needs a checkpoint of its own"
        )
    return Ends(read.g, ranges, read.t)


def _partition(name: str) -> TopicPartition:
    topic, _, number = name.rpartition("/")
    return TopicPartition(topic, int(number))
