"""The same records through Spark's source for Kafka: the same columns, of the same types, the same rows."""

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from benchmarks import environment
from benchmarks.peers import Unavailable
from benchmarks.peers.kafka import KafkaServer
from folkmoot.producers.producer import Producer
from tests.spark_apps.queries import LONG, Scene
from tests.tree import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

BASE = time.time_ns() // 1_000_000 - 3_600_000
"""Of late: Kafka deletes what is older than a week, and takes 0 for now."""
RECORDS: list[tuple[bytes | None, bytes | None, int, int, list[tuple[str, bytes | None]]]] = [
    (b"key", b"value", 0, BASE, []),
    (None, b"no key", 0, BASE + 1, []),
    (b"tombstone", None, 0, BASE + 999, [("origin", b"JFK")]),
    (b"", b"", 1, BASE - 60_000, [("empty", b""), ("nothing", None)]),
    (b"\xff\x00", b"\x00" * 3000, 1, BASE - 5000, [("again", b"1"), ("again", b"2")]),
    ("schlüssel".encode(), "größe".encode(), 1, BASE + 2, [("zoë", b"\xfe")]),
]
ROW = """to_json(struct(hex(key) as key, hex(value) as value, topic, partition, offset,
    unix_micros(timestamp) as at, timestampType, headers is null as headless,
    transform(headers, each -> struct(each.key, hex(each.value) as value)) as headers)) as row"""
SEND = """\
import json, sys
from confluent_kafka import Producer
producer = Producer({"bootstrap.servers": sys.argv[1]})
bytes_of = lambda text: None if text is None else bytes.fromhex(text)
for key, value, partition, timestamp, headers in json.loads(sys.argv[3]):
    headers = [(name, bytes_of(each)) for name, each in headers]
    options = {"timestamp": timestamp, "headers": headers}
    producer.produce(sys.argv[2], bytes_of(value), bytes_of(key), partition, **options)
assert producer.flush(60) == 0
"""
READ = """\
import json, sys
from pyspark.sql import SparkSession
server, topic, jars, row = sys.argv[1:]
spark = SparkSession.builder.master("local[2]").config("spark.jars", jars)
spark = spark.config("spark.driver.host", "127.0.0.1").config("spark.ui.enabled", "false").getOrCreate()
options = {"kafka.bootstrap.servers": server, "subscribe": topic, "includeHeaders": "true"}
batch = spark.read.format("kafka").options(**options).load()
stream = spark.readStream.format("kafka").options(startingOffsets="earliest", **options).load()
query = stream.selectExpr(row).writeStream.format("memory").queryName("rows").trigger(availableNow=True)
query.start().awaitTermination()
print("\\n" + json.dumps({
    "batch": [batch.dtypes, [each.row for each in batch.selectExpr(row).collect()]],
    "stream": [stream.dtypes, [each.row for each in spark.table("rows").collect()]],
}))
"""


def through_kafka(directory: Path, topic: str) -> dict[str, Any]:
    try:
        python, jars = environment.kafka_spark()
        KafkaServer.prepare()
    except Unavailable as reason:
        if os.environ.get("FOLKMOOT_REQUIRE_FOREIGN") == "1":
            raise
        pytest.skip(str(reason))
    hexed = [
        (key and key.hex(), value and value.hex(), *where, [(n, v and v.hex()) for n, v in headers])
        for key, value, *where, headers in RECORDS
    ]
    told = json.dumps(hexed, default=bytes.decode)
    server = KafkaServer(directory)
    server.start()
    try:
        server.create_topic(topic, 2)
        send = [server.python, "-c", SEND, server.address, topic, told]
        subprocess.run(send, check=True, timeout=LONG)
        java = ",".join(map(str, sorted(jars.glob("*.jar"))))
        unset = {name: each for name, each in os.environ.items() if name != "SPARK_HOME"}
        environ = unset | {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}
        read = [python, "-c", READ, server.address, topic, java, ROW]
        said = subprocess.run(
            read, env=environ, cwd=ROOT, check=True, timeout=600, stdout=subprocess.PIPE, text=True
        )
    finally:
        server.stop()
    found: dict[str, Any] = json.loads(said.stdout.splitlines()[-1])
    return found


def test_records_come_as_from_sparks_source_for_kafka(queries: Scene, tmp_path: Path) -> None:
    with Producer(zookeeper=queries.zookeeper) as producer:
        for key, value, partition, timestamp, headers in RECORDS:
            producer.send(
                queries.topic, value, key, partition, timestamp=timestamp, headers=headers
            )
    theirs = through_kafka(tmp_path / "kafka", queries.topic)

    def ours(frame: DataFrame, rows: list[Any]) -> tuple[list[list[str]], list[str]]:
        return [[*each] for each in frame.dtypes], sorted(each.row for each in rows)

    batch = queries.batch(includeHeaders=True)
    columns, rows = ours(batch, batch.selectExpr(ROW).collect())
    assert columns == theirs["batch"][0]
    assert rows == sorted(theirs["batch"][1])
    assert len(rows) == len(RECORDS)
    stream = queries.stream(includeHeaders=True)
    query = stream.selectExpr(ROW).writeStream.format("memory").queryName("ours")
    query.trigger(availableNow=True).start().awaitTermination(LONG)
    columns, rows = ours(stream, queries.spark.table("ours").collect())
    assert columns == theirs["stream"][0]
    assert rows == sorted(theirs["stream"][1])
