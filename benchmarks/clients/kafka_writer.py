"""Kafka's writer with `acks=all` that goes on while brokers die, and what its cluster says of leaders.

Settings, and why they are its best here: no linger, no waiting for larger segments
(`socket.nagle.disable`), a callback for each record, which is what is measured.
"""

import time
from threading import Thread
from typing import Any, Final

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from benchmarks.clients.program import Parameters, main, tell
from benchmarks.clients.writing import Acked, Writer

WAIT: Final = 30.0
VALUE: Final = b"x" * 100
LOOK_EVERY: Final = 0.2


def write(given: Parameters) -> None:
    topic = given["topic"]
    producer = Producer(
        {
            "bootstrap.servers": given["address"],
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 0,
            "socket.nagle.disable": True,
            "error_cb": lambda error: None,  # it is told of brokers that are gone
        }
    )

    def send(partition: int, acked: Acked, now: float) -> None:
        def done(error: Any, _: Any) -> None:
            if error is None:
                acked(partition, now)

        producer.produce(topic, VALUE, partition=partition, on_delivery=done)

    def tell_deliveries() -> None:
        while True:
            producer.poll(0.05)

    Thread(target=tell_deliveries, daemon=True).start()
    Writer(send, given["partitions"], given["interval"]).serve()


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
    main({"write": write, "leaders": leaders})
