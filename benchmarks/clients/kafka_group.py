"""A member of a Kafka group: it joins, waits for its share and for the word, and reads to the end."""

import time
from typing import Any, Final

from confluent_kafka import Consumer, TopicPartition

from benchmarks.clients.deliveries import is_told
from benchmarks.clients.program import Parameters, main, tell

IDLE: Final = 1.0
LIMIT: Final = 10_000


def consume(given: Parameters) -> None:
    """What is assigned is paused until the word to go: nobody reads while others still join."""
    mine: list[TopicPartition] = []

    def on_assign(consumer: Any, partitions: list[TopicPartition]) -> None:
        mine[:] = partitions
        consumer.assign(partitions)
        consumer.pause(partitions)

    consumer = Consumer(
        {
            "bootstrap.servers": given["address"],
            "group.id": given["group"],
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "queued.min.messages": 1_000_000,
        }
    )
    consumer.subscribe([given["topic"]], on_assign=on_assign)
    told = False
    while not is_told():
        consumer.poll(0.05)
        if not told and len(mine) == given["share"]:
            told = True
            tell("ready")
    begun, cpu = time.monotonic(), time.process_time()
    consumer.resume(mine)
    taken, last, used = 0, begun, cpu
    # The first records may take a while; from then on a pause is the end.
    while records := _some(consumer, 10 * IDLE if taken == 0 else IDLE):
        taken += records
        last, used = time.monotonic(), time.process_time()
    tell("done", records=taken, seconds=last - begun, cpu=used - cpu, begun=begun, ended=last)
    consumer.close()


def _some(consumer: Consumer, patience: float) -> int:
    """`consume` waits until it has all that it may return: so first one, then what is there."""
    first = consumer.consume(1, timeout=patience)
    return len(first) + len(consumer.consume(LIMIT, timeout=0.01)) if first else 0


if __name__ == "__main__":
    main({"consume": consume})
