"""The application's own store: results and the offsets that they stand for, in one SQLite file."""

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Self

from msgspec import Struct

from folkmoot.protocol.errors import ClosedError, OffsetOutOfRange
from folkmoot.protocol.records import Record, TopicPartition

BUSY_TIMEOUT = 30.0

_TABLES = """
CREATE TABLE IF NOT EXISTS carriers (
    carrier TEXT PRIMARY KEY,
    flights INTEGER NOT NULL,
    delayed INTEGER NOT NULL,
    minutes INTEGER NOT NULL,
    cancelled INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS positions (
    topic TEXT NOT NULL,
    partition INTEGER NOT NULL,
    next_offset INTEGER NOT NULL,
    PRIMARY KEY (topic, partition)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS members (
    member TEXT PRIMARY KEY,
    applied INTEGER NOT NULL,
    repeated INTEGER NOT NULL
) WITHOUT ROWID;
"""
_ADD_CARRIER = """
INSERT INTO carriers VALUES (?, ?, ?, ?, ?) ON CONFLICT (carrier) DO UPDATE SET
    flights = flights + excluded.flights,
    delayed = delayed + excluded.delayed,
    minutes = minutes + excluded.minutes,
    cancelled = cancelled + excluded.cancelled
"""
_SET_POSITION = """
INSERT INTO positions VALUES (?, ?, ?) ON CONFLICT (topic, partition) DO UPDATE SET
    next_offset = excluded.next_offset
"""
_ADD_MEMBER = """
INSERT INTO members VALUES (?, ?, ?) ON CONFLICT (member) DO UPDATE SET
    applied = applied + excluded.applied,
    repeated = repeated + excluded.repeated
"""


class Result(NamedTuple):
    """What one flight adds to its carrier's sums."""

    offset: int
    carrier: str
    delay: int | None
    cancelled: bool


class Work(NamedTuple):
    """What a member has done: records applied, and records that it got although they had been."""

    applied: int
    repeated: int


class ResultStore:
    """Sums by carrier, and for every partition the next offset that they do not contain yet.

    Both change in one transaction, so whatever dies, the sums contain exactly the records below the
    positions. The group's committed offset follows behind: it is committed after the transaction.
    Who takes a partition over starts there and gets records again that are applied already; they
    lie below the position, are left out, and counted. So every record counts once, and no set of
    records is kept anywhere. Two members that both believe to own a partition, one of them a
    zombie, do no harm either: the position moves under the database's lock.

    Several processes write to one file (WAL; whoever finds it locked waits up to BUSY_TIMEOUT). A
    kill of a process loses nothing that was applied; a power cut may lose the last transactions
    (synchronous=NORMAL) but never a part of one. One thread uses an object.
    """

    def __init__(self, path: Path, member: str = "") -> None:
        self.path = path
        self.member = member
        self._connection: sqlite3.Connection | None = None

    def open(self) -> Self:
        connection = sqlite3.connect(self.path, timeout=BUSY_TIMEOUT, isolation_level=None)
        self._connection = connection
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.executescript(_TABLES)
        return self

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def apply(self, batch: Mapping[TopicPartition, Sequence[Result]]) -> Work:
        """Add what is new of a batch (each partition's results in the order of their offsets).

        Raises OffsetOutOfRange, and changes nothing, if records between position and batch are
        missing: they would be lost for good.
        """
        database = self._database
        database.execute("BEGIN IMMEDIATE")
        try:
            work = self._apply(database, batch)
            database.execute("COMMIT")
        except BaseException:
            database.execute("ROLLBACK")
            raise
        return work

    def _apply(
        self, database: sqlite3.Connection, batch: Mapping[TopicPartition, Sequence[Result]]
    ) -> Work:
        sums: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
        positions = self.positions()
        repeated = applied = 0
        for partition, results in batch.items():
            position = positions.get(partition, 0)
            for result in results:
                if result.offset < position:
                    repeated += 1
                    continue
                if result.offset > position:
                    raise OffsetOutOfRange(
                        f"{partition}: offset {result.offset} came where {position} was due: "
                        "records are missing"
                    )
                _add(sums[result.carrier], result)
                position += 1
                applied += 1
            positions[partition] = position
        database.executemany(_ADD_CARRIER, [(carrier, *each) for carrier, each in sums.items()])
        database.executemany(_SET_POSITION, [(*each, positions[each]) for each in batch])
        database.execute(_ADD_MEMBER, (self.member, applied, repeated))
        return Work(applied, repeated)

    def positions(self) -> dict[TopicPartition, int]:
        """The next offset of every partition that has one."""
        rows = self._database.execute("SELECT topic, partition, next_offset FROM positions")
        return {TopicPartition(topic, partition): offset for topic, partition, offset in rows}

    def carriers(self) -> dict[str, tuple[int, int, int, int]]:
        """Flights, those with a delay, their minutes, cancelled ones, by carrier."""
        rows = self._database.execute("SELECT * FROM carriers ORDER BY carrier")
        return {carrier: tuple(sums) for carrier, *sums in rows}

    def members(self) -> dict[str, Work]:
        """What each member has done."""
        rows = self._database.execute("SELECT * FROM members ORDER BY member")
        return {member: Work(applied, repeated) for member, applied, repeated in rows}

    @property
    def _database(self) -> sqlite3.Connection:
        if self._connection is None:
            raise ClosedError(
                "the result store is not open: use it in a with block, or call open()"
            )
        return self._connection


class Departure(Struct):
    """What the sums need of a flight."""

    carrier: str
    dep_time: int | None
    dep_delay: int | None


def results(records: Iterable[Record[bytes, Departure]]) -> dict[TopicPartition, list[Result]]:
    """What records add to the sums, by partition."""
    batch: defaultdict[TopicPartition, list[Result]] = defaultdict(list)
    for record in records:
        assert record.value is not None  # nobody sends tombstones
        batch[record.topic_partition].append(result(record.offset, record.value))
    return batch


def result(offset: int, flight: Departure) -> Result:
    """What one flight adds to the sums."""
    return Result(offset, flight.carrier, flight.dep_delay, flight.dep_time is None)


def _add(sums: list[int], result: Result) -> None:
    sums[0] += 1
    if result.delay is not None:
        sums[1] += 1
        sums[2] += result.delay
    sums[3] += result.cancelled
