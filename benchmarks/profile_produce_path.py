"""What a record costs the producer, stage by stage: `python -m benchmarks.profile_produce_path [rounds]`.

Nanoseconds of CPU per record and of one thread, without a broker: the parts of the producer are driven
by hand, a few chunks a round, and each stage is timed by itself. Each figure is the least of all
rounds, which is about what the machine would do without its other work; how long a call takes that does
nothing tells machines apart. With `--broker` it sends to a real broker process instead, with a
ZooKeeper of its own, and tells the rates by the clock on the wall; by itself one round of that, since
each writes a million records to the disk a dozen times, though every topic is deleted behind its turn.

The stages: `send` is the application's loop and the whole of `send`; `take` hands what was opened to the
sender; `seal` writes and compresses (without the interpreter's lock as far as it is zstd); `settle` is
what an answer costs. `FOLKMOOT_PURE=1` measures the appender in plain Python.
"""

import argparse
import gc
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Final

from folkmoot.console.running.embedded import ZooKeeperConfig
from folkmoot.console.running.processes import EmbeddedCluster
from folkmoot.coordination import brokers, topics
from folkmoot.coordination.connector import connector
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.network.leaderless import Waiting
from folkmoot.producers.appender import IMPLEMENTATION
from folkmoot.producers.producer import Producer
from folkmoot.producers.sender_state import SenderState, Shipment
from folkmoot.protocol.messages import ProduceResponse, ProduceResult
from folkmoot.protocol.records import TopicPartition
from tests.memory_zookeeper import MemoryZooKeeper

PARTITIONS: Final = 12
RECORDS: Final = 16_384
BROKER_RECORDS: Final = 1_000_000
COLUMN: Final = 50_000

Keys = Sequence[bytes | None]


class OneBroker:
    """The cluster as the sender sees it."""

    version = 1
    leaderless: ClassVar[Waiting] = {}

    def leader_address(self, partition: TopicPartition) -> str:
        return "one:1"

    def leader_epoch(self, partition: TopicPartition) -> int:
        return 0

    def topic_id(self, topic: str) -> str:
        return "id"

    def partitions(self, topic: str) -> range:
        return range(PARTITIONS)

    def is_missing(self, topic: str) -> bool:
        return False


def values_of(count: int) -> list[bytes]:
    """Distinct values of 100 bytes, 40 of them random hexadecimal digits."""
    random = Random(7)
    return [
        b'{"id":%09d,"token":"%040x","kind":"order","total":%07d,"x":1}'
        % (number, random.getrandbits(160), number * 37 % 9_999_999)
        for number in range(count)
    ]


def keys_of(count: int) -> dict[str, Keys]:
    few = [b"user-%04d" % number for number in range(4000)]
    return {
        "4,000 keys": [few[number * 7919 % 4000] for number in range(count)],
        "all different": [b"order-%09d" % number for number in range(count)],
        "of 5-8 bytes": [b"key-%d" % (number * 7919 % 4000) for number in range(count)],
        "no keys": [None] * count,
    }


class ByHand:
    """A producer whose thread never runs, and a sender beside it."""

    def __init__(self, compression: str) -> None:
        self.producer = Producer(
            zookeeper=MemoryZooKeeper().connect, compression=compression, buffer_bytes=1 << 30
        )
        self.accumulator = self.producer._accumulator
        self.accumulator.open()
        self.accumulator.topic_known("t", PARTITIONS, range(PARTITIONS))
        self.sender = SenderState(self.producer.config, OneBroker(), Random(1))
        self.sender.grant([1])
        self.ids = iter(range(1 << 60))

    def stages(self, values: list[bytes], keys: Keys, *, columns: bool) -> dict[str, float]:
        """CPU seconds of every stage, all records together."""
        took: dict[str, float] = {}

        def timed(stage: str, work: Callable[[], Any]) -> Any:
            begun = time.thread_time()
            result = work()
            took[stage] = took.get(stage, 0.0) + time.thread_time() - begun
            return result

        timed("send", lambda: self._send(values, keys, columns=columns))
        timed("take", self._take)
        shipments = timed("seal", lambda: list(self.sender.shipments(time.monotonic(), hurry=True)))
        timed("settle", lambda: self._settle(shipments))
        return took

    def _send(self, values: list[bytes], keys: Keys, *, columns: bool) -> None:
        if columns:
            self.producer.send_batch("t", values, None if keys[0] is None else keys)
            return
        send = self.producer.send
        for value, key in zip(values, keys, strict=True):
            send("t", value, key)

    def _take(self) -> None:
        taken = self.accumulator.take()
        for batch in taken.opened:
            self.sender.add(batch)
        for batch in taken.filled:
            self.sender.filled(batch)

    def _settle(self, shipments: list[Shipment]) -> None:
        while shipments:
            for shipment in shipments:
                number = next(self.ids)
                self.sender.sent(number, shipment)
                results = [ProduceResult(*b.topic_partition, 0, "", 0, 0) for b in shipment.batches]
                self.sender.answered(number, ProduceResponse(results), 0.0)
            shipments = list(self.sender.shipments(time.monotonic(), hurry=True))
        done, self.sender.finished = self.sender.finished, []
        self.accumulator.complete(done)
        self.accumulator.settle(done)
        self.sender.next_event()


def nothing(
    topic: str,
    value: bytes,
    key: bytes | None = None,
    partition: int | None = None,
    headers: None = None,
) -> None:
    """What a call costs that does nothing."""


def calls(values: list[bytes]) -> float:
    begun = time.thread_time()
    for value, key in zip(values, values, strict=True):
        nothing("t", value, key)
    return time.thread_time() - begun


def in_process(rounds: int) -> None:
    values = values_of(RECORDS)
    idle = min(calls(values) for _ in range(rounds)) / RECORDS * 1e9
    print(
        f"the appender in {IMPLEMENTATION}; a call that does nothing, and its loop: {idle:.0f} ns"
    )
    print("ns of CPU per record".ljust(36), *(f"{name:>9}" for name in STAGES), "      all")
    for columns in (False, True):
        for name, keys in keys_of(RECORDS).items():
            for compression in ("zstd", "none"):
                path = ByHand(compression)
                rows = [path.stages(values, keys, columns=columns) for _ in range(rounds)]
                least = {stage: min(row[stage] for row in rows) / RECORDS * 1e9 for stage in STAGES}
                what = f"{'send_batch' if columns else 'send'}, {name}, {compression}"
                figures = [*least.values(), sum(least.values())]
                print(f"{what:36}", *(f"{figure:9.0f}" for figure in figures), flush=True)


STAGES: Final = ("send", "take", "seal", "settle")


def create_topic(zookeeper: str, name: str) -> None:
    with closing(connector(zookeeper)(6.0)) as session:
        execute(session, topics.create(name, PARTITIONS, list(execute(session, brokers.live()))))


def delete_topic(zookeeper: str, name: str) -> None:
    with closing(connector(zookeeper)(6.0)) as session:
        execute(session, topics.delete(name))


def slices(column: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(column), COLUMN):
        yield column[start : start + COLUMN]


def with_a_broker(rounds: int) -> None:
    values = values_of(BROKER_RECORDS)
    keysets = keys_of(BROKER_RECORDS)
    scratch = Path(tempfile.mkdtemp(prefix="folkmoot-produce-path-"))
    number = 0
    try:
        with EmbeddedCluster(scratch, 1, ZooKeeperConfig(fsync=False)) as cluster:
            for _ in range(rounds):
                for what in ("send", "send_batch"):
                    for compression in ("zstd", "none"):
                        for name, keys in keysets.items():
                            number += 1
                            topic = f"t{number}"
                            create_topic(cluster.zookeeper, topic)
                            told = produce(cluster, topic, what, compression, values, keys)
                            delete_topic(cluster.zookeeper, topic)
                            print(f"{f'{what}, {name}, {compression}':36} {told}", flush=True)
    finally:
        shutil.rmtree(scratch)


def produce(
    cluster: EmbeddedCluster,
    topic: str,
    what: str,
    compression: str,
    values: list[bytes],
    keys: Keys,
) -> str:
    with Producer(zookeeper=cluster.zookeeper, compression=compression) as producer:
        producer.partitions_of(topic)
        gc.collect()
        cpu, caller, begun = time.process_time(), time.thread_time(), time.perf_counter()
        if what == "send":
            send = producer.send
            for value, key in zip(values, keys, strict=True):
                send(topic, value, key)
        else:
            for some, their in zip(slices(values), slices(keys), strict=True):
                producer.send_batch(topic, some, None if their[0] is None else their)
        caller = time.thread_time() - caller
        producer.flush()
        wall, cpu = time.perf_counter() - begun, time.process_time() - cpu
        counted = producer.metrics()
    count = len(values)
    return (
        f"{count / wall / 1e6:5.2f} M records/s; ns of CPU per record: caller "
        f"{caller / count * 1e9:.0f}, process {cpu / count * 1e9:.0f}; "
        f"{counted['requests_sent']} requests, {counted['batches_sent']} batches, "
        f"compressed to {counted['bytes_compressed'] / counted['bytes_packed']:.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rounds", nargs="?", type=int, help="100, or 1 with a broker")
    parser.add_argument("--broker", action="store_true", help="against a real broker process")
    args = parser.parse_args()
    if args.broker:
        with_a_broker(args.rounds or 1)
    else:
        in_process(args.rounds or 100)


if __name__ == "__main__":
    main()
