"""Folkmoot's part in the programs of `paced.py` and `members.py`, with its defaults."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from operator import attrgetter
from typing import Any, Final, TypeVar

from benchmarks.clients.program import Parameters
from folkmoot import Consumer, Producer, Record, TopicPartition
from folkmoot.coordination.guardian import GUARDIAN

T = TypeVar("T")

WAIT: Final = 60.0
LIMIT: Final = 10_000
ACKS: Final = {"latency": 1, "rebalance": 1, "acknowledged": "all", "failover": "all"}


class Sender:
    def __init__(self, parameters: Parameters, purpose: str) -> None:
        options: dict[str, Any] = {"acks": ACKS[purpose]}
        if "linger" in parameters:
            options["linger"] = parameters["linger"]
        self._producer = Producer(zookeeper=parameters["address"], **options)
        self._producer.start()
        self.partitions = self._producer.partitions_of(parameters["topic"])
        self.send = partial(self._producer.send, parameters["topic"])

    def on_delivery(self, on_success: Callable[[T], None]) -> Callable[..., None]:
        def delivered(argument: T, delivery: Any) -> None:
            delivery.result(0)
            on_success(argument)

        return delivered

    def put(self, value: bytes, partition: int) -> None:
        self.send(value, partition=partition)

    def flush(self) -> int:
        self._producer.flush(WAIT)
        return 0

    def close(self) -> None:
        self._producer.close()


@contextmanager
def tail(parameters: Parameters) -> Iterator[Iterator[bytes | None]]:
    with Consumer(zookeeper=parameters["address"], auto_offset_reset="latest") as consumer:
        consumer.assign(consumer.partitions_of(parameters["topic"]))
        while consumer.poll(0.2) or None in map(consumer.end_offset, consumer.assignment()):
            pass
        yield map(attrgetter("value"), consumer)


class Member:
    def __init__(self, parameters: Parameters, *, paused: bool, **options: Any) -> None:
        self._is_paused = paused
        self._consumer = Consumer(
            zookeeper=parameters["address"],
            group=parameters["group"],
            topics=[parameters["topic"]],
            on_assign=self._assigned,
            **options,
        )
        self._consumer.start()
        self.guardian = GUARDIAN.pid

    def poll(self, timeout: float) -> Sequence[Record]:
        return self._consumer.poll(timeout, max_records=LIMIT)

    @staticmethod
    def position_of(record: Record) -> tuple[int, int]:
        return record.partition, record.offset

    def owned_count(self) -> int:
        return len(self._consumer.assignment())

    def resume(self) -> None:
        self._is_paused = False
        self._consumer.resume(*self._consumer.assignment())

    def close(self) -> None:
        self._consumer.close()

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if self._is_paused:
            consumer.pause(*partitions)


def reader(parameters: Parameters) -> Member:
    return Member(parameters, paused=True)


def member(parameters: Parameters) -> Member:
    options = {name: parameters[name] for name in ("commit_interval", "session_timeout")}
    return Member(parameters, paused=False, **options)
