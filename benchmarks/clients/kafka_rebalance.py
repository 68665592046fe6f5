"""Kafka's part in the measurement of rebalances: a member that polls, and a paced producer.

Settings, and why they are its best here: partitions that do not move are kept (cooperative-sticky, or
the server's assignor in its new protocol), automatic commits and the session as with Folkmoot.
"""

import sys
from typing import Any, Final

from confluent_kafka import Consumer, Producer

from benchmarks.clients.deliveries import DeliveryLog, every, is_told
from benchmarks.clients.program import Parameters, main, tell

TURN: Final = 0.1
MOST: Final = 500
WAIT: Final = 60.0


def member(given: Parameters) -> None:
    """Joins at the word to go, leaves in order at the next."""
    log = DeliveryLog(given["log"])
    settings: dict[str, Any] = {
        "bootstrap.servers": given["address"],
        "group.id": given["group"],
        "auto.offset.reset": "earliest",
        "auto.commit.interval.ms": round(given["commit_interval"] * 1000),
    }
    if given["protocol"] == "consumer":
        settings["group.protocol"] = "consumer"
    else:
        settings["partition.assignment.strategy"] = "cooperative-sticky"
        settings["session.timeout.ms"] = round(given["session_timeout"] * 1000)
    tell("ready")
    sys.stdin.readline()
    consumer = Consumer(settings)
    consumer.subscribe([given["topic"]])
    tell("joined", guardian=None)
    while not is_told():
        log.add(_some(consumer))
    consumer.close()
    tell("done")


def _some(consumer: Consumer) -> list[tuple[int, int]]:
    """`consume` waits until it has all that it may return: so first one, then what is there."""
    found = consumer.consume(1, timeout=TURN)
    if found:
        found += consumer.consume(MOST, timeout=0)
    return [(each.partition(), each.offset()) for each in found if each.error() is None]


def produce(given: Parameters) -> None:
    """A record for each partition in each interval, until it is told to stop."""
    topic, value = given["topic"], b"v" * given["size"]
    producer = Producer(
        {"bootstrap.servers": given["address"], "acks": 1, "compression.type": "zstd"}
    )
    partitions = list(producer.list_topics(topic, WAIT).topics[topic].partitions)
    tell("ready")
    sys.stdin.readline()
    sent = 0
    for _ in every(given["interval"]):
        for partition in partitions:
            while True:
                try:
                    producer.produce(topic, value, partition=partition)
                    break
                except BufferError:  # it has 100,000 under way: it waits, and so do its readers
                    producer.poll(given["interval"])
        producer.poll(0)
        sent += len(partitions)
    producer.flush(WAIT)
    tell("done", records=sent)


if __name__ == "__main__":
    main({"member": member, "produce": produce})
