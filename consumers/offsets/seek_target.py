"""Where to go on in a partition: at an offset, at one of its ends, or at a time."""

from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from folkmoot.consumers.fetch.fetcher import Fetcher
from folkmoot.consumers.offsets.validation import whole
from folkmoot.protocol.errors import ConfigError
from folkmoot.protocol.messages import EARLIEST, LATEST
from folkmoot.protocol.records import TopicPartition

SeekTarget = int | Literal["earliest", "latest"] | datetime

_ENDS: Final = {"earliest": EARLIEST, "latest": LATEST}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


def seek(fetcher: Fetcher, partition: TopicPartition, target: SeekTarget) -> int | None:
    """Have a partition read on from there; → the offset, None if it is yet to be looked up.

    Raises NotAssigned, ConfigError.
    """
    target = checked(partition, target)
    if isinstance(target, datetime):
        fetcher.seek_time(partition, milliseconds(target))
        return None
    if isinstance(target, str):
        fetcher.seek(partition, _ENDS[target])
        return None
    fetcher.seek(partition, target)
    return target


def checked(partition: TopicPartition, target: SeekTarget) -> SeekTarget:
    """The target, an offset as an int, if it is one at all. Raises ConfigError."""
    if isinstance(target, datetime):
        milliseconds(target)
        return target
    if isinstance(target, str) and target in _ENDS:
        return target
    if hasattr(target, "__index__"):
        return whole(f"the offset to go on at in {partition}", target)
    raise ConfigError(
        f"{target!r} is no place to seek: give an offset, 'earliest', 'latest' or a datetime"
    )


def milliseconds(moment: datetime) -> int:
    """Of a time since the epoch, rounded up: no record before the time counts. Raises ConfigError."""
    if not isinstance(moment, datetime):
        raise ConfigError(f"{moment!r} is no time: give a datetime with its time zone")
    if moment.tzinfo is None:
        raise ConfigError(f"{moment} has no time zone: give one, as in datetime(…, tzinfo=UTC)")
    return -((_EPOCH - moment) // _MILLISECOND)
