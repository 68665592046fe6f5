"""Producers whose values have schemas, beside a registry that is away, or slow."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from msgspec import Struct

from folkmoot.console.running.processes import EmbeddedCluster
from folkmoot.consumers.client.consumer import Consumer
from folkmoot.coordination import brokers, topics
from folkmoot.coordination.connector import connector
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.producers.async_producer import AsyncProducer
from folkmoot.producers.producer import Producer
from folkmoot.protocol.errors import ConcurrentUse, SerializationError, ZooKeeperUnreachable
from folkmoot.schemas.registry.schema_registry import SchemaRegistry
from folkmoot.schemas.values.deserializer import AvroDeserializer
from folkmoot.schemas.values.serializer import AvroSerializer
from tests.schemas.sessions import memory_session


class _One(Struct):
    x: int


class _Other(Struct):
    y: int


class SlowRegistry(SchemaRegistry):
    """Registers when it is let, unless it is away."""

    def __init__(self) -> None:
        super().__init__(memory_session())
        self.may_go_on = threading.Event()
        self.asked = threading.Event()
        self.is_away = False

    def register(self, *args: Any, **more: Any) -> Any:
        self.asked.set()
        if self.is_away:
            raise ZooKeeperUnreachable("no ZooKeeper answers")
        assert self.may_go_on.wait(20.0)
        return super().register(*args, **more)


@pytest.fixture
def registry() -> Iterator[SlowRegistry]:
    made = SlowRegistry()
    yield made
    made.may_go_on.set()
    made.close()


@pytest.fixture
def address(shared_cluster: EmbeddedCluster) -> str:
    return shared_cluster.zookeeper


@pytest.fixture
def topic(address: str) -> str:
    name = f"topic-{uuid4().hex[:8]}"
    session = connector(address)(6.0)
    try:
        execute(session, topics.create(name, 1, list(execute(session, brokers.live()))))
    finally:
        session.close()
    return name


def test_keys_and_values_go_there_and_back(
    address: str, topic: str, registry: SlowRegistry
) -> None:
    registry.may_go_on.set()
    text: AvroSerializer[Any] = AvroSerializer(registry, '"string"')
    with Producer(zookeeper=address, key_serializer=text, value_serializer=text) as producer:
        producer.send(topic, "tea", key="k")
        producer.send_batch(topic, ["rum", None], ["l", "m"])
    assert registry.subjects() == [f"{topic}-key", f"{topic}-value"]
    read: AvroDeserializer[Any] = AvroDeserializer(registry)
    with Consumer(zookeeper=address, key_deserializer=read, value_deserializer=read) as consumer:
        consumer.assign([(topic, 0)])
        found: list[Any] = []
        while len(found) < 3:
            found += consumer.poll(5.0)
    assert [(each.key, each.value) for each in found] == [("k", "tea"), ("l", "rum"), ("m", None)]


def test_a_registry_that_is_away_is_told_by_send_and_nothing_was_taken(
    address: str, topic: str, registry: SlowRegistry
) -> None:
    registry.is_away = True
    made: AvroSerializer[Any] = AvroSerializer(registry, '"long"')
    with Producer(zookeeper=address, value_serializer=made) as producer:
        for call in (lambda: producer.send(topic, 1), lambda: producer.send_batch(topic, [1, 2])):
            with pytest.raises(ZooKeeperUnreachable):
                call()
        assert producer.unacknowledged() == 0
        registry.is_away = False
        registry.may_go_on.set()
        assert producer.send_and_wait(topic, 1, timeout=20.0).offset == 0
        with pytest.raises(SerializationError, match=r"topic .*a long is wanted, not float 1.5"):
            producer.send(topic, 1.5)


def test_the_thread_that_sends_never_waits_for_a_registry(
    address: str, topic: str, registry: SlowRegistry
) -> None:
    """A callback that sends what is to be registered first is told so."""
    raised: list[BaseException] = []
    made: AvroSerializer[Any] = AvroSerializer(registry, strategy="topic-record")
    registry.may_go_on.set()
    with Producer(zookeeper=address, value_serializer=made) as producer:

        def send_another(delivery: Any) -> None:
            try:
                producer.send(topic, _Other(1))
            except ConcurrentUse as error:
                raised.append(error)

        producer.send(topic, _One(1), on_delivery=send_another)
        producer.flush(20.0)
    assert "is not known yet, and nothing may wait" in str(raised[0])
    assert registry.subjects() == [f"{topic}-_One"]


def test_an_event_loop_goes_on_while_a_registry_is_slow(
    address: str, topic: str, registry: SlowRegistry
) -> None:
    made: AvroSerializer[Any] = AvroSerializer(registry, '"long"')

    async def scenario() -> None:
        async with AsyncProducer(zookeeper=address, value_serializer=made) as producer:
            sending = asyncio.create_task(producer.send(topic, 1))
            batch = asyncio.create_task(producer.send_batch(topic, [2, 3]))
            while not registry.asked.is_set():
                await asyncio.sleep(0.001)  # the loop is free
            assert not sending.done()
            registry.may_go_on.set()
            await (await sending)
            await (await batch)
            with pytest.raises(SerializationError):
                await producer.send(topic, "x")

    asyncio.run(scenario())


def test_a_registry_that_is_away_is_told_on_the_loop(
    address: str, topic: str, registry: SlowRegistry
) -> None:
    registry.is_away = True
    made: AvroSerializer[Any] = AvroSerializer(registry, '"long"')

    async def scenario() -> None:
        async with AsyncProducer(zookeeper=address, value_serializer=made) as producer:
            with pytest.raises(ZooKeeperUnreachable):
                await producer.send(topic, 1)
            assert producer.unacknowledged() == 0

    asyncio.run(scenario())
