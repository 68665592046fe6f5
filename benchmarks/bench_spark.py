"""Spark's micro-batches and batch reads of a topic, beside Spark's own source for Kafka.

Each side has a session that is warm (`local[2]`), reads the same records and throws them away. Kafka's
source is that of PySpark 4.0.0: not all jars of newer ones are on Maven Central.
"""

import json
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Final

from benchmarks import environment
from benchmarks.harness import Context, Estimate, Sample
from benchmarks.measuring import Usage
from benchmarks.peers import Unavailable
from benchmarks.peers.base import Server
from benchmarks.programs import Program, ProgramFailed
from benchmarks.results import Cell, Results, compared
from folkmoot.console.java import find_java, spark_java_home

NAME: Final = "spark"
TITLE: Final = "Spark: streams and batch reads"
ESTIMATE: Final = Estimate(seconds=110, per_round=55, quick_seconds=120, disk=3e9)

OURS: Final = "Folkmoot"
KAFKA: Final = "Spark's source for Kafka"
PARTITIONS: Final = 12
RECORDS: Final = {"full": 3_000_000, "quick": 1_000_000, "smoke": 20_000}
WARM_UP: Final = 3
"""Reads of all kinds before any is measured: the JVM compiles what it does often."""
ONE_COLUMN: Final = "value binary"
STREAM: Final = "stream, Trigger.AvailableNow, defaults"
SMALL: Final = "stream in batches of 100,000 records"
COLUMN: Final = "stream of one column"
BATCH: Final = "batch read"
_LIMIT: Final = {"maxOffsetsPerTrigger": "100000"}


@dataclass(frozen=True, kw_only=True)
class Side:
    """A session, and the server and topic that it reads."""

    session: Program
    server: Server
    format: str
    options: Mapping[str, str]
    stream_options: Mapping[str, str]


def run(context: Context) -> Results:
    results = Results(name=NAME, title=TITLE)
    records = RECORDS[context.scale.name]
    with ExitStack() as stack:
        sides = {OURS: _ours(context, stack, records)}
        if context.has("kafka"):
            try:
                sides[KAFKA] = _kafka(context, stack, records)
            except (Unavailable, ProgramFailed) as reason:
                results.notes.append(f"Spark's source for Kafka was not measured: {reason}")
        cells = _measured(context, sides, records)
    results.cells += cells
    _compare(results, cells)
    results.notes.append(
        f"{records:,} records of 100 B in {PARTITIONS} partitions, zstd, into the sink noop; "
        "client CPU is that of the JVM, its workers and the application."
    )
    return results


def _measured(context: Context, sides: Mapping[str, Side], records: int) -> list[Cell]:
    numbers = count()
    cells: list[Cell] = []
    for _ in range(WARM_UP if context.scale.name == "full" else 1):
        for side in sides.values():
            _measure(side, numbers, records, "stream", {}, "")
            _measure(side, numbers, records, "batch", {}, "")
    for case, how, options, schema in (
        (STREAM, "stream", {}, ""),
        (SMALL, "stream", _LIMIT, ""),
        (COLUMN, "stream", {}, ONE_COLUMN),
        (BATCH, "batch", {}, ""),
    ):
        contenders = {
            name: partial(_measure, side, numbers, records, how, options, schema)
            for name, side in sides.items()
            if not schema or name == OURS  # Kafka's has no such thing for streams
        }
        cells += context.alternate(case, "records/s", contenders)
    return cells


def _measure(
    side: Side,
    numbers: "count[int]",
    records: int,
    how: str,
    options: Mapping[str, str],
    schema: str,
) -> Sample:
    streams = how == "stream"
    given = {**side.options, **(side.stream_options if streams else {}), **options}
    if side.format == "folkmoot" and streams:
        given["group"] = f"bench-{next(numbers)}"  # has read nothing yet
    case = {"how": how, "format": side.format, "options": given, "schema": schema}
    with Usage(side.server.processes()) as usage:
        side.session.go(json.dumps({**case, "records": records}))
        told = side.session.wait_done()
    if told["records"] != records:
        raise ProgramFailed(f"{told['records']} of {records} records were read")
    millions = records / 1e6
    facts = {
        "client CPU": told["cpu"] / millions,
        "server CPU": sum(usage.cpu.values()) / millions,
    }
    return Sample(value=records / told["seconds"], facts=facts)


def _filled(context: Context, peer: str, records: int) -> tuple[Server, str]:
    server = context.server(peer)
    topic = context.new_topic(peer, PARTITIONS)
    told: dict[str, Any] = {"topic": topic, "count": records, "warm": 0, "compression": "zstd"}
    if peer == "folkmoot":
        told["how"] = "columns"
    path = str(context.records.get("small", records).path)
    server.client("produce", records=path, **told).run({})
    return server, topic


def _ours(context: Context, stack: ExitStack, records: int) -> Side:
    server, topic = _filled(context, "folkmoot", records)
    options = {"zookeeper": server.address, "subscribe": topic}
    session = _session(context, stack, sys.executable, ours=True)
    return Side(
        session=session, server=server, format="folkmoot", options=options, stream_options={}
    )


def _kafka(context: Context, stack: ExitStack, records: int) -> Side:
    python, jars = environment.kafka_spark()
    server, topic = _filled(context, "kafka", records)
    options = {"kafka.bootstrap.servers": server.address, "subscribe": topic}
    settings = {
        "spark.jars": ",".join(map(str, sorted(jars.glob("*.jar")))),
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    session = _session(context, stack, python, ours=False, **settings)
    return Side(
        session=session,
        server=server,
        format="kafka",
        options=options,
        stream_options={"startingOffsets": "earliest"},
    )


def _session(
    context: Context, stack: ExitStack, python: str, *, ours: bool, **settings: str
) -> Program:
    home = spark_java_home(find_java(), context.work / "java")
    parameters = json.dumps({"ours": ours, "settings": settings})
    command = [python, "-m", "benchmarks.clients.spark", "session", parameters]
    log = context.work / f"spark-{'ours' if ours else 'kafka'}.log"
    environ = {"JAVA_HOME": str(home), "PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}
    session = stack.enter_context(Program(command, log, environ))
    session.wait_ready()
    return session


def _compare(results: Results, cells: list[Cell]) -> None:
    by_name = {(cell.case, cell.contender): cell for cell in cells}
    for case, times in ((STREAM, 1.5), (SMALL, 1.5), (BATCH, 1.5)):
        if (case, OURS) in by_name:
            theirs = by_name.get((case, KAFKA))
            results.targets.append(compared(case, by_name[case, OURS], theirs, times=times))
    if (COLUMN, OURS) in by_name and (STREAM, OURS) in by_name:
        column, whole = by_name[COLUMN, OURS], by_name[STREAM, OURS]
        results.targets.append(compared(f"{COLUMN}, beside all", column, whole, times=1.25))
