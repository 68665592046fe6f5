"""What tests of whole consumers share: a topic, a group, records in it."""

import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeVar
from uuid import uuid4

from folkmoot.consumers.client.consumer import Consumer
from folkmoot.coordination import brokers, topics
from folkmoot.coordination.cluster.new_partitions import wait_until_led
from folkmoot.coordination.connector import connector
from folkmoot.coordination.groups.ownership import committed
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.operations import Recipe
from folkmoot.producers.producer import Producer
from folkmoot.protocol.records import Record, TopicPartition
from tests.waiting import eventually

T = TypeVar("T")

PARTITIONS = 3
PATIENT: dict[str, Any] = {"session_timeout": 30.0, "revoke_timeout": 30.0}
"""A member keeps what it has, and commits it at its end, though it or ZooKeeper stands still for seconds."""


class Bench:
    """A fresh topic and a fresh group in a cluster."""

    def __init__(self, zookeeper: str, producer: Producer) -> None:
        self.zookeeper = zookeeper
        self.producer = producer
        self.topic = f"topic-{uuid4().hex[:8]}"
        self.group = f"group-{uuid4().hex[:8]}"
        self.create_topic()

    def ask(self, recipe: Callable[[], Recipe[T]]) -> T:
        session = connector(self.zookeeper)(6.0)
        try:
            return execute(session, recipe())
        finally:
            session.close()

    def create_topic(self) -> None:
        alive = list(self.ask(brokers.live))
        made = self.ask(lambda: topics.create(self.topic, PARTITIONS, alive))
        session = connector(self.zookeeper)(6.0)
        try:
            assert wait_until_led(session, made, 30.0)
        finally:
            session.close()

    def delete_topic(self) -> None:
        self.ask(lambda: topics.delete(self.topic))

    def partition(self, number: int) -> TopicPartition:
        return TopicPartition(self.topic, number)

    def send(self, values: Iterable[int], partition: int | None = 0) -> None:
        """Numbers as values of one partition, or (None) dealt out to all in turn."""
        for number in values:
            where = number % PARTITIONS if partition is None else partition
            self.producer.send(self.topic, b"%d" % number, partition=where)
        self.producer.flush(20.0)

    def committed(self, partition: int = 0) -> int | None:
        state = self.ask(lambda: committed(self.group, self.partition(partition)))
        return None if state is None else state.offset

    def settings(self, **options: Any) -> dict[str, Any]:
        """Of a patient member of the group, with these options."""
        return {"group": self.group, "topics": [self.topic], **PATIENT, **options}

    def member(self, **options: Any) -> Consumer:
        """A consumer of the group."""
        return Consumer(zookeeper=self.zookeeper, **self.settings(**options))

    def reader(self, *partitions: int, **options: Any) -> Consumer:
        """A consumer without a group that is open and reads these partitions (default: 0)."""
        consumer = Consumer(zookeeper=self.zookeeper, **options).start()
        consumer.assign(self.partition(number) for number in partitions or (0,))
        return consumer


def values(records: Iterable[Record]) -> list[int]:
    return [int(record.value or b"-1") for record in records]


def take(consumer: Consumer, count: int) -> list[int]:
    """The values of the next `count` records."""
    taken: list[Record] = []

    def enough() -> bool:
        taken.extend(consumer.poll(0.2, count - len(taken)))
        return len(taken) >= count

    eventually(enough, 20.0)
    return values(taken)


def until(consumer: Consumer, condition: Callable[[], bool]) -> list[int]:
    """Poll until the condition holds; what came meanwhile."""
    taken: list[int] = []

    def holds() -> bool:
        taken.extend(values(consumer.poll(0.1)))
        return condition()

    eventually(holds, 20.0)
    return taken


def in_thread(work: Callable[[], object]) -> BaseException | None:
    """What `work` raises in another thread."""
    raised: list[BaseException] = []

    def body() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join(20.0)
    assert not thread.is_alive()
    return raised[0] if raised else None
