"""The demo: flights through a group that loses a member at its work, and the comparison."""

import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from folkmoot.admin.admin import Admin
from folkmoot.console.demo import flights
from folkmoot.console.demo.group import GROUP, DemoFailed, Group
from folkmoot.console.demo.member import SPARK
from folkmoot.console.demo.results import Results
from folkmoot.console.demo.screen import Screen
from folkmoot.console.running.java import find_java
from folkmoot.console.running.processes import EmbeddedCluster
from folkmoot.console.tables import show
from folkmoot.producers.producer import Producer
from folkmoot.protocol.records import TopicPartition
from folkmoot.schemas.registry.schema_registry import SchemaRegistry
from folkmoot.schemas.values.serializer import AvroSerializer

BROKERS: Final = 3
PARTITIONS: Final = 12
VICTIM: Final = "plain-3"
NEWCOMER: Final = "plain-4"
SLOW_SLICES: Final = 400
"""While members come and go, one slice is sent at each look at the group."""
SETTLE: Final = 0.1
"""A commit that is under way arrives within this time."""
FAST_SLICES: Final = 40
"""The rest is sent in larger slices, as fast as it goes."""
CARRIERS: Final = """
carrier, count(*), round(avg(dep_delay), 1),
printf('%.1f %%', 100 - 100.0 * count(dep_time) / count(*))
FROM flights GROUP BY carrier ORDER BY count(*) DESC, carrier
"""
MEMBERS: Final = "member, count(*) FROM flights GROUP BY member ORDER BY member"


def demo(source: pa.Table, directory: Path) -> list[str]:
    """Show all of it, and return what disagrees."""
    screen, java = Screen(), find_java()
    screen.line(f"starting ZooKeeper and {BROKERS} brokers, Java {java.version} from {java.source}")
    with (
        EmbeddedCluster(directory / "cluster", BROKERS) as cluster,
        Admin(zookeeper=cluster.zookeeper) as admin,
        SchemaRegistry(cluster.zookeeper) as registry,
        closing(Results(directory / "results.db")) as results,
        Group(cluster.zookeeper, admin, directory, screen) as group,
    ):
        admin.create_topic(flights.TOPIC, PARTITIONS)
        serializer = AvroSerializer(registry, flights.schema(), subject=flights.SUBJECT)
        schema_id = serializer.prepare(flights.TOPIC)  # Spark needs it for its columns
        group.start(SPARK, "plain-1", "plain-2", VICTIM)
        group.wait(group.is_shared, "not every member got partitions")
        screen.line(f"sending flights, Avro schema {schema_id}")
        story = Story(admin, source, group, results, screen)
        with Producer(zookeeper=cluster.zookeeper, value_serializer=serializer) as producer:
            story.send(producer)
        story.drain()
        group.stop()
        return story.compare()


class Story:
    """Kills a member and starts another one while flights are sent, and compares. One thread uses it."""

    def __init__(
        self, admin: Admin, source: pa.Table, group: Group, results: Results, screen: Screen
    ) -> None:
        self._admin, self._source, self._group = admin, source, group
        self._results, self._screen = results, screen
        self._total = source.num_rows
        self._sent = self._paced = 0
        self._fast_since = 0.0
        self._uncommitted = 0
        self._facts: dict[str, str] = {}

    def send(self, producer: Producer[Any, Any]) -> None:
        """Send all flights: slowly while a member is killed and replaced, then as fast as it goes."""
        with self._screen.bar("flights sent", self._total) as show_sent:

            def send_slice(slices: int = SLOW_SLICES) -> None:
                rows = self._source.slice(self._sent, max(1, self._total // slices))
                keys, moments = rows.column("tailnum"), flights.timestamps(rows)
                producer.send_batch(flights.TOPIC, rows, keys, timestamps=moments)
                self._sent += rows.num_rows
                show_sent(self._sent)

            start = time.monotonic()
            self._kill(send_slice)
            self._group.wait(
                self._group.is_shared, f"no member took over from {VICTIM}", send_slice
            )
            self._group.start(NEWCOMER)
            self._group.wait(self._group.is_shared, f"{NEWCOMER} got no partitions", send_slice)
            paced = self._paced = self._sent
            fast_start = self._fast_since = time.monotonic()
            self._screen.line("sending the rest as fast as it goes")
            while self._sent < self._total:
                send_slice(FAST_SLICES)
            producer.flush()
        rate = (self._total - paced) / (time.monotonic() - fast_start)
        self._facts["flights sent, paced"] = f"{paced:,} in {fast_start - start:.1f} s"
        self._facts["produced per second"] = f"{rate:,.0f} (Avro encoding included)"

    def drain(self) -> None:
        """Wait until the group has processed and committed all flights."""
        with self._screen.bar("flights processed", self._total) as show_processed:
            self._group.wait(
                lambda: self._results.count() >= self._total,
                "not all flights were processed",
                lambda: show_processed(self._results.count()),
            )
        rate = (self._total - self._paced) / (time.monotonic() - self._fast_since)
        self._facts["consumed per second"] = f"{rate:,.0f} (decoding and results included)"
        self._group.wait(lambda: self._committed() == self._ends(), "not all was committed")

    def compare(self) -> list[str]:
        """Print the results, and return what disagrees."""
        print()
        columns = ("carrier", "flights", "mean departure delay (min)", "cancelled")
        show(columns, self._results.select(CARRIERS))
        print()
        ((repeats,),) = self._results.select("sum(deliveries - 1) FROM flights")
        moves = self._group.moves
        gained = sum(n for (_, new), n in moves.items() if new == SPARK)
        released = sum(n for (old, _), n in moves.items() if old == SPARK)
        members = (f"{name} {n:,}" for name, n in self._results.select(MEMBERS))
        committed, ends = self._committed(), self._ends()
        equal = len(committed.items() & ends.items())
        self._facts |= {
            "processed by": ", ".join(members),
            "rebalances": str(self._group.generation),
            "partitions gained / given up by Spark": f"{gained} / {released}",
            "processed but not committed at the kill": f"{self._uncommitted:,}",
            "delivered more than once": f"{repeats:,} (each counted once)",
            "committed offset = end offset": f"{equal} of {PARTITIONS} partitions",
        }
        for name, fact in self._facts.items():
            print(f"{name:<41}{fact}")
        print()
        fields = ("carrier", "dep_time", "dep_delay")
        sent = Counter(
            zip(*(self._source.column(name).to_pylist() for name in fields), strict=True)
        )
        stored = Counter(self._results.select(f"{', '.join(fields)} FROM flights"))
        checks = {
            f"{(sent - stored).total()} flights are missing in the results": sent <= stored,
            f"the results have {(stored - sent).total()} flights too many": stored <= sent,
            f"committed offsets {committed}, end offsets {ends}": committed == ends,
            f"{SPARK} gave up no partition": released > 0,
            f"only {repeats} flights came again after the kill": repeats >= self._uncommitted,
        }
        return [text for text, holds in checks.items() if not holds]

    def _kill(self, meanwhile: Callable[[], None]) -> None:
        """Kill a member that has processed flights and not committed them."""
        child = self._group.running[VICTIM]
        owned = [each for each, owner in self._group.owners.items() if owner == VICTIM]
        while not self._uncommitted:
            if self._sent >= self._total:
                raise DemoFailed(f"{VICTIM} had committed all flights at each look: send more")
            self._group.wait(self._all_are_at_work, "not every member processed flights", meanwhile)
            child.pause()
            time.sleep(SETTLE)
            committed = self._committed()
            self._uncommitted = sum(
                self._results.count(each.partition, committed.get(each, 0)) for each in owned
            )
            if not self._uncommitted:
                child.resume()
        child.kill()
        del self._group.running[VICTIM]
        self._screen.line(
            f"killed {VICTIM} (SIGKILL), owner of partitions "
            f"{', '.join(str(each.partition) for each in owned)}, with {self._uncommitted:,} records "
            "processed but not committed"
        )

    def _all_are_at_work(self) -> bool:
        return dict(self._results.select(MEMBERS)).keys() == self._group.running.keys()

    def _committed(self) -> dict[TopicPartition, int]:
        return self._admin.group_offsets(GROUP)

    def _ends(self) -> dict[TopicPartition, int]:
        return self._admin.offsets(flights.TOPIC, "latest")
