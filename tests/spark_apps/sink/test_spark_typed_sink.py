"""Rows written as Avro by real Spark: round trips, which schema it is, and what is refused."""

import json
from collections.abc import Iterator

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame

from folkmoot.admin.admin import Admin
from folkmoot.schemas.registry.schema_registry import SchemaRegistry
from tests.spark_apps.queries import LONG, Scene
from tests.spark_apps.sink.topics import forget_last_commit

INT = '{"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}]}'

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def write(frame: DataFrame, scene: Scene, **options: str) -> None:
    writer = frame.write.format("folkmoot").mode("append").option("valueFormat", "avro")
    writer.options(**{"zookeeper": scene.zookeeper, "topic": scene.topic} | options).save()


@pytest.fixture
def registry(queries: Scene) -> Iterator[SchemaRegistry]:
    with SchemaRegistry(queries.zookeeper) as made:
        yield made


def test_rows_are_read_as_they_were_written_and_a_stream_copies_them_once(
    queries: Scene, registry: SchemaRegistry
) -> None:
    rows = queries.spark.range(300).selectExpr(
        *("cast(id as int) as delay", "concat('N', id % 7) as tail", "array(id) as stops"),
        *("timestamp_micros(id) as at", "cast(id / 4 as decimal(9, 2)) as fare"),
        "concat('key ', id % 7) as _key",
    )
    write(rows, queries)
    subject = f"{queries.topic}-value"
    first = registry.version(subject, "latest")
    assert json.loads(first.schema)["name"] == "Row"
    copy = f"{queries.topic}-copy"
    with Admin(zookeeper=queries.zookeeper) as admin:
        # Brokers look for a version of that subject in the header of each batch.
        admin.create_topic(copy, 6, options={"value_schema": subject})
    for _ in range(2):
        # What tells of the record travels along; where it lay is nothing to write.
        stream = queries.stream(valueFormat="avro").drop("_topic")
        sink = stream.writeStream.format("folkmoot").options(valueFormat="avro", subject=subject)
        sink = sink.options(zookeeper=queries.zookeeper, topic=copy)
        sink = sink.option("checkpointLocation", queries.checkpoint)
        sink.trigger(availableNow=True).start().awaitTermination(LONG)
        forget_last_commit(queries.checkpoint)
    made, found = (
        queries.batch(subscribe=each, valueFormat="avro", subject=subject).drop("_topic")
        for each in (queries.topic, copy)
    )
    same = ["delay", "tail", "stops", "at", "fare", "_partition", "_timestamp"]
    assert sorted(made.select(same).collect()) == sorted(found.select(same).collect())
    wanted = sorted(rows.select(same[:5]).collect())
    assert sorted(found.select(same[:5]).collect()) == wanted
    keys = {bytes(row._key) for row in found.where("delay % 7 = 3").collect()}
    assert keys == {b"key 3"}


def test_a_write_that_cannot_be_is_refused_before_any_task(queries: Scene) -> None:
    rows = queries.spark.range(5)
    write(rows, queries)
    with pytest.raises(AnalysisException, match="option 'writerSchema' is 'columns': "):
        write(rows.selectExpr("cast(id as string) as id"), queries)
    with pytest.raises(PySparkException, match="id: int64 is not all int32"):
        write(queries.spark.range(2**31, 2**31 + 1), queries, writerSchema=INT, subject="int")
    assert sum(queries.ends().values()) == 5
