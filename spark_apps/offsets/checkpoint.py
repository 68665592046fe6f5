"""The source's offset in Spark's checkpoint: an end that says all that its micro-batch contains.

```
{"v": 2, "g": "delays", "n": 20000,
 "p": {"flights/0": [120, 180, 3], "flights/7": [33, 33, 3, "<mark>"]},
 "t": {"flights": "<id>"}, "s": {"flights": ["<id>", 8]}}
```

Spark keeps the JSON, compares it as text (different text = a batch to run) and never looks inside.
So each end carries the whole range `[from, to)` of every partition in its batch, and the records of its
tasks (`n`). A replay needs no more, under any owner of the partitions. Two rules
follow for those who make ends: keys are sorted, and an old range that is not empty never appears in a
new end.

`to` is trusted once Spark hands the end back as the start of the next batch: everything below it has
gone through the sink. It counts only for the topic of the same id, and under the same mark of the
group's last reset: an administrator's word is newer than the checkpoint. It also has the epoch of the
leader that reported the end. It shows whether a later leader has lost records.

`s` has the topics at the first start of the query. Their partitions begin as the options say; later ones
begin at their start. The group stands inside because a
checkpoint is of no use to another one ("": none). For typed columns `r` is the id of the query's schema,
which `readerSchema` can name again. Pure.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from folkmoot.protocol.errors import ConfigError
from folkmoot.protocol.records import TopicPartition

VERSION = 2
NO_EPOCH = -1


class Range(NamedTuple):
    """Offsets of a partition in one micro-batch: `first` is read, `end` is not.

    `epoch` is that of the leader that reported the end, `reset` the mark of the last reset before.
    """

    first: int
    end: int
    epoch: int = NO_EPOCH
    reset: str = ""

    @property
    def size(self) -> int:
        return self.end - self.first


class InitialTopic(NamedTuple):
    """A topic when the query began for the first time."""

    topic_id: str
    partitions: int


class Ends(msgspec.Struct, frozen=True):
    """The end offset of a micro-batch: its ranges, and the ids of the topics that they are of.

    `task_records` is how many records one task reads, about; `reader_schema` the id of the schema that
    values are read with, 0 where there is none.
    """

    group: str
    ranges: Mapping[TopicPartition, Range] = {}
    topic_ids: Mapping[str, str] = {}
    initial_topics: Mapping[str, InitialTopic] = {}
    task_records: int = 0
    reader_schema: int = 0

    def processed_range(
        self, partition: TopicPartition, topic_id: str, reset: str = ""
    ) -> Range | None:
        """Everything below its end went through the sink, if these are the ends of a finished batch."""
        found = self.ranges.get(partition)
        if found is None or self.topic_ids.get(partition.topic) != topic_id:
            return None
        return found if found.reset == reset else None


class QueryOffsets:
    """The offsets of one query, each parsed once: the engine hands the same one to several calls."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._recent: deque[tuple[Mapping[str, Any], Ends]] = deque(maxlen=2)
        """The end of the last batch, and that of the next one."""

    def parse(self, requested: Mapping[str, Any]) -> Ends:
        """Read an offset back. Raises ConfigError if it is none of ours, or another group's."""
        for offset, ends in self._recent:
            if offset == requested:
                return ends
        ends = from_json(requested, self._group)
        self._recent.append((requested, ends))
        return ends

    def to_json(self, ends: Ends) -> dict[str, Any]:
        """Return what the engine gets; `parse` knows it."""
        offset = to_json(ends)
        self._recent.append((offset, ends))
        return offset


class _Json(msgspec.Struct, frozen=True):
    """The JSON as it stands in the checkpoint."""

    v: int
    g: str
    p: dict[str, Range] = {}
    t: dict[str, str] = {}
    s: dict[str, InitialTopic] = {}
    n: int = 0
    r: int = 0


def to_json(ends: Ends) -> dict[str, Any]:
    """Return what the engine gets: keys sorted, so that the same ends are the same text."""
    ranges = {
        f"{partition.topic}/{partition.partition}": [*each[: 4 if each.reset else 3]]
        for partition, each in sorted(ends.ranges.items())
    }
    return {
        "g": ends.group,
        "n": ends.task_records,
        "p": ranges,
        **({"r": ends.reader_schema} if ends.reader_schema else {}),
        "s": {topic: [*each] for topic, each in sorted(ends.initial_topics.items())},
        "t": dict(sorted(ends.topic_ids.items())),
        "v": VERSION,
    }


def from_json(offset: Mapping[str, Any], group: str) -> Ends:
    """Read an offset back. Raises ConfigError if it is none of ours, or another group's."""
    try:
        decoded = msgspec.convert(offset, _Json)
        ranges = {_partition(name): each for name, each in decoded.p.items()}
        if any(not 0 <= each.first <= each.end for each in ranges.values()):
            raise ValueError("a range runs backwards")
        if {partition.topic for partition in ranges} - decoded.t.keys():
            raise ValueError("a topic has no id")
    except (msgspec.ValidationError, ValueError) as error:
        raise ConfigError(
            f"the checkpoint does not hold offsets of format folkmoot ({error}): use another one"
        ) from None
    if decoded.v != VERSION:
        raise ConfigError(
            f"the checkpoint holds offsets of version {decoded.v}, known here is {VERSION}: use a new "
            "checkpointLocation; the group's committed offsets are kept"
        )
    if decoded.g != group:
        raise ConfigError(
            f"the checkpoint belongs to {_group(decoded.g)}, the options say {_group(group)}: "
            "each group needs a checkpoint of its own"
        )
    return Ends(decoded.g, ranges, decoded.t, decoded.s, decoded.n, decoded.r)


def _group(name: str) -> str:
    return f"group {name!r}" if name else "no group"


def _partition(name: str) -> TopicPartition:
    topic, _, number = name.rpartition("/")
    return TopicPartition(topic, int(number))
