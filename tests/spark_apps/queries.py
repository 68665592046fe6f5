"""A Spark session and a topic on real brokers, for tests of real queries."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyspark.sql import DataFrame, SparkSession

from folkmoot.admin.admin import Admin
from folkmoot.console.running.java import find_java, spark_java_home
from folkmoot.console.running.processes import EmbeddedCluster
from folkmoot.coordination.connector import connect
from folkmoot.coordination.groups import ownership
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.producers.producer import Producer
from folkmoot.protocol.records import TopicPartition
from folkmoot.spark_apps.session import local_session

LONG = 60
PARTITIONS = 6
Option = str | int | float | bool | None
WRONG_COLUMNS = (
    ("nope int", "there is no column 'nope': choose from key, value"),
    ("offset int", "column 'offset' is bigint, not int: cast it"),
    ("value binary, headers array<binary>", "'headers' is there with option includeHeaders=true"),
)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    home = spark_java_home(find_java(), tmp_path_factory.mktemp("java"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_HOME", str(home))
        patch.setenv("SPARK_HOME", "")  # so that what the session sets is undone at the end
        patch.delenv("SPARK_HOME")
        session = local_session("folkmoot tests", short_lived=True)
        session.sparkContext.setLogLevel("ERROR")
        yield session
        session.stop()


class Seen:
    """What the batches of queries contained: a sink that remembers."""

    def __init__(self) -> None:
        self.records: list[tuple[int, int, int]] = []
        self.batches: dict[int, list[set[tuple[int, int]]]] = {}
        self.fail_at: int | None = None

    def take(self, frame: DataFrame, batch_id: int) -> None:
        rows = frame.select("partition", "offset", "value").collect()
        self.batches.setdefault(batch_id, []).append({(row[0], row[1]) for row in rows})
        if batch_id == self.fail_at:
            self.fail_at = None
            raise RuntimeError("the sink is full")
        self.records += [(row[0], row[1], int(row[2])) for row in rows]

    @property
    def values(self) -> set[int]:
        return {value for _, _, value in self.records}


class Scene:
    """A topic of this test's own, a producer of numbered records, and a group's offsets."""

    def __init__(
        self, cluster: EmbeddedCluster, spark: SparkSession, directory: Path, replicas: int = 1
    ) -> None:
        self.zookeeper = cluster.zookeeper
        self.spark = spark
        self.seen = Seen()
        self.sent = 0
        self.topic = f"flights-{uuid4().hex[:8]}"
        self.group = f"delays-{self.topic}"
        self.checkpoint = str(directory / "checkpoint")
        self.session = connect(self.zookeeper, 10.0)
        self.admin = Admin(zookeeper=self.zookeeper).start()
        self.admin.create_topic(self.topic, PARTITIONS, replicas=replicas)
        self._names = itertools.count()

    def close(self) -> None:
        self.admin.close()
        self.session.close()

    def send(self, count: int, partition: int | None = None, **more: Any) -> None:
        with Producer(zookeeper=self.zookeeper) as producer:
            for number in range(self.sent, self.sent + count):
                key = f"tail {number % 97}".encode()
                producer.send(self.topic, str(number).encode(), key, partition, **more)
        self.sent += count

    def stream(self, schema: Any = None, **options: Option) -> DataFrame:
        """As `spark.readStream`; None leaves an option out."""
        named: dict[str, Option] = {"group": self.group, "subscribe": self.topic}
        named["revokeTimeout"] = 10
        named |= options
        reader = self.spark.readStream.format("folkmoot").option("zookeeper", self.zookeeper)
        for name, value in named.items():
            if value is not None:
                reader = reader.option(name, value)
        return (reader if schema is None else reader.schema(schema)).load()

    def batch(self, schema: Any = None, **options: Option) -> DataFrame:
        """As `spark.read`."""
        reader = self.spark.read.format("folkmoot").option("zookeeper", self.zookeeper)
        named: dict[str, Option] = {"subscribe": self.topic}
        named |= options
        for name, value in named.items():
            if value is not None:
                reader = reader.option(name, value)
        return (reader if schema is None else reader.schema(schema)).load()

    def query(self, **options: Option) -> Any:
        """A writer that remembers in `seen`, with the scene's checkpoint."""
        return self.into(self.stream(**{"maxOffsetsPerTrigger": 200, **options}))

    def into(self, frame: DataFrame, checkpoint: str | None = None) -> Any:
        writer = frame.writeStream.foreachBatch(self.seen.take)
        return writer.option("checkpointLocation", checkpoint or self.checkpoint)

    def read_all(self, **options: Option) -> list[Any]:
        """The rows of a query by AvailableNow, collected by a table in memory."""
        name = f"rows_{next(self._names)}"
        frame = self.stream(**options)
        query = frame.writeStream.format("memory").queryName(name).trigger(availableNow=True)
        query.option("checkpointLocation", f"{self.checkpoint}-{name}").start().awaitTermination(
            LONG
        )
        return self.spark.table(name).collect()

    def partition(self, number: int) -> TopicPartition:
        return TopicPartition(self.topic, number)

    def committed(self) -> dict[int, int | None]:
        states = {
            number: execute(self.session, ownership.committed(self.group, self.partition(number)))
            for number in range(PARTITIONS)
        }
        return {number: None if state is None else state.offset for number, state in states.items()}

    def owners(self) -> dict[int, str]:
        owners = {
            number: execute(self.session, ownership.owner_of(self.group, self.partition(number)))
            for number in range(PARTITIONS)
        }
        return {number: owner.member for number, owner in owners.items() if owner is not None}

    def ends(self) -> dict[int, int]:
        found = self.admin.offsets(self.topic, "latest")
        return {each.partition: offset for each, offset in found.items()}


@pytest.fixture
def queries(
    shared_cluster: EmbeddedCluster, spark: SparkSession, tmp_path: Path
) -> Iterator[Scene]:
    made = Scene(shared_cluster, spark, tmp_path)
    yield made
    made.close()
