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


def produce(parameters: Parameters) -> None:
    """Records that another process consumes; those that are not acknowledged in the end are a result."""
    keys, values = records(parameters["count"], parameters["rate"], parameters["size"])
    clock = Stopwatch()
    with closing(system(parameters).Sender(parameters, "latency")) as sender:
        _warm_up(sender)
        clock.start()
        started_at = send_paced(sender.send, keys, values, parameters["rate"])
        clock.stop()
        unacknowledged = sender.flush()
        clock.report(len(values) - unacknowledged, begun=started_at)


def consume(parameters: Parameters) -> None:
    arrivals = Arrivals(parameters["count"])
    add, due_of, now = arrivals.add, DUE.unpack_from, time.monotonic_ns
    clock = Stopwatch()
    with system(parameters).tail(parameters) as values:
        clock.start()
        for value in values:
            due = due_of(value or WARM_UP)[0]
            if due >= 0:
                add(now() - due)
                if arrivals.is_complete:
                    break
        clock.stop()
        clock.report(parameters["count"], lags=arrivals.percentiles(parameters["warm"]))


def acknowledged(parameters: Parameters) -> None:
    """With `acks=all`: how long each record took from when it was due until it was acknowledged."""
    keys, values = records(parameters["count"], parameters["rate"], parameters["size"])
    arrivals = Arrivals(parameters["count"])
    add, due_of, now = arrivals.add, DUE.unpack_from, time.monotonic_ns
    clock = Stopwatch()
    with closing(system(parameters).Sender(parameters, "acknowledged")) as sender:
        send, delivered = sender.send, sender.on_delivery(lambda due: add(now() - due))

        def send_and_note(value: bytes, key: bytes) -> None:
            send(value, key, on_delivery=partial(delivered, due_of(value)[0]))

        _warm_up(sender)
        clock.start()
        started_at = send_paced(send_and_note, keys, values, parameters["rate"])
        unacknowledged = sender.flush()
        clock.stop()
        if not arrivals.is_complete:
            raise RuntimeError(f"not all records are acknowledged, {unacknowledged} still wait")
    clock.report(len(values), begun=started_at, lags=arrivals.percentiles(parameters["warm"]))


def write(parameters: Parameters) -> None:
    """A few records to every partition, while brokers die."""
    with closing(system(parameters).Sender(parameters, "failover")) as sender:
        Writer(sender, parameters["partitions"], parameters["interval"]).serve()


def _warm_up(sender: Any) -> None:
    for partition in sender.partitions:
        sender.send(WARM_UP, partition=partition)
    sender.flush()


if __name__ == "__main__":
    main({"produce": produce, "consume": consume, "acknowledged": acknowledged, "write": write})
