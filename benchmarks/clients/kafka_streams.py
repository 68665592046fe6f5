"""Kafka's part in the programs of `paced.py` and `members.py`: confluent-kafka.

Settings, and why they are its best here: no waiting for larger segments (`socket.nagle.disable`) where
latency is measured, and no delivery reports but of errors where nothing reads them; room for all records
in the queue; zstd at level 1, as Folkmoot's is (its own default is 3). In a group partitions that do not
move are kept (cooperative-sticky, or the server's assignor in its new protocol); automatic commits and the
session are as with Folkmoot.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from threading import Thread
from typing import Any, ClassVar, Final, TypeVar

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

from benchmarks.clients.program import Parameters

T = TypeVar("T")

WAIT: Final = 30.0
_FAST: Final[Mapping[str, Any]] = {
    "socket.nagle.disable": True,
    "queue.buffering.max.messages": 10_000_000,
    "compression.type": "zstd",
    "compression.level": 1,
}
_ALL: Final[Mapping[str, Any]] = {"acks": "all", "enable.idempotence": True}
_SETTINGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "latency": {
        **_FAST,
        "acks": 1,
        "delivery.report.only.error": True,
        "partitioner": "murmur2_random",
    },
    "acknowledged": {**_FAST, **_ALL},
    "failover": {**_ALL, "socket.nagle.disable": True},
    "rebalance": {"acks": 1, "compression.type": "zstd"},
}


class Sender:
    """With `acks=all` errors of brokers that are gone are left to the client's retries."""

    def __init__(self, parameters: Parameters, purpose: str) -> None:
        self._failed: list[Any] = []
        self._is_tolerant = purpose in ("acknowledged", "failover")
        settings = {**_SETTINGS[purpose], "bootstrap.servers": parameters["address"]}
        if "linger" in parameters:
            settings["linger.ms"] = parameters["linger"] * 1000
        self._producer = Producer({**settings, "error_cb": self._failed.append})
        self.partitions = _partitions(self._producer, parameters["topic"])
        self.send = partial(self._producer.produce, parameters["topic"])
        if self._is_tolerant:
            Thread(target=self._report, daemon=True).start()

    def on_delivery(self, on_success: Callable[[T], None]) -> Callable[..., None]:
        def delivered(argument: T, error: Any, _: Message) -> None:
            if error is None:
                on_success(argument)

        return delivered

    def put(self, value: bytes, partition: int) -> None:
        while True:
            try:
                self.send(value, partition=partition)
                break
            except BufferError:  # 100,000 are under way: this waits, and so do the readers
                self._producer.poll(0.02)
        self._producer.poll(0)

    def flush(self) -> int:
        unacknowledged = self._producer.flush(WAIT)
        if self._failed and not self._is_tolerant:
            raise RuntimeError(
                f"{unacknowledged} records are not acknowledged; errors: {self._failed[:3]}"
            )
        return unacknowledged

    def close(self) -> None:
        """It has nothing to be closed."""

    def _report(self) -> None:
        """Deliveries are reported on this thread."""
        while True:
            self._producer.poll(0.05)


@contextmanager
def tail(parameters: Parameters) -> Iterator[Iterator[bytes | None]]:
    topic = parameters["topic"]
    consumer = Consumer(
        {
            "bootstrap.servers": parameters["address"],
            "group.id": "latency",
            "enable.auto.commit": False,
            "socket.nagle.disable": True,
        }
    )
    starts = []
    for number in _partitions(consumer, topic):
        end = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=WAIT)[1]
        starts.append(TopicPartition(topic, number, end))
    consumer.assign(starts)
    consumer.poll(1.0)
    yield _values(consumer)
    consumer.close()


def _values(consumer: Consumer) -> Iterator[bytes | None]:
    poll = consumer.poll
    while True:
        message = poll(1.0)
        if message is None:
            continue
        if message.error():
            raise KafkaException(message.error())
        yield message.value()


class Member:
    """`max_records` records a poll, `patience` seconds to gather them behind the first."""

    guardian: ClassVar[None] = None

    def __init__(
        self,
        parameters: Parameters,
        max_records: int,
        patience: float,
        *,
        paused: bool,
        **settings: Any,
    ) -> None:
        self._max_records = max_records
        self._patience = patience
        self._assigned_partitions: list[TopicPartition] = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": parameters["address"],
                "group.id": parameters["group"],
                "auto.offset.reset": "earliest",
                **{name.replace("_", "."): value for name, value in settings.items()},
            }
        )
        options = {"on_assign": self._assigned} if paused else {}
        self._consumer.subscribe([parameters["topic"]], **options)

    def poll(self, timeout: float) -> Sequence[Message]:
        """`consume` waits until it has all that it may return: so first one, then what is there."""
        found = self._consumer.consume(1, timeout=timeout)
        if found:
            found += self._consumer.consume(self._max_records, timeout=self._patience)
        return [each for each in found if each.error() is None]

    @staticmethod
    def position_of(record: Message) -> tuple[int, int]:
        return record.partition(), record.offset()

    def owned_count(self) -> int:
        return len(self._assigned_partitions)

    def resume(self) -> None:
        self._consumer.resume(self._assigned_partitions)

    def close(self) -> None:
        self._consumer.close()

    def _assigned(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        self._assigned_partitions[:] = partitions
        consumer.assign(partitions)
        consumer.pause(partitions)


def reader(parameters: Parameters) -> Member:
    settings = {"enable_auto_commit": False, "queued_min_messages": 1_000_000}
    return Member(parameters, 10_000, 0.01, paused=True, **settings)


def member(parameters: Parameters) -> Member:
    settings: dict[str, Any] = {
        "auto_commit_interval_ms": round(parameters["commit_interval"] * 1000),
        "group_protocol": parameters["protocol"],
    }
    if parameters["protocol"] == "classic":
        settings["partition_assignment_strategy"] = "cooperative-sticky"
        settings["session_timeout_ms"] = round(parameters["session_timeout"] * 1000)
    return Member(parameters, 500, 0.0, paused=False, **settings)


def _partitions(client: Any, topic: str) -> list[int]:
    return list(client.list_topics(topic, WAIT).topics[topic].partitions)
