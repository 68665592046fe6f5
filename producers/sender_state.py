"""The sender's decisions: which batch is sent where and when, and the meaning of answers. No I/O or clock."""

from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from heapq import heappop, heappush
from itertools import chain
from math import inf
from random import Random
from typing import Any, Final, NamedTuple

from folkmoot.network.leaderless import describe_waiting
from folkmoot.producers.batch import WAITING, Batch, compress_together
from folkmoot.producers.config import ProducerConfig
from folkmoot.producers.idempotence import Sequences
from folkmoot.producers.metrics import ProducerCounters
from folkmoot.producers.partition_queue import (
    GATHERING,
    FailedBatch,
    PartitionQueue,
    SenderContext,
    View,
)
from folkmoot.producers.partitioner import choose_again
from folkmoot.protocol.compression import Codec
from folkmoot.protocol.errors import (
    BrokerUnreachable,
    DeliveryTimeout,
    FolkmootError,
    NotLeader,
    RecordsPurged,
    UnknownTopicOrPartition,
    from_wire,
)
from folkmoot.protocol.messages import ProduceEntry, ProduceRequest
from folkmoot.protocol.quantities import counted
from folkmoot.protocol.records import TopicPartition

REQUEST_BYTES: Final = 16 * 1024 * 1024
REQUEST_ENTRIES: Final = 1000
TOGETHER_BYTES: Final = 8 * 1024 * 1024

Queues = dict[PartitionQueue, None]
"""A set of queues, in order."""


class Shipment(NamedTuple):
    """A request to be sent: `payloads[i]` is the sealed `batches[i]`."""

    address: str
    request: ProduceRequest
    payloads: list[bytes]
    batches: list[Batch]


class SenderState:
    """The sender as a state machine: events in, shipments and finished batches out.

    ```
    add ─► growing ─► sealed, in flight ─► delivered
             ▲              │   ▲     └───► failed (an error that a retry does not mend)
             └ same         ▼   │ pause over
               partition   waiting for its next attempt ─► failed (delivery_timeout)
    ```

    A PartitionQueue has the order, the attempts and the identities of a partition's batches. An idempotent
    producer has several in flight; a lost answer writes nothing twice and nothing changes places. For
    another producer a lost answer may mean that a batch is in the log twice, in order.

    A batch is ready when it is full, when its first record has lingered, when another one waits
    behind it, or in a `hurry`. A batch behind others in flight is ready only when it is full. It grows
    until it leaves, so that a slow broker makes batches larger. A request costs all sides much more than a
    record. So batches that linger for one broker leave together, when the first has lingered. While a
    request is in flight to the broker, a batch that is not full waits for the answer as well, at most for
    GATHERING, or `linger` if that is longer.

    A queue is examined only when something has happened to it: a batch was opened or filled, an answer
    came, its time has come. It is then among the `_ready` of its leader, or has a timer, or waits for
    an event. So a round costs by what is ready, not by what exists: scanning 10,000 lingering queues
    took 20 times the CPU. Leaders are looked up once per version of the metadata, and only for queues
    that have something to send.

    One shipment carries a batch of each partition that is ready for a broker, up to REQUEST_BYTES;
    `max_in_flight` shipments may be in flight to each. An idempotent producer sends nothing without an id.

    A batch that is not done `delivery_timeout` after its first record was appended has failed, also in
    flight. Its answer is then ignored, but the next batch still waits for it.

    `finished` collects what is done; the caller empties it.
    """

    def __init__(
        self,
        config: ProducerConfig[Any, Any],
        view: View,
        random: Random,
        counters: ProducerCounters | None = None,
        sequences: Sequences | None = None,
    ) -> None:
        self.counters = counters or ProducerCounters()
        self.finished: list[Batch] = []
        self.producer_id_error: FolkmootError | None = None
        self.sequences = sequences or (Sequences() if config.is_idempotent else None)
        self._config = config
        self._view = view
        self._version = view.version
        codec = Codec.named(config.compression)
        self._context = SenderContext(config, codec, self.sequences, self.counters, random)
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._unfinished: deque[Batch] = deque()  # oldest first, with some that are done
        self._ready: dict[str | None, Queues] = {}  # by leader; None: not known
        self._lingering: dict[str | None, Queues] = {}  # by leader: they wait for a time
        self._displaced: Queues = {}  # their partitions do not exist any more
        self._postponed: dict[str, Queues] = {}  # by topic: ready, but waiting for displaced ones
        self._timers: list[tuple[float, TopicPartition]] = []
        self._hurry = False
        self._in_flight: dict[str, int] = {}  # shipments, by address
        self._shipments: dict[int, Shipment] = {}

    @property
    def wants_ids(self) -> bool:
        """Return whether nothing can be sent without another producer id."""
        return self.sequences is not None and self.sequences.wants_ids

    def grant(self, ids: Iterable[int]) -> None:
        """Take producer ids that no other producer has."""
        if self.sequences is not None:
            self.sequences.grant(ids)
            self.producer_id_error = None

    # -- events -------------------------------------------------------------------------------------

    def add(self, batch: Batch) -> None:
        """Take a batch that was opened behind all that were added before. It may grow until it is sent."""
        queue = self._queue(batch.topic_partition)
        self._leader(queue)
        if queue.missing is not None:
            self._displaced[queue] = None
        queue.batches.append(batch)
        self._unfinished.append(batch)
        self._examine(queue)

    def filled(self, batch: Batch) -> None:
        """Note that a batch grows no more."""
        if not batch.done:
            self._examine(self._queues[batch.topic_partition])

    def sent(self, correlation_id: int, shipment: Shipment) -> None:
        """Note that the shipment was sent."""
        self._shipments[correlation_id] = shipment

    def answered(self, correlation_id: int, response: Any, now: float) -> None:
        """Take the broker's answer; None for a shipment that was sent and expects none."""
        shipment = self._shipments.pop(correlation_id)
        self._end_shipment(shipment.address)
        for number, batch in enumerate(shipment.batches):
            if response is None:
                self._settle(batch, None, -1, shipment.address, now)
                continue
            result = response.results[number]
            error = from_wire(result.error, result.message) if result.error else None
            self._settle(batch, error, result.base_offset, shipment.address, now)

    def lost(
        self, correlation_id: int, error: FolkmootError, now: float, *, sent: bool = True
    ) -> None:
        """Note that there is no answer, or that the broker refused the request as a whole. `sent`: the
        broker may have got it."""
        self.undeliverable(self._shipments.pop(correlation_id), error, now, sent=sent)

    def undeliverable(
        self, shipment: Shipment, error: FolkmootError, now: float, *, sent: bool = False
    ) -> None:
        """Note that a shipment failed, by default before it was sent."""
        self._end_shipment(shipment.address)
        for batch in shipment.batches:
            self._settle(batch, error, -1, shipment.address, now, sent=sent)

    def expire(self, now: float) -> None:
        """Fail what is older than `delivery_timeout`."""
        timeout = self._config.delivery_timeout
        while self._unfinished:
            oldest = self._unfinished[0]
            if oldest.done:
                self._unfinished.popleft()
                continue
            if oldest.opened_at + timeout > now:
                break
            oldest.close()
            queue, batch = self._find_unfinished(oldest)
            error = DeliveryTimeout(
                f"{counted(batch.count, 'record')} for {batch.topic_partition} not acknowledged "
                f"within {timeout:g} s{self._why(batch)}"
            )
            error.__cause__ = self._cause(batch)
            self._fail([queue.fail(batch, error)])
            self._examine(queue)

    def purge(self) -> None:
        """Fail all batches that are not in flight."""
        error = RecordsPurged(
            "the record was given up by purge(): it is not in the log, unless an earlier attempt to "
            "send it was not answered"
        )
        for queue in self._queues.values():
            self._fail(queue.fail_waiting(error))
            self._examine(queue)

    def topics(self) -> set[str]:
        """Return the topics of all unfinished batches."""
        return {batch.topic_partition.topic for batch in self._unfinished if not batch.done}

    def end_topic(self, topic: str, error: FolkmootError) -> None:
        """Fail all batches of a topic, and forget it."""
        for queue in self._queues_of(topic):
            self._fail(queue.fail_all(error))
            if not queue.batches and not queue.in_flight:
                del self._queues[queue.partition]
                if self.sequences is not None:
                    self.sequences.forget(queue.partition)

    def fail_all(self, batches: Iterable[Batch], error: FolkmootError) -> None:
        """Fail these batches at the end, wherever they are, unless they are done."""
        self._fail([FailedBatch(batch, error) for batch in batches if not batch.done])

    # -- effects ------------------------------------------------------------------------------------

    def shipments(self, now: float, *, hurry: bool = False) -> Iterator[Shipment]:
        """Yield what must be sent now. The caller calls `sent` or `undeliverable` for each at once: the
        next one is made only then, while the first is on its way."""
        self._update(now, hurry)
        limit = self._config.max_in_flight
        for address in [address for address in self._ready if address is not None]:
            while (ready := self._ready.get(address)) and not self.wants_ids:
                if self._in_flight.get(address, 0) >= limit:
                    break
                shipment = self._load(address, ready, now)
                if shipment.batches:
                    yield shipment
            if not self._ready.get(address):
                self._ready.pop(address, None)

    def next_event(self) -> float:
        """Return when time alone will make a batch ready, or fail it."""
        while self._timers:
            at, partition = self._timers[0]
            queue = self._queues.get(partition)
            if queue is not None and queue.timer == at:
                break
            heappop(self._timers)  # it left before its time
        while self._unfinished and self._unfinished[0].done:
            self._unfinished.popleft()
        expires = inf
        if self._unfinished:
            expires = self._unfinished[0].opened_at + self._config.delivery_timeout
        return min(expires, self._timers[0][0] if self._timers else inf)

    def patience(self, leaders: int) -> float:
        """Return how long a batch that is opened now may wait, if there are this many leaders: while a
        request is in flight to each, it would only gather."""
        linger = self._config.linger
        return GATHERING if linger < GATHERING and 0 < leaders <= len(self._in_flight) else linger

    # -- which queues are ready ---------------------------------------------------------------------

    def _update(self, now: float, hurry: bool) -> None:
        """Take in new metadata, a new hurry, and the time."""
        if self._view.version != self._version:
            self._apply_metadata()
        has_hurry, self._hurry = self._hurry, hurry
        if hurry and not has_hurry:
            timers, self._timers = self._timers, []
            for _, partition in timers:
                if (queue := self._queues.get(partition)) is not None:
                    queue.timer = inf
                    self._examine(queue)
        while self._timers and self._timers[0][0] <= now:
            at, partition = heappop(self._timers)
            queue = self._queues.get(partition)
            if queue is not None and at == queue.timer:
                queue.timer = inf
                if self._examine(queue, now):
                    self._end_lingering(queue.leader, now)
        if self._displaced:
            self._move_displaced()
        for topic in [name for name in self._postponed if not self._awaits_displaced(name)]:
            for queue in self._postponed.pop(topic):
                self._examine(queue)

    def _end_lingering(self, leader: str | None, now: float) -> None:
        """Make ready all that lingers for a broker, since one of its queues is."""
        for queue in self._lingering.pop(leader, ()):
            if queue.ready_at(hurry=True) <= now:
                self._make_ready(queue)  # any other waits for an event, or pauses until its timer

    def _apply_metadata(self) -> None:
        self._version = self._view.version
        ready, self._ready = self._ready, {}
        timers, self._timers, self._lingering = self._timers, [], {}
        for queue in chain.from_iterable(ready.values()):
            if queue.batches:
                self._make_ready(queue)
        for at, partition in timers:  # of all that linger or pause
            timed = self._queues.get(partition)
            if timed is not None and timed.timer == at:
                timed.timer = inf
                if timed.batches:
                    self._leader(timed)  # a new one changes when it is ready
                    self._examine(timed)
        for queue in self._queues.values():
            topic, number = queue.partition
            if queue.batches and 0 < len(self._view.partitions(topic)) <= number:
                self._leader(queue)  # which notes that its partition is gone

    def _move_displaced(self) -> None:
        """Move what waits for partitions that are gone to other partitions of the topic, or fail it.

        Batches in flight to them follow when they have been refused. Until then nothing of the topic is
        sent: it might hold later records of the same keys.
        """
        displaced, self._displaced = self._displaced, {}
        for queue in displaced:
            self._leader(queue)  # by now its topic may not be known at all
            if queue.missing is None:
                continue
            topic = queue.partition.topic
            self._postponed.setdefault(topic, {})
            numbers = self._view.partitions(topic)
            led = [
                number
                for number in numbers
                if self._view.leader_address(TopicPartition(topic, number))
            ]
            strategy, random = self._config.partitioner, self._context.random
            choose = partial(choose_again, strategy, topic, len(numbers), led or numbers, random)
            moved, failed = queue.displace(queue.missing, choose)
            self._fail(failed)
            for part in moved:
                target = self._queue(part.topic_partition)
                target.insert(part)
                self._examine(target)

    def _awaits_displaced(self, topic: str) -> bool:
        queues = self._queues_of(topic)
        return any(queue.missing is not None and queue.in_flight for queue in queues)

    def _examine(self, queue: PartitionQueue, now: float = -inf) -> bool:
        """Find out when a queue can send, since something has happened to it. Return whether it is ready
        as of `now`."""
        batches = queue.batches
        if not batches:
            return False
        if batches[0].state is not WAITING and batches[-1].state is not WAITING:
            return False
        leader = queue.leader if queue.version == self._version else self._leader(queue)
        at = queue.ready_at(hurry=self._hurry, busy=leader in self._in_flight)
        if at <= now:
            queue.timer = inf
            self._ready.setdefault(leader, {})[queue] = None
            return True
        if at < inf:
            self._lingering.setdefault(leader, {})[queue] = None
            if at < queue.timer:
                queue.timer = at
                heappush(self._timers, (at, queue.partition))
        return False

    def _make_ready(self, queue: PartitionQueue) -> None:
        queue.timer = inf
        self._ready.setdefault(self._leader(queue), {})[queue] = None

    def _leader(self, queue: PartitionQueue) -> str | None:
        """The address of its leader; None if that is not known."""
        if queue.version != self._version:
            queue.version = self._version
            self._fail(queue.refresh(self._view))
            if queue.missing is not None:
                self._displaced[queue] = None
        return queue.leader

    def _queue(self, partition: TopicPartition) -> PartitionQueue:
        queue = self._queues.get(partition)
        if queue is None:
            queue = self._queues[partition] = PartitionQueue(partition, self._context)
        return queue

    def _queues_of(self, topic: str) -> list[PartitionQueue]:
        return [queue for partition, queue in self._queues.items() if partition.topic == topic]

    # -- one shipment -------------------------------------------------------------------------------

    def _load(self, address: str, ready: Queues, now: float) -> Shipment:
        """Make a shipment of the first queues that are ready; they go to the end of the line."""
        batches: list[Batch] = []
        payloads: list[bytes] = []
        entries: list[ProduceEntry] = []
        served: list[PartitionQueue] = []
        size = ahead = 0
        while ready and size < REQUEST_BYTES and len(entries) < REQUEST_ENTRIES:
            if not ahead and len(ready) > 1:
                ahead = self._compress_ahead(ready)
            ahead = max(0, ahead - 1)
            queue = next(iter(ready))
            del ready[queue]
            if (postponed := self._postponed.get(queue.partition.topic)) is not None:
                postponed[queue] = None
                continue
            served.append(queue)
            while isinstance(batch := queue.send(now), FailedBatch):
                self._fail([batch])
            if batch is None:
                continue
            payload = batch.payload or b""
            size += len(payload)
            if not batch.attempts:
                self.counters.queue_seconds += now - batch.opened_at
            batches.append(batch)
            payloads.append(payload)
            topic, partition = queue.partition
            entries.append(ProduceEntry(topic, queue.topic_id, partition, queue.leader_epoch))
        if batches:
            self._in_flight[address] = self._in_flight.get(address, 0) + 1
            self.counters.requests_sent += 1
            self.counters.batches_sent += len(batches)
            self.counters.bytes_sent += size
        for queue in served:
            self._examine(queue, now)
        # The broker gives up first, so that its answer says why.
        wait = min(self._config.request_timeout, self._config.delivery_timeout) / 2
        request = ProduceRequest(self._config.wire_acks, wait, entries)
        return Shipment(address, request, payloads, batches)

    def _compress_ahead(self, queues: Iterable[PartitionQueue]) -> int:
        """Compress the first batches together, if they are not sealed. Return of how many queues."""
        together: list[Batch] = []
        size = examined = 0
        for queue in queues:
            batch = queue.next()
            if batch is not None and batch.payload is None and batch.unsigned is None:
                size += batch.size
                if together and size > TOGETHER_BYTES:
                    break
                together.append(batch)
            examined += 1
        if len(together) > 1:
            compress_together(together, self._context.codec, self._config.compression_level)
        return examined

    # -- how it ends --------------------------------------------------------------------------------

    def _end_shipment(self, address: str) -> None:
        """Count one shipment less in flight."""
        self._in_flight[address] -= 1
        if not self._in_flight[address]:
            del self._in_flight[address]
            if self._config.linger < GATHERING:
                for queue in self._lingering.pop(address, ()):
                    self._examine(queue)

    def _settle(
        self,
        batch: Batch,
        error: FolkmootError | None,
        base_offset: int,
        address: str,
        now: float,
        *,
        sent: bool = True,
    ) -> None:
        queue = self._queues[batch.topic_partition]
        if error is None:
            if queue.delivered(batch):
                self._end(batch, base_offset, None)
        else:
            # A new leader that is known already is tried at once.
            leader = self._view.leader_address(queue.partition)
            is_leader_lost = isinstance(error, NotLeader | BrokerUnreachable)
            moved = is_leader_lost and leader not in (None, address)
            self._fail(queue.refused(batch, error, now, sent=sent, at_once=moved))
            if queue.missing is not None:
                self._displaced[queue] = None
        if failed := queue.mend():
            self._fail(failed)
        self._examine(queue)

    def _find_unfinished(self, original: Batch) -> tuple[PartitionQueue, Batch]:
        """An unfinished batch, or a part of it, and its queue."""
        topic, own = original.topic_partition.topic, self._queues[original.topic_partition]
        others = (queue for partition, queue in self._queues.items() if partition.topic == topic)
        for queue in chain((own,), others):  # as a rule it is the first of its own
            for batch in queue.batches:
                if batch is original or batch.part_of is original:
                    return queue, batch
        raise AssertionError(f"a batch of {original.topic_partition} is in no queue")

    def _why(self, batch: Batch) -> str:
        """The reason why a batch waits, as the end of a sentence."""
        where = batch.topic_partition
        if (awaited := self._view.leaderless.get(where)) is not None:
            return f": {describe_waiting({where: awaited})}"
        addresses = [
            shipment.address for shipment in self._shipments.values() if batch in shipment.batches
        ]
        silent = f": broker {addresses[0]} has not answered" if addresses else ""
        cause = self._cause(batch)
        return f"{silent}; last error: {cause}" if cause else silent

    def _cause(self, batch: Batch) -> FolkmootError | None:
        topic, queue = batch.topic_partition.topic, self._queues[batch.topic_partition]
        if self._view.is_missing(topic):
            return UnknownTopicOrPartition(f"topic {topic} does not exist")
        return batch.last_error or queue.last_error or self.producer_id_error

    def _fail(self, failed: Iterable[FailedBatch]) -> None:
        for batch, error in failed:
            self._end(batch, -1, error)

    def _end(self, batch: Batch, base_offset: int, error: FolkmootError | None) -> None:
        """Set the outcome of a batch that is out of its queue, and add it to `finished` if it is done as a
        whole."""
        batch.end(base_offset, error)
        original, counters = batch.part_of or batch, self.counters
        if not original.done:
            return
        if original.error is None:
            counters.batches_delivered += 1
            counters.records_delivered += original.count
        else:
            failed = original.failed
            counters.batches_failed += 1
            counters.records_failed += failed
            counters.records_delivered += original.count - failed
        self.finished.append(original)
