"""Folkmoot's part in the measurement of rebalances: a member that polls, and a paced producer."""

import sys
from typing import Final

from benchmarks.clients.deliveries import DeliveryLog, every, is_told
from benchmarks.clients.program import Parameters, main, tell
from folkmoot import Consumer, Producer
from folkmoot.coordination.guardian import GUARDIAN

TURN: Final = 0.1
WAIT: Final = 60.0


def member(given: Parameters) -> None:
    """Joins at the word to go, leaves in order at the next."""
    log = DeliveryLog(given["log"])
    tell("ready")
    sys.stdin.readline()
    with Consumer(
        zookeeper=given["address"],
        group=given["group"],
        topics=[given["topic"]],
        commit_interval=given["commit_interval"],
        session_timeout=given["session_timeout"],
    ) as consumer:
        tell("joined", guardian=GUARDIAN.pid)
        while not is_told():
            log.add((record.partition, record.offset) for record in consumer.poll(TURN))
    tell("done")


def produce(given: Parameters) -> None:
    """A record for each partition in each interval, until it is told to stop."""
    topic, value = given["topic"], b"v" * given["size"]
    with Producer(zookeeper=given["address"], acks=1) as producer:
        partitions = producer.partitions_of(topic)
        tell("ready")
        sys.stdin.readline()
        sent = 0
        for _ in every(given["interval"]):
            for partition in partitions:
                producer.send(topic, value, partition=partition)
            sent += len(partitions)
        producer.flush(WAIT)
    tell("done", records=sent)


if __name__ == "__main__":
    main({"member": member, "produce": produce})
