"""How many records a second: sent until the last acknowledgement, then read back and counted.

Each measurement has a new topic. What a producer wrote is read back at once by the consumers that are
compared, which also count it: every record must be there, once, and no byte may be missing.

The cases that targets name are measured in all rounds, the others in two rounds less. The first two are
read in every way, the others in one; Kafka's own tools take part where they may be at their fastest.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from benchmarks import throughput_summary
from benchmarks.harness import Context, Part, Sample, WrongCount, rate_of
from benchmarks.peers import kafka_tools
from benchmarks.peers.kafka import KafkaServer
from benchmarks.programs import Outcome
from benchmarks.records import SetName, write_lines
from folkmoot.producers.appender import IMPLEMENTATION

TITLE: Final = "Throughput: records a second, one producer or one consumer"

# Records a second that are expected at most, to choose how many make a measurement of the wanted
# length. A contender that is slower in the round that warms up is given fewer from then on.
EXPECTED: Final = {"folkmoot": 1_600_000, "kafka": 800_000, "redis": 150_000, "nats": 25_000}
BYTES: Final = {"small": 100, "unique": 100, "large": 1000, "flights": 330}
LEAST: Final = 4_000
LEAST_SHARE: Final = 0.25
WARM: Final = 20_000


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is sent, and by whom: the `headline` ones are read in every way, the first by all."""

    records: SetName = "small"
    partitions: int = 12
    compression: str = "zstd"
    way: str = ""  # what each record has beside its key: see `WAYS`
    headline: bool = False

    @property
    def has_target(self) -> bool:
        return self.headline or bool(self.way) or self.compression == "lz4"

    @property
    def text(self) -> str:
        kinds = {
            "small": "100 B, 4,000 keys",
            "unique": "100 B, all keys different",
            "large": "1 kB, 4,000 keys",
            "flights": "flights (330 B), keyed by plane",
        }
        many = "1 partition" if self.partitions == 1 else f"{self.partitions} partitions"
        way = f", {WAYS[self.way]}" if self.way else ""
        return f"{kinds[self.records]}{way}, {many}, {self.compression}"


WAYS: Final = {
    "header": "with one header",
    "callback": "with on_delivery",
    "partition": "with partition=",
}


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One way of producing, and the ways in which what it wrote is read back."""

    name: str
    peer: str
    how: str = ""
    reads: Sequence[tuple[str, str]] = ()  # name and `how` of each


SEND: Final = Contender(
    name="Folkmoot send()",
    peer="folkmoot",
    how="send",
    reads=[("Folkmoot, record by record", "records"), ("Folkmoot poll()", "poll")],
)
COLUMNS: Final = Contender(
    name="Folkmoot send_batch(), lists",
    peer="folkmoot",
    how="columns",
    reads=[("Folkmoot batches(), columns", "columns")],
)
ARROW: Final = Contender(
    name="Folkmoot send_batch(), Arrow",
    peer="folkmoot",
    how="arrow",
    reads=[("Folkmoot arrow()", "arrow")],
)
CONFLUENT: Final = Contender(
    name="confluent-kafka produce()",
    peer="kafka",
    how="produce",
    reads=[("confluent-kafka consume(10000)", "consume"), ("confluent-kafka poll()", "poll")],
)
JVM: Final = Contender(
    name="Kafka's ProducerPerformance (Java)",
    peer="kafka",
    how="java",
    reads=[("Kafka's ConsumerPerformance (Java)", "java")],
)
REDIS: Final = Contender(
    name="Redis XADD, pipelined", peer="redis", reads=[("Redis XREADGROUP, XACK", "")]
)
NATS: Final = Contender(
    name="NATS publish_async()", peer="nats", reads=[("NATS fetch(1000), ack", "")]
)

CASES: Final[Sequence[tuple[Case, Sequence[Contender]]]] = (
    (Case(headline=True), (SEND, COLUMNS, ARROW, CONFLUENT, JVM, REDIS, NATS)),
    (Case(records="unique", headline=True), (SEND, COLUMNS, CONFLUENT)),
    *((Case(way=way), (SEND, CONFLUENT)) for way in WAYS),
    (Case(partitions=1), (SEND, COLUMNS, CONFLUENT)),
    (Case(compression="none"), (SEND, COLUMNS, CONFLUENT, JVM)),
    (Case(compression="lz4"), (SEND, COLUMNS, ARROW, CONFLUENT, JVM)),
    (Case(records="large"), (SEND, COLUMNS, CONFLUENT)),
    (Case(records="flights"), (SEND, COLUMNS, CONFLUENT, REDIS, NATS)),
)


def run(context: Context) -> None:
    results = context.results
    results.notes.append(f"Folkmoot's appender: {IMPLEMENTATION}.")
    shorter = {"smoke": 1, "quick": 2}
    paces: dict[str, float] = {}
    for number, (case, contenders) in enumerate(CASES[: shorter.get(context.scale.name)]):
        present = {
            each.name: partial(_once, context, case, each, paces)
            for each in contenders
            if context.has(each.peer)
        }
        rounds = context.scale.rounds if case.has_target else context.scale.spare_rounds
        # The servers are warm after the first case; each client process is new in any case.
        samples_by_part = context.compare(case.text, present, rounds, warm_up=number == 0)
        for verb in ("produce", "consume"):
            for (case_name, producer), samples in samples_by_part.items():
                if case_name.startswith(verb):
                    context.add(case_name, producer, "records/s", samples)
    throughput_summary.add(results, CASES[0][0].text)


def _once(
    context: Context, case: Case, contender: Contender, paces: dict[str, float]
) -> dict[Part, Sample]:
    """A new topic, filled once and read back in each way, then deleted.

    `paces` has how many records of 100 bytes a second each is known to write.
    """
    count = _count(context, case, contender.peer, paces.get(contender.name))
    if context.is_warming_up:
        count = max(LEAST, int(count * LEAST_SHARE))
    server = context.server(contender.peer)
    topic = context.new_topic(contender.peer, case.partitions)
    records = context.records.get(case.records, _count(context, case, "folkmoot"))
    count = min(count, records.count)
    keys, values = records.payload(count)
    warm = min(WARM, count // 4)
    if contender.how == "java":
        assert isinstance(server, KafkaServer)
        lines = context.work / f"{case.records}.lines"
        if not lines.exists():
            write_lines(records, lines, kafka_tools.VALUES)
        written = kafka_tools.produce(server, topic, count, case.compression, lines)
        keys = 0
    else:
        more: dict[str, Any] = {"how": contender.how, "way": case.way, "warm": warm}
        more |= {"compression": case.compression, "partitions": case.partitions}
        written = server.produce(topic, records.path, count, **more)
    ratio = (keys + values) / server.stored_bytes(topic)
    found = {(f"produce: {case.text}", contender.name): rate_of(written, compression=ratio)}
    for name, how in contender.reads if case.headline else contender.reads[:1]:
        if how == "java":
            assert isinstance(server, KafkaServer)
            read = kafka_tools.consume(server, topic, count)
        else:
            read = server.consume(topic, count, how, warm)
        _check(name, read, count, values)
        found[f"consume: {case.text}", name] = rate_of(read)
    server.delete_topic(topic)
    if context.is_warming_up:
        paces[contender.name] = written.rate
    return found


def _count(context: Context, case: Case, peer: str, pace: float | None = None) -> int:
    """How many records take the wanted time, at the pace that was seen or at what is expected."""
    factor = 100 / BYTES[case.records] if peer != "nats" else 1
    most = EXPECTED[peer] * context.scale.seconds * factor
    target = most if pace is None else pace * context.scale.seconds * factor
    return max(LEAST, int(min(most, max(target, most * LEAST_SHARE))))


def _check(name: str, read: Outcome, count: int, value_bytes: int) -> None:
    if read.records != count or read.reported.get("end", count) != count:
        end = read.reported.get("end", "?")
        raise WrongCount(f"{name}: {count} records sent, {read.records} read, the log has {end}")
    if read.reported.get("bytes", value_bytes) != value_bytes:
        raise WrongCount(f"{name}: {value_bytes} bytes sent, {read.reported['bytes']} read")
