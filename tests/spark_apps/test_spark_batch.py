"""Batch reads, and frames that are used more than once: real reads of real brokers."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, lit

from folkmoot.console.running.processes import EmbeddedCluster
from folkmoot.coordination import brokers
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.producers.producer import Producer
from tests.spark_apps.queries import LONG, WRONG_COLUMNS, Option, Scene
from tests.waiting import eventually

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
BASE = 1_700_000_000_000


def filled(scene: Scene, partitions: int = 2, count: int = 100) -> None:
    """Records whose timestamps are a second apart, the same in each partition."""
    with Producer(zookeeper=scene.zookeeper) as producer:
        for partition in range(partitions):
            for number in range(count):
                stamp = BASE + 1000 * number
                value = str(number).encode()
                producer.send(scene.topic, value, partition=partition, timestamp=stamp)


def test_a_read_has_everything_there_is_and_joins_no_group(queries: Scene) -> None:
    filled(queries)
    rows = queries.batch().collect()
    assert sorted((row.partition, row.offset, int(row.value)) for row in rows) == [
        (partition, offset, offset) for partition in range(2) for offset in range(100)
    ]
    assert {row.topic for row in rows} == {queries.topic}
    assert set(queries.owners()) == set()
    assert queries.batch("offset long").groupBy().sum("offset").collect()[0][0] == 9900


def test_bounds_of_offsets_and_times_narrow_a_read(queries: Scene) -> None:
    filled(queries)
    starting = json.dumps({queries.topic: {"0": 90, "1": -1}})
    assert queries.batch(startingOffsets=starting).count() == 10
    ending = json.dumps({queries.topic: {"0": 3, "1": -1}})
    assert queries.batch(endingOffsets=ending).count() == 103
    times: dict[str, Option] = {
        "startingTimestamp": BASE + 10_000,
        "endingTimestamp": BASE + 15_000,
    }
    lenient = {"startingOffsetsByTimestampStrategy": "latest"}
    rows = queries.batch(**times, **lenient).collect()
    assert sorted((row.partition, row.offset) for row in rows) == [
        (partition, offset) for partition in range(2) for offset in range(10, 15)
    ]
    by_partition = json.dumps({queries.topic: {"1": BASE + 98_000}})
    assert queries.batch(startingOffsetsByTimestamp=by_partition).count() == 102
    assert queries.batch(endingOffsetsByTimestamp=by_partition).count() == 198
    assert queries.batch(subscribe=None, assign=json.dumps({queries.topic: [1]})).count() == 100
    pattern = {"subscribe": None, "subscribePattern": f"{queries.topic[:-1]}."}
    assert queries.batch(**pattern).count() == 200


def test_a_read_divides_into_as_many_tasks_as_are_asked_for_and_has_headers(queries: Scene) -> None:
    filled(queries)
    queries.send(1, 2, headers={"to": b"JFK"})
    for options, least in (
        ({}, 1),
        ({"minPartitions": 8}, 8),
        ({"maxRecordsPerPartition": 10}, 21),
    ):
        rows = queries.batch(includeHeaders=True, **options)
        assert rows.rdd.getNumPartitions() >= least
        found = rows.where("headers is not null").collect()
        assert [(each.key, each.value) for row in found for each in row.headers] == [("to", b"JFK")]
        assert rows.count() == 201


@pytest.fixture(params=["true", "false"])
def pushdown(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[str]:
    """Whether the session hands filters to sources: it keeps one reader for all uses of a frame."""
    spark.conf.set(PUSHDOWN, request.param)
    yield request.param
    spark.conf.unset(PUSHDOWN)


def test_each_use_of_a_frame_has_its_own_rows(queries: Scene, pushdown: str) -> None:
    filled(queries)
    frame = queries.batch()
    late, second = frame.where("offset >= 40"), frame.where("partition = 1 and offset < 10")
    assert (late.count(), frame.count(), second.count(), frame.count()) == (120, 200, 10, 200)
    moment = datetime.fromtimestamp(BASE / 1000 + 50, UTC)
    assert (frame.where(col("timestamp") >= lit(moment)).count(), late.count()) == (100, 120)
    assert late.union(second).union(frame).count() == 330
    assert second.join(frame, "offset").count() == 20
    counts = frame.groupBy("partition").count().collect()
    assert sorted((row[0], row[1]) for row in counts) == [(0, 100), (1, 100)]
    frame.createOrReplaceTempView("records")
    inner = "select max(offset) from records where partition = 1 and offset < 5"
    assert queries.spark.sql(f"select * from records where offset > ({inner})").count() == 190
    assert second.count() == 10
    writer = frame.select("value").write.format("folkmoot").mode("append")
    writer.options(zookeeper=queries.zookeeper, topic=queries.topic).save()
    assert (queries.batch().count(), frame.count()) == (400, 200)


def test_each_use_of_a_stream_has_its_own_rows(queries: Scene, pushdown: str) -> None:
    filled(queries)
    frame = queries.stream()
    late, counts = frame.where("offset >= 40"), []

    def count(batch: DataFrame, _: int) -> None:
        counts.append((batch.where("offset < 10").count(), batch.count()))

    both = late.union(frame).writeStream.foreachBatch(count).trigger(availableNow=True)
    both.option("checkpointLocation", queries.checkpoint).start().awaitTermination(LONG)
    assert [sum(each) for each in zip(*counts, strict=True)] == [20, 320]


def test_a_frame_is_planned_once_at_its_first_action(queries: Scene) -> None:
    filled(queries, partitions=1, count=10)
    frame = queries.batch()
    frame.createOrReplaceTempView("planned")
    assert frame.count() == 10
    queries.send(5, partition=0)
    assert queries.spark.sql("select * from planned").count() == 10
    assert queries.batch().count() == 15
    queries.admin.delete_records({queries.partition(0): 4})
    with pytest.raises(PySparkException, match="records 0 to 3 are gone"):
        frame.count()
    assert queries.batch().count() == 11


def test_what_cannot_be_read_is_told_in_one_line(queries: Scene) -> None:
    filled(queries, count=10)
    topic = queries.topic
    for options, said in (
        ({"subscribe": "no-such-topic"}, "topic no-such-topic does not exist"),
        ({"subscribe": None, "subscribePattern": "no-such.*"}, "no topic matches 'no-such"),
        ({"startingOffsets": json.dumps({topic: {"7": 0}})}, f"{topic} has partitions 0 to 5"),
        ({"startingOffsets": json.dumps({topic: {"0": 11}})}, f"{topic}-0 ends at 10"),
        (
            {
                "startingOffsets": json.dumps({topic: {"0": 5}}),
                "endingOffsets": json.dumps({topic: {"0": 2}}),
            },
            f"{topic}-0 cannot be read from 5 to 2",
        ),
        ({"startingTimestamp": BASE * 2}, "has no record of"),
        ({"zookeeper": "127.0.0.1:1"}, "127.0.0.1:1"),
        ({"listener": "inside"}, "no broker has a listener 'inside': they have client"),
    ):
        with pytest.raises(PySparkException, match=said):
            queries.batch(**options).count()
    for options, said in (
        ({"group": "g", "endingOffsets": "latest"}, "did you mean 'startingOffsets'"),
        ({"endingOffsets": "earliest"}, "'endingOffsets' is the earliest"),
        ({"maxOffsetsPerTrigger": 5}, "is not known to format folkmoot"),
    ):
        with pytest.raises(AnalysisException, match=said):
            queries.batch(**options)


def test_columns_that_there_are_not_are_told_of(queries: Scene) -> None:
    for schema, said in WRONG_COLUMNS:
        with pytest.raises(PySparkException, match=said):
            queries.batch(schema).count()


def test_a_partition_without_leader_is_told_of_by_reads_and_writes(
    start_cluster: Callable[..., EmbeddedCluster], spark: SparkSession, tmp_path: Path
) -> None:
    cluster = start_cluster(brokers=2, session_timeout=2.0)
    with closing(Scene(cluster, spark, tmp_path)) as queries:
        queries.send(20)
        cluster.brokers[1].kill()
        eventually(lambda: 2 not in execute(queries.session, brokers.live()), LONG)
        with pytest.raises(PySparkException, match=f"{queries.topic}-.* no leader: .* broker 2"):
            queries.batch().count()
        query = queries.query().trigger(availableNow=True).start()
        with pytest.raises(PySparkException, match=f"{queries.topic}-.* no leader: .* broker 2"):
            query.awaitTermination(LONG)
        rows = spark.range(40).selectExpr(
            "cast(id as string) as value", "cast(id as string) as key"
        )
        options = {"zookeeper": queries.zookeeper, "topic": queries.topic, "deliveryTimeout": "10"}
        with pytest.raises(
            PySparkException, match=f"{queries.topic}-. has no leader: it waits for broker 2"
        ):
            rows.write.format("folkmoot").mode("append").options(**options).save()


def test_records_that_retention_has_removed_are_told_of_or_passed_over(queries: Scene) -> None:
    filled(queries, partitions=1)
    queries.admin.delete_records({queries.partition(0): 40})
    starting = json.dumps({queries.topic: {"0": 30}})
    with pytest.raises(PySparkException, match="records 30 to 39 are gone"):
        queries.batch(startingOffsets=starting).count()
    assert queries.batch(startingOffsets=starting, failOnDataLoss=False).count() == 60
    assert queries.batch().count() == 60


def test_an_empty_topic_has_no_rows(queries: Scene) -> None:
    assert queries.batch().count() == 0
    assert queries.batch(startingOffsets="latest").count() == 0
