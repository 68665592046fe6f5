"""The source in a real query: real ZooKeeper, real brokers, a real Spark session."""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from folkmoot.console.java import find_java, spark_java_home
from folkmoot.console.processes import EmbeddedCluster
from folkmoot.consumers.client.consumer import Consumer
from folkmoot.coordination import topics
from folkmoot.coordination.brokers import live
from folkmoot.coordination.connector import connect
from folkmoot.coordination.groups import ownership
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.producers.producer import Producer
from folkmoot.protocol.records import TopicPartition
from folkmoot.spark_apps.session import local_session, stop_gracefully
from tests.waiting import eventually

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

StartCluster = Callable[..., EmbeddedCluster]
GROUP, TOPIC, PARTITIONS = "delays", "flights", 6
LONG = 60.0


@pytest.fixture(scope="module")
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
        rows = frame.select("partition", "offset", "value", "timestamp").collect()
        self.batches.setdefault(batch_id, []).append({(row[0], row[1]) for row in rows})
        if batch_id == self.fail_at:
            self.fail_at = None
            raise RuntimeError("the sink is full")
        self.records += [(row[0], row[1], int(row[2])) for row in rows]

    @property
    def values(self) -> set[int]:
        return {value for _, _, value in self.records}


class Scene:
    """A cluster with one topic, a producer of numbered records, and the group's offsets."""

    def __init__(self, cluster: EmbeddedCluster, spark: SparkSession, directory: Path) -> None:
        self.zookeeper = cluster.zookeeper
        self.spark = spark
        self.checkpoint = str(directory / "checkpoint")
        self.seen = Seen()
        self.sent = 0
        self.session = connect(self.zookeeper, 10.0)
        brokers = execute(self.session, live())
        execute(self.session, topics.create(TOPIC, PARTITIONS, sorted(brokers)))

    def send(self, count: int) -> None:
        with Producer(zookeeper=self.zookeeper) as producer:
            for number in range(self.sent, self.sent + count):
                producer.send(TOPIC, str(number).encode(), key=f"tail {number % 97}".encode())
        self.sent += count

    def query(self, **options: Any) -> Any:
        named = {"revokeTimeout": 10, "maxOffsetsPerTrigger": 200} | options
        reader = self.spark.readStream.format("folkmoot").option("zookeeper", self.zookeeper)
        reader = reader.option("group", GROUP).option("subscribe", TOPIC)
        for name, value in named.items():
            reader = reader.option(name, value)
        writer = reader.load().writeStream.foreachBatch(self.seen.take)
        return writer.option("checkpointLocation", self.checkpoint)

    def committed(self) -> dict[int, int | None]:
        states = {
            number: execute(self.session, ownership.committed(GROUP, TopicPartition(TOPIC, number)))
            for number in range(PARTITIONS)
        }
        return {number: None if state is None else state.offset for number, state in states.items()}

    def owners(self) -> dict[int, str]:
        owners = {
            number: execute(self.session, ownership.owner_of(GROUP, TopicPartition(TOPIC, number)))
            for number in range(PARTITIONS)
        }
        return {number: owner.member for number, owner in owners.items() if owner is not None}

    def ends(self) -> dict[int, int]:
        with Consumer(zookeeper=self.zookeeper) as consumer:
            partitions = consumer.partitions_of(TOPIC)
            consumer.assign(partitions)
            for each in partitions:
                consumer.seek(each, "latest")
            ends: dict[int, int] = {}
            while len(ends) < PARTITIONS:
                consumer.poll(0.05)
                for each in partitions:
                    if (position := consumer.position(each)) is not None:
                        ends[each.partition] = position
            return ends


@pytest.fixture
def scene(start_cluster: StartCluster, spark: SparkSession, tmp_path: Path) -> Iterator[Scene]:
    made = Scene(start_cluster(brokers=2), spark, tmp_path)
    yield made
    made.session.close()


class PlainMember:
    """A consumer of the same group in a thread of this process."""

    def __init__(self, zookeeper: str) -> None:
        self.values: set[int] = set()
        self.partitions: set[int] = set()
        self._consumer = Consumer(zookeeper=zookeeper, group=GROUP, topics=[TOPIC])
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        with self._consumer as consumer:
            for record in consumer:
                self.values.add(int(record.value or b"-1"))
                self.partitions.add(record.partition)

    def close(self) -> None:
        self._consumer.stop()
        self._thread.join()


def test_a_query_shares_a_group_with_a_plain_member(scene: Scene) -> None:
    scene.send(300)
    query: StreamingQuery = scene.query().trigger(processingTime="100 milliseconds").start()
    plain = None
    try:
        eventually(lambda: len(scene.seen.values) == 300, LONG)
        eventually(lambda: scene.committed() == scene.ends())
        assert len(set(scene.owners().values())) == 1

        plain = PlainMember(scene.zookeeper)
        eventually(lambda: len(set(scene.owners().values())) == 2, LONG)
        scene.send(500)
        eventually(lambda: len(scene.seen.values | plain.values) == 800, LONG)
        assert len(plain.partitions) == PARTITIONS // 2
        plain.close()

        eventually(lambda: len(scene.owners()) == PARTITIONS, LONG)
        scene.send(400)
        before = len(scene.seen.records)
        eventually(lambda: len(scene.seen.records) == before + 400, LONG)

        scene.send(300)
        assert stop_gracefully(query)
        assert scene.committed() == {
            number: 1 + max((o for p, o, _ in scene.seen.records if p == number), default=-1)
            for number in range(PARTITIONS)
        }
        assert eventually(lambda: not scene.owners())
    finally:
        query.stop()
        if plain is not None:
            plain.close()
    assert len(scene.seen.records) == len(set(scene.seen.records))
    assert all(len(batch) <= 200 for batches in scene.seen.batches.values() for batch in batches)
    progress = query.lastProgress
    assert progress is not None
    assert '"generation"' in progress.sources[0].latestOffset


def test_available_now_reads_all_there_was_within_the_limit_and_commits_it(scene: Scene) -> None:
    for round_ in range(2):
        scene.send(300)
        query = scene.query().trigger(availableNow=True).start()
        query.awaitTermination(LONG)
        assert not query.isActive
        assert scene.seen.values == set(range(300 * (round_ + 1)))
        assert scene.committed() == scene.ends()
    assert len(scene.seen.records) == 600
    assert len(scene.seen.batches) >= 4


def test_a_batch_that_failed_is_replayed_whole_from_the_checkpoint(scene: Scene) -> None:
    scene.send(500)
    scene.seen.fail_at = 1
    query = scene.query().trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException, match="the sink is full"):
        query.awaitTermination(LONG)
    scene.query().trigger(availableNow=True).start().awaitTermination(LONG)
    first, second = scene.seen.batches[1]
    assert first == second
    assert scene.seen.values == set(range(500))
    assert len(scene.seen.records) == 500
    assert scene.committed() == scene.ends()


def test_a_wrong_option_is_told_when_the_stream_is_loaded(scene: Scene) -> None:
    with pytest.raises(AnalysisException, match="did you mean 'revokeTimeout'"):
        scene.query(revoketimeouts=3)


def test_workers_run_on_this_very_python_and_its_unzipped_pyspark(spark: SparkSession) -> None:
    assert spark.sparkContext.pythonExec == sys.executable
    assert not list(Path(os.environ["SPARK_HOME"], "python", "lib").iterdir())
