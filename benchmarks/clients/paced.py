"""Records at a fixed rate: how long they take to a consumer, or until they are acknowledged.

A system's `Sender` has `partitions` of its topic, `send(value, key, partition=…, on_delivery=…)`, `flush`,
which returns how many records are not acknowledged, and `on_delivery(then)`, a callback for `send` whose
first argument the caller binds: `then` gets it on success. `tail` gives the values behind a topic's ends.
"""

import time
from contextlib import closing
from functools import partial
from typing import Any

from benchmarks.clients.pacing import DUE, WARM_UP, Arrivals, records, send_paced
from benchmarks.clients.program import Parameters, Stopwatch, main, system
from benchmarks.clients.writing import Writer


def produce(given: Parameters) -> None:
    """Records that another process consumes; those that are not acknowledged in the end are a result."""
    keys, values = records(given["count"], given["rate"], given["size"])
    clock = Stopwatch()
    with closing(system(given).Sender(given, "latency")) as sender:
        _warm_up(sender)
        clock.start()
        begun = send_paced(sender.send, keys, values, given["rate"])
        clock.stop()
        left = sender.flush()
        clock.tell(len(values) - left, begun=begun)


def consume(given: Parameters) -> None:
    arrivals = Arrivals(given["count"])
    add, due_of, now = arrivals.add, DUE.unpack_from, time.monotonic_ns
    clock = Stopwatch()
    with system(given).tail(given) as values:
        clock.start()
        for value in values:
            due = due_of(value or WARM_UP)[0]
            if due >= 0:
                add(now() - due)
                if arrivals.complete:
                    break
        clock.stop()
        clock.tell(given["count"], lags=arrivals.percentiles(given["warm"]))


def acknowledged(given: Parameters) -> None:
    """With `acks=all`: how long each record took from when it was due until it was acknowledged."""
    keys, values = records(given["count"], given["rate"], given["size"])
    arrivals = Arrivals(given["count"])
    add, due_of, now = arrivals.add, DUE.unpack_from, time.monotonic_ns
    clock = Stopwatch()
    with closing(system(given).Sender(given, "acknowledged")) as sender:
        send, delivered = sender.send, sender.on_delivery(lambda due: add(now() - due))

        def send_noted(value: bytes, key: bytes) -> None:
            send(value, key, on_delivery=partial(delivered, due_of(value)[0]))

        _warm_up(sender)
        clock.start()
        begun = send_paced(send_noted, keys, values, given["rate"])
        left = sender.flush()
        clock.stop()
        if not arrivals.complete:
            raise RuntimeError(f"not all records are acknowledged, {left} still wait")
    clock.tell(len(values), begun=begun, lags=arrivals.percentiles(given["warm"]))


def write(given: Parameters) -> None:
    """A few records to every partition, while brokers die."""
    with closing(system(given).Sender(given, "failover")) as sender:
        Writer(sender, given["partitions"], given["interval"]).serve()


def _warm_up(sender: Any) -> None:
    for partition in sender.partitions:
        sender.send(WARM_UP, partition=partition)
    sender.flush()


if __name__ == "__main__":
    main({"produce": produce, "consume": consume, "acknowledged": acknowledged, "write": write})
