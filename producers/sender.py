"""What the sender decides: which batch goes where, and when, and what an answer means. No I/O, no clock."""

from collections.abc import Iterable, Iterator
from math import inf
from random import Random
from typing import Any, Final, NamedTuple

from folkmoot.producers.batches import Batch, Few, Piece, compress_ahead
from folkmoot.producers.chunks import Chunk
from folkmoot.producers.config import ProducerConfig
from folkmoot.producers.dividing import Division, View, indivisible
from folkmoot.producers.metrics import ProducerCounters
from folkmoot.producers.queues import GATHERING, Queue, Terms
from folkmoot.producers.sequences import Sequences
from folkmoot.protocol.errors import DeliveryTimeout, FolkmootError, NotLeader, from_wire
from folkmoot.protocol.messages import ProduceEntry, ProduceRequest
from folkmoot.protocol.records import TopicPartition

REQUEST_BYTES: Final = 16 * 1024 * 1024
REQUEST_ENTRIES: Final = 1000
TOGETHER_BYTES: Final = 8 * 1024 * 1024


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

    Order, attempts and identity of a partition's batches are its Queue's: several are under way if
    the producer is idempotent, a batch sent again is the same, and a broker answers what it has
    already with its offset and refuses what does not follow, so that a lost answer writes nothing
    twice and nothing changes places. (Not idempotent: a lost answer means that a batch may be in the
    log twice, never that two of them change places.)

    A batch is ready when it is full, when its first record has lingered, when another one waits
    behind it, or when `hurry` says so; behind others that are under way only when it is full. Until
    it leaves it grows, so that a slow broker makes batches larger. While a request is under way to
    its broker, one that is not full waits for the answer as well, until it is GATHERING old at most,
    or has lingered if that is longer: a request costs all sides much more than a record, and a broker
    takes one after the other anyway.

    One shipment carries a batch of each partition that is ready for a broker, up to REQUEST_BYTES;
    `max_in_flight` shipments may be under way to each. An idempotent producer sends nothing before
    it was granted ids.

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
        self._division = Division(config, view, random)
        self._sequences = Sequences() if config.is_idempotent else None
        self._terms = Terms(config, self._sequences, self.counters, random, self._finish)
        self._queues: dict[TopicPartition, Queue] = {}
        self._in_flight: dict[str, int] = {}
        self._shipments: dict[int, Shipment] = {}
        self.finished: list[Batch] = []
        self.trouble: FolkmootError | None = None

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

    def add(self, chunk: Chunk) -> int:
        """Divide a chunk among the partitions and append to their batches. Returns by how much its size
        was wrong."""
        wrong = 0
        try:
            if chunk.pieces is None:
                self._division.divide(chunk)
            wrong = chunk.measure()
            # Cutting costs time for every record, so a batch may outgrow its size, up to twice of it.
            limit = 2 * self._config.batch_bytes
            pieces = [(number, piece.parts(limit)) for number, piece in chunk.pieces or ()]
        except Exception as error:  # of any kind, want of memory too: the other chunks are to go
            self.refuse(chunk, indivisible(chunk, error))
            return wrong
        chunk.pieces = None
        for partition, parts in pieces:
            self._append(chunk, partition, parts)
        chunk.placed = True
        self._hand_callbacks_on(chunk)
        return wrong

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
        for queue in list(self._queues.values()):
            while queue.batches and self._deadline(queue.batches[0]) <= now:
                batch = queue.batches[0]
                cause = batch.last_error or self.trouble
                why = f"; last error: {cause}" if cause else ""
                error = DeliveryTimeout(
                    f"{batch.count} records for {batch.topic_partition} were not acknowledged within "
                    f"{self._config.delivery_timeout:g} s{why}"
                )
                error.__cause__ = cause
                queue.end_oldest(error)
            self._drop_if_idle(queue)

    def give_up(self, error: FolkmootError) -> None:
        """Fail all that is left."""
        for queue in self._queues.values():
            while queue.batches:
                queue.end_oldest(error)

    # -- effects ------------------------------------------------------------------------------------

    def wait(self, topic: str) -> float:
        """How long a record of this topic may be staged before it is to be divided.

        While a request is under way to each of the leaders its batch would do nothing but gather;
        to gather in the chunk costs less.
        """
        linger, in_flight = self._config.linger, self._in_flight
        if linger < GATHERING and in_flight:
            leader, numbers = self._view.leader_address, self._view.partitions(topic)
            if numbers and all(
                leader(TopicPartition(topic, each)) in in_flight for each in numbers
            ):
                return GATHERING
        return linger

    def shipments(self, now: float, *, hurry: bool = False) -> Iterator[Shipment]:
        """What is to be sent now. Each must be followed by `sent` or `undeliverable`, at once: the
        next one is made only then, while the first is on its way."""
        partitions: Iterable[TopicPartition] = list(self._queues)
        while partitions:
            ready: dict[str, list[TopicPartition]] = {}
            for partition in partitions:
                if self._ready_at(partition, hurry) <= now:
                    address = self._view.leader_address(partition)
                    if address is not None:
                        ready.setdefault(address, []).append(partition)
            partitions = served = []
            for address, some in ready.items():
                while some and self._in_flight.get(address, 0) < self._config.max_in_flight:
                    shipment = self._load(address, some, now)
                    if shipment.batches:
                        # Of those served there may be more to send, in another shipment.
                        served += [batch.topic_partition for batch in shipment.batches]
                        yield shipment

    def next_event(self, now: float, *, hurry: bool = False) -> float:
        """When time alone will make a batch ready, or fail it."""
        times = [inf]
        for partition, queue in self._queues.items():
            if queue.batches:
                times.append(self._deadline(queue.batches[0]))
                ready_at = self._ready_at(partition, hurry)
                if ready_at > now:
                    times.append(ready_at)
        return min(times)

    def oldest_number(self) -> float:
        """The lowest chunk number among the batches that are not done, or infinity."""
        heads = (queue.batches[0] for queue in self._queues.values() if queue.batches)
        return min((batch.number for batch in heads), default=inf)

    # -- inside -------------------------------------------------------------------------------------

    def _append(self, chunk: Chunk, number: int, parts: list[Few] | list[Piece]) -> None:
        partition = TopicPartition(chunk.topic, number)
        queue = self._queues.get(partition)
        if queue is None:
            queue = self._queues[partition] = Queue(partition, self._terms)
        rank = 0
        full = self._config.batch_bytes
        for part in parts:
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
            rank += len(part)

    def _hand_callbacks_on(self, chunk: Chunk) -> None:
        """From here on the batches call them; or the one that stands for a chunk that has failed."""
        callbacks, chunk.callbacks = chunk.callbacks, {}
        for position, call in callbacks.items():
            place = chunk.whereabouts(position)
            assert place is not None
            place[0].callbacks.append(call)
            place[0].observed = True

    def _ready_at(self, partition: TopicPartition, hurry: bool) -> float:
        """When the next batch of a partition may be sent, as far as is known; infinity if none may."""
        queue = self._queues.get(partition)
        if queue is None:
            return inf
        busy = False
        if self._in_flight and queue.batches and self._config.linger < GATHERING:
            busy = self._view.leader_address(partition) in self._in_flight
        return queue.ready_at(hurry=hurry, busy=busy)

    def _load(self, address: str, partitions: list[TopicPartition], now: float) -> Shipment:
        """One shipment, from the front of `partitions`; who is served goes to the end of the line."""
        batches: list[Batch] = []
        payloads: list[bytes] = []
        entries: list[ProduceEntry] = []
        size = 0
        while partitions and size < REQUEST_BYTES and len(entries) < REQUEST_ENTRIES:
            self._compress_ahead(partitions)
            partition = partitions.pop(0)
            queue = self._queues[partition] = self._queues.pop(partition)
            batch = queue.send(now)
            if batch is None:
                self._drop_if_idle(queue)
                continue
            payload = batch.payload or b""
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

    def _compress_ahead(self, partitions: list[TopicPartition]) -> None:
        """Have the first batches compressed together, if that of the first was not yet."""
        if self.wants_ids:
            return
        together: list[Batch] = []
        size = 0
        for partition in partitions:
            batch = self._queues[partition].to_seal()
            if batch is None or (together and size + batch.size > TOGETHER_BYTES):
                break
            together.append(batch)
            size += batch.size
        if len(together) > 1:
            compress_ahead(together, self._config.codec)

    def _landed(self, shipment: Shipment) -> None:
        self._in_flight[shipment.address] -= 1
        if not self._in_flight[shipment.address]:
            del self._in_flight[shipment.address]

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
        # A leader that is known by now is tried at once.
        leader = self._view.leader_address(batch.topic_partition)
        moved = isinstance(error, NotLeader) and leader not in (None, address)
        if error is None:
            queue.delivered(batch, base_offset)
        else:
            queue.refused(batch, error, now, sent=sent, at_once=moved)
        self._drop_if_idle(queue)

    def _drop_if_idle(self, queue: Queue) -> None:
        if queue.is_idle:
            self._queues.pop(queue.partition, None)

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
