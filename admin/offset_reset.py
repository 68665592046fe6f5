"""The new offsets of a group, one per partition, from the target of a reset.

Pure: the caller looks up the earliest and latest offsets, and those of a time.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, SupportsIndex

from folkmoot.consumers.offsets.validation import HIGHEST, check_int, partition_of
from folkmoot.protocol.errors import ConfigError, NoOffset, OffsetOutOfRange
from folkmoot.protocol.records import TopicPartition


@dataclass(frozen=True)
class Shift:
    """`by` records forward from the committed offset, backward if negative; it stops at the log's ends."""

    by: int


Target = Literal["earliest", "latest"] | int | datetime | timedelta | Shift
"""An end, an offset, a time, a length of time before now, or a shift."""


@dataclass(frozen=True, kw_only=True)
class PlannedReset:
    """A partition of a reset: the committed offset, the new one, and the log's first and last."""

    partition: TopicPartition
    committed: int | None
    new: int
    earliest: int
    latest: int


def check_target(
    to: Target | Mapping[TopicPartition, int],
) -> Target | Mapping[TopicPartition, int]:
    """Return the target with its offsets as ints, numpy's too. Raises ConfigError."""
    match to:
        case Mapping():
            return {
                partition_of(partition): check_offset(partition, at) for partition, at in to.items()
            }
        case Shift(by):
            return Shift(check_int("shift", by, least=-HIGHEST))
        case SupportsIndex():
            return check_int("offset", to)
    return to


def check_offset(partition: tuple[str, int], offset: object) -> int:
    """Return the offset as an int. Raises ConfigError for a value that is no offset."""
    return check_int(f"offset of {partition_of(partition)}", offset)


def planned(
    to: Target | Mapping[TopicPartition, int],
    committed: Mapping[TopicPartition, int | None],
    earliest: Mapping[TopicPartition, int],
    latest: Mapping[TopicPartition, int],
    by_time: Mapping[TopicPartition, int],
) -> list[PlannedReset]:
    """Return what a reset would do to the partitions of `committed`, sorted.

    `by_time` has the offsets of a time, if `to` is one. Raises OffsetOutOfRange for a given offset that
    the log does not have, and NoOffset for a shift where nothing is committed.
    """
    resets = []
    for partition, before in sorted(committed.items()):
        first, end = earliest[partition], latest[partition]
        match to:
            case "earliest":
                new = first
            case "latest":
                new = end
            case Shift(by):
                if before is None:
                    raise NoOffset(
                        f"nothing is committed for {partition}: a shift has nothing to start from"
                    )
                new = min(max(before + by, first), end)
            case int():
                new = _existing(partition, to, first, end)
            case datetime() | timedelta():
                new = max(by_time[partition], first)
            case Mapping():
                new = _existing(partition, to[partition], first, end)
            case _:
                raise ConfigError(
                    f"{to!r} is nowhere to reset to: use earliest, latest, an offset, a time"
                )
        resets.append(
            PlannedReset(partition=partition, committed=before, new=new, earliest=first, latest=end)
        )
    return resets


def _existing(partition: TopicPartition, offset: int, first: int, end: int) -> int:
    if not first <= offset <= end:
        raise OffsetOutOfRange(
            f"{partition} has offsets {first} to {end}, not {offset}: choose one of these"
        )
    return offset
