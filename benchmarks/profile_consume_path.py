"""What a record costs the consumer, stage by stage: `python -m benchmarks.profile_consume_path [rounds]`.

Nanoseconds of CPU per record and of one thread, without a broker: batches of several sizes as the
producer writes them, through each stage by itself, then through the whole of them, from a fetch's
bytes to what the application gets. Each figure is the least of all rounds, which is what the machine
would do without its other work. With `--broker` it also reads from a real broker process, with a
ZooKeeper of its own, and tells the rates by the clock on the wall beside the CPU of both, which the
kernel counts in hundredths of a second. `--compression` names another codec than zstd, and
FOLKMOOT_PURE=1 has all of it done in plain Python.
"""

import argparse
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Final

from benchmarks.clients.program import read_columns
from benchmarks.measuring import cpu_seconds
from benchmarks.records import RecordSets
from folkmoot.console.running.embedded import ZooKeeperConfig
from folkmoot.console.running.processes import EmbeddedCluster
from folkmoot.consumers.client.consumer import Consumer
from folkmoot.consumers.records.batch_cursor import BatchCursor
from folkmoot.consumers.records.batch_view import RecordBatchView, view_of_batch
from folkmoot.coordination import brokers, topics
from folkmoot.coordination.connector import connector
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.producers.producer import Producer
from folkmoot.protocol import batch_header, compression, record_batch
from folkmoot.protocol.columns import Columns
from folkmoot.protocol.compression import Codec
from folkmoot.protocol.records import TopicPartition

RECORDS: Final = 50_000
BROKER_RECORDS: Final = 2_000_000
PARTITIONS: Final = 12
COLUMN: Final = 50_000
WHERE: Final = TopicPartition("small", 0)

Pairs = tuple[list[bytes], list[bytes]]


@contextmanager
def a_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="folkmoot-consume-path-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def records_of_the_benchmarks(folder: Path, count: int) -> Pairs:
    keys, values = read_columns(RecordSets(folder, 4).get("small", count).path, count)
    return list(keys), list(values)


# -- in this process ------------------------------------------------------------------------------


class Stages:
    """Batches of one size, and what is done with each of them."""

    def __init__(self, pairs: Pairs, size: int, codec: Codec, *, varied: bool) -> None:
        keys, values = pairs
        if varied:
            values = [value[: 70 + number % 31] for number, value in enumerate(values)]
        self.batches = []
        for start in range(0, len(values), size):
            rows = slice(start, start + size)
            count = len(values[rows])
            stamps = [1_760_000_000_000 + row // 50 for row in range(count)]
            made = Columns(count, keys[rows], values[rows], stamps)
            data = memoryview(record_batch.encode(made, codec))
            self.batches.append((batch_header.check(data), data))
        self.bodies = [self._body(header, data) for header, data in self.batches]
        self.views = [view_of_batch(WHERE, header, data) for header, data in self.batches]

    def all(self) -> dict[str, Callable[[], None]]:
        both = list(zip(self.batches, self.bodies, strict=True))

        def each(do: Callable[..., Any], things: Any) -> Callable[[], None]:
            def work() -> None:
                for thing in things:
                    do(*thing)

            return work

        headers = self.batches
        return {
            "check": each(lambda _, data: batch_header.check(data), headers),
            "decompress": each(self._body, headers),
            "columns": each(lambda one, body: view_of_batch(WHERE, one[0], one[1], body), both),
            "lists": each(lambda view: (list(view.keys), list(view.values)), self._alone()),
            "iterate": each(lambda view: deque(BatchCursor(view).records, 0), self._alone()),
            "arrow": each(RecordBatchView.arrow, self._alone()),
            "= records": each(self._records, headers),
            "= columns": each(self._view, headers),
            "= arrow": each(lambda header, data: self._view(header, data).arrow(), headers),
        }

    def _alone(self) -> list[tuple[RecordBatchView]]:
        return [(view,) for view in self.views]

    @staticmethod
    def _body(header: batch_header.BatchHeader, data: memoryview) -> Any:
        body = data[batch_header.HEADER_BYTES : header.length]
        return compression.decompress(header.codec, body, batch_header.MAX_BODY_BYTES)

    @staticmethod
    def _view(_: batch_header.BatchHeader, data: memoryview) -> RecordBatchView:
        return view_of_batch(WHERE, batch_header.check(data), data)

    @classmethod
    def _records(cls, header: batch_header.BatchHeader, data: memoryview) -> None:
        for _ in BatchCursor(cls._view(header, data)).records:
            pass


def in_process(rounds: int, codec: Codec) -> None:
    with a_folder() as folder:
        pairs = records_of_the_benchmarks(folder, RECORDS)
    first = True
    for varied, size in (*((False, size) for size in (10, 100, 500, 4_500)), (True, 4_500)):
        stages = Stages(pairs, size, codec, varied=varied).all()
        if first:
            print(f"{'ns of CPU per record':32}", *(f"{name:>10}" for name in stages))
            first = False
        least = dict.fromkeys(stages, float("inf"))
        for _ in range(rounds):
            for name, work in stages.items():
                begun = time.thread_time()
                work()
                least[name] = min(least[name], time.thread_time() - begun)
        what = f"{size}{', lengths vary' if varied else ''}"
        print(f"{what:32}", *(f"{took / RECORDS * 1e9:10.1f}" for took in least.values()))


# -- from a broker --------------------------------------------------------------------------------


def iterate(consumer: Consumer, count: int) -> None:
    deque(islice(consumer, count), 0)


def poll(consumer: Consumer, count: int) -> None:
    while count > 0:
        count -= len(consumer.poll(1.0))


def batches(consumer: Consumer, count: int) -> None:
    for view in consumer.batches():
        count -= len(view)
        if count <= 0:
            return


def values(consumer: Consumer, count: int) -> None:
    for view in consumer.batches():
        count -= len(list(view.values))
        if count <= 0:
            return


def arrow(consumer: Consumer, count: int) -> None:
    for some in consumer.arrow():
        count -= some.num_rows
        if count <= 0:
            return


def poll_arrow(consumer: Consumer, count: int) -> None:
    while count > 0:
        count -= consumer.poll_arrow(1.0).num_rows


def fill(cluster: EmbeddedCluster, topic: str, pairs: Pairs, codec: Codec) -> None:
    session = connector(cluster.zookeeper)(6.0)
    try:
        execute(session, topics.create(topic, PARTITIONS, list(execute(session, brokers.live()))))
    finally:
        session.close()
    keys, cells = pairs
    with Producer(zookeeper=cluster.zookeeper, compression=codec.name.lower()) as producer:
        if topic == "send":
            for key, value in zip(keys, cells, strict=True):
                producer.send(topic, value, key)
        else:
            for start in range(0, len(cells), COLUMN):
                rows = slice(start, start + COLUMN)
                producer.send_batch(topic, cells[rows], keys[rows])
        producer.flush()


def with_a_broker(rounds: int, codec: Codec) -> None:
    with a_folder() as folder:
        pairs = records_of_the_benchmarks(folder, BROKER_RECORDS)
        with EmbeddedCluster(folder / "cluster", 1, ZooKeeperConfig(fsync=False)) as cluster:
            for topic in ("send", "send_batch"):
                fill(cluster, topic, pairs, codec)
            del pairs
            for _ in range(rounds):
                for topic in ("send", "send_batch"):
                    for read in (iterate, poll, batches, values, arrow, poll_arrow):
                        told = consumed(cluster, topic, read)
                        print(f"{f'{read.__name__}, of {topic}':28} {told}", flush=True)


def consumed(cluster: EmbeddedCluster, topic: str, read: Callable[[Consumer, int], None]) -> str:
    broker = cluster.brokers[0].pid
    with Consumer(zookeeper=cluster.zookeeper) as consumer:
        partitions = consumer.partitions_of(topic)
        served, cpu = cpu_seconds(broker), time.process_time()
        mine, begun = time.thread_time(), time.perf_counter()
        consumer.assign(partitions)
        read(consumer, BROKER_RECORDS)
        wall, mine = time.perf_counter() - begun, time.thread_time() - mine
        cpu, served = time.process_time() - cpu, cpu_seconds(broker) - served
        counted = consumer.metrics()
    return (
        f"{BROKER_RECORDS / wall / 1e6:6.2f} M records/s; ns of CPU per record: "
        f"thread {mine / BROKER_RECORDS * 1e9:.0f}, process {cpu / BROKER_RECORDS * 1e9:.0f}, "
        f"broker {served / BROKER_RECORDS * 1e9:.0f}; "
        f"{counted['fetches_sent']} fetches, {counted['batches_fetched']} batches"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rounds", nargs="?", type=int, default=20)
    parser.add_argument("--broker", action="store_true", help="against a real broker process")
    parser.add_argument("--compression", type=Codec.named, default=Codec.ZSTD, metavar="CODEC")
    args = parser.parse_args()
    if args.broker:
        with_a_broker(args.rounds, args.compression)
    else:
        in_process(args.rounds, args.compression)


if __name__ == "__main__":
    main()
