"""How many records a second: sent until the last acknowledgement, then read back and counted.

Each measurement has a new topic. What a producer wrote is read back at once by the consumers that are
compared, which also count it: every record must be there, once, and no byte may be missing.

The cases that targets name are measured in all rounds, the others in two rounds less. The first two are
read in every way, the others in one; Kafka's own tools take part where they may be at their fastest.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Final

from benchmarks import throughput_summary as names
from benchmarks.harness import Context, Part, Sample, WrongCount, rate_of
from benchmarks.peers import kafka_tools
from benchmarks.peers.kafka import KafkaServer
from benchmarks.programs import Outcome
from benchmarks.records import SetName, write_lines
from folkmoot.producers.appender import IMPLEMENTATION

TITLE: Final = "Throughput: records a second, one producer or one consumer"

# Records a second that are expected at most, to choose how many make a measurement of the wanted
# length.
EXPECTED: Final = {"folkmoot": 1_600_000, "kafka": 800_000, "redis": 150_000, "nats": 25_000}
BYTES: Final = {"small": 100, "unique": 100, "large": 1000, "flights": 330}
LEAST: Final = 4_000
WARM_UP_SHARE: Final = 0.25
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
    reads: Mapping[str, str]  # the `how` of each by name


SEND: Final = Contender(
    name=names.SEND,
    peer="folkmoot",
    how="send",
    reads={names.RECORDS: "records", names.POLL: "poll"},
)
COLUMNS: Final = Contender(
    name=names.LISTS, peer="folkmoot", how="columns", reads={names.COLUMNS: "columns"}
)
ARROW: Final = Contender(
    name=names.ARROW, peer="folkmoot", how="arrow", reads={names.ARROW_IN: "arrow"}
)
CONFLUENT: Final = Contender(
    name=names.CONFLUENT_OUT,
    peer="kafka",
    how="produce",
    reads={names.CONFLUENT_IN: "consume", "confluent-kafka poll()": "poll"},
)
JVM: Final = Contender(name=names.JAVA_OUT, peer="kafka", how="java", reads={names.JAVA_IN: "java"})
REDIS: Final = Contender(
    name="Redis XADD, pipelined", peer="redis", reads={"Redis XREADGROUP, XACK": ""}
)
NATS: Final = Contender(
    name="NATS publish_async()", peer="nats", reads={"NATS fetch(1000), ack": ""}
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
    for number, (case, contenders) in enumerate(CASES[: shorter.get(context.scale.name)]):
        present = {
            each.name: partial(_once, context, case, each)
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
    names.add(results, CASES[0][0].text)


def _once(context: Context, case: Case, contender: Contender) -> dict[Part, Sample]:
    """A new topic, filled once and read back in each way, then deleted."""
    count = _count(context, case, contender.peer)
    if context.is_warming_up:
        count = max(LEAST, int(count * WARM_UP_SHARE))
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
    for name, how in islice(contender.reads.items(), None if case.headline else 1):
        if how == "java":
            assert isinstance(server, KafkaServer)
            read = kafka_tools.consume(server, topic, count)
        else:
            read = server.consume(topic, count, how, warm)
        _check(name, read, count, values)
        found[f"consume: {case.text}", name] = rate_of(read)
    server.delete_topic(topic)
    return found


def _count(context: Context, case: Case, peer: str) -> int:
    """How many records take the wanted time, at the pace that is expected."""
    factor = 100 / BYTES[case.records] if peer != "nats" else 1
    return max(LEAST, int(EXPECTED[peer] * context.scale.seconds * factor))


def _check(name: str, read: Outcome, count: int, value_bytes: int) -> None:
    if read.records != count or read.reported.get("end", count) != count:
        end = read.reported.get("end", "?")
        raise WrongCount(f"{name}: {count} records sent, {read.records} read, the log has {end}")
    if read.reported.get("bytes", value_bytes) != value_bytes:
        raise WrongCount(f"{name}: {value_bytes} bytes sent, {read.reported['bytes']} read")
