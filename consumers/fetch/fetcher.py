"""Keeps a bounded buffer of batches full for the partitions that a consumer reads.

```
         add                    looked up                  reply                     take
(none) ─────► looking up ──────────────────► hungry ─────────────► buffered ────────────────► records
              (no offset known)               ▲  fetch in flight      │ buffer below its bound
                                              └───────────────────────┘
```

A partition asks for more as soon as less than its share is buffered, without waiting for its
neighbours: all hungry partitions of a broker go into one request (up to ENTRIES), and a broker has up
to FETCHES_IN_FLIGHT of them and one per ENTRIES partitions, so that the next data is on its way while
the last is handed out, and every partition is waited for. Fetches that wait there for new records are
not counted among them but have a bound of their own (FETCHES_WAITING): partitions that have come to
their end must not keep those from being read on whose records are there.
Batches stay as they came until they are handed out; partitions take turns, one batch each.

Nothing is asked for beyond `buffer_bytes`; what was asked for before may still come on top of it.

What makes reading a partition impossible (an illegible batch, no offset to start at, its topic gone)
stops that partition and no other, is told once by `check`, and ends with a `seek`. A batch that
cannot be read is never skipped.

Owned by the thread that polls the consumer.
"""

import logging
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import Any, Final

from folkmoot.consumers.config import ConsumerConfig
from folkmoot.consumers.fetch.batch_rotation import Turns
from folkmoot.consumers.fetch.fetch_queue import Waiting, by_leader, portions
from folkmoot.consumers.fetch.fetch_session import Requests
from folkmoot.consumers.fetch.metrics import ConsumerCounters, state_of
from folkmoot.consumers.fetch.partition_state import Asked, Reading, Room, whole_batches
from folkmoot.consumers.records.batch_view import RecordBatchView
from folkmoot.network.client import Reply, SupportsFileno
from folkmoot.network.cluster import Cluster
from folkmoot.protocol.errors import (
    CorruptBatch,
    FolkmootError,
    InvalidRequest,
    NoOffset,
    NotAssigned,
    NotLeader,
    OffsetOutOfRange,
    RetriableError,
    StaleTopicId,
    UnknownFetch,
    UnknownTopicOrPartition,
    from_wire,
)
from folkmoot.protocol.messages import (
    EARLIEST,
    LATEST,
    Api,
    BrokerInfo,
    FetchEntry,
    FetchRequest,
    FetchResult,
    ListOffsetsEntry,
    ListOffsetsRequest,
    ListOffsetsResult,
)
from folkmoot.protocol.records import TopicPartition

log = logging.getLogger(__name__)
FETCHES_IN_FLIGHT: Final = 4
FETCHES_WAITING: Final = 12
"""At one broker; when there are as many, what is at its end goes with the next that is answered."""
ENTRIES: Final = 1_000
"""Partitions in one request at most; the others go into the next."""
MORE_FETCHES: Final = 28
RETRY_PAUSE: Final = 0.1
GONE_PATIENCE: Final = 2.0
"""A topic may be missing, or another one, for this long: brokers learn of topics one by one."""


class Fetcher:
    """Reads partitions ahead of their consumer; see the module's drawing."""

    def __init__(
        self,
        config: ConsumerConfig,
        cluster: Cluster,
        clock: Callable[[], float],
        found: Callable[[TopicPartition, int], None] = lambda partition, offset: None,
    ) -> None:
        self.counters = ConsumerCounters()
        self._config = config
        self._cluster = cluster
        self._clock = clock
        self._found = found  # is told each offset that was looked up, but no batch of a time
        self._readings: dict[TopicPartition, Reading] = {}
        self._waiting = Waiting(config.partition_fetch_bytes)
        self._room = Room()
        self._errors: dict[TopicPartition, FolkmootError] = {}
        self._requests = Requests(self._waiting)
        self._retry_at = math.inf
        self.turns = Turns(self._readings, self._waiting, self._start_at, self._stick)

    # -- what to read -----------------------------------------------------------------------------

    def add(self, partition: TopicPartition, offset: int | None, topic_id: str = "") -> None:
        """Read a partition from `offset` on, or from where the reset policy says.

        With a `topic_id`, another topic of the same name is waited out: who gave the id will say
        what follows. Without, the topic is the one that is found, and its end is an error.
        """
        self.remove(partition)
        reading = Reading(partition, topic_id, pinned=bool(topic_id), room=self._room)
        self._readings[partition] = reading
        if offset is None:
            self._reset(reading, NoOffset(f"{partition} has no committed offset"))
        else:
            self._start_at(reading, offset)

    def remove(self, partition: TopicPartition) -> None:
        """Stop reading; what is buffered or in flight is thrown away."""
        if partition in self._readings:
            self._readings.pop(partition).start_at(EARLIEST)
        self._waiting.discard(partition)
        self._errors.pop(partition, None)
        self.turns.forget(partition)

    def seek(self, partition: TopicPartition, place: int) -> None:
        """Go on at an offset, or at EARLIEST or LATEST. Raises NotAssigned."""
        reading = self._reading(partition)
        if not reading.pinned:
            reading.topic_id = ""
        self.turns.forget(partition)
        self._start_at(reading, place)

    def seek_time(self, partition: TopicPartition, timestamp: int) -> None:
        """Go on at the first record of `timestamp` (ms) or later, or at the end. Raises NotAssigned."""
        self.seek(partition, EARLIEST)
        reading = self._reading(partition)
        reading.start_at_time(timestamp)

    def pause(self, partition: TopicPartition, paused: bool) -> None:
        """Hand nothing out, fetch nothing more, or go on. Raises NotAssigned."""
        reading = self._reading(partition)
        reading.paused = paused
        if paused:
            reading.bodies.clear()  # made again when their turn comes
        else:
            self.turns.add(partition)
            self._waiting.offer(reading)

    def position(self, partition: TopicPartition) -> int | None:
        """The next offset to be handed out; None while it is being looked up. Raises NotAssigned."""
        reading = self._reading(partition)
        return None if reading.offset is None else reading.hand_out

    def end(self, partition: TopicPartition) -> int:
        """The high watermark as the last fetch saw it, -1 before the first. Raises NotAssigned."""
        return self._reading(partition).end

    def metrics(self) -> dict[str, int]:
        """Counters since the start; what is buffered now, and the lag as the last fetches saw it."""
        return {**asdict(self.counters), **state_of(list(self._readings.values()))}

    def partitions(self) -> Iterable[TopicPartition]:
        return self._readings.keys()

    # -- what was read ----------------------------------------------------------------------------

    def check(self) -> None:
        """Raise what has made reading a partition impossible, each once.

        Not before the good records in front of it: a seek behind it would skip them unseen.
        """
        for partition, reading in [(each, self._readings[each]) for each in self._errors]:
            if reading.paused or not reading.has_more:
                raise self._errors.pop(partition)

    def take_view(self, limit: int) -> RecordBatchView | None:
        """Up to `limit` records of the partition whose turn it is, None if nothing is buffered."""
        view = self.turns.take(limit)
        self.counters.records_taken += 0 if view is None else len(view)
        return view

    def poll(self, timeout: float, wake: SupportsFileno | None = None) -> None:
        """Ask for what is missing, then take replies; waits at most `timeout` seconds for the first."""
        now = self._clock()
        self._ask(now)
        for reply in self._cluster.poll(min(timeout, max(0.0, self._retry_at - now)), wake):
            self._reply(reply)

    def ask(self) -> None:
        """Ask for what is missing now."""
        self._ask(self._clock())

    # -- requests ---------------------------------------------------------------------------------

    def _ask(self, now: float) -> None:
        self._retry_at = math.inf
        for address, some in portions(self._due(self._waiting.seeking(), now), ENTRIES):
            entries = [ListOffsetsEntry(*each.key, each.look_up) for each in some]
            asked = Asked(address, some, {}, self._cluster.version)
            self._send(Api.LIST_OFFSETS, ListOffsetsRequest(entries), asked)
        if self._room.used >= self._config.buffer_bytes:
            return
        kept = self._requests.take_kept(self._cluster.version)
        hungry = self._due(self._waiting.hungry(), now)
        for number, asked in kept:
            some = hungry.get(asked.address, [])
            room = ENTRIES - len(asked.members)
            asked.named = some[:room]
            del some[:room]
            self._fetch(asked, number)
        most = FETCHES_IN_FLIGHT + min(len(self._readings) // ENTRIES, MORE_FETCHES)
        for address, some in portions(hungry, ENTRIES):
            if self._requests.under_way(address) >= most:
                continue
            if self._requests.waiting(address) >= FETCHES_WAITING:
                some = [reading for reading in some if not reading.is_at_end]
            if some:
                self._fetch(Asked(address, some, {}, self._cluster.version))

    def _due(self, waiting: Iterator[Reading], now: float) -> dict[str, list[Reading]]:
        """Those that can be asked for now, by broker."""
        due = []
        for reading in waiting:
            if reading.retry_at > now:
                self._retry_at = min(self._retry_at, reading.retry_at)
            elif self._is_there(reading, now):
                due.append(reading)
        return by_leader(due, self._cluster.leader_address)

    def _is_there(self, reading: Reading, now: float) -> bool:
        """Whether the topic being read is the one that brokers know of now; asks them if it is not."""
        topic = reading.partition.topic
        known = self._cluster.topic_id(topic)
        if known is not None and reading.topic_id in ("", known):
            reading.topic_id, reading.gone_since = known, None
            return True
        missing = self._cluster.is_missing(topic)
        if known is None and not missing:
            return False  # metadata is on its way
        self._cluster.refresh()
        if reading.gone_since is None:
            reading.gone_since = now
        if now - reading.gone_since >= GONE_PATIENCE and not reading.pinned:
            what = f"topic {topic} was deleted and created again: seek() to read the new one"
            gone = UnknownTopicOrPartition(f"topic {topic} does not exist (any more)")
            self._stick(reading, gone if missing else StaleTopicId(what))
        return False

    def _fetch(self, asked: Asked, after: int | None = None) -> None:
        config, epoch = self._config, self._cluster.leader_epoch
        most = config.partition_fetch_bytes
        entries = [
            FetchEntry(*each.key, epoch(each.partition), each.offset or 0, most)
            for each in asked.named
        ]
        limits = config.fetch_max_wait, config.fetch_min_bytes, config.fetch_max_bytes
        self.counters.fetches_sent += 1
        self._send(Api.FETCH, FetchRequest(*limits, entries, keep=True, after=after), asked)

    def _send(self, api: Api, request: object, asked: Asked) -> None:
        wait = self._config.request_timeout
        try:
            number = self._cluster.send(asked.address, api, request, timeout=wait)
        except RetriableError as error:
            for each in (*asked.named, *self._requests.let_go(asked)):
                self._refused(each, error)
        else:
            self._requests.begin(number, asked)

    # -- replies ----------------------------------------------------------------------------------

    def _reply(self, reply: Reply) -> None:
        asked = self._requests.end(reply.correlation_id)
        if asked is None:
            return
        error, told = reply.error, dict[TopicPartition, Any]()
        if error is None:
            results = reply.response.results
            told = {TopicPartition(each.topic, each.partition): each for each in results}
            if len(told) < len(results) or not told.keys() <= asked.members.keys():
                error = InvalidRequest(f"broker {reply.address} told of what nobody had asked for")
        if error is not None:
            for reading in self._requests.let_go(asked):
                if not isinstance(error, UnknownFetch):  # then all are simply named again
                    self._refused(reading, error)
            return
        some = [asked.members.pop(partition) for partition in told]
        for reading in asked.named:
            if reading.asked is asked and reading.partition not in told:  # nothing to tell of it
                reading.failures, reading.end = 0, reading.offset or 0
        if reply.api is Api.FETCH and reply.response.kept:
            self._requests.keep(reply.correlation_id, asked)
        else:
            self._requests.let_go(asked)  # they come before those that were served
        data = dict(zip(told, reply.payloads, strict=False))  # of look-ups there is none
        for reading, (partition, result) in zip(some, told.items(), strict=True):
            if reading.asked is not asked:
                continue  # removed, or sent elsewhere by a seek, while this was under way
            reading.asked = None
            self._waiting.offer(reading)
            if partition not in data:
                self._looked_up(reading, result)
            elif not self._fetched(reading, result, data[partition]):
                where = partition, reading.topic_id, reading.offset or 0
                self._cluster.report_damage(reply.address, *where)

    def _looked_up(self, reading: Reading, found: ListOffsetsResult) -> None:
        if found.error:
            self._refused(reading, from_wire(found.error, found.message), found.leader)
            return
        if reading.since is None:
            self._found(reading.partition, found.offset)
        self._start_at(reading, found.offset, reading.since)

    def _fetched(self, reading: Reading, result: FetchResult, data: memoryview) -> bool:
        """Take over what came; False if it begins with something that is no batch."""
        if result.high_watermark >= 0:
            reading.end = result.high_watermark
        if result.error:
            self._refused(reading, from_wire(result.error, result.message), result.leader)
            return True
        reading.failures = 0
        fetched, error = whole_batches(data)
        # What came before the damage is handed out first; then the next fetch begins with it.
        if error is not None and not fetched:
            self._stick(reading, CorruptBatch(reading.about(error)))
            return False
        if fetched:
            self.counters.fetched([header for header, _ in fetched])
            reading.buffer(fetched)
            self.turns.add(reading.partition)
        return True

    def _refused(
        self, reading: Reading, error: FolkmootError, leader: BrokerInfo | None = None
    ) -> None:
        """Try again where that can help; what cannot is told by `check`."""
        self.counters.fetches_refused += 1
        reading.failures += 1
        reading.retry_at = self._clock() + RETRY_PAUSE
        match error:
            case OffsetOutOfRange() if not reading.has_more:  # what came before goes out first
                self._reset(reading, OffsetOutOfRange(reading.about(error)))
            case NotLeader() if leader is not None and reading.failures == 1:
                reading.retry_at = 0.0  # the cluster knows the leader from this very answer
            case RetriableError() | OffsetOutOfRange():
                log.debug("%s: %s", reading.partition, error)
            case _:
                self._stick(reading, type(error)(reading.about(error)))

    def _start_at(self, reading: Reading, place: int, since: int | None = None) -> None:
        reading.start_at(place, since)
        self._waiting.offer(reading)
        self._errors.pop(reading.partition, None)

    def _reset(self, reading: Reading, reason: FolkmootError) -> None:
        """Go on where the policy says."""
        policy = self._config.auto_offset_reset
        if policy == "error":
            hint = "and auto_offset_reset is 'error': seek()"
            self._stick(reading, type(reason)(f"{reason}, {hint}"))
            return
        if isinstance(reason, OffsetOutOfRange):
            self.counters.offset_resets += 1
            log.warning("%s; going on at the %s offset", reason, policy)
        self._start_at(reading, LATEST if policy == "latest" else EARLIEST)

    def _stick(self, reading: Reading, error: FolkmootError) -> None:
        """Read no further until the application has decided where."""
        reading.stuck = True
        self._errors[reading.partition] = error

    def _reading(self, partition: TopicPartition) -> Reading:
        try:
            return self._readings[partition]
        except KeyError:
            raise NotAssigned(f"{partition} is not assigned to this consumer") from None
