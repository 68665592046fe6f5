"""Offsets of times, and times of offsets, looked up by reading the records there.

On connections of their own, so that what a consumer has asked for is not disturbed.
"""

import dataclasses
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final

from folkmoot.consumers.config import ConsumerConfig
from folkmoot.consumers.fetch.fetcher import Fetcher
from folkmoot.consumers.offsets.seek_target import milliseconds
from folkmoot.consumers.offsets.validation import partition_of
from folkmoot.network.client import Connections
from folkmoot.network.cluster import Cluster
from folkmoot.network.leaderless import said_of
from folkmoot.protocol.errors import RequestTimeout
from folkmoot.protocol.messages import EARLIEST
from folkmoot.protocol.records import TopicPartition

log = logging.getLogger(__name__)

_TURN: Final = 1.0
_LOOK_BYTES: Final = 16 * 1024
_LOOKS_AT_A_TIME: Final = 64


def first_offsets(
    config: ConsumerConfig[Any, Any],
    discover: Callable[[], Sequence[str]],
    times: Mapping[TopicPartition, datetime],
    timeout: float,
) -> dict[TopicPartition, int | None]:
    """The offset of each partition's first record of its time or later, None if it has none.

    Raises RequestTimeout, ConfigError, and what makes a partition unreadable.
    """
    wanted = {partition_of(each): milliseconds(moment) for each, moment in times.items()}
    found: dict[TopicPartition, int | None] = {}
    deadline = time.monotonic() + timeout
    with _fetcher(config, discover) as fetcher:
        for partition, timestamp in wanted.items():
            fetcher.add(partition, 0)
            fetcher.seek(partition, EARLIEST, timestamp)
        while missing := fetcher.partitions():
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                why = f"no offset of {missing[0]} was found within {timeout:g} s"
                if (awaited := fetcher.leaderless.get(missing[0])) is not None:
                    why = said_of({missing[0]: awaited})
                raise RequestTimeout(why)
            fetcher.poll(min(remaining, _TURN))
            fetcher.check()
            while (view := fetcher.take_view(1)) is not None:
                found[view.topic_partition] = view.offsets[0]
                fetcher.remove(view.topic_partition)
            for partition in fetcher.partitions():
                if fetcher.position(partition) == fetcher.end(partition):
                    found[partition] = None
                    fetcher.remove(partition)
    return {partition: found[partition] for partition in wanted}


def first_timestamps(
    config: ConsumerConfig[Any, Any],
    discover: Callable[[], Sequence[str]],
    offsets: Mapping[TopicPartition, int],
    timeout: float,
) -> dict[TopicPartition, int]:
    """The timestamp (ms) of each partition's record at an offset, or of the next that there is.

    As far as they are answered in time: one small fetch per partition, some of them at a time.
    """
    found: dict[TopicPartition, int] = {}
    waiting = dict(sorted(offsets.items(), reverse=True))
    deadline = time.monotonic() + timeout
    with _fetcher(config, discover, partition_fetch_bytes=_LOOK_BYTES) as fetcher:
        while waiting or fetcher.partitions():
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                break
            while waiting and len(fetcher.partitions()) < _LOOKS_AT_A_TIME:
                fetcher.add(*waiting.popitem())
            fetcher.poll(min(remaining, _TURN))
            while (view := fetcher.take_view(1)) is not None:
                found[view.topic_partition] = view.timestamps[0]
                fetcher.remove(view.topic_partition)
            for partition, error in [*fetcher.errors.items()]:
                log.info("the age of a record is not known: %s", error)
                fetcher.remove(partition)
    return found


@contextmanager
def _fetcher(
    config: ConsumerConfig[Any, Any], discover: Callable[[], Sequence[str]], **limits: int
) -> Iterator[Fetcher]:
    config = dataclasses.replace(config, fetch_max_wait=0.0, **limits)  # type: ignore[arg-type]
    with Cluster(Connections(config.client_id), discover, listener=config.listener) as cluster:
        yield Fetcher(config, cluster, time.monotonic)
