"""Idempotent producers over real sockets: ids from brokers, and answers that never come."""

from contextlib import closing
from typing import Any

import pytest

from folkmoot.coordination.wakeup import Wakeup
from folkmoot.producers.producer import Producer
from folkmoot.protocol import batch_header
from folkmoot.protocol.errors import ConfigError, DeliveryTimeout, NoProducerId
from folkmoot.protocol.records import TopicPartition
from tests.producers.fakes import FakeCluster
from tests.producers.test_sender import Driven
from tests.waiting import eventually


def make(cluster: FakeCluster, **options: Any) -> Producer:
    return Producer(zookeeper=cluster.connect, **options)


def ids_used(cluster: FakeCluster) -> set[int]:
    return {batch_header.check(payload).producer_id for payload in cluster.payloads}


def test_a_lost_answer_writes_nothing_twice(cluster: FakeCluster) -> None:
    with make(cluster, request_timeout=0.2, retry_backoff=0.01, batch_bytes=200) as producer:
        producer.send("t", b"first", partition=0).result(10)
        cluster.mute = 3
        sent = [producer.send("t", b"%03d" % number, partition=0) for number in range(100)]
        assert [each.result(20).offset for each in sent] == list(range(1, 101))
        assert producer.metrics()["batches_retried"] > 0
        assert producer.metrics()["epochs_begun"] == 0
    assert cluster.values() == [b"first", *(b"%03d" % number for number in range(100))]


def test_without_idempotence_a_lost_answer_may_write_twice(cluster: FakeCluster) -> None:
    options: dict[str, Any] = {"idempotent": False, "request_timeout": 0.2, "retry_backoff": 0.01}
    with make(cluster, **options) as producer:
        producer.send("t", b"first", partition=0).result(10)
        cluster.mute = 1
        producer.send("t", b"second", partition=0).result(10)
    values = cluster.values()
    assert values == [b"first"] * values.count(b"first") + [b"second"] * values.count(b"second")
    assert values.count(b"second") > 1  # and more often where an answer is late
    assert ids_used(cluster) == {-1}


def test_every_producer_has_an_id_of_its_own(cluster: FakeCluster) -> None:
    for _ in range(2):
        with make(cluster) as one, make(cluster) as other:
            one.send("t", b"x")
            other.send("t", b"x")
    assert len(ids_used(cluster)) == 4


def test_a_broker_that_forgets_the_producer_is_told_the_next_epoch(cluster: FakeCluster) -> None:
    with make(cluster) as producer:
        producer.send("t", b"one", partition=0).result(10)
        cluster.producers.clear()
        producer.send("t", b"two", partition=0).result(10)
        producer.send("t", b"three", partition=0).result(10)
        assert producer.metrics()["epochs_begun"] == 1
    assert cluster.values() == [b"one", b"two", b"three"]
    (state,) = cluster.producers[TopicPartition("t", 0)].entries
    assert state.epoch == 1


def test_without_acknowledgement_there_is_no_idempotence() -> None:
    producer = Producer(zookeeper="nowhere:1", acks=0)
    assert not producer.config.is_idempotent
    assert Producer(zookeeper="nowhere:1").config.is_idempotent
    with pytest.raises(ConfigError, match="idempotent=True is not allowed with acks=0"):
        Producer(zookeeper="nowhere:1", acks=0, idempotent=True)


def test_a_record_that_fails_for_want_of_an_id_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(Wakeup()) as wakeup:
        driven = Driven(monkeypatch, wakeup, linger=0.0, delivery_timeout=10.0)
        driven.bench.sender.sequences.__init__()  # type: ignore[misc]
        driven.cluster.producer_id_error = NoProducerId("nobody answers at nowhere:1")
        delivery = driven.bench.stage(b"one")
        driven.round()
        driven.bench.now += 10.0
        driven.round()
    error = delivery.exception(0)
    assert isinstance(error, DeliveryTimeout)
    assert "nobody answers at nowhere:1" in str(error)


def test_records_wait_for_a_broker_that_has_no_producer_id_at_the_start(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.refuse_ids = True
    producer = make(cluster)
    producer.start()
    delivery = producer.send("t", b"x")
    eventually(lambda: "no producer id yet: ZooKeeper is away" in caplog.text)
    assert not delivery.done()
    cluster.refuse_ids = False
    with producer:
        assert delivery.result(10).offset == 0
