"""Spark's own reader of Avro reads the bodies of our values."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.avro.functions import from_avro, to_avro
from pyspark.sql.functions import col, expr

from folkmoot import AvroDeserializer, AvroSerializer
from folkmoot.schemas.registry.schema_registry import SchemaRegistry
from folkmoot.spark_apps.session import local_session
from tests.foreign.conftest import need
from tests.foreign.test_clients import SECOND, VALUE, WHOLE
from tests.memory_zookeeper import MemoryZooKeeper

pytestmark = pytest.mark.schemas


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    (jar,) = (need("spark") / "jars").glob("*.jar")
    directory: Path = tmp_path_factory.mktemp("spark")
    settings = {"spark.jars": str(jar), "spark.sql.warehouse.dir": str(directory)}
    session = local_session("from-avro", short_lived=True, settings=settings)
    yield session
    session.stop()


@pytest.mark.parametrize(
    ("schema", "values"),
    [
        (WHOLE, [VALUE, {**VALUE, "note": "late", "delay": 2**40, "codes": []}]),
        (SECOND, [{"number": -1, "note": None}]),
    ],
)
def test_from_avro_reads_what_we_write_and_we_read_what_to_avro_writes(
    schema: str, values: list[dict[str, Any]], spark: SparkSession
) -> None:
    registry = SchemaRegistry(MemoryZooKeeper().connect())
    serializer, deserialize = AvroSerializer(registry, schema), AvroDeserializer(registry)
    written = [serializer.serialize("t", each) for each in values]
    bodies = spark.createDataFrame([(each,) for each in written], "value binary")
    read = bodies.select(from_avro(expr("substring(value, 6)"), schema).alias("value"))
    assert [row["value"].asDict() for row in read.collect()] == values
    theirs = read.select(to_avro(col("value"), schema).alias("value")).collect()
    assert [deserialize(written[0][:5] + bytes(row["value"])) for row in theirs] == values
