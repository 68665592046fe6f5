"""Keeps a bounded buffer of batches full for the partitions that a consumer reads.

```
         add                    looked up                  reply                     take
(none) ─────► looking up ──────────────────► fetchable ──────────► buffered ────────────────► records
              (no offset known)               ▲  fetch in flight      │ buffer below its bound
                                              └───────────────────────┘
```

A partition asks for more as soon as less than its share is buffered. One request has all fetchable
partitions of a broker, up to ENTRIES. A broker has up to FETCHES_IN_FLIGHT requests, and one per ENTRIES
partitions, so that the next data is in flight while the last is handed out. Fetches that wait there for new
records have a bound of their own (FETCHES_WAITING): partitions at their end must not block the others.
Batches are decompressed from their arrival on (`buffer_budget.py`). Partitions take turns, one batch each.

The buffer has `buffer_bytes`, decompressed, plus the requests in flight. If only paused partitions fill it,
their batches are dropped, and fetched again after `resume`.

An error of one partition (an illegible batch, no offset to start at, a missing topic) stops that partition.
`check` raises it once, and a `seek` ends it. An illegible batch is never skipped; it is reported to its
broker.

Owned by the thread that polls the consumer.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

from folkmoot.consumers.config import ConsumerConfig
from folkmoot.consumers.fetch.batch_rotation import BatchRotation
from folkmoot.consumers.fetch.buffer_budget import BufferBudget
from folkmoot.consumers.fetch.fetch_queue import FetchQueue
from folkmoot.consumers.fetch.fetch_session import FetchSessions
from folkmoot.consumers.fetch.partition_buffer import PartitionBuffer
from folkmoot.consumers.fetch.partition_state import (
    InFlightFetch,
    PartitionFetchState,
    intact_batches,
)
from folkmoot.consumers.lag import is_beyond
from folkmoot.consumers.records.batch_view import RecordBatchView
from folkmoot.network.client import Reply, SupportsFileno
from folkmoot.network.cluster import Cluster
from folkmoot.network.leaderless import REPORT_AFTER, Waiting
from folkmoot.protocol import errors
from folkmoot.protocol.messages import (
    EARLIEST,
    LATEST,
    MAX_FETCH_BYTES,
    Api,
    BrokerInfo,
    FetchEntry,
    FetchRequest,
    FetchResult,
    ListOffsetsEntry,
    ListOffsetsRequest,
    ListOffsetsResult,
)
from folkmoot.protocol.process.thread_log import thread_log
from folkmoot.protocol.records import TopicPartition

log = thread_log(__name__)
FETCHES_IN_FLIGHT: Final = 4
FETCHES_WAITING: Final = 12
"""At one broker; further partitions at their end join the next fetch."""
ENTRIES: Final = 1_000
"""Partitions in one request at most."""
MORE_FETCHES: Final = 28
RETRY_PAUSE: Final = 0.1
BAD_BATCHES: Final = 50
"""Fetches of a damaged batch of a replicated partition."""
REPORT_EVERY: Final = 20
FROM_LEADER_FOR: Final = 10.0
"""Seconds that a partition is read from its leader after a follower failed."""
MISSING_PATIENCE: Final = 2.0
"""Seconds that a topic may be missing, or another one: brokers learn of topics one by one."""

_ByBroker = dict[str, list[PartitionFetchState]]


@dataclass(slots=True)
class ConsumerCounters:
    """Counters; they only grow."""

    records_fetched: int = 0
    records_taken: int = 0
    """Taken out of the buffer; records that an iteration returns are taken again."""
    batches_fetched: int = 0
    bytes_fetched: int = 0
    """Compressed."""
    fetches_sent: int = 0
    fetches_refused: int = 0
    """Partitions with an error, over all fetches."""
    offset_resets: int = 0
    records_skipped: int = 0
    """Not deserialized, and skipped by `on_decode_error`."""


class Reader:
    """A fetcher's user: it learns where reading begins, and that a log ends below the position."""

    def begins(self, partition: TopicPartition, offset: int, by_policy: bool) -> bool:
        """A start was looked up (`by_policy`: the end). True: fetch nothing before `Fetcher.committed`."""
        return False

    def is_cut(self, partition: TopicPartition, end: int, parts_at: int | None) -> None:
        """The log ends there. It has the read records up to `parts_at`, if that is known."""


class Fetcher:
    """Reads partitions ahead of their consumer."""

    def __init__(
        self,
        config: ConsumerConfig[Any, Any],
        cluster: Cluster,
        clock: Callable[[], float],
        reader: Reader | None = None,
    ) -> None:
        self.counters = ConsumerCounters()
        self._config = config
        self._cluster = cluster
        self._clock = clock
        self._reader = reader or Reader()
        self._states: dict[TopicPartition, PartitionFetchState] = {}
        self._topics = Counter[str]()  # partitions of each
        self._queue = FetchQueue(config.partition_fetch_bytes)
        self._budget = BufferBudget(config.buffer_bytes)
        self._sessions = FetchSessions(self._queue)
        self.retry_at = math.inf
        """When the next failed request is retried."""
        self.rotation = BatchRotation(self._states, self._queue)

    # -- what to read -----------------------------------------------------------------------------

    def add(self, partition: TopicPartition, offset: int | None, topic_id: str = "") -> None:
        """Read a partition from `offset` on, or by the reset policy.

        With a `topic_id`, another topic of this name is ignored: the caller must act. Without it the topic is
        the current one, and its deletion is an error.
        """
        self.remove(partition)
        buffer = PartitionBuffer(partition, self._budget)
        state = PartitionFetchState(buffer, topic_id, pinned=bool(topic_id))
        self._states[partition] = state
        self._topics[partition.topic] += 1
        if offset is None:
            self._reset(state, errors.NoOffset(f"{partition} has no committed offset"))
        else:
            self._start_at(state, offset)

    def remove(self, partition: TopicPartition) -> None:
        """Stop reading, and drop the buffer."""
        if partition in self._states:
            self._states.pop(partition).start_at(EARLIEST)
            self._topics[partition.topic] -= 1
        self._queue.discard(partition)
        self.rotation.errors.pop(partition, None)

    def forget(self, partition: TopicPartition) -> None:
        """Remove it, and forget the topic after its last partition."""
        self.remove(partition)
        if not self._topics[partition.topic]:
            del self._topics[partition.topic]
            self._cluster.forget(partition.topic)

    def seek(self, partition: TopicPartition, offset: int, since: int | None = None) -> None:
        """Continue at an offset, or at EARLIEST or LATEST; with `since` at its first record (ms).

        Raises NotAssigned.
        """
        state = self._state(partition)
        if not state.pinned:
            state.topic_id = ""
        state.epochs.clear()
        state.start.sought = offset
        self._start_at(state, offset, since)

    def committed(self, partition: TopicPartition) -> None:
        """The group has committed the partition's start: it may be read."""
        state = self._states.get(partition)
        if state is not None and state.start.uncommitted:
            state.start.uncommitted = False
            self._queue.offer(state)

    def pause(self, partition: TopicPartition, paused: bool) -> None:
        """Pause or resume a partition. Raises NotAssigned."""
        state = self._state(partition)
        state.paused = paused
        if not paused:
            self.rotation.add(partition)
            self._queue.offer(state)

    # -- status -----------------------------------------------------------------------------------

    def position(self, partition: TopicPartition) -> int | None:
        """Return the next offset to hand out; None while it is looked up or committed. Raises NotAssigned."""
        state = self._state(partition)
        return None if state.offset is None or state.start.uncommitted else state.position

    def end(self, partition: TopicPartition) -> int:
        """Return the high watermark at the last fetch, -1 before the first. Raises NotAssigned."""
        return self._state(partition).end

    def topic_id_and_end(self, partition: TopicPartition) -> tuple[str, int]:
        """Return the topic's id, and the end at the last fetch; "" and -1 if unknown. From any thread."""
        state = self._states.get(partition)
        return ("", -1) if state is None else (state.topic_id, state.end)

    def lag(self, partition: TopicPartition) -> int | None:
        """Return the records between the position and the end, None if unknown. Raises NotAssigned."""
        return self._state(partition).lag

    def partitions(self) -> list[TopicPartition]:
        """Return the partitions. From any thread: `list` of a dictionary is one step."""
        return list(self._states)

    @property
    def leaderless(self) -> Waiting:
        """The partitions without a leader, and the brokers that they wait for. From any thread."""
        return self._cluster.leaderless

    def lasting_errors(self) -> dict[TopicPartition, errors.FolkmootError]:
        """Return the errors of partitions whose fetches fail for some time. From any thread."""
        since = self._clock() - REPORT_AFTER
        return {
            partition: error
            for partition, state in self._states.copy().items()
            if (error := state.failing.error) is not None and state.failing.since <= since
        }

    def metrics(self) -> dict[str, int]:
        """Return counters since the start, what is buffered now, and the lag at the last fetches."""
        states = list(self._states.values())
        return {
            **asdict(self.counters),
            "partitions": len(states),
            "buffered_bytes": sum(state.buffer.size for state in states),
            "lag": sum(state.lag or 0 for state in states),
        }

    # -- records ----------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise a stopped partition's error, each once."""
        if (partition := self.rotation.stopped()) is not None:
            raise self.rotation.errors.pop(partition)

    def take_view(self, limit: int) -> RecordBatchView | None:
        """Take up to `limit` records of the next partition, None if nothing is buffered."""
        view = self.rotation.take(limit)
        self.counters.records_taken += 0 if view is None else len(view)
        return view

    def stop_at(self, partition: TopicPartition, offset: int, reason: errors.FolkmootError) -> None:
        """Stop at a taken record: `check` raises the reason."""
        state = self._states.get(partition)
        if state is not None:
            self.rotation.take_back(partition, offset)
            state.fetch_again()
            self.rotation.stop(state, reason)

    def poll(self, timeout: float, wake: SupportsFileno | None = None) -> None:
        """Send requests, then take replies; wait at most `timeout` seconds for the first."""
        self.ask()
        wait = min(timeout, max(0.0, self.retry_at - self._clock()))
        try:
            for reply in self._cluster.poll(wait, wake):
                self._reply(reply)
        except BaseException:  # Ctrl-C, or another signal's
            self._sessions.reset(self._states.values())
            raise

    # -- requests ---------------------------------------------------------------------------------

    def ask(self) -> None:
        """Send the requests that are due."""
        try:
            self._ask()
        except BaseException:
            self._sessions.reset(self._states.values())
            raise

    def _ask(self) -> None:
        now = self._clock()
        self.retry_at = math.inf
        is_full = not self._has_room()
        sessions = [] if is_full else self._sessions.take_idle(self._cluster.version)
        need_offset, need_data = self._queue.wanting()
        for address, states in _chunks(self._due(need_offset, now)) if need_offset else ():
            entries = [
                ListOffsetsEntry(
                    state.partition.topic,
                    state.topic_id,
                    state.partition.partition,
                    state.start.look_up,
                )
                for state in states
            ]
            lookup = InFlightFetch(address, states, self._cluster.version)
            self._send(Api.LIST_OFFSETS, ListOffsetsRequest(entries), lookup)
        if is_full:
            return
        fetchable = self._due(need_data, now, self._config.rack) if need_data else {}
        for number, fetch in sessions:
            states = fetchable.get(fetch.address, [])
            room = ENTRIES - len(fetch.members)
            fetch.named = states[:room]
            del states[:room]
            self._fetch(fetch, number)
        most = FETCHES_IN_FLIGHT + min(len(self._states) // ENTRIES, MORE_FETCHES)
        for address, states in _chunks(fetchable):
            if self._sessions.count(address, waiting=False) >= most:
                continue
            if self._sessions.count(address, waiting=True) >= FETCHES_WAITING:
                states = [state for state in states if not state.is_at_end]
            if states:
                self._fetch(InFlightFetch(address, states, self._cluster.version))

    def _has_room(self) -> bool:
        """Return whether the buffer takes more. If only paused partitions fill it, drop theirs."""
        if self._budget.used >= self._config.buffer_bytes and self.rotation.is_idle:
            for state in self._states.values():
                if state.buffer.size:
                    self._fetch_again(state)
        return self._budget.used < self._config.buffer_bytes

    def _due(self, waiting: list[PartitionFetchState], now: float, rack: str = "") -> _ByBroker:
        """Return the partitions to ask for now, by broker; those without a leader wait.

        With a rack the broker is an in-sync replica in it, if there is one; else the leader.
        """
        due: _ByBroker = {}
        for state in waiting:
            if state.failing.retry_at > now:
                self.retry_at = min(self.retry_at, state.failing.retry_at)
            elif self._is_topic_known(state, now):
                if rack and state.failing.from_leader_until <= now:
                    address = self._cluster.nearest_address(state.partition, rack)
                else:
                    address = self._cluster.leader_address(state.partition)
                if address is not None:
                    due.setdefault(address, []).append(state)
        return due

    def _is_topic_known(self, state: PartitionFetchState, now: float) -> bool:
        """Return whether the brokers know this topic; otherwise refresh the metadata."""
        topic = state.partition.topic
        known = self._cluster.topic_id(topic)
        if known is not None and state.topic_id in ("", known):
            state.topic_id, state.failing.missing_since = known, None
            return True
        missing = self._cluster.is_missing(topic)
        if known is None and not missing:
            return False  # metadata is on its way
        self._cluster.refresh()
        if state.failing.missing_since is None:
            state.failing.missing_since = now
        if now - state.failing.missing_since >= MISSING_PATIENCE and not state.pinned:
            what = f"topic {topic} was deleted and created again: seek() to read the new one"
            error = errors.UnknownTopicOrPartition(f"topic {topic} does not exist (any more)")
            self.rotation.stop(state, error if missing else errors.StaleTopicId(what))
            if missing:
                self._cluster.forget(topic)  # until a seek
        return False

    def _fetch(self, fetch: InFlightFetch, after: int | None = None) -> None:
        config, epoch = self._config, self._cluster.leader_epoch
        most = config.partition_fetch_bytes
        entries = [
            FetchEntry(
                *(state.partition.topic, state.topic_id, state.partition.partition),
                *(epoch(state.partition), state.offset or 0, most, state.last_epoch),
            )
            for state in fetch.named
        ]
        limits = config.fetch_max_wait, config.fetch_min_bytes, config.fetch_max_bytes
        self.counters.fetches_sent += 1
        self._send(Api.FETCH, FetchRequest(*limits, entries, keep=True, after=after), fetch)

    def _send(self, api: Api, request: object, fetch: InFlightFetch) -> None:
        wait = self._config.request_timeout
        try:
            number = self._cluster.send(fetch.address, api, request, timeout=wait)
        except errors.RetriableError as error:
            for state in (*fetch.named, *self._sessions.drop(fetch)):
                self._refused(state, error, fetch.address)
        else:
            self._sessions.begin(number, fetch)

    # -- replies ----------------------------------------------------------------------------------

    def _reply(self, reply: Reply) -> None:
        fetch = self._sessions.in_flight.pop(reply.correlation_id, None)
        if fetch is None:
            return
        error, results = reply.error, dict[TopicPartition, Any]()
        if error is None:
            entries = reply.response.results
            results = {TopicPartition(entry.topic, entry.partition): entry for entry in entries}
            if len(results) < len(entries) or not results.keys() <= fetch.members.keys():
                error = errors.InvalidRequest(
                    f"broker {reply.address} answered for partitions that were not requested"
                )
        if error is not None:
            for state in self._sessions.drop(fetch):
                if not isinstance(error, errors.UnknownFetch):  # else they are only named again
                    self._refused(state, error, reply.address)
            return
        answered = [fetch.members.pop(partition) for partition in results]
        # A full answer may lack partitions with news. After the next one with room, those that are missing
        # are at their end.
        most = min(self._config.fetch_max_bytes, MAX_FETCH_BYTES)
        is_full = sum(map(len, reply.payloads)) > max(0, most - self._config.partition_fetch_bytes)
        silent = fetch.members.values() if fetch.was_full else fetch.named
        fetch.was_full = is_full
        for state in () if is_full else silent:
            if state.in_flight is fetch and state.partition not in results:  # nothing is new
                state.failing.clear()
                state.end = state.offset or 0
        if reply.api is Api.FETCH and reply.response.has_session:
            self._sessions.idle[reply.correlation_id] = fetch
        elif fetch.members:
            self._sessions.drop(fetch)  # they come before the answered ones
        data = dict(zip(results, reply.payloads, strict=False))  # a look-up has none
        for state, (partition, result) in zip(answered, results.items(), strict=True):
            if state.in_flight is not fetch:
                continue  # removed, or moved by a seek, meanwhile
            state.in_flight = None
            self._queue.offer(state)
            if partition not in data:
                self._looked_up(state, result, reply.address)
            else:
                self._fetched(state, result, data[partition], reply.address)

    def _looked_up(
        self, state: PartitionFetchState, result: ListOffsetsResult, address: str
    ) -> None:
        if result.error:
            self._refused(
                state, errors.from_wire(result.error, result.message), address, result.leader
            )
            return
        has_to_wait = state.start.since is None and self._reader.begins(
            state.partition, result.offset, state.start.by_policy
        )
        self._start_at(state, result.offset, state.start.since)
        state.start.uncommitted = has_to_wait

    def _fetched(
        self, state: PartitionFetchState, result: FetchResult, data: memoryview, address: str
    ) -> None:
        """Take the batches. A damaged one is reported to its broker, and may stop the partition."""
        if result.high_watermark >= 0:
            state.end = result.high_watermark
        state.log_start = result.log_start
        if result.error:
            refusal = errors.from_wire(result.error, result.message)
            if isinstance(refusal, errors.LogTruncated):
                diverging_offset = state.parts_at(result.diverging_epoch, result.diverging_end)
                refusal.diverging_offset = max(0, diverging_offset)
            self._refused(state, refusal, address, result.leader)
            return
        fetched, error = intact_batches(data)
        if fetched or error is None:
            state.failing.clear()
        if fetched:
            self.counters.batches_fetched += len(fetched)
            self.counters.records_fetched += sum(header.record_count for header, _ in fetched)
            self.counters.bytes_fetched += sum(header.length for header, _ in fetched)
            state.add(fetched)
            self.rotation.add(state.partition)
        elif error is not None:
            # This fetch began with the damage: batches before it came with the last one.
            offset = state.offset or 0
            if state.failing.count % REPORT_EVERY == 0:
                self._cluster.report_damage(address, state.partition, state.topic_id, offset)
            # Its broker may repair it from another replica.
            is_last = not self._cluster.is_replicated(state.partition)
            kind = (
                errors.CorruptBatch
                if is_last or state.failing.count >= BAD_BATCHES
                else errors.OffsetNotAvailable
            )
            self._refused(state, kind(str(error)), address)

    def _truncated(self, state: PartitionFetchState, parts_at: int) -> None:
        """The log has lost the fetched records from `parts_at` on.

        Drop those that the application does not have. If it has some, raise LogTruncated; with a reset policy
        only log it, and continue where the logs part: no record is skipped.
        """
        # No record was handed out yet while a time is still sought.
        has_taken = self.rotation.has_taken(state.partition)
        if state.start.since is not None and not has_taken:
            self._start_at(state, min(parts_at, state.position), state.start.since)
            return
        if parts_at >= state.position:
            self._fetch_again(state)
            return
        if has_taken:
            return  # fetched again after the next `keep`
        error = errors.LogTruncated(
            f"{state.partition}: records before offset {state.position} were read, and from offset "
            f"{parts_at} on are not on the log any more: an unclean election has lost them"
        )
        self._reader.is_cut(state.partition, parts_at, parts_at)
        error.topic, error.partition = state.partition
        error.offset, error.diverging_offset = state.position, parts_at
        if self._config.auto_offset_reset == "error":
            self._start_at(state, state.position)
            self.rotation.stop(state, error)
            return
        self.counters.offset_resets += 1
        log.warning("%s; continuing there", error)
        self._start_at(state, parts_at)

    def _refused(
        self,
        state: PartitionFetchState,
        error: errors.FolkmootError,
        address: str,
        leader: BrokerInfo | None = None,
    ) -> None:
        """Retry if that can help, after a follower's failure at the leader; otherwise stop the partition."""
        self.counters.fetches_refused += 1
        now = self._clock()
        leads = self._cluster.leader_address(state.partition) == address
        if self._config.rack and not leads:
            was_nearest = state.failing.from_leader_until <= now
            state.failing.from_leader_until = now + FROM_LEADER_FOR
            if was_nearest:
                return
        state.failing.record_failure(error, now, RETRY_PAUSE)
        match error:
            case errors.LogTruncated():
                if leads:  # else the current leader decides
                    self._truncated(state, error.diverging_offset)
            case errors.OffsetOutOfRange() if not (
                state.buffer.has_more or self.rotation.has_taken(state.partition)
            ):  # hand out earlier records first
                self._reset(state, errors.OffsetOutOfRange(state.about(error)))
            case errors.NotLeader() if leader is not None and state.failing.count == 1:
                state.failing.retry_at = 0.0  # this answer named the leader
            case errors.RetriableError() | errors.OffsetOutOfRange():
                log.debug("%s: %s", state.partition, error)
            case _:
                self.rotation.stop(state, type(error)(state.about(error)))

    def _start_at(self, state: PartitionFetchState, offset: int, since: int | None = None) -> None:
        state.start_at(offset, since)
        self._queue.offer(state)
        self.rotation.errors.pop(state.partition, None)

    def _fetch_again(self, state: PartitionFetchState) -> None:
        """Fetch again what was not taken, and drop the error after it."""
        state.fetch_again()
        state.stopped = False
        self._queue.offer(state)
        self.rotation.errors.pop(state.partition, None)

    def _reset(self, state: PartitionFetchState, reason: errors.FolkmootError) -> None:
        """Start by the reset policy; look up a sought time again.

        "latest" only counts without a position. If a log has lost its start or its end, all of the rest is
        read, since part of it is unread. A sought offset must exist.
        """
        if state.start.since is not None:
            self._start_at(state, EARLIEST, state.start.since)
            return
        policy = self._config.auto_offset_reset
        if isinstance(reason, errors.OffsetOutOfRange):
            if state.end >= 0 and is_beyond(state.offset, state.end):
                if state.start.sought == state.offset:
                    self.rotation.stop(
                        state, errors.OffsetOutOfRange(f"{reason}: seek() to one that is there")
                    )
                    return
                reason = errors.OffsetOutOfRange(
                    f"{reason}, which was there before: it has lost records"
                )
                self._reader.is_cut(state.partition, state.end, None)
            policy = "error" if policy == "error" else "earliest"
        if policy == "error":
            hint = "and auto_offset_reset is 'error': seek()"
            self.rotation.stop(state, type(reason)(f"{reason}, {hint}"))
            return
        if isinstance(reason, errors.OffsetOutOfRange):
            self.counters.offset_resets += 1
            log.warning("%s; continuing at the %s offset", reason, policy)
        self._start_at(state, LATEST if policy == "latest" else EARLIEST)
        state.start.by_policy = policy == "latest"

    def _state(self, partition: TopicPartition) -> PartitionFetchState:
        try:
            return self._states[partition]
        except KeyError:
            raise errors.NotAssigned(f"{partition} is not assigned to this consumer") from None


def _chunks(due: _ByBroker) -> Iterator[tuple[str, list[PartitionFetchState]]]:
    """Yield each broker's partitions, ENTRIES at a time."""
    for address, states in due.items():
        for start in range(0, len(states), ENTRIES):
            yield address, states[start : start + ENTRIES]
