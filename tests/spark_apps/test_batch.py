"""A batch read as it is planned, on real brokers and without Spark."""

import time
from uuid import uuid4

import pytest

from folkmoot.admin.admin import Admin
from folkmoot.console.running.processes import EmbeddedCluster
from folkmoot.producers.producer import Producer
from folkmoot.spark_apps import batch
from folkmoot.spark_apps.options.config import BatchConfig


@pytest.mark.parametrize(
    "options",
    [
        {"startingOffsets": "latest"},
        {"startingTimestamp": "9999999999999", "startingOffsetsByTimestampStrategy": "latest"},
        {"endingTimestamp": "1"},
    ],
)
def test_a_read_of_nothing_is_planned_without_waiting(
    shared_cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch, options: dict[str, str]
) -> None:
    monkeypatch.setattr(batch, "SAMPLE_WAIT", 20.0)
    zookeeper, topic = shared_cluster.zookeeper, f"planned-{uuid4().hex[:8]}"
    with Admin(zookeeper=zookeeper) as admin:
        admin.create_topic(topic, 2)
    with Producer(zookeeper=zookeeper) as producer:
        producer.send(topic, b"a")
    given = {"zookeeper": zookeeper, "subscribe": topic}
    assert len(batch.tasks(BatchConfig.of(given))) == 1
    begun = time.monotonic()
    assert batch.tasks(BatchConfig.of(given | options)) == []
    assert time.monotonic() - begun < 10
