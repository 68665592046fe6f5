"""What the sender decides: which batch goes where, and when, and what an answer means. No I/O, no clock."""

from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from heapq import heappop, heappush
from itertools import chain, count
from math import inf
from random import Random
from typing import Any, Final, NamedTuple, Protocol

from folkmoot.network.leaderless import Waiting, said_of
from folkmoot.producers.batch import Batch, compress_together
from folkmoot.producers.config import ProducerConfig
from folkmoot.producers.idempotence import Sequences
from folkmoot.producers.metrics import ProducerCounters
from folkmoot.producers.partition_queue import GATHERING, Failed, PartitionQueue, Terms
from folkmoot.producers.partitioner import place_again
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


class View(Protocol):
    """What the sender knows of the cluster; `network.cluster.Cluster` does. Whenever `version` has
    changed it is asked anew."""

    @property
    def version(self) -> int: ...

    def leader_address(self, partition: TopicPartition) -> str | None: ...

    def leader_epoch(self, partition: TopicPartition) -> int: ...

    def topic_id(self, topic: str) -> str | None: ...

    def partitions(self, topic: str) -> range: ...

    def is_missing(self, topic: str) -> bool: ...

    @property
    def leaderless(self) -> Waiting: ...


class Shipment(NamedTuple):
    """A request to be sent: `payloads[i]` is the sealed `batches[i]`."""

    address: str
    request: ProduceRequest
    payloads: list[bytes]
    batches: list[Batch]


class SenderState:
    """The sender as a state machine: events in, shipments and finished batches out.

    ```
    add ─► growing ─► sealed, under way ─► delivered
             ▲              │   ▲    └────► failed (an error that will not go away)
             └ same         ▼   │ pause over
               partition   waiting for its next attempt ─► failed (delivery_timeout)
    ```

    Order, attempts and identity of a partition's batches are its PartitionQueue's: several are under
    way if the producer is idempotent, a batch sent again is the same, and a broker answers what it has
    already with its offset and refuses what does not follow, so that a lost answer writes nothing
    twice and nothing changes places. (Not idempotent: a lost answer means that a batch may be in the
    log twice, never that two of them change places.)

    A batch is ready when it is full, when its first record has lingered, when another one waits
    behind it, or when `hurry` says so; behind others that are under way only when it is full. Until
    it leaves it grows, so that a slow broker makes batches larger. A request costs all sides much more
    than a record. So those of a broker that linger leave together, when the first has lingered; and
    while a request is under way to it, which it takes one after the other anyway, one that is not full
    waits for the answer as well, until it is GATHERING old at most, or has lingered if that is longer.

    A queue is looked at only when something has happened to it (`_examine`): a batch was opened or
    filled, an answer came, its time has come. It is then among the `_ready` of its leader, or has a
    timer, or waits for an event. So a round costs by what is ready, not by what exists. Leaders are
    looked up once per version of the metadata, and only for queues that have something to send.

    One shipment carries a batch of each partition that is ready for a broker, up to REQUEST_BYTES;
    `max_in_flight` shipments may be under way to each. An idempotent producer sends nothing before
    it was granted ids.

    A batch that is not done `delivery_timeout` after its first record was appended has failed, also
    when it is under way: its answer is then ignored, and the next one still waits for that answer.
    `_order` has all that are not done, oldest first.

    `finished` collects what is done; whoever drives the machine takes it from there.
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
        self.trouble: FolkmootError | None = None
        self._config = config
        self._view = view
        self._version = view.version
        self._sequences = sequences or (Sequences() if config.is_idempotent else None)
        codec = Codec.named(config.compression)
        self._terms = Terms(config, codec, self._sequences, self.counters, random)
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._order: deque[Batch] = deque()
        self._ready: dict[str | None, dict[PartitionQueue, None]] = {}  # by leader; None: not known
        self._lingering: dict[str | None, dict[PartitionQueue, None]] = {}  # so are these
        self._pausing: dict[PartitionQueue, None] = {}  # until their time, or a new leader
        self._displaced: dict[PartitionQueue, None] = {}  # their partitions do not exist any more
        self._held: dict[str, dict[PartitionQueue, None]] = {}  # by topic: they are ready, and wait
        self._timers: list[tuple[float, int, PartitionQueue]] = []
        self._serial = count()
        self._hurry = False
        self._in_flight: dict[str, int] = {}
        self._shipments: dict[int, Shipment] = {}

    @property
    def wants_ids(self) -> bool:
        """Whether producer ids are to be granted before more can be sent."""
        return self._sequences is not None and self._sequences.wants_ids

    def grant(self, ids: Iterable[int]) -> None:
        """Producer ids that nobody else has."""
        if self._sequences is not None:
            self._sequences.grant(ids)
            self.trouble = None

    # -- events -------------------------------------------------------------------------------------

    def add(self, batch: Batch) -> None:
        """A batch was opened, behind all that were added before. It may grow until it is sent."""
        queue = self._queue(batch.topic_partition)
        self._leader(queue)
        if queue.missing is not None:
            self._displaced[queue] = None
        queue.batches.append(batch)
        self._order.append(batch)
        self._examine(queue)

    def filled(self, batch: Batch) -> None:
        """It grows no more."""
        if not batch.done:
            self._examine(self._queues[batch.topic_partition])

    def sent(self, correlation_id: int, shipment: Shipment) -> None:
        """The shipment is under way."""
        self._shipments[correlation_id] = shipment

    def answered(self, correlation_id: int, response: Any, now: float) -> None:
        """The broker's answer; None for a shipment that expects none and was handed over."""
        shipment = self._shipments.pop(correlation_id)
        self._landed(shipment)
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
        """There was no answer, or the broker refused the request as a whole.

        `sent`: whether the broker may have got it.
        """
        self._fall(self._shipments.pop(correlation_id), error, now, sent)

    def undeliverable(self, shipment: Shipment, error: FolkmootError, now: float) -> None:
        """The shipment ended with an error before it was sent."""
        self._fall(shipment, error, now, False)

    def expire(self, now: float) -> None:
        """Fail what is older than `delivery_timeout`."""
        while (oldest := self._oldest()) is not None and self._deadline(oldest) <= now:
            oldest.close()
            queue, batch = self._left_of(oldest)
            error = DeliveryTimeout(
                f"{counted(batch.count, 'record')} for {batch.topic_partition} not acknowledged "
                f"within {self._config.delivery_timeout:g} s{self._why(batch)}"
            )
            error.__cause__ = self._cause(batch)
            self._fail([queue.fail(batch, error)])
            self._examine(queue)

    def purge(self) -> None:
        """Fail all that is not under way."""
        error = RecordsPurged(
            "the record was given up by purge(): it is not in the log, unless an earlier attempt to "
            "send it was not answered"
        )
        for queue in self._queues.values():
            self._fail(queue.fail_waiting(error))
            self._examine(queue)

    def topics(self) -> set[str]:
        """Those of all batches that are not done."""
        return {each.topic_partition.topic for each in self._order if not each.done}

    def end_topic(self, topic: str, error: FolkmootError) -> None:
        """Fail all that is left of a topic, and forget it."""
        for partition, queue in list(self._queues.items()):
            if partition.topic != topic:
                continue
            self._fail(queue.fail_all(error))
            if queue.is_idle:
                del self._queues[partition]
                if self._sequences is not None:
                    self._sequences.forget(partition)

    def give_up(self, batches: Iterable[Batch], error: FolkmootError) -> None:
        """Fail these, wherever they are, unless they are done; nothing follows but the end."""
        self._fail([Failed(batch, error) for batch in batches if not batch.done])

    # -- effects ------------------------------------------------------------------------------------

    def shipments(self, now: float, *, hurry: bool = False) -> Iterator[Shipment]:
        """What is to be sent now. Each must be followed by `sent` or `undeliverable`, at once: the
        next one is made only then, while the first is on its way."""
        self._look_around(now, hurry)
        for address in [address for address in self._ready if address is not None]:
            while (some := self._ready.get(address)) and self._may_send(address):
                shipment = self._load(address, some, now)
                if shipment.batches:
                    yield shipment
            if not self._ready.get(address):
                self._ready.pop(address, None)

    def next_event(self) -> float:
        """When time alone will make a batch ready, or fail it."""
        while self._timers and self._timers[0][0] != self._timers[0][2].timer:
            heappop(self._timers)  # it left before its time
        oldest = self._oldest()
        expires = inf if oldest is None else self._deadline(oldest)
        return min(expires, self._timers[0][0] if self._timers else inf)

    def patience(self, leaders: int) -> float:
        """How long a batch that is opened now may wait, if so many brokers lead: while a request is
        under way to each of them it would do nothing but gather."""
        linger = self._config.linger
        return GATHERING if linger < GATHERING and 0 < leaders <= len(self._in_flight) else linger

    # -- which queues are ready ---------------------------------------------------------------------

    def _look_around(self, now: float, hurry: bool) -> None:
        """See to what has changed since the last time: the metadata, the hurry, and the time."""
        if self._view.version != self._version:
            self._version = self._view.version
            ready, self._ready = self._ready, {}
            lingering, self._lingering = self._lingering, {}
            for queue in chain.from_iterable(ready.values()):
                if queue.batches:
                    self._make_ready(queue)
            pausing, self._pausing = self._pausing, {}
            for queue in chain(*lingering.values(), pausing):
                self._leader(queue)  # a new one changes when it is ready
                self._examine(queue)
            for queue in self._queues.values():
                if queue.batches and self._is_gone(queue.partition):
                    self._leader(queue)
        if hurry and not self._hurry:
            self._hurry = hurry
            timers, self._timers = self._timers, []
            for _, _, queue in timers:
                queue.timer = inf
                self._examine(queue)
        self._hurry = hurry
        while self._timers and self._timers[0][0] <= now:
            at, _, queue = heappop(self._timers)
            if at == queue.timer:
                queue.timer = inf
                if self._examine(queue, now):
                    for other in self._lingering.pop(self._leader(queue), ()):
                        if other.ready_at(hurry=True) <= now:
                            self._make_ready(other)
                        else:
                            self._pausing[other] = None
        if self._displaced:
            self._place_again()
        for topic in [each for each in self._held if not self._awaits_what_is_gone(each)]:
            for queue in self._held.pop(topic):
                self._examine(queue)

    def _place_again(self) -> None:
        """What waits for partitions that are gone goes where its topic is now, or fails.

        What is under way to them does when it has been refused. Until then nothing of the topic is sent:
        it might have later records of the same keys.
        """
        displaced, self._displaced = self._displaced, {}
        for queue in displaced:
            self._leader(queue)  # by now its topic may not be known at all
            if queue.missing is None:
                continue
            topic = queue.partition.topic
            self._held.setdefault(topic, {})
            numbers = self._view.partitions(topic)
            led = [
                each for each in numbers if self._view.leader_address(TopicPartition(topic, each))
            ]
            strategy, random = self._config.partitioner, self._terms.random
            place = partial(place_again, strategy, topic, len(numbers), led or numbers, random)
            moved, failed = queue.displaced(queue.missing, place)
            self._fail(failed)
            for part in moved:
                target = self._queue(part.topic_partition)
                target.insert(part)
                self._examine(target)

    def _awaits_what_is_gone(self, topic: str) -> bool:
        of_topic = (queue for each, queue in self._queues.items() if each.topic == topic)
        return any(queue.missing is not None and queue.awaits_answers for queue in of_topic)

    def _examine(self, queue: PartitionQueue, now: float = -inf) -> bool:
        """Something has happened to it: find out when it is to send. → whether it is ready as of `now`."""
        if not queue.batches or queue.is_all_in_flight:
            return False
        busy = False
        if self._in_flight and self._config.linger < GATHERING:
            busy = self._leader(queue) in self._in_flight
        at = queue.ready_at(hurry=self._hurry, busy=busy)
        if at <= now:
            self._make_ready(queue)
            return True
        if at < inf:
            self._lingering.setdefault(self._leader(queue), {})[queue] = None
            if at < queue.timer:
                queue.timer = at
                heappush(self._timers, (at, next(self._serial), queue))
        return False

    def _make_ready(self, queue: PartitionQueue) -> None:
        queue.timer = inf
        self._ready.setdefault(self._leader(queue), {})[queue] = None

    def _leader(self, queue: PartitionQueue) -> str | None:
        """Its leader's address; None if that is not known."""
        if queue.version != self._version:
            queue.version = self._version
            queue.leader = self._view.leader_address(queue.partition)
            epoch, former = self._view.leader_epoch(queue.partition), queue.leader_epoch
            if epoch > former and queue.leader is not None:
                queue.has_new_leader()
            queue.leader_epoch = epoch
            topic_id = self._view.topic_id(queue.partition.topic) or queue.topic_id
            self._fail(queue.is_of(topic_id))
            queue.missing = None
            if queue.leader is None and self._is_gone(queue.partition):
                count = len(self._view.partitions(queue.partition.topic))
                queue.missing = UnknownTopicOrPartition(
                    f"{queue.partition} does not exist any more: topic {queue.partition.topic} was "
                    f"made anew with {counted(count, 'partition')}"
                )
                self._displaced[queue] = None
        return queue.leader

    def _is_gone(self, partition: TopicPartition) -> bool:
        return 0 < len(self._view.partitions(partition.topic)) <= partition.partition

    def _queue(self, partition: TopicPartition) -> PartitionQueue:
        queue = self._queues.get(partition)
        if queue is None:
            queue = self._queues[partition] = PartitionQueue(partition, self._terms)
        return queue

    def _may_send(self, address: str) -> bool:
        return self._in_flight.get(address, 0) < self._config.max_in_flight and not self.wants_ids

    # -- one shipment -------------------------------------------------------------------------------

    def _load(self, address: str, ready: dict[PartitionQueue, None], now: float) -> Shipment:
        """One shipment, of the first that are ready; who is served goes to the end of the line."""
        batches: list[Batch] = []
        payloads: list[bytes] = []
        entries: list[ProduceEntry] = []
        served: list[PartitionQueue] = []
        size = ahead = 0
        while ready and size < REQUEST_BYTES and len(entries) < REQUEST_ENTRIES:
            if not ahead:
                ahead = self._compress_ahead(ready)
            ahead -= 1
            queue = next(iter(ready))
            del ready[queue]
            if (held := self._held.get(queue.partition.topic)) is not None:
                held[queue] = None
                continue
            served.append(queue)
            while isinstance(batch := queue.send(now), Failed):
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
        # Who waits in vain is told why by the broker, before it stops waiting for that answer.
        wait = min(self._config.request_timeout, self._config.delivery_timeout) / 2
        request = ProduceRequest(self._config.wire_acks, wait, entries)
        return Shipment(address, request, payloads, batches)

    def _compress_ahead(self, queues: Iterable[PartitionQueue]) -> int:
        """Have the first batches compressed together, if they are not sealed. → of how many queues."""
        together: list[Batch] = []
        size = seen = 0
        for queue in queues:
            batch = queue.to_seal()
            if batch is not None:
                size += batch.size
                if together and size > TOGETHER_BYTES:
                    break
                together.append(batch)
            seen += 1
        if len(together) > 1:
            compress_together(together, self._terms.codec, self._config.compression_level)
        return seen

    # -- how it ends --------------------------------------------------------------------------------

    def _landed(self, shipment: Shipment) -> None:
        address = shipment.address
        self._in_flight[address] -= 1
        if not self._in_flight[address]:
            del self._in_flight[address]
            if self._config.linger < GATHERING:
                for queue in self._lingering.pop(address, ()):
                    self._examine(queue)

    def _fall(self, shipment: Shipment, error: FolkmootError, now: float, sent: bool) -> None:
        self._landed(shipment)
        for batch in shipment.batches:
            self._settle(batch, error, -1, shipment.address, now, sent=sent)

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
            # A leader that is known by now is tried at once.
            leader = self._view.leader_address(queue.partition)
            gone = isinstance(error, NotLeader | BrokerUnreachable)
            moved = gone and leader not in (None, address)
            self._fail(queue.refused(batch, error, now, sent=sent, at_once=moved))
            if queue.missing is not None:
                self._displaced[queue] = None
        self._fail(queue.mend())
        self._examine(queue)

    def _oldest(self) -> Batch | None:
        while self._order:
            if not self._order[0].done:
                return self._order[0]
            self._order.popleft()
        return None

    def _left_of(self, whole: Batch) -> tuple[PartitionQueue, Batch]:
        """A batch that is not done, or a part of it, and its queue."""
        partition = whole.topic_partition
        of_topic = (q for each, q in self._queues.items() if each.topic == partition.topic)
        queues = chain((self._queues[partition],), of_topic)  # as a rule it is the first of its own
        found = ((queue, each) for queue in queues for each in queue.batches)
        return next(pair for pair in found if pair[1].whole is whole)

    def _why(self, batch: Batch) -> str:
        """What a batch waits for, as the end of a sentence."""
        where = batch.topic_partition
        if (awaited := self._view.leaderless.get(where)) is not None:
            return f": {said_of({where: awaited})}"
        asked = [each.address for each in self._shipments.values() if batch in each.batches]
        said = f": broker {asked[0]} has not answered" if asked else ""
        cause = self._cause(batch)
        return f"{said}; last error: {cause}" if cause else said

    def _cause(self, batch: Batch) -> FolkmootError | None:
        topic, queue = batch.topic_partition.topic, self._queues[batch.topic_partition]
        if self._view.is_missing(topic):
            return UnknownTopicOrPartition(f"topic {topic} does not exist")
        return batch.last_error or queue.last_error or self.trouble

    def _deadline(self, batch: Batch) -> float:
        return batch.opened_at + self._config.delivery_timeout

    def _fail(self, failed: Iterable[Failed]) -> None:
        for batch, error in failed:
            self._end(batch, -1, error)

    def _end(self, batch: Batch, base_offset: int, error: FolkmootError | None) -> None:
        """It is out of its queue: have its handles know how it ended, and `finished`, if it is done as a
        whole."""
        batch.end(base_offset, error)
        whole, counters = batch.whole, self.counters
        if not whole.done:
            return
        if whole.error is None:
            counters.batches_delivered += 1
            counters.records_delivered += whole.count
        else:
            failed = whole.failed
            counters.batches_failed += 1
            counters.records_failed += failed
            counters.records_delivered += whole.count - failed
        self.finished.append(whole)
