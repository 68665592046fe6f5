"""What a program's producers and consumers tell Prometheus, over a real broker in this process."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from folkmoot import AsyncConsumer, AsyncProducer, ClientMetrics, Consumer, Producer
from folkmoot.brokers.server.broker import Broker
from folkmoot.brokers.server.config import BrokerConfig
from folkmoot.coordination import topics
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.metrics import names
from folkmoot.metrics.pages import serve_metrics
from folkmoot.protocol.errors import ConfigError
from tests.memory_zookeeper import MemoryZooKeeper
from tests.metrics.scrape import Scraped, health
from tests.waiting import eventually

ALL_OF_CLIENTS = (
    *names.PRODUCER,
    *names.CONSUMER,
    *(names.WELL, names.ALARMS, names.POLL_AGE, names.STATE, names.LAG),
)


@pytest.fixture
def ensemble(tmp_path: Path) -> Iterator[MemoryZooKeeper]:
    """Of a cluster of one broker, with a topic `t` of two partitions."""
    ensemble = MemoryZooKeeper()
    config = BrokerConfig(broker_id=1, data=tmp_path / "b", zookeeper="in.memory:1")
    with Broker(config, ensemble.connect):
        execute(ensemble.connect(), topics.create("t", 2, [1]))
        yield ensemble


def test_a_producer_and_a_member_tell_all_that_is_declared(ensemble: MemoryZooKeeper) -> None:
    with (
        Producer(zookeeper=ensemble.connect, client_id="till") as producer,
        Consumer(
            zookeeper=ensemble.connect, group="kitchen", topics=["t"], client_id="cook"
        ) as consumer,
        serve_metrics("127.0.0.1", 0, metrics := ClientMetrics(producer, consumer)) as address,
    ):
        for number in range(6):
            producer.send("t", b"order", partition=number % 2)
        producer.flush(10)
        eventually(lambda: not consumer.poll(0.05) and consumer.metrics()["records_taken"] == 6)
        consumer.commit()
        shown = Scraped(address)
        shown.assert_declared(ALL_OF_CLIENTS)
        assert shown("folkmoot_producer_records_delivered_total", client_id="till") == 6
        assert (shown("folkmoot_producer_queue_seconds_total") or 0) > 0
        mine = {"client_id": "cook", "group": "kitchen"}
        assert shown("folkmoot_consumer_records_taken_total", **mine) == 6
        assert shown("folkmoot_consumer_assigned_partitions", **mine) == 2
        assert (shown("folkmoot_consumer_commits_total", **mine) or 0) >= 1
        assert (shown("folkmoot_consumer_commit_seconds_total", **mine) or 0) > 0
        assert (shown("folkmoot_consumer_rebalances_total", **mine) or 0) >= 1
        assert shown("folkmoot_consumer_state", state="member", **mine) == 1
        assert shown("folkmoot_consumer_state", state="joining", **mine) == 0
        assert shown("folkmoot_consumer_lag_records", topic="t", partition="1", **mine) == 0
        said = {"ok": True, "consumers": {"cook": "member"}}
        assert health(address, "healthz") == health(address, "readyz") == (200, said)
        consumer.close()
        assert health(address, "healthz")[0] == health(address, "readyz")[0] == 503
        metrics.remove(consumer)
        assert health(address, "healthz") == (200, {"ok": True, "consumers": {}})
        assert Scraped(address)("folkmoot_consumer_well") is None


def test_clients_on_an_event_loop_are_told_of_too(ensemble: MemoryZooKeeper) -> None:
    async def work() -> Scraped:
        async with (
            AsyncProducer(zookeeper=ensemble.connect) as producer,
            AsyncConsumer(zookeeper=ensemble.connect) as consumer,
        ):
            await consumer.assign([("t", 0)])
            await producer.send_and_wait("t", b"value", partition=0)
            while not await consumer.poll(0.1):
                pass
            with serve_metrics("127.0.0.1", 0, ClientMetrics(producer, consumer)) as address:
                return await asyncio.to_thread(Scraped, address)

    shown = asyncio.run(asyncio.wait_for(work(), 60))
    assert shown("folkmoot_producer_records_delivered_total") == 1
    assert shown("folkmoot_consumer_records_taken_total", group="") == 1
    assert shown("folkmoot_consumer_well") == 1


def test_two_clients_of_one_name_are_refused(ensemble: MemoryZooKeeper) -> None:
    with (
        Producer(zookeeper=ensemble.connect, client_id="a") as first,
        Producer(zookeeper=ensemble.connect, client_id="a") as second,
        Consumer(zookeeper=ensemble.connect, client_id="a") as consumer,
    ):
        metrics = ClientMetrics(first, consumer)
        with pytest.raises(ConfigError, match="two producers are called 'a'"):
            metrics.add(second)


def test_the_registry_takes_it_once(ensemble: MemoryZooKeeper) -> None:
    """A second one would bring metrics of the same names, which Prometheus does not read."""
    registry = CollectorRegistry(auto_describe=True)
    with Consumer(zookeeper=ensemble.connect, client_id="reader") as consumer:
        registry.register(ClientMetrics(consumer))
        text = generate_latest(registry).decode()
        with pytest.raises(ValueError, match="Duplicated"):
            registry.register(ClientMetrics())
    assert 'folkmoot_consumer_well{client_id="reader",group=""} 1.0' in text
    assert "folkmoot_consumer_last_poll_age_seconds{" not in text
