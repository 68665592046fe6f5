"""A cluster that exists only as answers, and a machine with its hands on the clock."""

from random import Random
from typing import Any

from folkmoot.producers.accumulator import Accumulator
from folkmoot.producers.batches import Batch
from folkmoot.producers.chunks import Delivery
from folkmoot.producers.config import ProducerConfig
from folkmoot.producers.sender import Sender, Shipment
from folkmoot.protocol import batch_header, record_batch
from folkmoot.protocol.messages import ProduceResponse, ProduceResult
from folkmoot.protocol.options import build
from folkmoot.protocol.records import Record, TopicPartition


class FixedView:
    """Topics of `count` partitions, each led by the broker at `leaders[partition]`, if any."""

    def __init__(self, count: int = 1) -> None:
        self.count = count
        self.leaders: dict[int, str] = dict.fromkeys(range(count), "one:1")

    def leader_address(self, partition: TopicPartition) -> str | None:
        return self.leaders.get(partition.partition)

    def leader_epoch(self, partition: TopicPartition) -> int:
        return 3

    def topic_id(self, topic: str) -> str | None:
        return f"id of {topic}"

    def partitions(self, topic: str) -> range:
        return range(self.count)


class Bench:
    """Accumulator, machine and a clock that the test moves."""

    def __init__(self, partitions: int = 1, **options: Any) -> None:
        self.now = 100.0
        self.rings = 0
        settings: dict[str, Any] = {"compression": "none", "retry_backoff": 1.0, **options}
        self.config = build(ProducerConfig, {"zookeeper": "nowhere:1", **settings})
        self.accumulator = Accumulator(
            self.config.buffer_bytes, self.config.batch_bytes, self._ring, lambda: self.now
        )
        self.view = FixedView(partitions)
        self.sender = Sender(self.config, self.view, Random(1))
        self.sender.grant([7])
        self.done: list[Batch] = []
        self._ids = 0

    def _ring(self) -> None:
        self.rings += 1

    def stage(
        self, value: bytes, key: bytes | None = None, partition: int | None = 0, topic: str = "t"
    ) -> Delivery:
        if topic not in self.accumulator.counts:
            self.accumulator.topic_known(topic, self.view.count)
        return self.accumulator.stage(topic, value, key, self.now + 0.0, 0.0, partition=partition)

    def take(self, *, everything: bool = True) -> None:
        for chunk in self.accumulator.take(self.now, None if everything else self.sender.wait):
            self.accumulator.correct(self.sender.add(chunk))

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
        self.accumulator.complete(done, self.sender.oldest_number())


def records(shipment: Shipment) -> list[Record]:
    """What a consumer would read."""
    found = []
    for batch, payload in zip(shipment.batches, shipment.payloads, strict=True):
        header = batch_header.check(payload)
        found += record_batch.records_of(*batch.topic_partition, header, payload)
    return found


def values(shipment: Shipment) -> list[bytes]:
    return [record.value or b"" for record in records(shipment)]
