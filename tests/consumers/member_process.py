"""A member of a group as a process of its own: counts records in SQLite, each once.

    python -m tests.consumers.member_process ZOOKEEPER GROUP TOPIC DATABASE NAME [--hold-commits FILE]
        [--session-timeout SECONDS] [--workers N [--forgetful]]

Each poll is one transaction of the database: what lies at or past the partition's next offset is
counted, and that moves on. Then the group's offsets are committed. With --hold-commits the commit
waits until the file is there, as a slow handler would, and polls nothing meanwhile.

With --workers so many threads note records, each by itself, and say `done`; with --forgetful none of
them does that for every tenth record.
"""

import argparse
import random
import signal
import sqlite3
import sys
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from threading import get_ident
from typing import Any

from folkmoot.consumers.client.consumer import Consumer
from folkmoot.protocol.errors import NotOwner
from folkmoot.protocol.records import Record
from tests.consumers.parts import PATIENT

SCHEMA = """
CREATE TABLE IF NOT EXISTS counted (
    partition INTEGER PRIMARY KEY, next INTEGER, records INTEGER, sum INTEGER, delivered INTEGER
);
CREATE TABLE IF NOT EXISTS handled (partition INTEGER, offset INTEGER);
"""
COUNT = """
INSERT INTO counted VALUES (?, ?, ?, ?, ?) ON CONFLICT (partition) DO UPDATE SET
    next = excluded.next, records = records + excluded.records, sum = sum + excluded.sum,
    delivered = delivered + excluded.delivered
"""


def tell(*words: object) -> None:
    """A line in one write: what is logged meanwhile goes to the same file, and not into its midst."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def open_database(path: str | Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=20.0, isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = OFF")
    database.executescript(SCHEMA)
    return database


def count(database: sqlite3.Connection, records: list[Record]) -> None:
    """One transaction: results and next offsets together."""
    by_partition: dict[int, list[Record]] = defaultdict(list)
    for record in records:
        by_partition[record.partition].append(record)
    database.execute("BEGIN IMMEDIATE")
    for partition, some in by_partition.items():
        row = database.execute("SELECT next FROM counted WHERE partition = ?", (partition,))
        first = (row.fetchone() or (0,))[0]
        new = [record for record in some if record.offset >= first]
        following = max(first, some[-1].offset + 1)
        total = sum(int(record.value or b"0") for record in new)
        database.execute(COUNT, (partition, following, len(new), total, len(some)))
    database.execute("COMMIT")


def read_with_workers(
    consumer: Consumer, database: str, workers: int, *, is_forgetful: bool
) -> None:
    """Records are done in an order of chance."""

    @cache
    def connection(thread: int) -> sqlite3.Connection:
        return open_database(database)

    def handle(record: Record) -> None:
        if is_forgetful and record.offset % 10 == 3:
            return
        time.sleep(random.uniform(0.0, 0.02))
        row = record.partition, record.offset
        connection(get_ident()).execute("INSERT INTO handled VALUES (?, ?)", row)
        tell("handled", *row)
        consumer.done(record)

    with ThreadPoolExecutor(workers) as pool:
        for record in consumer:
            pool.submit(handle, record)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("zookeeper", "group", "topic", "database", "name"):
        parser.add_argument(name)
    parser.add_argument("--hold-commits", type=Path)
    parser.add_argument("--session-timeout", type=float, default=PATIENT["session_timeout"])
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--forgetful", action="store_true")
    given = parser.parse_args()
    database = open_database(given.database)
    by_done: dict[str, Any] = {"explicit_done": True, "auto_commit": True, "commit_interval": 0.05}
    consumer = Consumer(
        **(by_done if given.workers else {"auto_commit": False}),
        zookeeper=given.zookeeper,
        group=given.group,
        topics=[given.topic],
        client_id=given.name,
        session_timeout=given.session_timeout,
        on_assign=lambda _, some: tell("assigned", *(each.partition for each in some)),
        on_lost=lambda _, some: tell("lost", *(each.partition for each in some)),
    )
    running = True

    def end(*_: object) -> None:
        nonlocal running
        running = False
        consumer.stop()

    signal.signal(signal.SIGTERM, end)
    with consumer:
        if given.workers:
            read_with_workers(consumer, given.database, given.workers, is_forgetful=given.forgetful)
        while running:
            records = consumer.poll(0.5, max_records=25)
            if not records:
                continue
            count(database, records)
            tell("counted", len(records))
            while given.hold_commits and not given.hold_commits.exists():
                time.sleep(0.01)
            try:
                consumer.commit()
                tell("committed")
            except NotOwner as refused:
                tell("refused", type(refused).__name__)


if __name__ == "__main__":
    main()
