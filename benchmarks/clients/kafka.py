"""Kafka's clients: confluent-kafka, which is librdkafka, in C.

Settings, and why: `delivery.report.only.error` spares it a callback for each record; the queue is
long enough that `produce` hardly ever waits; batches of up to 1 MB and 100,000 records, and a linger
of 20 ms, fill them. A linger of 5 or 100 ms, batches of 64 kB, 4 MB or 10,000 records, and queues of
10 million made no difference here that stood out of the noise, in time or CPU; nor did other fetch
sizes and queues of the consumer. zstd is at level 1, as Folkmoot's is: its own default of 3 takes a
third more time, and makes these records larger. It takes 10,000 records a call, which is its fastest way.
"""

import time
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from benchmarks.clients.program import (
    Parameters,
    Stopwatch,
    main,
    read_columns,
    report_event,
    time_sending,
)

WAIT: Final = 60.0
BATCH_SIZE: Final = 10_000
SERVE_EVERY: Final = 10_000


def create(parameters: Parameters) -> None:
    admin = AdminClient({"bootstrap.servers": parameters["address"]})
    config = parameters.get("config", {})
    new_topic = NewTopic(
        parameters["topic"], parameters["partitions"], parameters.get("replicas", 1), config=config
    )
    admin.create_topics([new_topic])[parameters["topic"]].result(WAIT)
    # The controller answers before the broker leads.
    deadline = time.monotonic() + WAIT
    while len(_partitions(admin, parameters["topic"])) < parameters["partitions"]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"topic {parameters['topic']} does not appear")
        time.sleep(0.05)
    report_event("done")


def delete(parameters: Parameters) -> None:
    admin = AdminClient({"bootstrap.servers": parameters["address"]})
    admin.delete_topics([parameters["topic"]])[parameters["topic"]].result(WAIT)
    deadline = time.monotonic() + WAIT
    while (
        any(Path(parameters["data"]).glob(f"{parameters['topic']}-*"))
        and time.monotonic() < deadline
    ):
        time.sleep(0.1)
    report_event("done")


def leaders(parameters: Parameters) -> None:
    """Reports the leader of each partition once all replicas are in sync."""
    admin: Any = AdminClient(
        {"bootstrap.servers": parameters["address"], "error_cb": lambda error: None}
    )
    while True:
        found = admin.list_topics(parameters["topic"], WAIT).topics[parameters["topic"]].partitions
        in_sync = [each for each in found.values() if len(each.isrs) == parameters["replicas"]]
        if found and len(in_sync) == len(found):
            report_event("done", leaders=[found[number].leader for number in sorted(found)])
            return
        time.sleep(0.2)


def produce(parameters: Parameters) -> None:
    """`produce()` for each record, with its key; `way` is what it has besides."""
    way, count = parameters.get("way", ""), parameters["count"]
    failed: list[Any] = []
    delivered: list[Any] = []
    producer = Producer(
        {
            "bootstrap.servers": parameters["address"],
            "acks": parameters.get("acks", 1),
            "compression.type": parameters["compression"],
            "compression.level": 1 if parameters["compression"] == "zstd" else -1,
            "linger.ms": 20,
            "batch.size": 1_000_000,
            "batch.num.messages": 100_000,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 2_000_000,
            "delivery.report.only.error": way != "callback",
            "error_cb": failed.append,
            # Kafka's murmur2, as Folkmoot's: librdkafka's own default is CRC32.
            "partitioner": "murmur2_random",
            **parameters.get("options", {}),
        }
    )
    options: dict[str, dict[str, Any]] = {
        "header": {"headers": [("source", b"benchmark")]},
        "callback": {"on_delivery": lambda error, message: delivered.append(error)},
    }
    more, partitions = options.get(way, {}), parameters["partitions"] if way == "partition" else 0

    def send(keys: list[bytes], values: list[bytes]) -> None:
        for start in range(0, len(values), SERVE_EVERY):
            rows = slice(start, start + SERVE_EVERY)
            _send(producer, parameters["topic"], keys[rows], values[rows], more, partitions)
            producer.poll(0)
        if unacknowledged := producer.flush(WAIT):
            raise TimeoutError(
                f"{unacknowledged} records are not acknowledged; errors: {failed[:3]}"
            )

    time_sending(parameters, read_columns(Path(parameters["records"]), count), send)
    failed.extend(error for error in delivered if error is not None)
    if failed or len(delivered) not in (0, count):
        raise RuntimeError(f"{len(delivered)} of {count} were reported; errors: {failed[:3]}")


def _send(
    producer: Producer,
    topic: str,
    keys: list[bytes],
    values: list[bytes],
    more: dict[str, Any],
    partitions: int,
) -> None:
    """Each way in a loop of its own, so that none pays for the others."""
    send: Any = producer.produce
    retry = partial(_send_when_there_is_room, producer, topic)
    if partitions:
        for key, value, number in zip(keys, values, cycle(range(partitions)), strict=False):
            try:
                send(topic, value, key, number)
            except BufferError:
                retry(value, key, partition=number)
    elif more:
        for key, value in zip(keys, values, strict=True):
            try:
                send(topic, value, key, **more)
            except BufferError:
                retry(value, key, **more)
    else:
        for key, value in zip(keys, values, strict=True):
            try:
                send(topic, value, key)
            except BufferError:  # its queue is full: it says so, and leaves the waiting to us
                retry(value, key)


def _send_when_there_is_room(
    producer: Producer, topic: str, value: bytes, key: bytes, **more: Any
) -> None:
    deadline = time.monotonic() + WAIT
    while True:
        producer.poll(0.01)
        try:
            producer.produce(topic, value, key, **more)
            return
        except BufferError:
            if time.monotonic() > deadline:
                raise


def _consumer(parameters: Parameters) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": parameters["address"],
            "group.id": "benchmark",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 100,
            "fetch.message.max.bytes": 8_388_608,
            "fetch.max.bytes": 52_428_800,
            "queued.min.messages": 1_000_000,
            "queued.max.messages.kbytes": 1_000_000,
        }
    )


def consume(parameters: Parameters) -> None:
    """`how`: "consume" takes many a call, "poll" one. Each record's value is looked at."""
    topic, count = parameters["topic"], parameters["count"]
    read = _by_batch if parameters["how"] == "consume" else _one_by_one
    clock = Stopwatch()
    warm = _consumer(parameters)
    _assign_all(warm, topic)
    read(warm, min(parameters["warm"], count))
    warm.close()
    consumer = _consumer(parameters)
    _partitions(consumer, topic)
    clock.start()
    _assign_all(consumer, topic)
    read_count, size = read(consumer, count)
    clock.stop()
    consumer.close()
    clock.report(read_count, bytes=size, end=_end(parameters["address"], topic))


def _by_batch(consumer: Consumer, count: int) -> tuple[int, int]:
    read_count = size = 0
    while read_count < count:
        # It waits until it has as many as it was asked for, also where there are no more.
        messages = consumer.consume(min(BATCH_SIZE, count - read_count), timeout=WAIT)
        if not messages:
            break
        for message in messages:
            if message.error():
                raise KafkaException(message.error())
            size += len(message.value())
        read_count += len(messages)
    return read_count, size


def _one_by_one(consumer: Consumer, count: int) -> tuple[int, int]:
    read_count = size = 0
    while read_count < count:
        message = consumer.poll(WAIT)
        if message is None:
            break
        if message.error():
            raise KafkaException(message.error())
        size += len(message.value())
        read_count += 1
    return read_count, size


def _assign_all(consumer: Consumer, topic: str) -> None:
    partitions = _partitions(consumer, topic)
    consumer.assign([TopicPartition(topic, number, 0) for number in partitions])


def _end(address: str, topic: str) -> int:
    """How many records the log has in all, whether they were read or not.

    In one request: the consumer would ask for each partition by itself, behind a fetch that waits.
    """
    admin = AdminClient({"bootstrap.servers": address})
    last = OffsetSpec.latest()
    offset_specs = {TopicPartition(topic, number): last for number in _partitions(admin, topic)}
    return sum(each.result(WAIT).offset for each in admin.list_offsets(offset_specs).values())


def _partitions(client: Any, topic: str) -> list[int]:
    found = client.list_topics(topic, WAIT).topics[topic]
    return [number for number, each in found.partitions.items() if each.leader >= 0]


if __name__ == "__main__":
    verbs = {"create": create, "delete": delete, "leaders": leaders}
    main({**verbs, "produce": produce, "consume": consume})
