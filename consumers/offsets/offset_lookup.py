"""Where to go on in a partition: an offset, an end, or a time, of which the broker names the batch."""

import dataclasses
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from folkmoot.consumers.config import ConsumerConfig
from folkmoot.consumers.fetch.fetcher import Fetcher
from folkmoot.consumers.offsets.validation import whole
from folkmoot.network.client import Connections
from folkmoot.network.cluster import Cluster
from folkmoot.protocol.errors import ConfigError, FolkmootError, RequestTimeout
from folkmoot.protocol.messages import EARLIEST, LATEST
from folkmoot.protocol.records import TopicPartition

log = logging.getLogger(__name__)

Place = int | Literal["beginning", "end"] | datetime

_ENDS: Final = {"beginning": EARLIEST, "end": LATEST}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_TURN: Final = 1.0
_LOOK_BYTES: Final = 16 * 1024
_LOOKS_AT_A_TIME: Final = 64


def go_to(fetcher: Fetcher, partition: TopicPartition, place: Place) -> None:
    """Have a partition read on from a place. Raises NotAssigned, ConfigError."""
    place = checked(partition, place)
    if isinstance(place, datetime):
        fetcher.seek_time(partition, milliseconds(place))
    elif isinstance(place, str):
        fetcher.seek(partition, _ENDS[place])
    else:
        fetcher.seek(partition, place)


def checked(partition: TopicPartition, place: Place) -> Place:
    """The place, an offset as an int, if it is one at all. Raises ConfigError."""
    if isinstance(place, datetime):
        milliseconds(place)
        return place
    if isinstance(place, str) and place in _ENDS:
        return place
    if hasattr(place, "__index__"):
        return whole(f"the offset to go on at in {partition}", place)
    raise ConfigError(
        f"{place!r} is no place to seek: give an offset, 'beginning', 'end' or a datetime"
    )


def milliseconds(moment: datetime) -> int:
    """Of a time since the epoch, rounded up: no record before the time counts. Raises ConfigError."""
    if not isinstance(moment, datetime):
        raise ConfigError(f"{moment!r} is no time: give a datetime with its time zone")
    if moment.tzinfo is None:
        raise ConfigError(f"{moment} has no time zone: give one, as in datetime(…, tzinfo=UTC)")
    return -((_EPOCH - moment) // _MILLISECOND)


def first_offsets(
    config: ConsumerConfig,
    discover: Callable[[], Sequence[str]],
    times: Mapping[TopicPartition, datetime],
    timeout: float,
) -> dict[TopicPartition, int | None]:
    """The offset of each partition's first record of its time or later, None if it has none.

    On connections of its own, so that what the consumer has asked for is not disturbed. Raises
    RequestTimeout, ConfigError, and what makes a partition unreadable.
    """
    config = dataclasses.replace(config, fetch_max_wait=0.0)
    found: dict[TopicPartition, int | None] = {}
    deadline = time.monotonic() + timeout
    with Cluster(Connections(config.client_id), discover, listener=config.listener) as cluster:
        fetcher = Fetcher(config, cluster, time.monotonic)
        wanted = {TopicPartition(*each): moment for each, moment in times.items()}
        for partition, moment in wanted.items():
            fetcher.add(partition, 0)
            fetcher.seek_time(partition, milliseconds(moment))
        while missing := list(fetcher.partitions()):
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise RequestTimeout(f"no offset of {missing[0]} was found within {timeout:g} s")
            fetcher.poll(min(remaining, _TURN))
            fetcher.check()
            while (view := fetcher.take_view(1)) is not None:
                found[view.topic_partition] = view.offsets[0]
                fetcher.remove(view.topic_partition)
            for partition in list(fetcher.partitions()):
                if fetcher.position(partition) == fetcher.end(partition):
                    found[partition] = None
                    fetcher.remove(partition)
    return {TopicPartition(*each): found[TopicPartition(*each)] for each in times}


def first_timestamps(
    config: ConsumerConfig,
    discover: Callable[[], Sequence[str]],
    offsets: Mapping[TopicPartition, int],
    timeout: float,
) -> dict[TopicPartition, int]:
    """The timestamp (ms) of each partition's record at an offset, or of the next that there is.

    As far as they are answered in time: one small fetch per partition, some of them at a time.
    """
    config = dataclasses.replace(config, fetch_max_wait=0.0, partition_fetch_bytes=_LOOK_BYTES)
    found: dict[TopicPartition, int] = {}
    waiting = dict(sorted(offsets.items(), reverse=True))
    deadline = time.monotonic() + timeout
    with Cluster(Connections(config.client_id), discover, listener=config.listener) as cluster:
        fetcher = Fetcher(config, cluster, time.monotonic)
        while waiting or list(fetcher.partitions()):
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                break
            while waiting and len(list(fetcher.partitions())) < _LOOKS_AT_A_TIME:
                fetcher.add(*waiting.popitem())
            fetcher.poll(min(remaining, _TURN))
            try:
                fetcher.check()
            except FolkmootError as error:
                log.info("the age of a record is not known: %s", error)
            while view := fetcher.take_view(1):
                found[view.topic_partition] = view.timestamps[0]
                fetcher.remove(view.topic_partition)
    return found
