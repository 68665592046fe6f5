"""Seek targets: an offset, an end of the log, or a time."""

from datetime import datetime, timedelta
from typing import Final, Literal

from folkmoot.consumers.fetch.fetcher import Fetcher
from folkmoot.consumers.offsets.progress import Positions
from folkmoot.consumers.offsets.validation import check_int
from folkmoot.protocol.errors import ConfigError
from folkmoot.protocol.messages import EARLIEST, LATEST
from folkmoot.protocol.quantities import EPOCH
from folkmoot.protocol.records import TopicPartition

SeekTarget = int | Literal["earliest", "latest"] | datetime

ENDS: Final[dict[str, int]] = {"earliest": EARLIEST, "latest": LATEST}
_MILLISECOND: Final = timedelta(milliseconds=1)


StartPosition = tuple[int, int | None]
"""An offset, or EARLIEST or LATEST; and the time (ms) whose first record is sought from there."""


def resolve_target(partition: TopicPartition, target: SeekTarget) -> StartPosition:
    """Return the target as the fetcher takes it. Raises ConfigError."""
    if isinstance(target, datetime):
        return EARLIEST, milliseconds(target)
    if isinstance(target, str) and target in ENDS:
        return ENDS[target], None
    if hasattr(target, "__index__"):
        return check_int(f"the offset to seek in {partition}", target), None
    raise ConfigError(
        f"{target!r} is no place to seek: give an offset, 'earliest', 'latest' or a datetime"
    )


def seek_to(
    fetcher: Fetcher, positions: Positions, partition: TopicPartition, start: StartPosition
) -> None:
    """Read a partition from there. Raises NotAssigned."""
    fetcher.seek(partition, *start)
    positions.seek(partition, start[0] if start[0] >= 0 else None)


def milliseconds(moment: datetime) -> int:
    """Return a time in ms since the epoch, rounded up: no earlier record counts. Raises ConfigError."""
    if not isinstance(moment, datetime):
        raise ConfigError(f"{moment!r} is no time: give a datetime with its time zone")
    if moment.tzinfo is None:
        raise ConfigError(f"{moment} has no time zone: give one, as in datetime(…, tzinfo=UTC)")
    return -((EPOCH - moment) // _MILLISECOND)
