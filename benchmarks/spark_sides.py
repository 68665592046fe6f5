"""The two sides of the scenario `spark`: each a warm session, a server, and topics with the same records."""

import json
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import environment
from benchmarks.clients.program import read_columns, write_columns
from benchmarks.flight_columns import batches
from benchmarks.harness import Context
from benchmarks.measuring import Usage
from benchmarks.peers.base import Server
from benchmarks.programs import Program, ProgramFailed
from folkmoot.console.demo import flights
from folkmoot.console.running.java import find_java, spark_java_home
from folkmoot.schemas.columns.serializer import ColumnEncoder
from folkmoot.schemas.registry.schema_registry import SchemaRegistry

PARTITIONS: Final = 12
FILES: Final = 12


@dataclass(frozen=True, kw_only=True)
class Side:
    """A session and its server. `topics` are those that were filled, by what they have."""

    session: Program
    server: Server
    peer: str
    format: str
    options: Mapping[str, str]
    stream_options: Mapping[str, str]
    sink_options: Mapping[str, str]
    topics: dict[str, str] = field(default_factory=dict)

    def run_verb(self, verb: str, **case: Any) -> dict[str, Any]:
        """The session's report when it was done, with the server's CPU seconds meanwhile."""
        with Usage(self.server.processes()) as usage:
            self.session.go(json.dumps({"do": verb, "format": self.format, **case}))
            report = self.session.wait_done()
        return {**report, "server_cpu": sum(usage.cpu.values())}

    def fill(self, name: str, topic: str, records: Path, count: int) -> None:
        self.server.produce(topic, records, count, how="columns")
        self.topics[name] = topic


def ours(context: Context, stack: ExitStack) -> Side:
    server = context.server("folkmoot")
    return Side(
        session=_session(context, stack, sys.executable, ours=True),
        server=server,
        peer="folkmoot",
        format="folkmoot",
        options={"zookeeper": server.address},
        stream_options={"startingOffsets": "earliest"},
        sink_options={"zookeeper": server.address},
    )


def kafka(context: Context, stack: ExitStack) -> Side:
    """Raises Unavailable."""
    python, jars = environment.kafka_spark()
    server = context.server("kafka")
    settings = {
        "spark.jars": ",".join(map(str, sorted(jars.glob("*.jar")))),
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    options = {"kafka.bootstrap.servers": server.address}
    return Side(
        session=_session(context, stack, python, ours=False, **settings),
        server=server,
        peer="kafka",
        format="kafka",
        options=options,
        stream_options={"startingOffsets": "earliest"},
        sink_options={**options, "kafka.compression.type": "zstd"},
    )


def _session(
    context: Context, stack: ExitStack, python: str, *, ours: bool, **settings: str
) -> Program:
    home = spark_java_home(find_java(), context.work / "java")
    parameters = json.dumps({"ours": ours, "settings": settings})
    command = [python, "-m", "benchmarks.clients.spark", "session", parameters]
    log = context.work / f"spark-{'ours' if ours else 'kafka'}.log"
    environ = {
        "JAVA_HOME": str(home),
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": python,
        # Kept bytecode, as what pip has installed has it: Spark starts Python anew for each query.
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONPYCACHEPREFIX": str(context.work / "bytecode"),
    }
    session = stack.enter_context(Program(command, log, environ))
    session.wait_ready()
    return session


def flights_on(context: Context, sides: Mapping[str, Side], count: int) -> tuple[int, int]:
    """Flights in Avro behind the id of their schema, the same bytes on all sides; → how many, and that id.

    The first side is ours, in whose registry the schema is registered. More than there are come again.
    """
    first, *_ = sides.values()
    topics = {name: context.new_topic(side.peer, PARTITIONS) for name, side in sides.items()}
    registry = SchemaRegistry(first.options["zookeeper"], timeout=30.0)
    try:
        subject = f"{topics[next(iter(sides))]}-value"
        id = registry.register(subject, flights.schema()).id
    finally:
        registry.close()
    keys, values = _encode_flights(id, min(count, flights.FLIGHTS))
    times = -(-count // len(values))
    path = context.work / "flights-avro"
    write_columns(path, keys * times, values * times)
    for name, side in sides.items():
        side.fill("flights", topics[name], path, times * len(values))
    return times * len(values), id


def _encode_flights(id: int, count: int) -> tuple[list[bytes], list[bytes]]:
    text = flights.schema()
    encode = ColumnEncoder(text, id)
    rows = list(flights.read(flights.find_archive(), count))
    values: list[bytes] = []
    for batch in batches([each.value for each in rows], text):
        values += encode(batch).to_pylist()
    return [each.key or b"" for each in rows], values


def as_parquet(records: Path, count: int, folder: Path) -> Path:
    """The records as FILES files with columns `key` and `value`."""
    folder.mkdir()
    keys, values = (pa.array(cells, pa.binary()) for cells in read_columns(records, count))
    return _into_files(pa.table({"key": keys, "value": values}), folder)


def flights_as_parquet(count: int, folder: Path) -> Path:
    """Flights as FILES files with a column for each field, and `_key`. More than there are come again."""
    folder.mkdir()
    rows = list(flights.read(flights.find_archive(), min(count, flights.FLIGHTS)))
    table = pa.Table.from_batches(batches([each.value for each in rows], flights.schema()))
    table = table.append_column("_key", pa.array([each.key for each in rows], pa.binary()))
    return _into_files(pa.concat_tables([table] * -(-count // len(rows))).slice(0, count), folder)


def _into_files(table: pa.Table, folder: Path) -> Path:
    rows = -(-table.num_rows // FILES)
    for number in range(FILES):
        pq.write_table(table.slice(number * rows, rows), folder / f"{number}.parquet")
    return folder


def check(report: Mapping[str, Any], records: int) -> None:
    """Raises ProgramFailed."""
    if report["records"] != records:
        raise ProgramFailed(f"{report['records']} records are there, and not {records}")
