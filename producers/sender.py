"""What the sender decides: which batch goes where, and when, and what an answer means. No I/O, no clock."""

from collections.abc import Iterable
from math import inf
from random import Random
from typing import Any, Final, NamedTuple, Protocol

from folkmoot.producers.batches import Batch, Piece
from folkmoot.producers.chunks import Chunk
from folkmoot.producers.column_chunks import ColumnChunk
from folkmoot.producers.config import ProducerConfig
from folkmoot.producers.metrics import ProducerCounters
from folkmoot.producers.partitioners import Partitioner
from folkmoot.producers.queues import Queue
from folkmoot.protocol.errors import (
    DeliveryTimeout,
    FolkmootError,
    NotLeader,
    PartitionerFailed,
    RetriableError,
    SerializationError,
    from_wire,
)
from folkmoot.protocol.records import TopicPartition
from folkmoot.protocol.requests import ProduceEntry, ProduceRequest

LONGEST_PAUSE: Final = 1.0
REQUEST_BYTES: Final = 16 * 1024 * 1024
REQUEST_ENTRIES: Final = 1000


class View(Protocol):
    """What the sender needs to know of the cluster; `network.cluster.Cluster` knows it."""

    def leader_address(self, partition: TopicPartition) -> str | None: ...

    def leader_epoch(self, partition: TopicPartition) -> int: ...

    def topic_id(self, topic: str) -> str | None: ...

    def partitions(self, topic: str) -> range: ...


class Shipment(NamedTuple):
    """A request to be sent: `payloads[i]` is the sealed `batches[i]`."""

    address: str
    request: ProduceRequest
    payloads: list[bytes]
    batches: list[Batch]


class Sender:
    """The sender as a state machine: events in, shipments and finished batches out.

    ```
    add ─► growing ─► sealed, under way ─► delivered
             ▲              │   ▲    └────► failed (an error that will not go away)
             └ same         ▼   │ pause over
               partition   waiting for its next attempt ─► failed (delivery_timeout)
    ```

    Order: a partition has one batch under way, its oldest, and a batch that is sent again is the
    same bytes at the head of its queue; the next one leaves when the head is done. A lost answer
    means that a batch may be in the log twice, never that two of them change places.

    A batch is ready when it is full, when its first record has lingered, when another one waits
    behind it, or when `hurry` says so; until it leaves it grows, so that a slow broker makes
    batches larger. One shipment carries all that is ready for a broker, up to REQUEST_BYTES;
    `max_in_flight` shipments may be under way to each.

    A batch that is not done `delivery_timeout` after its first record was staged has failed, also
    when it is under way: its answer is then ignored, and the next one still waits for that answer.

    `finished` collects what is done; whoever drives the machine takes it from there.
    """

    def __init__(
        self,
        config: ProducerConfig,
        view: View,
        random: Random,
        counters: ProducerCounters | None = None,
    ) -> None:
        self.counters = counters or ProducerCounters()
        self._config = config
        self._view = view
        self._random = random
        self._codec = config.codec
        self._queues: dict[TopicPartition, Queue] = {}
        self._partitioners: dict[str, Partitioner] = {}
        self._counts: dict[str, int] = {}
        self._in_flight: dict[str, int] = {}
        self._shipments: dict[int, Shipment] = {}
        self.finished: list[Batch] = []

    # -- events -------------------------------------------------------------------------------------

    def add(self, chunk: Chunk) -> None:
        """Divide a chunk among the partitions and append to their batches."""
        if chunk.pieces is None:
            try:
                self._divide(chunk)
            except PartitionerFailed as error:
                self.refuse(chunk, error)
                return
        pieces, chunk.pieces = chunk.pieces or [], None
        for partition, piece in pieces:
            self._append(chunk, partition, piece)
        chunk.placed = True
        self._hand_callbacks_on(chunk)

    def refuse(self, chunk: Chunk, error: FolkmootError) -> None:
        """Fail a chunk that will not be sent; whoever waits for its records is told."""
        failed = chunk.fail(error)
        self._finish(failed, error)
        self._hand_callbacks_on(chunk)

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

    def lost(self, correlation_id: int, error: FolkmootError, now: float) -> None:
        """There was no answer, or the broker refused the request as a whole."""
        self.undeliverable(self._shipments.pop(correlation_id), error, now)

    def undeliverable(self, shipment: Shipment, error: FolkmootError, now: float) -> None:
        """The shipment ended with an error, perhaps before it was sent."""
        self._landed(shipment)
        for batch in shipment.batches:
            self._settle(batch, error, -1, shipment.address, now)

    def expire(self, now: float) -> None:
        """Fail what is older than `delivery_timeout`."""
        for queue in self._queues.values():
            while queue.batches and self._deadline(queue.batches[0]) <= now:
                batch = queue.batches.popleft()
                why = f"; last error: {batch.last_error}" if batch.last_error else ""
                error = DeliveryTimeout(
                    f"{batch.count} records for {batch.topic_partition} were not acknowledged within "
                    f"{self._config.delivery_timeout:g} s{why}"
                )
                error.__cause__ = batch.last_error
                self._finish(batch, error)

    def give_up(self, error: FolkmootError) -> None:
        """Fail all that is left."""
        for queue in self._queues.values():
            while queue.batches:
                self._finish(queue.batches.popleft(), error)

    # -- effects ------------------------------------------------------------------------------------

    def shipments(self, now: float, *, hurry: bool = False) -> list[Shipment]:
        """What is to be sent now. Each must be followed by `sent` or `undeliverable`."""
        ready: dict[str, list[tuple[TopicPartition, Queue]]] = {}
        for partition, queue in self._queues.items():
            if not queue.batches or queue.under_way is not None:
                continue
            if self._ready_at(queue, hurry) <= now:
                address = self._view.leader_address(partition)
                if address is not None:
                    ready.setdefault(address, []).append((partition, queue))
        shipments = []
        for address, queues in ready.items():
            while queues and self._in_flight.get(address, 0) < self._config.max_in_flight:
                shipment = self._load(address, queues)
                if shipment.batches:
                    shipments.append(shipment)
        return shipments

    def next_event(self, now: float, *, hurry: bool = False) -> float:
        """When time alone will make a batch ready, or fail it."""
        times = [inf]
        for queue in self._queues.values():
            if queue.batches:
                times.append(self._deadline(queue.batches[0]))
                ready_at = self._ready_at(queue, hurry)
                if queue.under_way is None and ready_at > now:
                    times.append(ready_at)
        return min(times)

    def oldest_number(self) -> float:
        """The lowest chunk number among the batches that are not done, or infinity."""
        heads = (queue.batches[0] for queue in self._queues.values() if queue.batches)
        return min((batch.number for batch in heads), default=inf)

    # -- inside -------------------------------------------------------------------------------------

    def _divide(self, chunk: Chunk) -> None:
        """Choose partitions. Raises PartitionerFailed."""
        topic = chunk.topic
        partitions = self._view.partitions(topic)
        # A topic that has vanished keeps the partitions it had, until it is back or time is over.
        count = self._counts[topic] = len(partitions) or self._counts.get(topic, 1)
        partitioner = self._partitioners.get(topic)
        if partitioner is None:
            config = self._config
            partitioner = Partitioner(self._random, config.batch_bytes, config.partitioner)
            self._partitioners[topic] = partitioner
        keyless = chunk.keyless
        available = self._available(topic, count) if partitioner.spreads or keyless else ()
        if isinstance(chunk, ColumnChunk):
            chosen = partitioner.choose_for_columns(chunk, count, available)
        else:
            chosen = partitioner.choose(
                chunk.keys,
                chunk.explicit,
                topic=topic,
                keyless=keyless,
                record_bytes=chunk.size // len(chunk),
                count=count,
                available=available,
            )
        chunk.divide(chosen)

    def _available(self, topic: str, count: int) -> list[int]:
        known = self._view.leader_address
        return [number for number in range(count) if known(TopicPartition(topic, number))]

    def _append(self, chunk: Chunk, number: int, piece: Piece) -> None:
        partition = TopicPartition(chunk.topic, number)
        queue = self._queues.get(partition)
        if queue is None:
            queue = self._queues[partition] = Queue()
        rank = 0
        full = self._config.batch_bytes
        # Cutting costs time for every record, so a batch may outgrow its size, up to twice of it.
        for part in piece.parts(2 * full):
            last = queue.batches[-1] if queue.batches else None
            if (
                last is None
                or last.is_sealed
                or last.size >= full
                or last.size + part.size > 2 * full
            ):
                last = Batch(partition, chunk.number, chunk.opened_at)
                queue.batches.append(last)
            chunk.place(number, rank, last, last.count)
            last.extend(part)
            rank += len(part.values)

    def _hand_callbacks_on(self, chunk: Chunk) -> None:
        """From here on the batches call them; or the one that stands for a chunk that has failed."""
        callbacks, chunk.callbacks = chunk.callbacks, {}
        for position, call in callbacks.items():
            place = chunk.whereabouts(position)
            assert place is not None
            place[0].callbacks.append(call)
            place[0].observed = True

    def _ready_at(self, queue: Queue, hurry: bool) -> float:
        return queue.ready_at(self._config.linger, self._config.batch_bytes, hurry=hurry)

    def _load(self, address: str, queues: list[tuple[TopicPartition, Queue]]) -> Shipment:
        """One shipment from the front of `queues`; who is served goes to the end of the line."""
        batches: list[Batch] = []
        payloads: list[bytes] = []
        entries: list[ProduceEntry] = []
        size = 0
        while queues and size < REQUEST_BYTES and len(entries) < REQUEST_ENTRIES:
            partition, queue = queues.pop(0)
            payload = self._sealed_head(partition, queue)
            if payload is None:
                continue
            batch = queue.under_way = queue.batches[0]
            self._queues[partition] = self._queues.pop(partition)
            size += len(payload)
            batches.append(batch)
            payloads.append(payload)
            topic_id = self._view.topic_id(partition.topic) or ""
            epoch = self._view.leader_epoch(partition)
            entries.append(ProduceEntry(partition.topic, topic_id, partition.partition, epoch))
        if batches:
            self._in_flight[address] = self._in_flight.get(address, 0) + 1
            self.counters.requests_sent += 1
            self.counters.batches_sent += len(batches)
            self.counters.bytes_sent += size
        acks, timeout = self._config.wire_acks, self._config.request_timeout
        return Shipment(address, ProduceRequest(acks, timeout, entries), payloads, batches)

    def _sealed_head(self, partition: TopicPartition, queue: Queue) -> bytes | None:
        """The bytes of the queue's first batch, made if this is its first attempt.

        One that cannot be written fails, and the one behind it takes its place; None if none is left.
        """
        while queue.batches:
            batch = queue.batches[0]
            if batch.payload is not None:
                return batch.payload
            try:
                payload = batch.seal(self._codec)
            except Exception as error:  # of any kind, want of memory too: the others are to be sent
                queue.batches.popleft()
                self._finish(batch, _unwritable(batch, error))
                continue
            self.counters.bytes_packed += batch.size
            self.counters.bytes_compressed += len(payload)
            return payload
        self._drop_if_empty(partition, queue)
        return None

    def _landed(self, shipment: Shipment) -> None:
        self._in_flight[shipment.address] -= 1
        if not self._in_flight[shipment.address]:
            del self._in_flight[shipment.address]

    def _settle(
        self, batch: Batch, error: FolkmootError | None, base_offset: int, address: str, now: float
    ) -> None:
        queue = self._queues[batch.topic_partition]
        queue.under_way = None
        if batch.done:  # it had expired, and is out of the queue
            self._drop_if_empty(batch.topic_partition, queue)
            return
        if isinstance(error, RetriableError):
            batch.attempts += 1
            self.counters.batches_retried += 1
            batch.last_error = error
            queue.retry_at = now + self._pause(batch, error, address)
            return
        assert queue.batches[0] is batch
        queue.batches.popleft()
        queue.retry_at = -inf
        if error is None:
            batch.deliver(base_offset)
        self._finish(batch, error)
        self._drop_if_empty(batch.topic_partition, queue)

    def _drop_if_empty(self, partition: TopicPartition, queue: Queue) -> None:
        if not queue.batches and queue.under_way is None:
            del self._queues[partition]

    def _pause(self, batch: Batch, error: FolkmootError, address: str) -> float:
        """How long to wait before the next attempt. A leader that is known by now is tried at once."""
        if isinstance(error, NotLeader) and batch.attempts == 1:
            if self._view.leader_address(batch.topic_partition) not in (None, address):
                return 0.0
        growth: float = 2 ** min(batch.attempts - 1, 10)
        pause = min(LONGEST_PAUSE, self._config.retry_backoff * growth)
        return pause * self._random.uniform(0.8, 1.2)

    def _deadline(self, batch: Batch) -> float:
        return batch.opened_at + self._config.delivery_timeout

    def _finish(self, batch: Batch, error: FolkmootError | None) -> None:
        """It is done: delivered already, or failed by `error`."""
        counters = self.counters
        if error is None:
            counters.batches_delivered += 1
            counters.records_delivered += batch.count
        else:
            if not batch.done:
                batch.fail(error)
            counters.batches_failed += 1
            counters.records_failed += batch.count
        self.finished.append(batch)


def _unwritable(batch: Batch, error: Exception) -> FolkmootError:
    if isinstance(error, FolkmootError):
        return error
    failure = SerializationError(
        f"{batch.count} records for {batch.topic_partition} cannot be written: {error!r}"
    )
    failure.__cause__ = error
    return failure


def describe(batches: Iterable[Batch]) -> str:
    """How many records of which partitions, for a log line."""
    counts: dict[str, int] = {}
    for batch in batches:
        name = str(batch.topic_partition)
        counts[name] = counts.get(name, 0) + batch.count
    return ", ".join(f"{count} of {name}" for name, count in sorted(counts.items()))
