"""Reading ranges of offsets from brokers alone, for tasks of an engine.

A range is read from its first offset to its end, with the same result each time. The next chunk is in flight
while the last one is opened.
"""

import logging
import time
from collections.abc import Iterator
from typing import NamedTuple

from folkmoot.consumers.fetch.partition_state import intact_batches
from folkmoot.network.client import Reply
from folkmoot.network.cluster import Cluster
from folkmoot.protocol import errors
from folkmoot.protocol.batch_header import BatchHeader
from folkmoot.protocol.messages import Api, FetchEntry, FetchRequest, FetchResult
from folkmoot.protocol.records import TopicPartition

FETCH_BYTES = 1024 * 1024
"""The size of a fetch: a worker holds two or three, and the decompressed batches of one."""
LEAST_FETCH = 16 * 1024
RECORD_BYTES = 128.0
"""A record's assumed size, before the first fetch."""
SPARE = 1.1
FETCH_WAIT = 0.5
PAUSE = 0.1
PATIENCE = 60.0

ANY_EPOCH = -1

log = logging.getLogger(__name__)

_Batch = tuple[BatchHeader, memoryview]


class OffsetRange(NamedTuple):
    """Offsets `[first, end)` of a partition, with its leader and the other brokers.

    A reader needs neither ZooKeeper nor a group. `leader` is None if the partition had no leader;
    `record_bytes` is the approximate size of a record in the log (0: unknown).
    """

    topic: str
    partition: int
    topic_id: str
    first: int
    end: int
    leader: str | None
    brokers: tuple[str, ...]
    record_bytes: float = 0.0


class RangeReader:
    """The fetches of one range, with retries until no batch has come for `patience` seconds.

    `replies` are those for all ranges of the same read. Without `fail_on_data_loss` missing records are
    skipped, with a warning.
    """

    def __init__(
        self,
        part: OffsetRange,
        cluster: Cluster,
        replies: dict[int, Reply],
        *,
        patience: float = PATIENCE,
        fail_on_data_loss: bool = True,
    ) -> None:
        self.part = part
        """The range, without missing records at its beginning."""
        self._cluster = cluster
        self._patience = patience
        self._fail_on_data_loss = fail_on_data_loss
        self._replies = replies
        self._correlation_id: int | None = None
        self._partition = TopicPartition(part.topic, part.partition)
        self._hint = part.leader
        self._offset = part.first
        self._record_bytes = part.record_bytes or RECORD_BYTES

    @property
    def room(self) -> int:
        """The size of the next fetch in bytes."""
        left = int((self.part.end - self._offset) * self._record_bytes * SPARE)
        return min(FETCH_BYTES, max(LEAST_FETCH, left))

    def begin(self) -> None:
        """Send the first fetch, before the range is read."""
        self._cluster.want(self.part.topic)
        self._correlation_id = self._ask()

    def chunks(self) -> Iterator[list[_Batch]]:
        """Yield the range's batches, in order, some at a time."""
        if self._correlation_id is None:
            self.begin()
        correlation_id = self._correlation_id
        deadline = time.monotonic() + self._patience
        while True:
            batches: list[_Batch] = []
            try:
                batches = self._receive(correlation_id)
            except errors.RetriableError as error:
                if time.monotonic() > deadline:
                    self._fail_or_skip(error)
                    return
                log.info("%s at offset %d: %s", self._partition, self._offset, error)
                self._hint = None
                self._pause()
            done = self._offset >= self.part.end
            if not done:
                correlation_id = self._ask()  # in flight while the caller opens the batches
            if batches:
                yield batches
                deadline = time.monotonic() + self._patience
            if done:
                return

    def _ask(self) -> int | None:
        """Send a fetch from the current offset on; None without a known leader."""
        address = self._hint or self._cluster.leader_address(self._partition)
        if address is None:
            return None
        part, room = self.part, self.room
        entry = FetchEntry(
            *(part.topic, part.topic_id, part.partition, ANY_EPOCH, self._offset, room)
        )
        request = FetchRequest(FETCH_WAIT, 1, room, [entry])
        return self._cluster.send(address, Api.FETCH, request)

    def _receive(self, correlation_id: int | None) -> list[_Batch]:
        """Return a fetch's batches, checked, without those after the range; none if it skipped a gap.

        Raises the broker's error.
        """
        if correlation_id is None:
            raise self._cluster.metadata_error or errors.RequestTimeout(
                "the partition has no leader"
            )
        reply = self._reply(correlation_id)
        if reply.error is not None:
            raise reply.error
        if not reply.response.results:
            raise errors.RequestTimeout(f"the log ends at {self._offset}, before what was planned")
        result: FetchResult = reply.response.results[0]
        if result.error == errors.OffsetOutOfRange.code and result.log_start > self._offset:
            self._skip_to(result.log_start)
            return []
        if result.error and result.error != errors.OffsetOutOfRange.code:
            raise errors.from_wire(result.error, result.message)
        batches, error = intact_batches(reply.payloads[0])
        if error is not None:
            where = batches[-1][0].next_offset if batches else self._offset
            topic_id = self.part.topic_id
            self._cluster.report_damage(reply.address, self._partition, topic_id, where)
            raise errors.CorruptBatch(f"{self._partition}: {error}")
        if not batches or batches[-1][0].next_offset <= self._offset:
            raise errors.RequestTimeout(
                f"the log ends at {result.high_watermark}, before what was planned"
            )
        self._offset = batches[-1][0].next_offset
        records = sum(header.record_count for header, _ in batches)
        self._record_bytes = sum(header.length for header, _ in batches) / max(1, records)
        return [batch for batch in batches if batch[0].base_offset < self.part.end]

    def _reply(self, correlation_id: int) -> Reply:
        while correlation_id not in self._replies:
            self._poll(1.0)
        return self._replies.pop(correlation_id)

    def _poll(self, timeout: float) -> None:
        """Keep all replies, also those for later ranges."""
        self._replies.update({reply.correlation_id: reply for reply in self._cluster.poll(timeout)})

    def _pause(self) -> None:
        """Pause, and refresh the metadata meanwhile."""
        end = time.monotonic() + PAUSE
        while (left := end - time.monotonic()) > 0:
            self._poll(left)

    def _skip_to(self, log_start: int) -> None:
        """Skip records that retention has removed, or raise OffsetOutOfRange."""
        first, end = self._offset, min(log_start, self.part.end)
        if self._fail_on_data_loss:
            raise errors.OffsetOutOfRange(
                f"{self._partition}: records {first} to {end - 1} are gone (retention)"
            )
        log.warning("%s: records %d to %d are gone", self._partition, first, end - 1)
        self._offset, self.part = end, self.part._replace(first=end)

    def _fail_or_skip(self, error: errors.RetriableError) -> None:
        """Raise the error, or skip records that are lost for good."""
        lost = isinstance(error, errors.UnknownTopicOrPartition | errors.StaleTopicId)
        where = f"{self._partition}: records {self._offset} to {self.part.end - 1}"
        if not lost or self._fail_on_data_loss:
            raise type(error)(f"{where} could not be read: {error}")
        log.warning("%s are gone: %s", where, error)
