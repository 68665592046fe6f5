"""Look-ups: the ends of partitions, the offsets of times, and the times of offsets.

Leaders know the ends. A fetcher looks up times, because a leader knows only a time's batch. Look-ups have
connections of their own.
"""

import dataclasses
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Any, Final

from folkmoot.consumers.config import ConsumerConfig
from folkmoot.consumers.fetch.fetcher import Fetcher
from folkmoot.consumers.offsets.seek_target import milliseconds
from folkmoot.consumers.offsets.validation import partition_of
from folkmoot.network.ask_leaders import ask_leaders
from folkmoot.network.client import Reply
from folkmoot.network.cluster import Cluster, ClusterConfig
from folkmoot.network.leaderless import Waiting, describe_waiting
from folkmoot.protocol import errors
from folkmoot.protocol.messages import EARLIEST, Api, ListOffsetsEntry, ListOffsetsRequest
from folkmoot.protocol.process.thread_log import thread_log
from folkmoot.protocol.records import TopicPartition

log = thread_log(__name__)

Discover = Callable[[], Sequence[str] | None]

_POLL_WAIT: Final = 1.0
_LOOK_BYTES: Final = 16 * 1024


def no_answer(partitions: Iterable[TopicPartition]) -> str:
    """Return a sentence about partitions whose leaders are silent."""
    return f"no leader answers for {', '.join(map(str, sorted(partitions)))}"


def describe_silence(partitions: Collection[TopicPartition], leaderless: Waiting) -> str:
    """Return a sentence about partitions without an answer, or about those without a leader."""
    awaited = {partition: at for partition, at in leaderless.items() if partition in partitions}
    return describe_waiting(awaited) if awaited else no_answer(partitions)


def list_offsets(
    cluster: Cluster,
    timestamp: int,
    wanted: Mapping[TopicPartition, str],
    timeout: float,
    *,
    patient: bool,
    others: Callable[[Reply], object] = lambda _: None,
) -> dict[TopicPartition, int]:
    """Return the offsets at `timestamp` (EARLIEST or LATEST) of partitions with their topics' ids, as far as
    leaders answer in time; see `ask_leaders`. Raises an error that a retry would not change.
    """

    def entry(partition: TopicPartition, _: int) -> ListOffsetsEntry:
        topic, number = partition
        topic_id = wanted[partition] or cluster.topic_id(topic) or ""
        return ListOffsetsEntry(topic, topic_id, number, timestamp)

    lookups = ask_leaders(
        *(
            cluster,
            Api.LIST_OFFSETS,
            {partition: partial(entry, partition) for partition in wanted},
        ),
        *(lambda entries, _: ListOffsetsRequest(entries), timeout),
        patient=patient,
        others=others,
        final=(),  # one broker knows a new topic before another
    )
    for error in lookups.failed.values():
        if not isinstance(error, errors.RetriableError) and error is not cluster.metadata_error:
            raise error
    for partition, error in [*lookups.failed.items()][:1]:
        log.info("no offsets of %d partitions, %s: %s", len(lookups.failed), partition, error)
    return {
        partition: lookups.results[partition].offset
        for partition in wanted
        if partition in lookups.results
    }


def offsets_at(
    timestamp: int,
    config: ClusterConfig,
    discover: Discover,
    wanted: Mapping[TopicPartition, str],
    timeout: float,
    *,
    need_all: bool = True,
) -> tuple[dict[TopicPartition, int], Waiting]:
    """Return the offsets at `timestamp` (EARLIEST or LATEST) of partitions with their topics' ids, as far as
    leaders answer in time, and the others without a leader.

    With `need_all`, wait for leaders, and raise BrokerUnreachable, or why no broker answered, if an offset
    is missing.
    """
    with Cluster.of(config, discover) as cluster:
        offsets = list_offsets(cluster, timestamp, wanted, timeout, patient=need_all)
        missing = wanted.keys() - offsets.keys()
        if missing and need_all:
            why = f"{describe_silence(missing, cluster.leaderless)} ({timeout:g} s were waited)"
            raise cluster.metadata_error or errors.BrokerUnreachable(why)
        return offsets, {
            partition: at for partition, at in cluster.leaderless.items() if partition in missing
        }


def first_offsets(
    config: ConsumerConfig[Any, Any],
    discover: Discover,
    times: Mapping[TopicPartition, datetime],
    timeout: float,
) -> dict[TopicPartition, int | None]:
    """Return the offset of each partition's first record of its time or later, None if it has none.

    Raises RequestTimeout, ConfigError, and a partition's error.
    """
    wanted = {partition_of(partition): milliseconds(moment) for partition, moment in times.items()}
    offsets: dict[TopicPartition, int | None] = {}
    with _fetcher(config, discover) as (fetcher, cluster):
        for partition, timestamp in wanted.items():
            fetcher.add(partition, 0)
            fetcher.seek(partition, EARLIEST, timestamp)
        for partition, first in _first_records(fetcher, timeout):
            if isinstance(first, errors.FolkmootError):
                raise first
            offsets[partition] = None if first is None else first[0]
        for missing in fetcher.partitions():
            why = f"no offset of {missing} was found within {timeout:g} s"
            if (awaited := cluster.leaderless.get(missing)) is not None:
                why = describe_waiting({missing: awaited})
            raise errors.RequestTimeout(why)
    return {partition: offsets[partition] for partition in wanted}


def first_timestamps(
    config: ConsumerConfig[Any, Any],
    discover: Discover,
    positions: Collection[tuple[TopicPartition, int]],
    timeout: float,
) -> dict[tuple[TopicPartition, int], int]:
    """Return the timestamps (ms) of the first records at or after these offsets, as far as they are answered
    in time. A partition may have several offsets; each takes one small fetch.
    """
    timestamps: dict[tuple[TopicPartition, int], int] = {}
    remaining: dict[TopicPartition, list[int]] = {}
    for partition, offset in positions:
        remaining.setdefault(partition, []).append(offset)
    if not remaining:
        return timestamps
    with _fetcher(config, discover, partition_fetch_bytes=_LOOK_BYTES) as (fetcher, _):
        for partition, offsets in remaining.items():
            fetcher.add(partition, offsets[-1])
        for partition, first in _first_records(fetcher, timeout):
            offset = remaining[partition].pop()
            if isinstance(first, errors.FolkmootError):
                log.info("the age of a record is unknown: %s", first)
            elif first is not None:
                timestamps[partition, offset] = first[1]
            if remaining[partition]:
                fetcher.add(partition, remaining[partition][-1])
    return timestamps


def _first_records(
    fetcher: Fetcher, timeout: float
) -> Iterator[tuple[TopicPartition, tuple[int, int] | errors.FolkmootError | None]]:
    """Yield each partition with offset and timestamp of its first record, its error, or None at its end.

    A yielded partition is removed from the fetcher; those without an answer in time stay.
    """
    deadline = time.monotonic() + timeout
    while fetcher.partitions() and (remaining := deadline - time.monotonic()) > 0:
        fetcher.poll(min(remaining, _POLL_WAIT))
        while (view := fetcher.take_view(1)) is not None:
            fetcher.remove(view.topic_partition)
            yield view.topic_partition, (view.offsets[0], view.timestamps[0])
        for partition, error in [*fetcher.rotation.errors.items()]:
            fetcher.remove(partition)
            yield partition, error
        for partition in fetcher.partitions():
            if fetcher.position(partition) == fetcher.end(partition):
                fetcher.remove(partition)
                yield partition, None


@contextmanager
def _fetcher(
    config: ConsumerConfig[Any, Any], discover: Discover, **limits: int
) -> Iterator[tuple[Fetcher, Cluster]]:
    config = dataclasses.replace(config, fetch_max_wait=0.0, **limits)  # type: ignore[arg-type]
    with Cluster.of(config, discover) as cluster:
        yield Fetcher(config, cluster, time.monotonic), cluster
