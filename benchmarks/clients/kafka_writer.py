"""Kafka's writer with `acks=all` that goes on while brokers die, and what its cluster says of leaders.

Settings, and why they are its best here: no linger, no waiting for larger segments
(`socket.nagle.disable`), a callback for each record, which is what is measured.
"""

import time
from functools import partial
from threading import Thread
from typing import Any, Final

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient

from benchmarks.clients.pacing import DUE, WARM_UP, Arrivals, records, send_paced
from benchmarks.clients.program import Parameters, Stopwatch, main, tell
from benchmarks.clients.writing import Acked, Writer

WAIT: Final = 30.0
VALUE: Final = b"x" * 100
LOOK_EVERY: Final = 0.2


def _producer(given: Parameters, **more: Any) -> Producer:
    """Deliveries are reported on a thread of its own."""
    producer = Producer(
        {
            "bootstrap.servers": given["address"],
            "acks": "all",
            "enable.idempotence": True,
            "socket.nagle.disable": True,
            "error_cb": lambda error: None,  # it is told of brokers that are gone
            **more,
        }
    )

    def report() -> None:
        while True:
            producer.poll(0.05)

    Thread(target=report, daemon=True).start()
    return producer


def write(given: Parameters) -> None:
    topic = given["topic"]
    producer = _producer(given, **{"linger.ms": 0})

    def send(partition: int, acked: Acked, now: float) -> None:
        def done(error: Any, _: Any) -> None:
            if error is None:
                acked(partition, now)

        producer.produce(topic, VALUE, partition=partition, on_delivery=done)

    Writer(send, given["partitions"], given["interval"]).serve()


def paced(given: Parameters) -> None:
    """Tells how long each record took from when it was due until it was acknowledged; zstd at level 1, as
    Folkmoot's is."""
    keys, values = records(given["count"], given["rate"], given["size"])
    topic, arrivals = given["topic"], Arrivals(given["count"])
    add, due_of, now = arrivals.add, DUE.unpack_from, time.monotonic_ns
    clock = Stopwatch()
    settings = {"compression.type": "zstd", "compression.level": 1}
    queue = {"linger.ms": given["linger"] * 1000, "queue.buffering.max.messages": 10_000_000}
    producer = _producer(given, **settings, **queue)

    def acked(due: int, error: Any, _: Any) -> None:
        if error is not None:
            raise KafkaException(error)
        add(now() - due)

    for partition in producer.list_topics(topic, WAIT).topics[topic].partitions:
        producer.produce(topic, WARM_UP, partition=partition)
    producer.flush(WAIT)
    clock.start()
    begun = send_paced(
        lambda value, key: producer.produce(
            topic, value, key, on_delivery=partial(acked, due_of(value)[0])
        ),
        *(keys, values, given["rate"]),
    )
    producer.flush(WAIT)
    clock.stop()
    if not arrivals.complete:
        raise RuntimeError(f"{producer} has records that are not acknowledged")
    clock.tell(len(values), begun=begun, lags=arrivals.percentiles(given["warm"]))


def leaders(given: Parameters) -> None:
    """Tells them once all replicas are in sync."""
    admin: Any = AdminClient(
        {"bootstrap.servers": given["address"], "error_cb": lambda error: None}
    )
    while True:
        found = admin.list_topics(given["topic"], WAIT).topics[given["topic"]].partitions
        whole = [each for each in found.values() if len(each.isrs) == given["replicas"]]
        if found and len(whole) == len(found):
            tell("done", leaders=[found[number].leader for number in sorted(found)])
            return
        time.sleep(LOOK_EVERY)


if __name__ == "__main__":
    main({"write": write, "paced": paced, "leaders": leaders})
