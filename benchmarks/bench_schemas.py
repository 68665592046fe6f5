"""What schemas cost: the flights as Avro in columns and one by one, beside fastavro, and the registry.

Columns and single values are measured in this process, in CPU seconds of all its threads, so that a rate
is that of one core. fastavro is called as its users do, without any check of ours; into Arrow it goes by
`Table.from_pylist`, and values of a table it is given as dicts that are there already.
"""

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from typing import Any, Final

import fastavro
import pyarrow as pa

from benchmarks import registry_load
from benchmarks.flight_columns import ROWS, OneSchema, batches, deserializer
from benchmarks.harness import Context, Sample
from benchmarks.registry_load import Load
from benchmarks.results import Results
from folkmoot.console.demo import flights
from folkmoot.coordination.connector import connect
from folkmoot.schemas.avro.identity import canonical, parse
from folkmoot.schemas.columns.serializer import ColumnEncoder
from folkmoot.schemas.values.deserializer import AvroDeserializer
from folkmoot.schemas.values.serializer import AvroSerializer
from folkmoot.schemas.values.wire import FRAME, MAGIC

TITLE: Final = "Schemas: values in columns and one by one, and the registry"

COLUMNS: Final = "Folkmoot, columns"
SINGLE: Final = "Folkmoot, value by value"
FASTAVRO: Final = "fastavro"
DECODE: Final = "flights, Avro to Arrow"
ENCODE: Final = "flights, Arrow to Avro"
READ: Final = "flights, Avro to dicts"
WRITE: Final = "flights, dicts to Avro"
LOOK_UPS: Final = "schemas by id over HTTP, one server"
REGISTER: Final = "new schemas over HTTP, 20 registrars, three servers"
SUBJECTS: Final = 50_000
LIST: Final = f"a page of {SUBJECTS:,} subjects by prefix"
HERE: Final = "SchemaRegistry"
SERVER: Final = "folkmoot registry"
P99: Final = "p99 ms"
RSS: Final = "server RSS"

BEHIND: Final = 8
"""How many times fewer rows fastavro gets, which takes as long for them."""
LEAST: Final = 500
ID: Final = 1


@dataclass(frozen=True)
class Flights:
    text: str
    rows: list[dict[str, Any]]
    values: list[bytes]

    @classmethod
    def read(cls, count: int) -> "Flights":
        text = canonical(flights.schema())
        rows = [each.value for each in flights.read(flights.find_archive(), count)]
        schema, frame = parse(text), FRAME.pack(MAGIC, ID)
        return cls(text, rows, [frame + _encode_row(schema, row) for row in rows])

    def first(self, count: int) -> "Flights":
        return Flights(self.text, self.rows[:count], self.values[:count])


def _encode_row(schema: Any, row: Any) -> bytes:
    out = BytesIO()
    fastavro.schemaless_writer(out, schema, row)
    return out.getvalue()


def run(context: Context) -> None:
    results = context.results
    fraction = min(1.0, context.scale.seconds / 2.5)
    flight_set = Flights.read(max(LEAST * BEHIND, int(flights.FLIGHTS * fraction)))
    small_set = flight_set.first(len(flight_set.rows) // BEHIND)
    cases: dict[str, dict[str, Callable[[], Sample]]] = {
        DECODE: {
            COLUMNS: partial(decode_columns, flight_set),
            FASTAVRO: partial(decode_columns_with_fastavro, small_set),
        },
        ENCODE: {
            COLUMNS: partial(encode_columns, flight_set),
            FASTAVRO: partial(encode_values_with_fastavro, small_set),
        },
        READ: {
            SINGLE: partial(decode_values, small_set),
            FASTAVRO: partial(decode_values_with_fastavro, small_set),
        },
        WRITE: {
            SINGLE: partial(encode_values, small_set),
            FASTAVRO: partial(encode_values_with_fastavro, small_set),
        },
    }
    for case, contenders in cases.items():
        context.alternate(case, "values/s", contenders)
    _judge(results)
    _registry(context, results)
    _measure_listing(context)
    results.notes.append(
        f"{len(flight_set.rows):,} flights in columns of {ROWS:,}, {len(small_set.rows):,} one by one and by "
        "fastavro; values a second of CPU time."
    )


def _judge(results: Results) -> None:
    for case, contender, least, times in (
        (DECODE, COLUMNS, 1.5e6, 20.0),
        (ENCODE, COLUMNS, 1.5e6, 15.0),
        (READ, SINGLE, None, round(1 / 1.2, 3)),
        (WRITE, SINGLE, None, round(1 / 1.2, 3)),
    ):
        ours, rival = results.find(case, contender), results.find(case, FASTAVRO)
        results.judge(case, ours, rival, wanted=least, times=times)


# -- values -------------------------------------------------------------------------------------------


def decode_columns(flight_set: Flights) -> Sample:
    columns = [
        pa.array(flight_set.values[row : row + ROWS], pa.binary()) for row in _starts(flight_set)
    ]
    decode = deserializer(flight_set.text)
    return _rate(len(flight_set.values), lambda: [decode(column) for column in columns])


def decode_columns_with_fastavro(flight_set: Flights) -> Sample:
    schema, arrow = parse(flight_set.text), deserializer(flight_set.text).arrow_schema

    def work() -> None:
        for row in _starts(flight_set):
            pa.Table.from_pylist(
                [_decode_value(schema, value) for value in flight_set.values[row : row + ROWS]],
                schema=arrow,
            )

    return _rate(len(flight_set.values), work)


def encode_columns(flight_set: Flights) -> Sample:
    columns = list(batches(flight_set.rows, flight_set.text))
    encode = ColumnEncoder(flight_set.text, ID)
    return _rate(len(flight_set.rows), lambda: [encode(batch) for batch in columns])


def decode_values(flight_set: Flights) -> Sample:
    decode = AvroDeserializer(OneSchema(flight_set.text))
    return _rate(len(flight_set.values), lambda: [decode(value) for value in flight_set.values])


def decode_values_with_fastavro(flight_set: Flights) -> Sample:
    schema = parse(flight_set.text)
    return _rate(
        len(flight_set.values),
        lambda: [_decode_value(schema, value) for value in flight_set.values],
    )


def encode_values(flight_set: Flights) -> Sample:
    registry: Any = OneSchema(flight_set.text)
    serializer = AvroSerializer[Any](registry, flight_set.text, id=ID)
    return _rate(
        len(flight_set.rows), lambda: [serializer.serialize("t", row) for row in flight_set.rows]
    )


def encode_values_with_fastavro(flight_set: Flights) -> Sample:
    schema = parse(flight_set.text)
    return _rate(
        len(flight_set.rows), lambda: [_encode_row(schema, row) for row in flight_set.rows]
    )


def _decode_value(schema: Any, value: bytes) -> Any:
    body = BytesIO(value)
    body.seek(FRAME.size)
    return fastavro.schemaless_reader(body, schema, None)


def _starts(flight_set: Flights) -> range:
    return range(0, len(flight_set.values), ROWS)


def _rate(count: int, work: Callable[[], object]) -> Sample:
    started_at = time.process_time()
    work()
    return Sample(value=count / (time.process_time() - started_at))


# -- the registry -------------------------------------------------------------------------------------


def _registry(context: Context, results: Results) -> None:
    zookeeper, seconds = context.server("folkmoot").address, context.scale.seconds
    look_up = partial(registry_load.lookups, zookeeper, context.work, max(0.5, 2 * seconds))
    count = max(60, int(800 * seconds))
    register = partial(registry_load.registrations, zookeeper, context.work, count)
    for case, load in ((LOOK_UPS, look_up), (REGISTER, register)):
        context.alternate(case, "requests/s", {SERVER: partial(_measure_load, load)})
    lookup_cell = results.find(LOOK_UPS, SERVER)
    results.judge(LOOK_UPS, lookup_cell, wanted=1_500)
    results.judge(f"{LOOK_UPS}: p99", lookup_cell, fact=P99, unit="ms", wanted=10, better="lower")
    results.judge(
        f"{LOOK_UPS}: resident", lookup_cell, fact=RSS, unit="bytes", wanted=90e6, better="lower"
    )
    results.judge(REGISTER, results.find(REGISTER, SERVER), wanted=200)


def _measure_listing(context: Context) -> None:
    zookeeper = context.server("folkmoot").address
    with closing(connect(zookeeper, 10.0)) as session:
        registry_load.create_subjects(session, SUBJECTS)
    over_http = partial(registry_load.time_listing_over_http, zookeeper, context.work)
    contenders: dict[str, Callable[[], Sample]] = {
        HERE: lambda: Sample(value=registry_load.time_listing(zookeeper)),
        SERVER: lambda: Sample(value=over_http()),
    }
    for cell in context.alternate(LIST, "s", contenders, None, "lower"):
        context.results.judge(f"{LIST}, {cell.contender}", cell, wanted=1.0)


def _measure_load(load: Callable[[], Load]) -> Sample:
    found = load()
    return Sample(value=found.per_second, facts={P99: 1000 * found.p99, RSS: found.resident})
