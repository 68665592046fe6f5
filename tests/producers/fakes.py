"""A cluster of stub brokers registered in a ZooKeeper that lives in memory."""

import itertools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import Event
from typing import Any, Self

from folkmoot.brokers.storage.producer_state import ProducerState
from folkmoot.coordination import brokers
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.session import Session
from folkmoot.protocol import batch_header, record_batch
from folkmoot.protocol.errors import (
    FolkmootError,
    NoProducerId,
    NotLeader,
    StaleTopicId,
    UnknownTopicOrPartition,
)
from folkmoot.protocol.messages import (
    Api,
    BrokerInfo,
    InitProducerIdResponse,
    MetadataResponse,
    PartitionMetadata,
    ProduceResponse,
    ProduceResult,
    TopicMetadata,
)
from folkmoot.protocol.records import Record, TopicPartition
from tests.memory_zookeeper import MemoryZooKeeper
from tests.network.stub import StubBroker


class FakeCluster:
    """Brokers that keep what they are sent; the test says who leads and what goes wrong.

    `silent`: produce requests are not looked at. `failing`: answered with that error code. `mute`: so
    many of them are carried out and not answered. Of producers they know what real brokers know.
    """

    def __init__(
        self, partitions: int = 3, count: int = 1, topics: tuple[str, ...] = ("t",)
    ) -> None:
        self.zookeeper = MemoryZooKeeper()
        self.partitions = partitions
        self.topics = topics
        self.made = 1
        self.leader = 1
        self.silent = False
        self.failing = 0
        self.mute = 0
        self.requests = 0
        self.ids = itertools.count()
        self.refuse_ids = False
        self.logs: dict[TopicPartition, list[Record]] = {}
        self.payloads: list[bytes] = []
        self.producers: dict[TopicPartition, ProducerState] = {}
        self.brokers: dict[int, StubBroker] = {}
        self._count = count
        self._session = self.zookeeper.connect()
        self._stack = ExitStack()

    def connect(self, session_timeout: float) -> Session:
        return self.zookeeper.connect(session_timeout)

    def __enter__(self) -> Self:
        for number in range(1, self._count + 1):
            self.start(number)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        for broker in self.brokers.values():
            broker.stop()
        self._session.close()

    def start(self, number: int, port: int = 0) -> StubBroker:
        def handle(envelope: Any, body: Any, payloads: list[bytes]) -> Any:
            return self._handle(number, envelope.api, body, payloads)

        broker = self.brokers[number] = StubBroker(handle, port=port).__enter__()
        mine = brokers.Registration({"client": broker.address}, f"nonce {number}")
        execute(self._session, brokers.register(number, mine))
        return broker

    def replace(self) -> None:
        """Another cluster is in its place, with topics of the same names, and gives out the same ids."""
        self.made += 1
        self.ids = itertools.count()
        self.logs.clear()
        self.producers.clear()

    @contextmanager
    def holding(self) -> Iterator[list[bytes]]:
        """Broker 1 stands still from its next produce request on, until the end of the block. → that."""
        broker, go_on, held = self.brokers[1], Event(), list[bytes]()
        handle = broker.handler

        def hold(envelope: Any, body: Any, payloads: list[bytes]) -> Any:
            if envelope.api == Api.PRODUCE:
                held.extend(payloads)
                go_on.wait()
            return handle(envelope, body, payloads)

        broker.handler = hold
        try:
            yield held
        finally:
            broker.handler = handle
            go_on.set()

    def values(self, topic: str = "t") -> list[bytes | None]:
        """Everything written, partition by partition."""
        return [
            record.value
            for partition in sorted(self.logs)
            if partition.topic == topic
            for record in self.logs[partition]
        ]

    def _handle(self, number: int, api: int, body: Any, payloads: list[bytes]) -> Any:
        if api == Api.METADATA:
            return MetadataResponse(self._infos(), [self._describe(name) for name in body.topics])
        if api == Api.INIT_PRODUCER_ID:
            if self.refuse_ids:
                raise NoProducerId("ZooKeeper is away")
            return InitProducerIdResponse(next(self.ids))
        self.requests += 1
        if self.silent:
            return None
        if not payloads:
            return None
        results = []
        for entry, payload in zip(body.entries, payloads, strict=True):
            error = self.failing or (NotLeader.code if number != self.leader else 0)
            base = -1
            try:
                base = -1 if error else self._append(entry, payload)
            except FolkmootError as refusal:
                error = refusal.code or 0
            results.append(ProduceResult(entry.topic, entry.partition, error, "as told", base, 0))
        if self.mute:
            self.mute -= 1
            return None
        return ProduceResponse(results) if body.acks else None

    def _append(self, entry: Any, payload: bytes) -> int:
        if entry.topic not in self.topics or entry.partition >= self.partitions:
            raise UnknownTopicOrPartition(f"{entry.topic}-{entry.partition} does not exist")
        if entry.topic_id != self._topic_id(entry.topic):
            raise StaleTopicId(f"topic {entry.topic} has another id: it was created anew")
        log = self.logs.setdefault(TopicPartition(entry.topic, entry.partition), [])
        header = batch_header.check(payload)
        partition = TopicPartition(entry.topic, entry.partition)
        producers = self.producers.setdefault(partition, ProducerState(1000))
        original = producers.check(header, {})
        if original is not None:
            return original
        self.payloads.append(payload)
        base = len(log)
        producers.update(header, base)
        log += record_batch.records_of(entry.topic, entry.partition, header, payload)
        return base

    def _infos(self) -> list[BrokerInfo]:
        return [
            BrokerInfo(number, {"client": broker.address})
            for number, broker in self.brokers.items()
        ]

    def _describe(self, name: str) -> TopicMetadata:
        if name not in self.topics:
            return TopicMetadata(name, UnknownTopicOrPartition.code, "", [])
        leaders = [
            PartitionMetadata(number, self.leader, 0, [1]) for number in range(self.partitions)
        ]
        return TopicMetadata(name, 0, self._topic_id(name), leaders)

    def _topic_id(self, name: str) -> str:
        return f"id {self.made} of {name}"
