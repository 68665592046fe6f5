"""Folkmoot's writers with `acks="all"`: one that goes on while brokers die, one at a fixed rate."""

import time
from functools import partial
from typing import Any, Final

from benchmarks.clients.pacing import DUE, WARM_UP, Arrivals, records, send_paced
from benchmarks.clients.program import Parameters, Stopwatch, main
from benchmarks.clients.writing import Acked, Writer
from folkmoot import Producer

WAIT: Final = 60.0
VALUE: Final = b"x" * 100


def write(given: Parameters) -> None:
    topic = given["topic"]
    with Producer(zookeeper=given["address"], acks="all", linger=0.0) as producer:

        def send(partition: int, acked: Acked, now: float) -> None:
            def done(delivery: Any) -> None:
                delivery.result(0)
                acked(partition, now)

            producer.send(topic, VALUE, partition=partition, on_delivery=done)

        Writer(send, given["partitions"], given["interval"]).serve()


def paced(given: Parameters) -> None:
    keys, values = records(given["count"], given["rate"], given["size"])
    topic, arrivals = given["topic"], Arrivals(given["count"])
    add, due_of, now = arrivals.add, DUE.unpack_from, time.monotonic_ns
    clock = Stopwatch()

    def acked(due: int, delivery: Any) -> None:
        delivery.result(0)
        add(now() - due)

    with Producer(zookeeper=given["address"], acks="all", linger=given["linger"]) as producer:
        for partition in producer.partitions_of(topic):
            producer.send(topic, WARM_UP, partition=partition)
        producer.flush(WAIT)
        clock.start()
        begun = send_paced(
            lambda value, key: producer.send(
                topic, value, key, on_delivery=partial(acked, due_of(value)[0])
            ),
            *(keys, values, given["rate"]),
        )
        producer.flush(WAIT)
        clock.stop()
    clock.tell(len(values), begun=begun, lags=arrivals.percentiles(given["warm"]))


if __name__ == "__main__":
    main({"write": write, "paced": paced})
