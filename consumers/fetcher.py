"""Keeps a bounded buffer of batches full for the partitions that a consumer reads.

```
         add                    looked up                  reply                     take
(none) ─────► looking up ──────────────────► hungry ─────────────► buffered ────────────────► records
              (no offset known)               ▲  fetch in flight      │ buffer below its bound
                                              └───────────────────────┘
```

A partition asks for more as soon as less than its share is buffered, without waiting for its
neighbours: all hungry partitions of a broker go into one request, and a broker has up to
FETCHES_IN_FLIGHT of them, so that the next data is on its way while the last is handed out.
Batches stay as they came until they are handed out; partitions take turns, one batch each.

Owned by the thread that polls the consumer.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from folkmoot.consumers.config import ConsumerConfig
from folkmoot.network.client import Reply, SupportsFileno
from folkmoot.network.cluster import Cluster
from folkmoot.protocol import batch
from folkmoot.protocol.batch import BatchHeader
from folkmoot.protocol.errors import (
    FolkmootError,
    NoOffset,
    NotAssigned,
    NotLeader,
    OffsetOutOfRange,
    RetriableError,
    from_wire,
)
from folkmoot.protocol.records import Record, TopicPartition
from folkmoot.protocol.requests import (
    EARLIEST,
    LATEST,
    Api,
    BrokerInfo,
    FetchEntry,
    FetchRequest,
    FetchResponse,
    FetchResult,
    ListOffsetsEntry,
    ListOffsetsRequest,
    ListOffsetsResponse,
)

log = logging.getLogger(__name__)

FETCHES_IN_FLIGHT = 4
RETRY_PAUSE = 0.1


@dataclass(slots=True)
class _Reading:
    """One partition being read. `turn` changes when what is in flight no longer counts."""

    offset: int | None
    look_up: int | None = None
    turn: int = 0
    in_flight: bool = False
    retry_at: float = 0.0
    paused: bool = False
    end: int = -1
    topic_id: str = ""
    buffered_bytes: int = 0
    batches: deque[tuple[BatchHeader, memoryview]] = field(default_factory=deque)
    decoded: list[Record] = field(default_factory=list)
    """What is left of the batch being handed out; `resume` is where to go on after it."""
    resume: int = 0
    hand_out: int = 0
    """Next offset to hand out; `offset` is the next one to fetch."""


@dataclass(frozen=True, slots=True)
class _InFlight:
    """What a request asked for: each partition with its turn."""

    turns: tuple[tuple[TopicPartition, int], ...]


class Fetcher:
    """Reads partitions ahead of their consumer; see the module's drawing."""

    def __init__(
        self, config: ConsumerConfig, cluster: Cluster, clock: Callable[[], float]
    ) -> None:
        self._config = config
        self._cluster = cluster
        self._clock = clock
        self._readings: dict[TopicPartition, _Reading] = {}
        self._ready: deque[TopicPartition] = deque()
        self._requests: dict[int, _InFlight] = {}
        self._in_flight: dict[str, int] = {}
        self._turns = 0
        self._error: FolkmootError | None = None

    # -- what to read -----------------------------------------------------------------------------

    def add(self, partition: TopicPartition, offset: int | None, topic_id: str = "") -> None:
        """Read a partition from `offset` on, or from where the reset policy says.

        With a `topic_id`, a later topic of the same name is not mistaken for this one.
        """
        self._readings[partition] = reading = _Reading(None, topic_id=topic_id)
        self._start_at(partition, reading, offset)

    def remove(self, partition: TopicPartition) -> None:
        """Stop reading; what is buffered or in flight is thrown away."""
        self._readings.pop(partition, None)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Go on at `offset`, or at EARLIEST or LATEST."""
        reading = self._reading(partition)
        if offset in (EARLIEST, LATEST):
            self._start_at(partition, reading, None, offset)
        else:
            self._start_at(partition, reading, offset)

    def pause(self, partition: TopicPartition, paused: bool) -> None:
        """Hand nothing out, fetch nothing more, or go on."""
        self._reading(partition).paused = paused
        if not paused:
            self._ready.append(partition)

    def position(self, partition: TopicPartition) -> int | None:
        """The next offset to be handed out; None while it is being looked up."""
        reading = self._reading(partition)
        return None if reading.offset is None else reading.hand_out

    def end(self, partition: TopicPartition) -> int:
        """The high watermark as the last fetch saw it, -1 before the first."""
        return self._reading(partition).end

    def partitions(self) -> Iterable[TopicPartition]:
        return self._readings.keys()

    # -- what was read ----------------------------------------------------------------------------

    def take(self, limit: int) -> list[Record]:
        """Up to `limit` records of the partition whose turn it is, none if nothing is buffered.

        Raises what made reading a partition impossible, once.
        """
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        while self._ready:
            partition = self._ready.popleft()
            reading = self._readings.get(partition)
            if reading is None or reading.paused:
                continue
            if not reading.decoded and reading.batches:
                self._decode(partition, reading)
            records, reading.decoded = reading.decoded[:limit], reading.decoded[limit:]
            if reading.decoded or reading.batches:
                self._ready.append(partition)
            if records:
                at_end = not reading.decoded
                reading.hand_out = reading.resume if at_end else records[-1].offset + 1
                return records
        return []

    def put_back(self, partition: TopicPartition, records: list[Record]) -> None:
        """Take back the last of the records just taken, which were not handed out after all."""
        reading = self._readings.get(partition)
        if reading is not None and records:
            reading.decoded[:0] = records
            reading.hand_out = records[0].offset
            self._ready.appendleft(partition)

    def poll(self, timeout: float, wake: SupportsFileno | None = None) -> None:
        """Ask for what is missing, then take replies; waits at most `timeout` seconds for the first."""
        self._ask(self._clock())
        for reply in self._cluster.poll(timeout, wake):
            self._reply(reply)

    # -- requests ---------------------------------------------------------------------------------

    def _ask(self, now: float) -> None:
        fetches: dict[str, list[TopicPartition]] = {}
        look_ups: dict[str, list[TopicPartition]] = {}
        room = self._config.buffer_bytes - sum(
            reading.buffered_bytes for reading in self._readings.values()
        )
        for partition, reading in self._readings.items():
            if reading.in_flight or reading.retry_at > now:
                continue
            if reading.offset is not None and (
                reading.paused
                or room <= 0
                or reading.buffered_bytes >= self._config.partition_fetch_bytes
            ):
                continue
            address = self._cluster.leader_address(partition)
            if address is None or not self._same_topic(partition, reading):
                self._cluster.want(partition.topic)
                continue  # metadata is on its way
            wanted = look_ups if reading.offset is None else fetches
            wanted.setdefault(address, []).append(partition)
        for address, some in look_ups.items():
            self._look_up(address, some)
        for address, some in fetches.items():
            if self._in_flight.get(address, 0) < FETCHES_IN_FLIGHT:
                self._fetch(address, some)

    def _fetch(self, address: str, some: list[TopicPartition]) -> None:
        config = self._config
        entries = []
        for each in some:
            reading = self._readings[each]
            assert reading.offset is not None
            epoch = self._cluster.leader_epoch(each)
            size = config.partition_fetch_bytes
            entries.append(FetchEntry(*_key(each, reading), epoch, reading.offset, size))
        request = FetchRequest(
            config.fetch_max_wait, config.fetch_min_bytes, config.fetch_max_bytes, entries
        )
        self._send(address, Api.FETCH, request, some)

    def _look_up(self, address: str, some: list[TopicPartition]) -> None:
        entries = []
        for each in some:
            reading = self._readings[each]
            assert reading.look_up is not None
            entries.append(ListOffsetsEntry(*_key(each, reading), reading.look_up))
        self._send(address, Api.LIST_OFFSETS, ListOffsetsRequest(entries), some)

    def _send(self, address: str, api: Api, request: object, some: list[TopicPartition]) -> None:
        timeout = self._config.request_timeout
        correlation_id = self._cluster.send(address, api, request, timeout=timeout)
        turns = tuple((each, self._readings[each].turn) for each in some)
        self._requests[correlation_id] = _InFlight(turns)
        self._in_flight[address] = self._in_flight.get(address, 0) + 1
        for each in some:
            self._readings[each].in_flight = True

    # -- replies ----------------------------------------------------------------------------------

    def _reply(self, reply: Reply) -> None:
        asked = self._requests.pop(reply.correlation_id, None)
        if asked is None:
            return
        self._in_flight[reply.address] -= 1
        payloads = reply.payloads
        for position, (partition, turn) in enumerate(asked.turns):
            reading = self._readings.get(partition)
            if reading is None or reading.turn != turn:
                continue  # removed, or sent elsewhere by a seek, while this was under way
            reading.in_flight = False
            if reply.error is not None:
                self._refused(partition, reading, reply.error, None)
            elif isinstance(reply.response, FetchResponse):
                result = reply.response.results[position]
                self._fetched(partition, reading, result, payloads[position])
            elif isinstance(reply.response, ListOffsetsResponse):
                found = reply.response.results[position]
                if found.error:
                    error = from_wire(found.error, found.message)
                    self._refused(partition, reading, error, found.leader)
                else:
                    self._start_at(partition, reading, found.offset)

    def _fetched(
        self, partition: TopicPartition, reading: _Reading, result: FetchResult, data: memoryview
    ) -> None:
        if result.error:
            error = from_wire(result.error, result.message)
            self._refused(partition, reading, error, result.leader)
            return
        reading.end = result.high_watermark
        if not len(data):
            return
        try:
            batches = list(batch.split(data))
        except FolkmootError as error:
            self._refused(partition, reading, error, None)
            return
        if not reading.batches and not reading.decoded:
            self._ready.append(partition)
        reading.batches.extend(batches)
        reading.buffered_bytes += len(data)
        reading.offset = batches[-1][0].next_offset

    def _refused(
        self,
        partition: TopicPartition,
        reading: _Reading,
        error: FolkmootError,
        leader: BrokerInfo | None,
    ) -> None:
        """Try again where that can help; what cannot is raised by the next `take`."""
        reading.retry_at = self._clock() + RETRY_PAUSE
        match error:
            case OffsetOutOfRange() if self._config.auto_offset_reset != "error":
                reset = self._config.auto_offset_reset
                log.warning("%s: %s; going on at %s", partition, error, reset)
                self._start_at(partition, reading, None)
            case NotLeader() if leader is not None:
                reading.retry_at = 0.0  # the cluster knows the leader from this very answer
            case RetriableError():
                log.debug("%s: %s", partition, error)
            case _:
                reading.paused = True  # until the application decides: it may seek past it
                self._error = type(error)(f"{partition}: {error}")

    # -- details ----------------------------------------------------------------------------------

    def _decode(self, partition: TopicPartition, reading: _Reading) -> None:
        """Open the next batch; its first records may lie before the place where we started."""
        header, data = reading.batches.popleft()
        reading.buffered_bytes -= header.length
        reading.resume = header.next_offset
        try:
            records = batch.records_of(partition.topic, partition.partition, header, data)
        except FolkmootError as error:
            self._start_at(partition, reading, reading.hand_out)
            reading.paused = (
                True  # nothing behind it is handed out: the application may seek past it
            )
            raise type(error)(f"{partition}, batch at {header.base_offset}: {error}") from None
        if header.base_offset < reading.hand_out:
            records = [record for record in records if record.offset >= reading.hand_out]
        reading.decoded = records
        if not records:
            reading.hand_out = max(reading.hand_out, header.next_offset)

    def _start_at(
        self,
        partition: TopicPartition,
        reading: _Reading,
        offset: int | None,
        look_up: int | None = None,
    ) -> None:
        """Forget what is buffered or in flight; go on at `offset`, or at what `look_up` gives."""
        self._turns += 1
        reading.turn = self._turns
        reading.in_flight = False
        reading.batches.clear()
        reading.decoded = []
        reading.buffered_bytes = 0
        reading.offset = offset
        if offset is not None:
            reading.hand_out = offset
            reading.paused = False
            return
        if look_up is None:
            if self._config.auto_offset_reset == "error":
                reading.paused = True
                self._error = NoOffset(
                    f"{partition} has no committed offset and auto_offset_reset is 'error': seek()"
                )
            look_up = LATEST if self._config.auto_offset_reset == "latest" else EARLIEST
        reading.look_up = look_up

    def _same_topic(self, partition: TopicPartition, reading: _Reading) -> bool:
        known = self._cluster.topic_id(partition.topic)
        if not reading.topic_id and known is not None:
            reading.topic_id = known
        return known is not None and known == reading.topic_id

    def _reading(self, partition: TopicPartition) -> _Reading:
        try:
            return self._readings[partition]
        except KeyError:
            raise NotAssigned(f"{partition} is not assigned to this consumer") from None


def _key(partition: TopicPartition, reading: _Reading) -> tuple[str, str, int]:
    """The first three fields of an entry: topic, its id, partition."""
    return partition.topic, reading.topic_id, partition.partition
