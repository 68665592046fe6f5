"""Typed columns in real queries."""

import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pyspark.errors import AnalysisException, PySparkException

from folkmoot.producers.producer import Producer
from folkmoot.schemas.registry.schema_registry import SchemaRegistry
from folkmoot.schemas.values.serializer import AvroSerializer
from tests.spark_apps.queries import Scene

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

FIELDS: list[dict[str, Any]] = [
    {"name": "tail", "type": "string"},
    {"name": "delay", "type": ["null", "int"], "default": None},
]
FLIGHT = {"type": "record", "name": "Flight", "fields": FIELDS}


def test_fields_are_columns_of_batches_and_streams(queries: Scene) -> None:
    with SchemaRegistry(queries.zookeeper) as registry:
        older = FLIGHT | {"fields": FIELDS[:1]}
        for schema, row in ((older, {"tail": "a"}), (FLIGHT, {"tail": "b", "delay": 5})):
            serializer = AvroSerializer(registry, schema)
            with Producer(zookeeper=queries.zookeeper, value_serializer=serializer) as producer:
                producer.send(queries.topic, row, partition=2)
    rows = queries.batch(valueFormat="avro").orderBy("_offset").collect()
    assert [(row.tail, row.delay, row._partition, row._offset) for row in rows] == [
        ("a", None, 2, 0),
        ("b", 5, 2, 1),
    ]
    pruned = queries.batch("delay int, _offset long", valueFormat="avro").where("delay = 5")
    assert [tuple(row) for row in pruned.collect()] == [(5, 1)]
    rows = queries.read_all(valueFormat="avro", readerSchema=f"{queries.topic}-value:1")
    assert sorted((row.tail, row._topic) for row in rows) == [
        ("a", queries.topic),
        ("b", queries.topic),
    ]
    assert "delay" not in rows[0]
    # The checkpoint says which schema that was, for who would stay with it.
    offsets = Path(f"{queries.checkpoint}-rows_0", "offsets", "0").read_text()
    first = json.loads(offsets.splitlines()[-1])
    with SchemaRegistry(queries.zookeeper) as registry:
        assert first["r"] == registry.version(f"{queries.topic}-value", 1).id
    with Producer(zookeeper=queries.zookeeper) as producer:
        producer.send(queries.topic, b"no Avro", partition=2)
    with pytest.raises(PySparkException, match=f"topic {queries.topic}, partition 2, offset 2"):
        queries.batch(valueFormat="avro").collect()
    odd = queries.batch(valueFormat="avro", onDecodeError="null").where("_error is not null")
    assert [(row.tail, bytes(row._raw)) for row in odd.collect()] == [(None, b"no Avro")]


def test_values_say_their_schemas_by_ids_of_a_context_and_by_headers(queries: Scene) -> None:
    subject = f":.staging:{queries.topic}-value"
    with SchemaRegistry(queries.zookeeper) as registry:
        serializer = AvroSerializer(registry, FLIGHT, subject=subject)
        values = [serializer.serialize(queries.topic, {"tail": tail, "delay": 5}) for tail in "ab"]
        found = registry.version(subject, 1)
    mark = b"\1" + UUID(found.guid).bytes
    with Producer(zookeeper=queries.zookeeper) as producer:
        producer.send(queries.topic, values[0], partition=1)
        # As Confluent's clients write it: the GUID in a header, the body alone as the value.
        headers = {"__value_schema_id": mark}
        producer.send(queries.topic, values[1][5:], partition=1, headers=headers)
    for said in ("latest", str(found.id), f"{subject}:1", json.dumps(FLIGHT)):
        typed = {"valueFormat": "avro", "readerSchema": said, "subject": subject}
        rows = queries.batch(**typed).orderBy("_offset").collect()
        assert [(row.tail, row.delay) for row in rows] == [("a", 5), ("b", 5)]
    out = queries.batch(valueFormat="avro", subject=subject).drop("_topic")
    writer = out.write.format("folkmoot").mode("append").option("zookeeper", queries.zookeeper)
    writer.options(topic=queries.topic, valueFormat="avro", subject=subject).save()
    assert queries.batch(valueFormat="avro", subject=subject).where("tail = 'b'").count() == 2


def test_a_schema_that_is_not_there_is_told_when_the_query_is_made(queries: Scene) -> None:
    for said, expected in (
        ("latest", f"subject {queries.topic}-value has no schema"),
        ("987654", "'987654': "),
        (json.dumps({"type": "rekord"}), "option 'readerSchema': "),
    ):
        with pytest.raises(AnalysisException, match=expected):
            queries.batch(valueFormat="avro", readerSchema=said)
