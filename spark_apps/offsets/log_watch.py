"""Watch the ends of logs: a fetch waits at each leader until more records arrive.

So a query that has nothing to do asks nothing with its triggers. One fetch for all partitions of a leader
waits at the known ends. Its answer has the new ends and one batch, which shows the size of records.

An end counts under the epoch of the leader that reported it. Another leader may lack records that were read
before (`truncated`). So it is first asked whether it has the records before the position from the same
epoch as that place.
Its answer proves a loss only if its log parts before the position. Without records of an epoch it names an
earlier one, which ends after the position.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from itertools import islice
from time import monotonic
from typing import Final, NamedTuple

from folkmoot.consumers.config import ConsumerConfig
from folkmoot.consumers.fetch.partition_state import intact_batches
from folkmoot.consumers.offsets.offset_lookup import describe_silence, first_offsets, list_offsets
from folkmoot.coordination.wakeup import Wakeup
from folkmoot.network.client import Reply
from folkmoot.network.cluster import Cluster
from folkmoot.protocol.errors import (
    BrokerUnreachable,
    LogTruncated,
    OffsetOutOfRange,
    UnknownTopicOrPartition,
    from_wire,
)
from folkmoot.protocol.messages import (
    MAX_ENTRIES,
    Api,
    FetchEntry,
    FetchRequest,
    FetchResult,
)
from folkmoot.protocol.quantities import EPOCH
from folkmoot.protocol.records import TopicPartition
from folkmoot.spark_apps.offsets.checkpoint import NO_EPOCH
from folkmoot.spark_apps.options.config import SourceConfig

WATCH: Final = 2.0
"""Seconds that a fetch waits at a broker."""
ANSWER_WAIT: Final = 2.0
PAUSE: Final = 0.1
TIME_WAIT: Final = 30.0
BROKER_WAIT: Final = 30.0
"""Seconds that callers wait for ends that they need."""
PATIENCE: Final = 0.5
"""Seconds beyond its time in which a look still takes answers, while it lacks some."""
_ROOM: Final = 64 * 1024 * 1024

log = logging.getLogger(__name__)


class Place(NamedTuple):
    """The position of reading, and the leader epoch of all records before it (-1: unknown)."""

    topic_id: str
    offset: int
    epoch: int


class End(NamedTuple):
    """The end of a partition under a leader epoch; `start` is its known start.

    `doubts` is the epoch of what was read before, as long as this leader has not been heard about it;
    `refused` an offset that the leader has refused, since its log ends before it.
    """

    topic_id: str
    offset: int
    epoch: int
    start: int = 0
    doubts: int = NO_EPOCH
    refused: int = -1


class LogWatch:
    """Looks up where logs begin and end, and watches their ends; owned by the engine's thread.

    The engine waits: a partition without a leader, or with one that owes an earlier answer, is not
    waited for.
    """

    def __init__(self, config: SourceConfig, discover: Callable[[], Sequence[str] | None]) -> None:
        self._discover = discover
        self._found: frozenset[str] = frozenset()
        self._config = ConsumerConfig[bytes, bytes](
            zookeeper=config.zookeeper, client_id=config.clientId, listener=config.listener
        )
        self._cluster = Cluster.of(self._config, self._discovered)
        self.truncated: dict[TopicPartition, int] = {}
        """The offset at which a partition's log parts from the records that were read. The caller that
        handles one removes it."""
        self._told: dict[TopicPartition, End] = {}
        self._waiting: dict[int, tuple[str, dict[TopicPartition, End]]] = {}
        self._not_before: dict[TopicPartition, float] = {}
        self._sizes: dict[str, float] = {}
        self._topics: set[str] = set()
        self._looked_after: tuple[Mapping[TopicPartition, Place], int] | None = None
        """Places that all have a fetch that waits, at the leaders of that version of the metadata."""

    def watch(
        self, places: Mapping[TopicPartition, Place], wait: float, wake: Wakeup
    ) -> dict[TopicPartition, End]:
        """The ends of these partitions, as far as they are known.

        If some are unknown, or none is past its position, wait up to `timeout` seconds for a change, or for
        `wake`.
        """
        deadline = monotonic() + wait
        is_over = False
        while True:
            self._look_after(places)
            ends = {
                each: at for each in places if (at := self._end(each, places[each])) is not None
            }
            if is_over:
                return ends
            has_more = any(at.offset > places[each].offset for each, at in ends.items())
            enough = has_more and len(ends) == len(places)
            left = 0.0 if enough or self.truncated else deadline - monotonic()
            replies = self._cluster.poll(max(0.0, left), wake)
            for reply in replies:
                self._take(reply)
            late = monotonic() - deadline
            is_over = late >= (0.0 if len(ends) == len(places) else PATIENCE)
            if not replies and (left <= 0 or late >= 0 or wake.wait(0.0)):
                return ends

    def find(
        self, wanted: Mapping[TopicPartition, str], place: int, wait: float = ANSWER_WAIT
    ) -> dict[TopicPartition, int]:
        """The offsets at `place` (EARLIEST or LATEST), as far as they are answered in time."""
        there = {
            each: topic_id
            for each, topic_id in wanted.items()
            if not self._cluster.is_missing(each.topic)
        }
        return list_offsets(self._cluster, place, there, wait, patient=False, others=self._take)

    def first_at(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """The offsets of the first records of these times (ms) or later, None where there is none.

        Raises RequestTimeout, and what makes a partition unreadable.
        """
        moments = {each: EPOCH + timedelta(milliseconds=time) for each, time in times.items()}
        return first_offsets(self._config, self._discover, moments, TIME_WAIT)

    def leader_address(self, partition: TopicPartition) -> str | None:
        return self._cluster.leader_address(partition)

    def partitions(self, topic: str, wait: float) -> range:
        """The topic's partitions. Raises UnknownTopicOrPartition, or why no broker has answered."""
        deadline = monotonic() + wait
        while not (found := self._cluster.partitions(topic)):
            if self._cluster.is_missing(topic):
                raise UnknownTopicOrPartition(f"topic {topic} does not exist")
            if (left := deadline - monotonic()) <= 0:
                why = f"no broker has answered about topic {topic}"
                raise self._cluster.metadata_error or BrokerUnreachable(why)
            for reply in self._cluster.poll(left):
                self._take(reply)
        return found

    def topic_id(self, topic: str) -> str:
        """The topic's id, once `partitions` has found it."""
        return self._cluster.topic_id(topic) or ""

    def describe_silence(self, partitions: Collection[TopicPartition]) -> str:
        """One sentence about partitions without an answer."""
        return describe_silence(partitions, self._cluster.leaderless)

    def brokers(self) -> frozenset[str]:
        """Addresses that executors can ask. Raises why none is known."""
        while not self._found:
            found = self._discovered()
            if found is not None and not found:
                raise BrokerUnreachable("no broker is registered: is one running?")
        return self._found

    def record_bytes(self, topic: str) -> float:
        """Return the approximate bytes of a record in the log, 0 before the first one."""
        return self._sizes.get(topic, 0.0)

    def close(self) -> None:
        self._cluster.close()

    # -- inside -----------------------------------------------------------------------------------

    def _discovered(self) -> Sequence[str] | None:
        found = self._discover()
        self._found = self._found if found is None else frozenset(found)
        return found

    def _end(self, partition: TopicPartition, place: Place) -> End | None:
        told = self._told.get(partition)
        return told if told is not None and told.topic_id == place.topic_id else None

    def _look_after(self, places: Mapping[TopicPartition, Place]) -> None:
        """Have a fetch wait for each partition, at its leader of the moment."""
        looked_after = places, self._cluster.version
        if self._looked_after == looked_after:  # every trigger comes here, mostly with nothing new
            return
        self._looked_after = looked_after
        topics = {each.topic for each in places}
        for topic in self._topics - topics:
            self._cluster.forget(topic)  # it may be deleted, and would be asked for all the time
        self._topics = topics
        watched = {
            each: (address, entry.topic_id, entry.epoch)
            for address, entries in self._waiting.values()
            for each, entry in entries.items()
        }
        by_leader: dict[tuple[str, float], dict[TopicPartition, End]] = {}
        now = monotonic()
        for partition, place in places.items():
            self._cluster.want(partition.topic)
            address = self._cluster.leader_address(partition)
            epoch = self._cluster.leader_epoch(partition)
            if watched.get(partition) == (address, place.topic_id, epoch):
                continue
            if address is None or self._not_before.get(partition, now) > now:
                self._looked_after = None
                continue
            told, wait = self._end(partition, place), WATCH
            if told is None or told.epoch != epoch:
                wait = 0.0  # even that there is nothing is news
                self._told.pop(partition, None)
                doubts = NO_EPOCH if place.epoch == epoch else place.epoch
                told = End(place.topic_id, place.offset, epoch, doubts=doubts)
            elif told.offset < place.offset != told.refused:
                told = told._replace(offset=place.offset)  # an old end, or the log has lost its own
            by_leader.setdefault((address, wait), {})[partition] = told
        for (address, wait), ends in by_leader.items():
            left = iter(ends.items())
            while some := dict(islice(left, MAX_ENTRIES)):
                entries = [
                    FetchEntry(*(topic, at.topic_id, number, at.epoch, at.offset, 0, at.doubts))
                    for (topic, number), at in some.items()
                ]
                request = FetchRequest(wait, 1, _ROOM, entries)
                self._waiting[self._cluster.send(address, Api.FETCH, request)] = address, some

    def _take(self, reply: Reply) -> None:
        if reply.correlation_id not in self._waiting:
            return  # the late answer to a look-up
        _, entries = self._waiting.pop(reply.correlation_id)
        self._looked_after = None
        if reply.error is not None:
            log.info("no ends from %s: %s", reply.address, reply.error)
            self._not_before.update(dict.fromkeys(entries, monotonic() + PAUSE))
            return
        left_out = dict(entries)
        for result, data in zip(reply.response.results, reply.payloads, strict=True):
            partition = TopicPartition(result.topic, result.partition)
            at = left_out.pop(partition)
            if result.error:
                self._refused(partition, at, result)
                continue
            self._told[partition] = End(
                at.topic_id, result.high_watermark, at.epoch, result.log_start
            )
            headers = [header for header, _ in intact_batches(data)[0]]
            if records := sum(header.record_count for header in headers):
                size = sum(header.length for header in headers)
                self._sizes[partition.topic] = size / records
        for partition, at in left_out.items():
            self._told[partition] = at  # it ends where it was asked for

    def _refused(self, partition: TopicPartition, at: End, result: FetchResult) -> None:
        self._told.pop(partition, None)
        error = from_wire(result.error, result.message)
        if isinstance(error, LogTruncated):
            if result.diverging_end < at.offset:
                self.truncated[partition] = result.diverging_end
            else:
                self._told[partition] = at._replace(doubts=NO_EPOCH)
        elif isinstance(error, OffsetOutOfRange) and result.log_start >= 0:
            # Past the end: the log has lost records. Before the start: retention was faster.
            refused = at.offset if at.offset > result.high_watermark else -1
            self._told[partition] = End(
                *(at.topic_id, result.high_watermark, at.epoch, result.log_start), refused=refused
            )
        else:
            log.info("no end of %s: %s", partition, error)
            self._not_before[partition] = monotonic() + PAUSE
