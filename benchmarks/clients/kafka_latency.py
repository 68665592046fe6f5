"""Kafka's part in the measurement of latency: confluent-kafka, `produce()` at a rate and `poll()`.

Settings, and why they are its best here: no waiting for larger segments on either side
(`socket.nagle.disable`), no delivery reports but of errors, room for all records in the queue; zstd at
level 1, as Folkmoot's is (its own default is 3).
"""

import time
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from benchmarks.clients.pacing import DUE, WARM_UP, Arrivals, records, send_paced
from benchmarks.clients.program import Parameters, Stopwatch, main

WAIT: Final = 30.0


def produce(given: Parameters) -> None:
    keys, values = records(given["count"], given["rate"], given["size"])
    topic = given["topic"]
    failed: list[Any] = []
    clock = Stopwatch()
    producer = Producer(
        {
            "bootstrap.servers": given["address"],
            "acks": 1,
            "compression.type": "zstd",
            "compression.level": 1,
            "linger.ms": given["linger"] * 1000,
            "queue.buffering.max.messages": 10_000_000,
            "delivery.report.only.error": True,
            "socket.nagle.disable": True,
            "partitioner": "murmur2_random",
            "error_cb": failed.append,
        }
    )
    for partition in _partitions(producer, topic):
        producer.produce(topic, WARM_UP, partition=partition)
    producer.flush(WAIT)
    clock.start()
    send = producer.produce
    begun = send_paced(lambda value, key: send(topic, value, key), keys, values, given["rate"])
    clock.stop()
    left = producer.flush(WAIT)
    if failed:
        raise RuntimeError(f"{left} records are not acknowledged; errors: {failed[:3]}")
    # Whoever cannot keep up has records left here, which the consumer then lacks: that is a result.
    clock.tell(len(values) - left, begun=begun)


def consume(given: Parameters) -> None:
    count, topic = given["count"], given["topic"]
    arrivals = Arrivals(count)
    add, due_of, now = arrivals.add, DUE.unpack_from, time.monotonic_ns
    clock = Stopwatch()
    consumer = Consumer(
        {
            "bootstrap.servers": given["address"],
            "group.id": "latency",
            "enable.auto.commit": False,
            "socket.nagle.disable": True,
        }
    )
    places = []
    for number in _partitions(consumer, topic):
        end = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=WAIT)[1]
        places.append(TopicPartition(topic, number, end))
    consumer.assign(places)
    consumer.poll(1.0)
    clock.start()
    poll = consumer.poll
    while not arrivals.complete:
        message = poll(1.0)
        if message is None:
            continue
        if message.error():
            raise KafkaException(message.error())
        due = due_of(message.value())[0]
        if due >= 0:
            add(now() - due)
    clock.stop()
    clock.tell(count, lags=arrivals.percentiles(given["warm"]))
    consumer.close()


def _partitions(client: Any, topic: str) -> list[int]:
    return list(client.list_topics(topic, WAIT).topics[topic].partitions)


if __name__ == "__main__":
    main({"produce": produce, "consume": consume})
