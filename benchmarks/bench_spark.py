"""Spark's streams, batch reads and sink, beside Spark's own source and sink for Kafka.

Each side has a session that is warm (`local[2]`) and does the same with the same records. Kafka's is that
of PySpark 4.0.0: not all jars of newer ones are on Maven Central. What Spark itself costs, with any source
in Python, is told by a source that does nothing.
"""

import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final

from benchmarks.harness import Context, Measure, Part, Sample
from benchmarks.peers import Unavailable
from benchmarks.programs import ProgramFailed
from benchmarks.results import Results
from benchmarks.spark_sides import (
    PARTITIONS,
    Side,
    as_parquet,
    check,
    flights_as_parquet,
    flights_on,
    kafka,
    ours,
)
from folkmoot.console.demo import flights

TITLE: Final = "Spark: streams, batch reads and the sink"

OURS: Final = "Folkmoot"
COLUMN: Final = "Folkmoot, one column by .schema"
KAFKA: Final = "Spark's source and sink for Kafka"
NOTHING: Final = "a source in Python that does nothing"
ONE: Final = "value binary"
RECORDS: Final = {"full": 3_000_000, "quick": 1_000_000, "smoke": 20_000}
WARM_UP: Final = {"full": 2, "quick": 2, "smoke": 1}
"""Reads of all kinds before any is measured: the JVM compiles what it does often."""
STREAM: Final = "stream, Trigger.AvailableNow, defaults"
SMALL: Final = "stream in batches of 100,000 records"
BATCH: Final = "batch read"
TYPED: Final = "stream of flights, typed columns beside from_avro"
SINK: Final = "stream from Parquet files into a topic"
TYPED_SINK: Final = "stream of flights from Parquet files, typed columns beside to_avro"
TASKS: Final = "CPU of a worker for a task of a few records"
FIRST_ROW: Final = "start of a query to its first row"
IDLE: Final = "idle query, trigger of 200 ms"
LATENCY: Final = "produced to seen in foreachBatch, trigger of 200 ms, 1,000 records/s"
LEFT: Final = "end of a query to its group without it"
UNITS: Final = {FIRST_ROW: "s", IDLE: "% of a core", LATENCY: "ms (median)", LEFT: "s"}
READER: Final = "reader %"
P99: Final = "p99 ms"
READER_RSS: Final = "reader RSS"
WORKER_RSS: Final = "worker RSS"
PATIENCE: Final = 60.0
RATE: Final = 1_000
SIZE: Final = 100
WARM_SHARE: Final = 0.25
FEW: Final = 4_800
"""Records of the topic that is read in small tasks …"""
IN_TASK: Final = (200, 20)
"""… with so many in each: what more tasks cost more, a task costs."""


@dataclass(frozen=True, kw_only=True)
class ReadCase:
    """What is read, and how."""

    topic: str = "small"
    how: str = "stream"
    options: Mapping[str, str] = field(default_factory=dict)
    schema: str = ""
    typed: bool = False


class ReadRunner:
    """Measures reads; a stream's group has read nothing before."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        self._counts = counts
        self._groups = count()

    def case(self, side: Side, read: ReadCase) -> dict[str, Any]:
        """The parameters of the session's verb."""
        options = {**side.options, "subscribe": side.topics[read.topic], **read.options}
        if read.how == "stream":
            options |= side.stream_options
            if side.peer == "folkmoot":
                options["group"] = f"bench-{next(self._groups)}"
        avro = ""
        if read.typed and side.peer == "folkmoot":
            options["valueFormat"] = "avro"
        elif read.typed:
            avro = flights.schema()
        return {"how": read.how, "options": options, "schema": read.schema, "avro": avro}

    def run(self, side: Side, read: ReadCase) -> dict[str, Any]:
        records = self._counts[read.topic]
        found = side.run_verb("read", records=records, **self.case(side, read))
        check(found, records)
        return found

    def sample(self, side: Side, read: ReadCase) -> Sample:
        return _rate(self.run(side, read), self._counts[read.topic])


def run(context: Context) -> None:
    results = context.results
    records = RECORDS[context.scale.name]
    small = context.records.get("small", records).path
    with ExitStack() as stack:
        sides = {OURS: ours(context, stack)}
        if context.has("kafka"):
            try:
                sides[KAFKA] = kafka(context, stack)
            except (Unavailable, ProgramFailed) as reason:
                results.notes.append(f"Spark's source for Kafka was not measured: {reason}")
        for side in sides.values():
            side.fill("small", context.new_topic(side.peer, PARTITIONS), small, records)
        sides[OURS].fill("few", context.new_topic("folkmoot", PARTITIONS), small, FEW)
        flight_count, schema_id = flights_on(context, sides, records)
        reads = ReadRunner({"small": records, "few": FEW, "flights": flight_count})
        _measure_reads(context, sides, reads)
        rows = as_parquet(small, records, context.work / "rows")
        _measure_writes(context, SINK, sides, WriteCase(rows=rows, records=records))
        rows = flights_as_parquet(flight_count, context.work / "flights-rows")
        typed = WriteCase(rows=rows, records=flight_count, schema_id=schema_id)
        _measure_writes(context, TYPED_SINK, sides, typed)
        _in_tasks(context, sides[OURS], reads)
        _measure_queries(context, sides, reads)
    _judge(results)
    results.notes += [
        f"{records:,} records of 100 B in {PARTITIONS} partitions, zstd, into the sink noop; "
        f"{flight_count:,} flights. Client CPU is that of the JVM, its workers and the application.",
        "Both sides have read everything before, the JVM's threads and caches are warm; sinks have their "
        "defaults but zstd.",
        f"Latency counts from when a record was due; the first {WARM_SHARE:.0%} do not count.",
    ]


# -- reading and writing ------------------------------------------------------------------------------


def _measure_reads(context: Context, sides: Mapping[str, Side], reads: ReadRunner) -> None:
    for _ in range(WARM_UP[context.scale.name]):
        for side in sides.values():
            for read in (ReadCase(), ReadCase(how="batch"), ReadCase(topic="flights", typed=True)):
                reads.run(side, read)
        for how in ("stream", "batch"):  # Spark compiles each set of columns anew
            reads.run(sides[OURS], ReadCase(how=how, schema=ONE))
    for case, read in (
        (STREAM, ReadCase()),
        (SMALL, ReadCase(options={"maxOffsetsPerTrigger": "100000"})),
        (BATCH, ReadCase(how="batch")),
        (TYPED, ReadCase(topic="flights", typed=True)),
    ):
        contenders: dict[str, Measure] = {
            name: partial(reads.sample, side, read) for name, side in sides.items()
        }
        if case in (STREAM, BATCH):  # for streams Kafka's has no such thing
            one_column = ReadCase(how=read.how, schema=ONE)
            contenders[COLUMN] = partial(reads.sample, sides[OURS], one_column)
        context.alternate(case, "records/s", contenders)


@dataclass(frozen=True, kw_only=True)
class WriteCase:
    """What is written: Parquet files, and the id of the schema of their columns, where these are typed."""

    rows: Path
    records: int
    schema_id: int = 0


def _measure_writes(
    context: Context, case: str, sides: Mapping[str, Side], write_case: WriteCase
) -> None:
    for side in sides.values():
        _sink(context, side, write_case)
    contenders = {name: partial(_sink, context, side, write_case) for name, side in sides.items()}
    context.alternate(case, "records/s", contenders)


def _sink(context: Context, side: Side, write_case: WriteCase) -> Sample:
    topic = context.new_topic(side.peer, PARTITIONS)
    options, avro = {**side.sink_options, "topic": topic}, dict[str, Any]()
    if write_case.schema_id and side.peer == "folkmoot":
        options |= {"valueFormat": "avro", "writerSchema": str(write_case.schema_id)}
    elif write_case.schema_id:
        avro = {"schema": flights.schema(), "id": write_case.schema_id}
    reader = {**side.options, "subscribe": topic}
    report = side.run_verb(
        "write", rows=str(write_case.rows), options=options, avro=avro, check=reader
    )
    check(report, write_case.records)
    side.server.delete_topic(topic)
    return _rate(report, write_case.records)


def _rate(report: Mapping[str, Any], records: int) -> Sample:
    millions = records / 1e6
    facts = {"client CPU": report["cpu"] / millions, "server CPU": report["server_cpu"] / millions}
    if "worker" in report["resident"]:
        facts[WORKER_RSS] = report["resident"]["worker"]
    return Sample(value=records / report["seconds"], facts=facts)


def _in_tasks(context: Context, side: Side, reads: ReadRunner) -> None:
    def measure() -> Sample:
        cpu = []
        for records in IN_TASK:
            read = ReadCase(
                topic="few", how="batch", options={"maxRecordsPerPartition": str(records)}
            )
            cpu.append(reads.run(side, read)["cpu_of"]["worker"])
        tasks = [FEW // records for records in IN_TASK]
        return Sample(value=1000 * (cpu[1] - cpu[0]) / (tasks[1] - tasks[0]))

    context.alternate(TASKS, "ms", {OURS: measure})


# -- a query that goes on -----------------------------------------------------------------------------


def _measure_queries(context: Context, sides: Mapping[str, Side], reads: ReadRunner) -> None:
    """Queries from their start to their end, in turns: each gives a sample of several cases."""
    contenders: dict[str, Side] = {**sides, NOTHING: sides[OURS]}
    measures = {
        name: partial(_run_query, context, name, side, reads) for name, side in contenders.items()
    }
    title = f"{IDLE}, and with {RATE:,} records/s"
    samples = context.compare(title, measures, context.scale.side_rounds, warm_up=False)
    for case, unit in UNITS.items():
        for name in contenders:
            if (case, name) in samples:
                context.add(case, name, unit, samples[case, name])


def _run_query(context: Context, name: str, side: Side, reads: ReadRunner) -> dict[Part, Sample]:
    seconds = {"full": 10.0, "quick": 6.0, "smoke": 1.0}[context.scale.name]
    many = 0 if name == NOTHING else round(RATE * seconds)
    warm = int(many * WARM_SHARE)
    topic = context.new_topic(side.peer, PARTITIONS)
    parameters = {
        "topic": topic,
        "count": many,
        "rate": RATE,
        "size": SIZE,
        "linger": 0.0,
        "warm": warm,
    }
    query: dict[str, Any] = {"format": "nothing", "options": {}, "schema": "", "avro": ""}
    if name != NOTHING:
        side.topics["live"] = topic
        query = {"format": side.format, **reads.case(side, ReadCase(topic="live"))}
    with side.server.client("produce", program="paced", **parameters) as producer:
        producer.wait_ready()  # which has written a record to every partition
        side.session.go(
            json.dumps({"do": "live", **query, "seconds": seconds, "count": many, "warm": warm})
        )
        idle = side.session.wait_for_event("idle", PATIENCE)
        producer.go()
        sent = producer.wait_done()
        ended = side.session.wait_done()
    side.server.delete_topic(topic)
    return {(case, name): sample for case, sample in _samples(idle, sent, ended).items()}


def _samples(
    idle: Mapping[str, Any], sent: Mapping[str, Any], ended: Mapping[str, Any]
) -> dict[str, Sample]:
    """By case, of what the session reported when it was idle and at its end, and the producer."""

    def cpu_percent(*kinds: str) -> float:
        return 100 * sum(float(idle["cpu_of"][kind]) for kind in kinds) / float(idle["seconds"])

    facts = {READER: cpu_percent("reader"), "JVM %": cpu_percent("JVM")}
    samples = {
        FIRST_ROW: Sample(value=ended["first_row"]),
        IDLE: Sample(value=cpu_percent("reader", "JVM", "application"), facts=facts),
    }
    if lags := ended["lags"]:
        late = {name: (lag - sent["begun"]) / 1e6 for name, lag in lags.items()}
        facts = {P99: late["p99"], "max ms": late["max"]}
        if "reader" in ended["resident"]:
            facts[READER_RSS] = ended["resident"]["reader"]
        samples[LATENCY] = Sample(value=late["p50"], facts=facts)
    if "left" in ended:
        samples[LEFT] = Sample(value=ended["left"])
    return samples


# -- what is to be reached ----------------------------------------------------------------------------


def _judge(results: Results) -> None:
    for case, times in ((STREAM, 1.5), (SMALL, 1.5), (BATCH, 1.5), (TYPED, 1.5), (SINK, 2.0)):
        results.judge(case, results.find(case, OURS), results.find(case, KAFKA), times=times)
    if (cell := results.find(STREAM, OURS)) is not None:
        used = cell.facts["client CPU"] + cell.facts["server CPU"]
        results.limit(f"{STREAM}: CPU of client and server", used, 1.3, "s/M records")
    for case in (STREAM, BATCH):
        cell, column = results.find(case, OURS), results.find(case, COLUMN)
        if cell is not None:
            results.judge(f"{case}, one column by .schema", column, cell, times=1.25)
    for case in (STREAM, BATCH, TYPED):
        if (read := results.find(case, OURS)) is not None:
            text = f"{case}: worker, resident"
            results.limit(text, read.facts[WORKER_RSS], 150e6, "bytes")
    results.judge(TASKS, results.find(TASKS, OURS), wanted=5.0, better="lower")
    _judge_life(results)


def _judge_life(results: Results) -> None:
    idle, no_work = results.find(IDLE, OURS), results.find(IDLE, NOTHING)
    if idle is not None and no_work is not None:
        more = idle.facts[READER] - no_work.facts[READER]
        results.limit(f"{IDLE}: process of the source, beyond {NOTHING}", more, 0.3, UNITS[IDLE])
    first_row, baseline = results.find(FIRST_ROW, OURS), results.find(FIRST_ROW, NOTHING)
    if first_row is not None and baseline is not None:
        more = first_row.median - baseline.median
        results.limit(f"{FIRST_ROW}, beyond {NOTHING}", more, 1.0, "s")
    if (late := results.find(LATENCY, OURS)) is not None:
        results.judge(f"{LATENCY}: median", late, wanted=500.0, better="lower")
        results.limit(f"{LATENCY}: p99", late.facts[P99], 1200.0, "ms")
        results.limit("process of the source, resident", late.facts[READER_RSS], 120e6, "bytes")
    results.judge(LEFT, results.find(LEFT, OURS), wanted=0.5, better="lower")
