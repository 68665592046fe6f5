"""Members of a group: one that reads a topic to its end, and one that reads while others come and go.

A system's `reader` is assigned its partitions paused until `resume`, and commits nothing; a `member`
commits as it reads. Of both, `position_of` is a record's partition and offset, and `owned_count` how many
partitions it owns. A `Sender`'s `put` sends, and waits while there is no room; see also `paced.py`.
"""

import sys
import time
from contextlib import closing
from typing import Final

from benchmarks.clients.deliveries import DeliveryLog, every, has_input
from benchmarks.clients.program import Parameters, main, report_event, system

IDLE: Final = 1.0
POLL_TIMEOUT: Final = 0.1


def read(parameters: Parameters) -> None:
    """Joins, waits for its share and for the word to go, and reads to the end.

    What is assigned is paused until then: no member reads while others still join.
    """
    with closing(system(parameters).reader(parameters)) as member:
        is_ready = False
        while not has_input():
            member.poll(0.05)
            if not is_ready and member.owned_count() == parameters["share"]:
                is_ready = True
                report_event("ready")
        started_at, cpu = time.monotonic(), time.process_time()
        member.resume()
        read_count, last, used = 0, started_at, cpu
        # The first records may take a while; from then on a pause is the end.
        while records := member.poll(10 * IDLE if read_count == 0 else IDLE):
            read_count += len(records)
            last, used = time.monotonic(), time.process_time()
        report_event(
            "done",
            records=read_count,
            seconds=last - started_at,
            cpu=used - cpu,
            begun=started_at,
            ended=last,
        )


def stay(parameters: Parameters) -> None:
    """Joins at the word to go, leaves in order at the next."""
    log = DeliveryLog(parameters["log"])
    report_event("ready")
    sys.stdin.readline()
    with closing(system(parameters).member(parameters)) as member:
        report_event("joined", guardian=member.guardian)
        while not has_input():
            log.add(map(member.position_of, member.poll(POLL_TIMEOUT)))
    report_event("done")


def produce(parameters: Parameters) -> None:
    """Sends a record to each partition in each interval, until the next word."""
    value = b"v" * parameters["size"]
    with closing(system(parameters).Sender(parameters, "rebalance")) as sender:
        report_event("ready")
        sys.stdin.readline()
        sent = 0
        for _ in every(parameters["interval"]):
            for partition in sender.partitions:
                sender.put(value, partition)
            sent += len(sender.partitions)
        sender.flush()
    report_event("done", records=sent)


if __name__ == "__main__":
    main({"read": read, "stay": stay, "produce": produce})
