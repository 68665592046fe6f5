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


class ReadPosition(NamedTuple):
    """The position of reading, and the leader epoch of all records before it (-1: unknown)."""

    topic_id: str
    offset: int
    epoch: int


class End(NamedTuple):
    """The end of a partition under a leader epoch; `start` is its known start.

    `unverified_epoch` is the epoch of the last record read, until this leader has confirmed it;
    `refused` an offset that the leader has refused, since its log ends before it.
    """

    topic_id: str
    offset: int
    epoch: int
    start: int = 0
    unverified_epoch: int = NO_EPOCH
    refused: int = -1


class LogWatch:
    """Looks up where logs begin and end, and watches their ends; owned by the engine's thread.

    The engine waits: a partition without a leader, or with one that owes an earlier answer, is not
    waited for.
    """

    def __init__(self, config: SourceConfig, discover: Callable[[], Sequence[str] | None]) -> None:
        self._discover = discover
        self._broker_addresses: frozenset[str] = frozenset()
        self._config = ConsumerConfig[bytes, bytes](
            zookeeper=config.zookeeper, client_id=config.clientId, listener=config.listener
        )
        self._cluster = Cluster.of(self._config, self._discover_brokers)
        self.truncated: dict[TopicPartition, int] = {}
        """The offset at which a partition's log parts from the records that were read. The caller that
        handles one removes it."""
        self._known_ends: dict[TopicPartition, End] = {}
        self._in_flight: dict[int, tuple[str, dict[TopicPartition, End]]] = {}
        self._retry_after: dict[TopicPartition, float] = {}
        self._sizes: dict[str, float] = {}
        self._topics: set[str] = set()
        self._watched: tuple[Mapping[TopicPartition, ReadPosition], int] | None = None
        """Positions that all have a fetch that waits, at the leaders of that version of the metadata."""

    def watch(
        self, positions: Mapping[TopicPartition, ReadPosition], timeout: float, wakeup: Wakeup
    ) -> dict[TopicPartition, End]:
        """The ends of these partitions, as far as they are known.

        If some are unknown, or none is past its position, wait up to `timeout` seconds for a change, or for
        `wakeup`.
        """
        deadline = monotonic() + timeout
        is_over = False
        while True:
            self._send_fetches(positions)
            ends = {
                each: end
                for each in positions
                if (end := self._end(each, positions[each])) is not None
            }
            if is_over:
                return ends
            has_more = any(end.offset > positions[each].offset for each, end in ends.items())
            enough = has_more and len(ends) == len(positions)
            remaining = 0.0 if enough or self.truncated else deadline - monotonic()
            replies = self._cluster.poll(max(0.0, remaining), wakeup)
            for reply in replies:
                self._handle_reply(reply)
            late = monotonic() - deadline
            is_over = late >= (0.0 if len(ends) == len(positions) else PATIENCE)
            if not replies and (remaining <= 0 or late >= 0 or wakeup.wait(0.0)):
                return ends

    def find(
        self, partitions: Mapping[TopicPartition, str], target: int, wait: float = ANSWER_WAIT
    ) -> dict[TopicPartition, int]:
        """The offsets at `target` (EARLIEST or LATEST), as far as they are answered in time."""
        existing = {
            each: topic_id
            for each, topic_id in partitions.items()
            if not self._cluster.is_missing(each.topic)
        }
        return list_offsets(
            self._cluster, target, existing, wait, patient=False, others=self._handle_reply
        )

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
            if (remaining := deadline - monotonic()) <= 0:
                why = f"no broker has answered about topic {topic}"
                raise self._cluster.metadata_error or BrokerUnreachable(why)
            for reply in self._cluster.poll(remaining):
                self._handle_reply(reply)
        return found

    def topic_id(self, topic: str) -> str:
        """The topic's id, once `partitions` has found it."""
        return self._cluster.topic_id(topic) or ""

    def describe_silence(self, partitions: Collection[TopicPartition]) -> str:
        """One sentence about partitions without an answer."""
        return describe_silence(partitions, self._cluster.leaderless)

    def brokers(self) -> frozenset[str]:
        """Addresses that executors can ask. Raises why none is known."""
        while not self._broker_addresses:
            found = self._discover_brokers()
            if found is not None and not found:
                raise BrokerUnreachable("no broker is registered: is one running?")
        return self._broker_addresses

    def record_bytes(self, topic: str) -> float:
        """Return the approximate bytes of a record in the log, 0 before the first one."""
        return self._sizes.get(topic, 0.0)

    def close(self) -> None:
        self._cluster.close()

    # -- inside -----------------------------------------------------------------------------------

    def _discover_brokers(self) -> Sequence[str] | None:
        found = self._discover()
        self._broker_addresses = self._broker_addresses if found is None else frozenset(found)
        return found

    def _end(self, partition: TopicPartition, position: ReadPosition) -> End | None:
        end = self._known_ends.get(partition)
        return end if end is not None and end.topic_id == position.topic_id else None

    def _send_fetches(self, positions: Mapping[TopicPartition, ReadPosition]) -> None:
        """Have a fetch wait for each partition, at its leader of the moment."""
        request_key = positions, self._cluster.version
        if self._watched == request_key:  # every trigger comes here, mostly with nothing new
            return
        self._watched = request_key
        topics = {each.topic for each in positions}
        for topic in self._topics - topics:
            self._cluster.forget(topic)  # it may be deleted, and would be asked for all the time
        self._topics = topics
        watched = {
            each: (address, entry.topic_id, entry.epoch)
            for address, entries in self._in_flight.values()
            for each, entry in entries.items()
        }
        by_leader: dict[tuple[str, float], dict[TopicPartition, End]] = {}
        now = monotonic()
        for partition, position in positions.items():
            self._cluster.want(partition.topic)
            address = self._cluster.leader_address(partition)
            epoch = self._cluster.leader_epoch(partition)
            if watched.get(partition) == (address, position.topic_id, epoch):
                continue
            if address is None or self._retry_after.get(partition, now) > now:
                self._watched = None
                continue
            end, wait = self._end(partition, position), WATCH
            if end is None or end.epoch != epoch:
                wait = 0.0  # even that there is nothing is news
                self._known_ends.pop(partition, None)
                unverified = NO_EPOCH if position.epoch == epoch else position.epoch
                end = End(position.topic_id, position.offset, epoch, unverified_epoch=unverified)
            elif end.offset < position.offset != end.refused:
                # An old end, or the log has lost its own.
                end = end._replace(offset=position.offset)
            by_leader.setdefault((address, wait), {})[partition] = end
        for (address, wait), ends in by_leader.items():
            remaining = iter(ends.items())
            while chunk := dict(islice(remaining, MAX_ENTRIES)):
                entries = [
                    FetchEntry(
                        *(
                            topic,
                            end.topic_id,
                            number,
                            end.epoch,
                            end.offset,
                            0,
                            end.unverified_epoch,
                        )
                    )
                    for (topic, number), end in chunk.items()
                ]
                request = FetchRequest(wait, 1, _ROOM, entries)
                self._in_flight[self._cluster.send(address, Api.FETCH, request)] = address, chunk

    def _handle_reply(self, reply: Reply) -> None:
        if reply.correlation_id not in self._in_flight:
            return  # the late answer to a look-up
        _, entries = self._in_flight.pop(reply.correlation_id)
        self._watched = None
        if reply.error is not None:
            log.info("no ends from %s: %s", reply.address, reply.error)
            self._retry_after.update(dict.fromkeys(entries, monotonic() + PAUSE))
            return
        unanswered = dict(entries)
        for result, data in zip(reply.response.results, reply.payloads, strict=True):
            partition = TopicPartition(result.topic, result.partition)
            end = unanswered.pop(partition)
            if result.error:
                self._handle_error(partition, end, result)
                continue
            self._known_ends[partition] = End(
                end.topic_id, result.high_watermark, end.epoch, result.log_start
            )
            headers = [header for header, _ in intact_batches(data)[0]]
            if records := sum(header.record_count for header in headers):
                size = sum(header.length for header in headers)
                self._sizes[partition.topic] = size / records
        for partition, end in unanswered.items():
            self._known_ends[partition] = end  # it ends where it was asked for

    def _handle_error(self, partition: TopicPartition, end: End, result: FetchResult) -> None:
        self._known_ends.pop(partition, None)
        error = from_wire(result.error, result.message)
        if isinstance(error, LogTruncated):
            if result.diverging_end < end.offset:
                self.truncated[partition] = result.diverging_end
            else:
                self._known_ends[partition] = end._replace(unverified_epoch=NO_EPOCH)
        elif isinstance(error, OffsetOutOfRange) and result.log_start >= 0:
            # Past the end: the log has lost records. Before the start: retention was faster.
            refused = end.offset if end.offset > result.high_watermark else -1
            self._known_ends[partition] = End(
                *(end.topic_id, result.high_watermark, end.epoch, result.log_start), refused=refused
            )
        else:
            log.info("no end of %s: %s", partition, error)
            self._retry_after[partition] = monotonic() + PAUSE
