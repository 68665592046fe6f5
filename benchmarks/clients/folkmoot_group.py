"""A member of a Folkmoot group: it joins, waits for its share and for the word, and reads to the end."""

import time
from typing import Final

from benchmarks.clients.deliveries import is_told
from benchmarks.clients.program import Parameters, main, tell
from folkmoot import Consumer, TopicPartition

IDLE: Final = 1.0
LIMIT: Final = 10_000


def consume(given: Parameters) -> None:
    """What is assigned is paused until the word to go: nobody reads while others still join."""
    going = False

    def on_assign(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if not going:
            consumer.pause(*partitions)

    with Consumer(
        zookeeper=given["address"],
        group=given["group"],
        topics=[given["topic"]],
        on_assign=on_assign,
    ) as consumer:
        told = False
        while not is_told():
            consumer.poll(0.05)
            if not told and len(consumer.assignment()) == given["share"]:
                told = True
                tell("ready")
        going = True
        begun, cpu = time.monotonic(), time.process_time()
        consumer.resume(*consumer.assignment())
        taken, last, used = 0, begun, cpu
        while records := consumer.poll(IDLE, max_records=LIMIT):
            taken += len(records)
            last, used = time.monotonic(), time.process_time()
        tell("done", records=taken, seconds=last - begun, cpu=used - cpu, begun=begun, ended=last)


if __name__ == "__main__":
    main({"consume": consume})
