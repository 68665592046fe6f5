"""Results and offsets in one database transaction: each record counts once, and no zombie writes.

    folkmoot dev &                             # prints the address to export
    export FOLKMOOT_ZOOKEEPER=...
    folkmoot topic create orders --partitions 3
    python examples/results_and_offsets.py results.db

Nothing is committed to the group. It only divides the partitions, and the epoch of each claim is the
token by which the database refuses a member that has lost a partition and does not know it yet.
"""

import os
import sqlite3
import sys
from collections.abc import Mapping

from folkmoot import Consumer, Producer, Record, TopicPartition

ORDERS = 60


class Results:
    """What was computed, and up to where. One row of `progress` per partition."""

    def __init__(self, path: str) -> None:
        self.database = sqlite3.connect(path, isolation_level=None)
        self.database.executescript(
            """
            CREATE TABLE IF NOT EXISTS progress (
                topic TEXT, part INTEGER, next INTEGER, token INTEGER, PRIMARY KEY (topic, part)
            );
            CREATE TABLE IF NOT EXISTS results (value BLOB);
            """
        )

    def take(self, partition: TopicPartition, token: int) -> int | None:
        """From here on an older token writes no more. Returns where to go on; None: never begun."""
        self.database.execute(
            "INSERT INTO progress VALUES (?, ?, NULL, ?) ON CONFLICT DO UPDATE"
            " SET token = excluded.token WHERE excluded.token > token",
            (*partition, token),
        )
        found = self.database.execute(
            "SELECT next FROM progress WHERE topic = ? AND part = ?", partition
        ).fetchone()
        return None if found[0] is None else int(found[0])

    def write(self, record: Record, token: int) -> bool:
        """The result and the next offset, or neither: False if the token is not the newest."""
        self.database.execute("BEGIN IMMEDIATE")
        changed = self.database.execute(
            "UPDATE progress SET next = ? WHERE topic = ? AND part = ? AND token = ?",
            (record.offset + 1, *record.topic_partition, token),
        )
        if changed.rowcount != 1:
            self.database.execute("ROLLBACK")
            return False
        self.database.execute("INSERT INTO results VALUES (?)", (record.value,))
        self.database.execute("COMMIT")
        return True

    def count(self) -> int:
        (found,) = self.database.execute("SELECT count(*) FROM results").fetchone()
        return int(found)


def main(path: str) -> int:
    zookeeper = os.environ.get("FOLKMOOT_ZOOKEEPER")
    if zookeeper is None:
        print("set FOLKMOOT_ZOOKEEPER to what `folkmoot dev` prints")
        return 2
    results = Results(path)

    def restore(
        consumer: Consumer, partitions: list[TopicPartition]
    ) -> Mapping[TopicPartition, int | None]:
        return {each: results.take(each, consumer.fencing_token(each)) for each in partitions}

    with Producer(zookeeper=zookeeper) as producer:
        for number in range(ORDERS):
            producer.send("orders", f"order {number}".encode(), partition=number % 3)
    with Consumer(
        zookeeper=zookeeper,
        group="billing",
        topics=["orders"],
        auto_commit=False,
        on_assign=restore,
    ) as consumer:
        for last in consumer:
            token = consumer.fencing_token(last.topic_partition)
            assert results.write(last, token)
            assert not results.write(last, token - 1), "a zombie has written"
            if results.count() % ORDERS == 0:
                break
    print(f"{results.count()} results")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "results.db"))
