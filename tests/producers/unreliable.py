"""A cluster in which everything goes wrong but its logs: for the sender's side of exactly once."""

from collections import deque
from collections.abc import Sequence
from random import Random

from folkmoot.brokers.storage.producer_state import ProducerState
from folkmoot.producers.sender_state import Shipment
from folkmoot.protocol import batch_header, record_batch
from folkmoot.protocol.batch_header import BatchHeader
from folkmoot.protocol.errors import (
    BatchTooLarge,
    BrokerUnreachable,
    FolkmootError,
    NotLeader,
    Overloaded,
    StorageError,
)
from folkmoot.protocol.messages import ProduceResponse, ProduceResult
from folkmoot.protocol.records import TopicPartition
from tests.producers.parts import Bench

BROKERS = ("one:1", "two:1")
TOO_LARGE = b"too large"


class Log:
    """A partition's log, whoever leads it, and the state that real brokers keep."""

    def __init__(self) -> None:
        self.headers: list[BatchHeader] = []
        self.values: list[bytes] = []
        self.producers = ProducerState(100)

    def append(self, payload: bytes) -> int:
        """The base offset, of the original if there is one. Raises what a broker refuses it with."""
        header = batch_header.check(payload)
        values = [
            record.value or b"" for record in record_batch.records_of("t", 0, header, payload)
        ]
        if TOO_LARGE in values:
            raise BatchTooLarge("a batch is too large")
        original = self.producers.check(header, {})
        if original is not None:
            return original
        offset = len(self.values)
        self.producers.update(header, offset)
        self.headers.append(batch_header.read_header(stamped(payload, offset)))
        self.values += values
        return offset

    def restart(self, chance: Random) -> None:
        """Rebuild what is known of producers: from a snapshot at any batch, and the log behind it."""
        cut = chance.randrange(len(self.headers) + 1)
        snapshot = ProducerState(100)
        replay(snapshot, self.headers[:cut])
        self.producers = ProducerState(100, snapshot.entries)
        replay(self.producers, self.headers[cut:])

    def lose_end(self, chance: Random) -> None:
        """A power cut takes the last batches."""
        del self.headers[len(self.headers) - chance.randrange(min(4, len(self.headers) + 1)) :]
        end = self.headers[-1].next_offset if self.headers else 0
        del self.values[end:]
        self.producers = ProducerState(100)
        replay(self.producers, self.headers)

    def forget(self) -> None:
        """The producers' time is over."""
        self.producers = ProducerState(100)


def replay(state: ProducerState, headers: Sequence[BatchHeader]) -> None:
    for header in headers:
        state.update(header, header.base_offset)


def stamped(payload: bytes, offset: int) -> bytes:
    return batch_header.leader_part(offset, len(payload), 0, 0) + payload[32:]


class Connection:
    """Requests to one broker, in order. A broken one may go on delivering, with nobody to answer."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.open = True
        self.requests: deque[tuple[int, Shipment]] = deque()
        self.answers: deque[tuple[int, ProduceResponse | FolkmootError]] = deque()


class Cluster:
    """Drives a Bench: each `step` lets one thing happen, good or bad."""

    def __init__(self, bench: Bench, chance: Random, *, calm: bool = False) -> None:
        self.bench = bench
        self.calm = calm
        self.logs: dict[int, Log] = {number: Log() for number in range(bench.view.count)}
        self._chance = chance
        self._connections: list[Connection] = []

    def ship(self, *, hurry: bool) -> None:
        for number, shipment in self.bench.ship(hurry=hurry):
            if not self.calm and self._chance.random() < 0.03:
                # The connection could not be made.
                self.bench.sender.lost(number, BrokerUnreachable("no"), self.bench.now, sent=False)
                continue
            self._open(shipment.address).requests.append((number, shipment))

    def step(self) -> None:
        connections = [each for each in self._connections if each.requests or each.answers]
        self._connections = [each for each in self._connections if each.open or each.requests]
        if not connections:
            return
        alive = [each for each in connections if each.open]
        # What a broken one still delivers may come late.
        lively = alive and self._chance.random() < 0.9
        connection = self._chance.choice(alive if lively else connections)
        if not self.calm and connection.open and self._chance.random() < 0.04:
            self._break(connection)
        elif connection.requests and (not connection.answers or self._chance.random() < 0.6):
            self._deliver(connection)
        elif connection.answers:
            number, answer = connection.answers.popleft()
            if isinstance(answer, FolkmootError):
                self.bench.sender.lost(number, answer, self.bench.now)
            else:
                self.bench.sender.answered(number, answer, self.bench.now)
        self.bench.settle()

    @property
    def busy(self) -> bool:
        return any(each.requests or each.answers for each in self._connections)

    def _open(self, address: str) -> Connection:
        for connection in self._connections:
            if connection.open and connection.address == address:
                return connection
        self._connections.append(Connection(address))
        return self._connections[-1]

    def _break(self, connection: Connection) -> None:
        """All answers are lost; what is in the broker's buffers may still be carried out, at any time."""
        connection.open = False
        waiting = [number for number, _ in connection.answers]
        waiting += [number for number, _ in connection.requests]
        connection.answers.clear()
        if self._chance.random() < 0.5:
            left = self._chance.randrange(len(connection.requests) + 1)
            connection.requests = deque(list(connection.requests)[:left])
        for number in waiting:
            self.bench.sender.lost(number, BrokerUnreachable("broken"), self.bench.now)

    def _deliver(self, connection: Connection) -> None:
        number, shipment = connection.requests.popleft()
        results = [
            self._produce(connection.address, batch.topic_partition, payload)
            for batch, payload in zip(shipment.batches, shipment.payloads, strict=True)
        ]
        if not connection.open:
            return
        answer: ProduceResponse | FolkmootError = ProduceResponse(results)
        if not self.calm and self._chance.random() < 0.03:
            answer = Overloaded("too many bytes are on their way")
        connection.answers.append((number, answer))

    def _produce(self, address: str, partition: TopicPartition, payload: bytes) -> ProduceResult:
        log, offset, error = self.logs[partition.partition], -1, 0
        try:
            if self.bench.view.leaders[partition.partition] != address:
                raise NotLeader("another")
            if not self.calm and self._chance.random() < 0.03:
                raise StorageError("before it was written")
            offset = log.append(payload)
            if not self.calm and self._chance.random() < 0.03:
                raise StorageError("after it was written")
        except FolkmootError as refusal:
            error, offset = refusal.code or 0, -1
        return ProduceResult(*partition, error, "", offset, 0)
