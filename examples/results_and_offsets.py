"""Results and offsets in one database transaction: each record counts once, and no zombie writes.

    folkmoot dev &                             # prints the address to export
    export FOLKMOOT_ZOOKEEPER=...
    folkmoot topic create orders --partitions 3
    python examples/results_and_offsets.py results.db                      # SQLite, or:
    pip install 'psycopg[binary]'
    python examples/results_and_offsets.py postgresql://localhost/results

Nothing is committed to the group. It only divides the partitions, and the epoch of each claim is the
token by which the database refuses a member that has lost a partition and does not know it yet.
"""

import os
import sqlite3
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any, Protocol

from folkmoot import Consumer, Producer, Record, TopicPartition

ORDERS = 60


class Database(Protocol):
    """What both have in common, once their spelling is out of the way."""

    begin: str
    bytes: str

    def execute(self, statement: str, values: Sequence[Any] = ()) -> Any: ...

    def close(self) -> None: ...


class SQLite:
    begin = "BEGIN IMMEDIATE"  # so that a second writer waits here, and not in the middle
    bytes = "BLOB"

    def __init__(self, path: str) -> None:
        self._connection = sqlite3.connect(path, timeout=60, isolation_level=None)

    def execute(self, statement: str, values: Sequence[Any] = ()) -> Any:
        return self._connection.execute(statement, values)

    def close(self) -> None:
        self._connection.close()


class PostgreSQL:
    begin = "BEGIN"  # READ COMMITTED is enough: each row of progress is locked by whoever writes it
    bytes = "BYTEA"

    def __init__(self, address: str) -> None:
        import psycopg

        self._connection = psycopg.connect(address, autocommit=True)

    def execute(self, statement: str, values: Sequence[Any] = ()) -> Any:
        return self._connection.execute(statement.replace("?", "%s").encode(), values)

    def close(self) -> None:
        self._connection.close()


class Results:
    """What was computed, and up to where. One row of `progress` per partition."""

    def __init__(self, database: Database) -> None:
        self._database = database
        database.execute(
            "CREATE TABLE IF NOT EXISTS progress ("
            "topic TEXT, part INTEGER, next BIGINT, token BIGINT, PRIMARY KEY (topic, part))"
        )
        database.execute(f"CREATE TABLE IF NOT EXISTS results (value {database.bytes})")

    def take(self, partition: TopicPartition, token: int) -> int | None:
        """From here on an older token writes no more. Returns where to go on; None: never begun."""
        self._database.execute(
            "INSERT INTO progress VALUES (?, ?, NULL, ?) ON CONFLICT (topic, part) DO UPDATE"
            " SET token = excluded.token WHERE excluded.token > progress.token",
            (*partition, token),
        )
        found = self._database.execute(
            "SELECT next FROM progress WHERE topic = ? AND part = ?", partition
        ).fetchone()
        return None if found[0] is None else int(found[0])

    def write(self, record: Record, token: int) -> bool:
        """The result and the next offset, or neither: False if the token is not the newest."""
        self._database.execute(self._database.begin)
        changed = self._database.execute(
            "UPDATE progress SET next = ? WHERE topic = ? AND part = ? AND token = ?",
            (record.offset + 1, *record.topic_partition, token),
        )
        if changed.rowcount != 1:
            self._database.execute("ROLLBACK")
            return False
        self._database.execute("INSERT INTO results VALUES (?)", (record.value,))
        self._database.execute("COMMIT")
        return True

    def count(self) -> int:
        (found,) = self._database.execute("SELECT count(*) FROM results").fetchone()
        return int(found)

    def close(self) -> None:
        self._database.close()


def results_in(place: str) -> Results:
    """In the PostgreSQL database of that address, or in the SQLite file of that name."""
    return Results(PostgreSQL(place) if "://" in place else SQLite(place))


def main(place: str) -> int:
    zookeeper = os.environ.get("FOLKMOOT_ZOOKEEPER")
    if zookeeper is None:
        print("set FOLKMOOT_ZOOKEEPER to what `folkmoot dev` prints")
        return 2
    with Producer(zookeeper=zookeeper) as producer:
        for number in range(ORDERS):
            producer.send("orders", f"order {number}".encode(), partition=number % 3)
    with closing(results_in(place)) as results:
        bill(zookeeper, results)
        print(f"{results.count()} results")
    return 0


def bill(zookeeper: str, results: Results) -> None:
    def restore(
        consumer: Consumer, partitions: list[TopicPartition]
    ) -> Mapping[TopicPartition, int | None]:
        return {each: results.take(each, consumer.fencing_token(each)) for each in partitions}

    with Consumer(
        zookeeper=zookeeper,
        group="billing",
        topics=["orders"],
        auto_commit=False,
        on_assign=restore,
    ) as consumer:
        for last in consumer:
            token = consumer.fencing_token(last.topic_partition)
            if not results.write(last, token):
                continue  # we lost the partition and hear of it next; whoever has it writes this one
            assert not results.write(last, token - 1), "a zombie has written"
            if results.count() % ORDERS == 0:
                break


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "results.db"))
