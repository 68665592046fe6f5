"""Idempotent producers over real sockets: ids from ZooKeeper, and answers that never come."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from folkmoot.coordination import producer_ids
from folkmoot.coordination.wakeup import Wakeup
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.producers import loop
from folkmoot.producers.discovery import IDS_AT_ONCE
from folkmoot.producers.loop import Loop
from folkmoot.producers.producer import Producer
from folkmoot.protocol import batch_header
from folkmoot.protocol.errors import ConfigError, DeliveryTimeout, ZooKeeperUnreachable
from folkmoot.protocol.records import TopicPartition
from tests.producers.fakes import FakeCluster
from tests.producers.parts import Bench
from tests.producers.test_loop import Nowhere, Quiet
from tests.waiting import eventually


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster() as cluster:
        yield cluster


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
    assert cluster.values() == [b"first", b"second", b"second"]
    assert ids_used(cluster) == {-1}


def test_every_producer_has_an_id_of_its_own(cluster: FakeCluster) -> None:
    for _ in range(2):
        with make(cluster) as one, make(cluster) as other:
            one.send("t", b"x")
            other.send("t", b"x")
    assert len(ids_used(cluster)) == 4
    taken = execute(cluster._session, producer_ids.take(1))
    assert taken.start == 4 * IDS_AT_ONCE


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


def test_ids_that_do_not_come_are_asked_for_again_and_told_as_the_reason(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(linger=0.0, delivery_timeout=10.0)
    bench.sender._sequences.__init__()  # type: ignore[misc]
    monkeypatch.setattr("time.monotonic", lambda: bench.now)
    discovery = Nowhere(ZooKeeperUnreachable("nobody answers at nowhere:1"))
    cluster: Any = Quiet()
    delivery = bench.stage(b"one")
    with closing(Wakeup()) as wakeup:
        looped = Loop(bench.config, bench.accumulator, wakeup, discovery)
        looped._round(cluster, bench.sender)
        looped._round(cluster, bench.sender)
        assert discovery.asked == 1
        assert cluster.waits == [loop.IDS_PAUSE] * 2
        bench.now += loop.IDS_PAUSE
        looped._round(cluster, bench.sender)
        assert discovery.asked == 2
        assert caplog.text.count("no producer id yet: nobody answers at nowhere:1") == 1
        bench.now += 10.0
        looped._round(cluster, bench.sender)
    error = delivery.exception(0)
    assert isinstance(error, DeliveryTimeout)
    assert "nobody answers at nowhere:1" in str(error)


def test_records_wait_for_a_zookeeper_that_is_away_at_the_start(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "IDS_PAUSE", 0.01)
    refused = 0

    def unreachable(self: object) -> range:
        nonlocal refused
        refused += 1
        raise ZooKeeperUnreachable("away")

    with monkeypatch.context() as away:
        away.setattr("folkmoot.producers.discovery.Discovery.producer_ids", unreachable)
        producer = make(cluster)
        producer.start()
        delivery = producer.send("t", b"x")
        eventually(lambda: refused > 3)
        assert not delivery.done()
    with producer:
        assert delivery.result(10).offset == 0
