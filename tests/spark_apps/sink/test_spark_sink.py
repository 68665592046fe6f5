"""Streams and batches written to topics by real Spark: what comes twice, what fails, and how it is said."""

import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.functions import col, concat, expr, lit, lpad, udf

from folkmoot.admin.admin import Admin
from folkmoot.protocol.records import TopicPartition
from tests.spark_apps.queries import LONG, Scene
from tests.spark_apps.sink.topics import contents, forget_last_commit
from tests.waiting import eventually

DIGITS = 2000

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture
def target(queries: Scene) -> str:
    name = f"{queries.topic}-out"
    with Admin(zookeeper=queries.zookeeper) as admin:
        admin.create_topic(name, 3)
    return name


def written(scene: Scene, target: str) -> list[int]:
    found = contents(scene.zookeeper, [TopicPartition(target, number) for number in range(3)])
    return sorted(int(record.value or b"-1") for record in found)


def sink(scene: Scene, frame: DataFrame, target: str | None, **options: Any) -> Any:
    writer = frame.writeStream.format("folkmoot").option("zookeeper", scene.zookeeper)
    writer = writer.option("checkpointLocation", scene.checkpoint).trigger(availableNow=True)
    for name, value in ({} if target is None else {"topic": target}).items() | options.items():
        writer = writer.option(name, value)
    return writer.start()


def test_a_stream_writes_every_row_once_also_when_its_batches_run_again(
    queries: Scene, target: str
) -> None:
    queries.send(1000)
    frame = queries.stream(maxOffsetsPerTrigger=300).select("key", "value")
    sink(queries, frame, target).awaitTermination(int(LONG))
    assert written(queries, target) == list(range(1000))
    forget_last_commit(queries.checkpoint)
    queries.send(10)
    sink(queries, frame, target).awaitTermination(int(LONG))
    assert written(queries, target) == list(range(1010))


def test_a_task_that_dies_in_the_middle_adds_nothing_twice_when_its_batch_runs_again(
    queries: Scene, target: str
) -> None:
    seen = Path(queries.checkpoint).with_name("seen")

    def dies(value: Any) -> Any:  # in a worker
        if int(value) == 900:
            deadline = time.monotonic() + LONG
            while not seen.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            raise ValueError("no")
        return value.zfill(DIGITS)

    queries.send(1000, partition=0)
    # So that rows come to the sink, and leave it, a few at a time.
    queries.spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "50")
    try:
        dying = udf(lambda value: dies(value), "binary")("value")
        frame = queries.stream().select("key", dying.alias("value"))
        query = sink(queries, frame, target)
        eventually(lambda: written(queries, target), LONG)  # rows before that one
        seen.touch()
        with pytest.raises(StreamingQueryException):
            query.awaitTermination(int(LONG))
    finally:
        queries.spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert 0 < len(written(queries, target)) < 1000
    whole = queries.stream().select("key", wide(col("value")))
    sink(queries, whole, target).awaitTermination(int(LONG))
    assert written(queries, target) == list(range(1000))


def test_a_batch_that_runs_again_in_fewer_tasks_does_not_write_its_rows_twice_in_silence(
    queries: Scene, target: str
) -> None:
    files = Path(queries.checkpoint).with_name("files")
    files.mkdir()
    for number in range(4):  # the largest first, as Spark reads them
        lines = [f"{10 * number + line:02}" for line in range(10)]
        (files / f"{number}.txt").write_text("\n".join(lines) + "\n" * (4 - number))
    frame = queries.spark.readStream.text(str(files)).where("value != ''")
    cut = {"spark.sql.files.openCostInBytes": 1, "spark.sql.files.maxPartitionBytes": 40}
    for name, value in cut.items():
        queries.spark.conf.set(name, value)
    try:
        sink(queries, frame, target).awaitTermination(int(LONG))
    finally:
        for name in cut:
            queries.spark.conf.unset(name)
    assert written(queries, target) == list(range(40))
    forget_last_commit(queries.checkpoint)
    queries.spark.conf.set("spark.sql.files.minPartitionNum", 1)
    try:
        with pytest.raises(StreamingQueryException, match="RowsChanged"):
            sink(queries, frame, target).awaitTermination(int(LONG))
        for _ in range(2):
            sink(queries, frame, target).awaitTermination(int(LONG))
            assert sorted([*range(40), *range(10, 40)]) == written(queries, target)
    finally:
        queries.spark.conf.unset("spark.sql.files.minPartitionNum")


def test_a_batch_write_appends_all_columns_there_are(queries: Scene, target: str) -> None:
    frame = queries.spark.range(100).select(
        *(col("id").cast("string").alias("value"), concat(lit("key "), col("id")).alias("key")),
        *(lit(target).alias("topic"), (col("id") % 2).cast("int").alias("partition")),
        lit("2026-01-01T00:00:00Z").cast("timestamp").alias("timestamp"),
        expr("array(struct('origin' as key, cast('JFK' as binary) as value))").alias("headers"),
    )
    frame.write.format("folkmoot").option("zookeeper", queries.zookeeper).mode("append").save()
    found = contents(queries.zookeeper, [TopicPartition(target, number) for number in range(3)])
    assert sorted(int(record.value or b"") for record in found) == list(range(100))
    assert {record.partition for record in found} == {0, 1}
    assert {record.timestamp for record in found} == {1767225600000}
    assert {record.headers for record in found} == {(("origin", b"JFK"),)}


def test_batches_are_compressed_as_is_asked_for(queries: Scene, target: str) -> None:
    frame = queries.spark.range(100).selectExpr(
        "repeat(sha2(cast(id as string), 256), 16) as value"
    )
    sizes = [0]
    for codec in ("none", "zstd"):
        writer = frame.write.format("folkmoot").mode("append").option("compression", codec)
        writer.options(zookeeper=queries.zookeeper, topic=target).save()
        sizes.append(sum(each.bytes for each in queries.admin.log_sizes([target])))
    assert sizes[1] > 100_000 > 10 * (sizes[2] - sizes[1])


def wide(column: Any) -> Any:
    """Numbers of so many digits that they do not stay in some buffer on their way to the sink."""
    return lpad(column.cast("string"), DIGITS, "0").alias("value")


BAD: list[tuple[list[str], dict[str, str], str]] = [
    (["key"], {}, "there is no column 'value'"),
    (["value", "id as origin"], {}, "column 'origin' means nothing here"),
    (["id as value"], {}, "column 'value' is bigint, not binary or string: cast it"),
    (["value"], {"topic": ""}, "give option 'topic', or a column 'topic'"),
    (["value"], {"compresion": "zstd"}, "did you mean 'compression'"),
    (["value"], {"kafka.acks": "all"}, "is one of Kafka's"),
    (["value"], {"zookeeper": "127.0.0.1:1"}, "127.0.0.1:1"),
    (["value"], {"zookeeper": ""}, "needs option 'zookeeper'"),
    (["value", "cast(null as string) as topic"], {"topic": ""}, "has no topic"),
    (["value"], {"listener": "inside"}, "no broker has a listener 'inside'"),
    (["value"], {"topic": "no-such-topic"}, "topic no-such-topic does not exist"),
    (["repeat(value, 200000) as value"], {}, "is larger than max_record_bytes"),
    (["value"], {"maxRecordBytes": "8"}, "is larger than max_record_bytes"),
    (["value"], {"compression": "zip"}, "zip"),
    (["value"], {"deliveryTimeout": "0"}, "deliveryTimeout=0.0 is not allowed"),
]


@pytest.mark.parametrize(("columns", "options", "said"), BAD, ids=[each[2] for each in BAD])
def test_what_is_wrong_with_a_write_is_said_in_one_line(
    queries: Scene, target: str, columns: list[str], options: dict[str, str], said: str
) -> None:
    frame = queries.spark.range(20).selectExpr("id", "'value-bytes' as value", "'k' as key")
    given = {"zookeeper": queries.zookeeper, "topic": target} | options
    writer = frame.selectExpr(*columns).write.format("folkmoot").mode("append")
    with pytest.raises(PySparkException, match=said):
        writer.options(**given).save()
    assert written(queries, target) == []


def test_whatever_does_not_append_is_refused(queries: Scene, target: str) -> None:
    frame = queries.spark.range(1).selectExpr("'a' as value")
    for mode, said in (("overwrite", "only appends"), ("error", "Append"), ("ignore", "Append")):
        writer = frame.write.format("folkmoot").mode(mode)
        with pytest.raises(PySparkException, match=said):
            writer.options(zookeeper=queries.zookeeper, topic=target).save()
    queries.send(1)
    counts = queries.stream().groupBy("value").count()
    for mode, said in (("complete", "only appends"), ("update", "does not support Update mode")):
        stream = counts.select("value").writeStream.format("folkmoot").outputMode(mode)
        stream = stream.option("checkpointLocation", f"{queries.checkpoint}-{mode}")
        stream = stream.options(zookeeper=queries.zookeeper, topic=target)
        with pytest.raises(PySparkException, match=said):
            stream.start().awaitTermination(int(LONG))
    assert written(queries, target) == []
