"""A cluster that exists only as answers, and a machine with its hands on the clock."""

from random import Random
from typing import Any

from folkmoot.producers.accumulator import Accumulator
from folkmoot.producers.appender import Delivery
from folkmoot.producers.batch import Batch
from folkmoot.producers.config import ProducerConfig
from folkmoot.producers.sender_state import SenderState, Shipment
from folkmoot.protocol import batch_header, record_batch
from folkmoot.protocol.messages import ProduceResponse, ProduceResult
from folkmoot.protocol.options import build
from folkmoot.protocol.records import Record, TopicPartition


class FixedView:
    """Topics of `count` partitions, each led by the broker at `leaders[partition]`, if any."""

    def __init__(self, count: int = 1) -> None:
        self.count = count
        self.leaders: dict[int, str] = dict.fromkeys(range(count), "one:1")
        self.looked_up = 0
        self.epoch = 3
        self.made = ""
        self.missing = False
        self.leaderless: dict[TopicPartition, tuple[int, ...]] = {}
        self._seen: tuple[int, str, dict[int, str]] = (0, "", {})
        self._version = 0

    @property
    def version(self) -> int:
        """As of a cluster that has just told of every change."""
        if (self.epoch, self.made, self.leaders) != self._seen:
            self._seen = self.epoch, self.made, dict(self.leaders)
            self._version += 1
        return self._version

    def leader_address(self, partition: TopicPartition) -> str | None:
        self.looked_up += 1
        return self.leaders.get(partition.partition)

    def leader_epoch(self, partition: TopicPartition) -> int:
        return self.epoch

    def topic_id(self, topic: str) -> str | None:
        return f"id of {topic}{self.made}"

    def partitions(self, topic: str) -> range:
        return range(self.count)

    def is_missing(self, topic: str) -> bool:
        return self.missing

    def available(self) -> list[int]:
        return [number for number in range(self.count) if number in self.leaders]


class Bench:
    """Accumulator, machine and a clock that the test moves."""

    def __init__(self, partitions: int = 1, **options: Any) -> None:
        self.now = 100.0
        self.rings = 0
        settings: dict[str, Any] = {"compression": "none", "retry_backoff": 1.0, "max_block": 0.0}
        settings |= options
        self.config = build(ProducerConfig, {"zookeeper": "nowhere:1", **settings})
        self.accumulator = Accumulator(self.config, self._ring, lambda: self.now, Random(1))
        self.accumulator.open()
        self.view = FixedView(partitions)
        self.sender = SenderState(self.config, self.view, Random(1))
        self.sender.grant([7])
        self.done: list[Batch] = []
        self._ids = 0

    def _ring(self) -> None:
        self.rings += 1

    def know(self, topic: str = "t") -> None:
        """Tell the appender of the topic, and who has a leader."""
        self.accumulator.set_topic_partitions(topic, self.view.count, self.view.available())

    def stage(
        self,
        value: bytes | None,
        key: bytes | None = None,
        partition: int | None = 0,
        topic: str = "t",
        **more: Any,
    ) -> Delivery:
        """Append a record, at the time of the test's clock unless it says another."""
        if topic not in self.accumulator.counts:
            self.know(topic)
        more.setdefault("timestamp", round(self.now * 1000))
        return self.accumulator.appender.send(topic, value, key, partition, **more)

    def take(self) -> bool:
        """Hand over what was opened and filled, as the sender's thread does; whether to hurry."""
        taken = self.accumulator.take()
        for batch in taken.opened:
            self.sender.add(batch)
        for batch in taken.filled:
            self.sender.filled(batch)
        return taken.hurry

    def ship(self, *, hurry: bool = False) -> list[tuple[int, Shipment]]:
        sent = []
        for shipment in self.sender.shipments(self.now, hurry=hurry):
            self._ids += 1
            self.sender.sent(self._ids, shipment)
            sent.append((self._ids, shipment))
        return sent

    def answer(self, number: int, shipment: Shipment, *errors: int, base: int = 0) -> None:
        codes = errors or (0,) * len(shipment.batches)
        results = [
            ProduceResult(*batch.topic_partition, code, "", base, 0)
            for batch, code in zip(shipment.batches, codes, strict=True)
        ]
        self.sender.answered(number, ProduceResponse(results), self.now)
        self.settle()

    def settle(self) -> None:
        done, self.sender.finished = self.sender.finished, []
        self.done += done
        self.accumulator.complete(done)
        self.accumulator.settle(done)


def records(shipment: Shipment) -> list[Record]:
    """What a consumer would read."""
    found = []
    for batch, payload in zip(shipment.batches, shipment.payloads, strict=True):
        header = batch_header.check(payload)
        found += record_batch.records_of(*batch.topic_partition, header, payload)
    return found


def values(shipment: Shipment) -> list[bytes]:
    return [record.value or b"" for record in records(shipment)]
