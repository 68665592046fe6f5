"""The application's own store: a row for each flight that was processed, in one SQLite file.

A row's key is the partition and the offset of its record. A record that comes again changes nothing but
the number of its deliveries, so every record counts once. Members write side by side, and a killed one
leaves all of a transaction or nothing.
"""

import sqlite3
from itertools import repeat
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

BUSY_TIMEOUT: Final = 30.0
TABLE: Final = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
CREATE TABLE IF NOT EXISTS flights (
    member TEXT,
    partition INTEGER,
    offset INTEGER,
    carrier TEXT,
    dep_time INTEGER,
    dep_delay INTEGER,
    deliveries INTEGER DEFAULT 1,
    PRIMARY KEY (partition, offset)
) WITHOUT ROWID;
"""
ADD: Final = """
INSERT INTO flights (member, partition, offset, carrier, dep_time, dep_delay)
VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET deliveries = deliveries + 1
"""
COLUMNS: Final = ("_partition", "_offset", "carrier", "dep_time", "dep_delay")
"""Columns of the store, by the names in tables of records."""


class Results:
    """The open file. One thread uses it."""

    def __init__(self, path: Path) -> None:
        self._database = sqlite3.connect(path, BUSY_TIMEOUT, isolation_level="IMMEDIATE")
        self._database.executescript(TABLE)
        self.close = self._database.close

    def add(self, member: str, records: pa.Table) -> None:
        """Write in one transaction what a member has processed."""
        columns = [records.column(name).to_pylist() for name in COLUMNS]
        with self._database:
            self._database.executemany(ADD, zip(repeat(member), *columns, strict=False))

    def select(self, query: str) -> list[tuple[Any, ...]]:
        return self._database.execute(f"SELECT {query}").fetchall()

    def count(self, partition: int | None = None, offset: int = 0) -> int:
        """Count all flights, or those of a partition from an offset on."""
        where = "" if partition is None else f"WHERE partition = {partition} AND offset >= {offset}"
        ((count,),) = self.select(f"count(*) FROM flights {where}")
        return int(count)
