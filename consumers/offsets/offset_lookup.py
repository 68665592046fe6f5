"""Where partitions begin and end, offsets of times, and times of offsets: looked up by a fetcher.

It has connections of its own, so that what a consumer has asked for is not disturbed.
"""

import dataclasses
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final

from folkmoot.consumers.config import ConsumerConfig
from folkmoot.consumers.fetch.fetcher import Fetcher
from folkmoot.consumers.offsets.log_ends import why_silent
from folkmoot.consumers.offsets.seek_target import milliseconds
from folkmoot.consumers.offsets.validation import partition_of
from folkmoot.network.client import Connections
from folkmoot.network.cluster import Cluster
from folkmoot.network.leaderless import Waiting, said_of
from folkmoot.protocol.errors import BrokerUnreachable, RequestTimeout
from folkmoot.protocol.messages import EARLIEST
from folkmoot.protocol.process.thread_log import thread_log
from folkmoot.protocol.records import TopicPartition

log = thread_log(__name__)

_TURN: Final = 1.0
_LOOK_BYTES: Final = 16 * 1024


def offsets_at(
    place: int,
    config: ConsumerConfig[Any, Any],
    discover: Callable[[], Sequence[str] | None],
    wanted: Mapping[TopicPartition, str],
    timeout: float,
    *,
    need_all: bool = True,
) -> tuple[dict[TopicPartition, int], Waiting]:
    """The offsets at `place` (EARLIEST or LATEST) of partitions, given with their topics' ids, as far as
    leaders tell them in time → and which of the others nobody leads.

    If they `need_all`, those without a leader are waited for, and BrokerUnreachable, or why no broker told,
    is raised where one is missing. Raises what makes a partition unreadable.
    """
    found: dict[TopicPartition, int] = {}
    with _fetcher(config, discover) as (fetcher, cluster):
        for partition, topic_id in wanted.items():
            fetcher.add(partition, place, topic_id)
        for left in _polls(fetcher, timeout):
            fetcher.check()
            for partition in left:
                if (offset := fetcher.position(partition)) is not None:
                    found[partition] = offset
                    fetcher.remove(partition)
            if not need_all and cluster.leaderless.keys() >= {*fetcher.partitions()}:
                break
        missing = fetcher.partitions()
        if missing and need_all:
            why = f"{why_silent(missing, cluster.leaderless)} ({timeout:g} s were waited)"
            raise cluster.trouble or BrokerUnreachable(why)
        told = {each: found[each] for each in wanted if each in found}
        return told, {each: at for each, at in cluster.leaderless.items() if each in missing}


def first_offsets(
    config: ConsumerConfig[Any, Any],
    discover: Callable[[], Sequence[str] | None],
    times: Mapping[TopicPartition, datetime],
    timeout: float,
) -> dict[TopicPartition, int | None]:
    """The offset of each partition's first record of its time or later, None if it has none.

    Raises RequestTimeout, ConfigError, and what makes a partition unreadable.
    """
    wanted = {partition_of(each): milliseconds(moment) for each, moment in times.items()}
    found: dict[TopicPartition, int | None] = {}
    with _fetcher(config, discover) as (fetcher, cluster):
        for partition, timestamp in wanted.items():
            fetcher.add(partition, 0)
            fetcher.seek(partition, EARLIEST, timestamp)
        for _ in _polls(fetcher, timeout):
            fetcher.check()
            while (view := fetcher.take_view(1)) is not None:
                found[view.topic_partition] = view.offsets[0]
                fetcher.remove(view.topic_partition)
            for partition in fetcher.partitions():
                if fetcher.position(partition) == fetcher.end(partition):
                    found[partition] = None
                    fetcher.remove(partition)
        for missing in fetcher.partitions():
            why = f"no offset of {missing} was found within {timeout:g} s"
            if (awaited := cluster.leaderless.get(missing)) is not None:
                why = said_of({missing: awaited})
            raise RequestTimeout(why)
    return {partition: found[partition] for partition in wanted}


def first_timestamps(
    config: ConsumerConfig[Any, Any],
    discover: Callable[[], Sequence[str] | None],
    places: Collection[tuple[TopicPartition, int]],
    timeout: float,
) -> dict[tuple[TopicPartition, int], int]:
    """The timestamp (ms) of the record at each of these offsets, or of the next one behind it.

    As far as they are answered in time, by one small fetch for each. A partition may have several offsets.
    """
    found: dict[tuple[TopicPartition, int], int] = {}
    left: dict[TopicPartition, list[int]] = {}
    for partition, offset in places:
        left.setdefault(partition, []).append(offset)
    if not left:
        return found

    with _fetcher(config, discover, partition_fetch_bytes=_LOOK_BYTES) as (fetcher, _):

        def look_up_next(partition: TopicPartition) -> None:
            fetcher.remove(partition)
            if left[partition]:
                fetcher.add(partition, left[partition][-1])

        for partition in left:
            fetcher.add(partition, left[partition][-1])
        for _ in _polls(fetcher, timeout):
            while (view := fetcher.take_view(1)) is not None:
                partition = view.topic_partition
                found[partition, left[partition].pop()] = view.timestamps[0]
                look_up_next(partition)
            for partition, error in [*fetcher.errors.items()]:
                log.info("the age of a record is not known: %s", error)
                left[partition].pop()
                look_up_next(partition)
    return found


def _polls(fetcher: Fetcher, timeout: float) -> Iterator[list[TopicPartition]]:
    """What is read still, after each poll, until nothing is, or time is over."""
    deadline = time.monotonic() + timeout
    while fetcher.partitions() and (left := deadline - time.monotonic()) > 0:
        fetcher.poll(min(left, _TURN))
        yield fetcher.partitions()


@contextmanager
def _fetcher(
    config: ConsumerConfig[Any, Any], discover: Callable[[], Sequence[str] | None], **limits: int
) -> Iterator[tuple[Fetcher, Cluster]]:
    config = dataclasses.replace(config, fetch_max_wait=0.0, **limits)  # type: ignore[arg-type]
    with Cluster(Connections(config.client_id), discover, listener=config.listener) as cluster:
        yield Fetcher(config, cluster, time.monotonic), cluster
