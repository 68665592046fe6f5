"""Where a group's offsets shall go: what was asked for, as one offset per partition.

Pure: the earliest and latest offsets, and those of a time, are looked up by whoever asks.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, SupportsIndex

from folkmoot.consumers.offsets.validation import HIGHEST, partition_of, whole
from folkmoot.protocol.errors import ConfigError, NoOffset, OffsetOutOfRange
from folkmoot.protocol.records import TopicPartition


@dataclass(frozen=True)
class Shift:
    """So many records on from what is committed, or back; as far as there are any."""

    by: int


Target = Literal["earliest", "latest"] | int | datetime | timedelta | Shift
"""An end, an offset, a time, so long before now, so many records from where the group is."""


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A partition of a reset: where the group is, where it shall go, and what there is."""

    partition: TopicPartition
    committed: int | None
    new: int
    earliest: int
    latest: int


def checked_target(
    to: Target | Mapping[TopicPartition, int],
) -> Target | Mapping[TopicPartition, int]:
    """The same with whole numbers for its offsets, numpy's too. Raises ConfigError."""
    match to:
        case Mapping():
            return {partition_of(each): whole_offset(each, at) for each, at in to.items()}
        case Shift(by):
            return Shift(whole("shift", by, least=-HIGHEST))
        case SupportsIndex():
            return whole("offset", to)
    return to


def whole_offset(partition: tuple[str, int], offset: object) -> int:
    """Raises ConfigError for what is no offset of any partition."""
    return whole(f"offset of {partition_of(partition)}", offset)


def planned(
    to: Target | Mapping[TopicPartition, int],
    committed: Mapping[TopicPartition, int | None],
    earliest: Mapping[TopicPartition, int],
    latest: Mapping[TopicPartition, int],
    by_time: Mapping[TopicPartition, int],
) -> list[Planned]:
    """What a reset would do to the partitions of `committed`, in their order.

    `by_time` has the offsets of a time, if `to` is one. An offset that is named must exist: raises
    OffsetOutOfRange. A shift goes as far as it can; raises NoOffset where nothing is committed.
    """
    plan = []
    for each, before in sorted(committed.items()):
        first, end = earliest[each], latest[each]
        match to:
            case "earliest":
                new = first
            case "latest":
                new = end
            case Shift(by):
                if before is None:
                    raise NoOffset(
                        f"nothing is committed for {each}: a shift has nothing to start from"
                    )
                new = min(max(before + by, first), end)
            case int():
                new = _existing(each, to, first, end)
            case datetime() | timedelta():
                new = max(by_time[each], first)
            case Mapping():
                new = _existing(each, to[each], first, end)
            case _:
                raise ConfigError(
                    f"{to!r} is nowhere to reset to: use earliest, latest, an offset, a time"
                )
        plan.append(Planned(partition=each, committed=before, new=new, earliest=first, latest=end))
    return plan


def _existing(partition: TopicPartition, offset: int, first: int, end: int) -> int:
    if not first <= offset <= end:
        raise OffsetOutOfRange(
            f"{partition} has offsets {first} to {end}, not {offset}: choose one of these"
        )
    return offset
