"""Folkmoot's part in the measurement of latency: `send()` at a rate, and a consumer that iterates."""

import time
from typing import Final

from benchmarks.clients.pacing import DUE, WARM_UP, Arrivals, records, send_paced
from benchmarks.clients.program import Parameters, Stopwatch, main
from folkmoot import Consumer, Producer

WAIT: Final = 60.0


def produce(given: Parameters) -> None:
    keys, values = records(given["count"], given["rate"], given["size"])
    topic = given["topic"]
    clock = Stopwatch()
    with Producer(zookeeper=given["address"], acks=1, linger=given["linger"]) as producer:
        send = producer.send
        for partition in producer.partitions_of(topic):
            send(topic, WARM_UP, partition=partition)
        producer.flush(WAIT)
        clock.start()
        begun = send_paced(lambda value, key: send(topic, value, key), keys, values, given["rate"])
        clock.stop()
        producer.flush(WAIT)
        sent = producer.metrics()["requests_sent"]
        clock.tell(len(values), begun=begun, requests=sent)


def consume(given: Parameters) -> None:
    count, topic = given["count"], given["topic"]
    arrivals = Arrivals(count)
    add, due_of, now = arrivals.add, DUE.unpack_from, time.monotonic_ns
    clock = Stopwatch()
    with Consumer(zookeeper=given["address"], auto_offset_reset="latest") as consumer:
        consumer.assign(consumer.partitions_of(topic))
        while consumer.poll(0.2) or None in map(consumer.end_offset, consumer.assignment()):
            pass
        clock.start()
        for record in consumer:
            due = due_of(record.value or WARM_UP)[0]
            if due >= 0:
                add(now() - due)
                if arrivals.complete:
                    break
        clock.stop()
        clock.tell(count, lags=arrivals.percentiles(given["warm"]))


if __name__ == "__main__":
    main({"produce": produce, "consume": consume})
