"""Members of a group: one that reads a topic to its end, and one that reads while others come and go.

A system's `reader` is assigned its partitions paused until `resume`, and commits nothing; a `member`
commits as it reads. Of both, `place` is a record's partition and offset, and `share` how many partitions
it owns. A `Sender`'s `put` sends, and waits while there is no room; see also `paced.py`.
"""

import sys
import time
from contextlib import closing
from typing import Final

from benchmarks.clients.deliveries import DeliveryLog, every, has_input
from benchmarks.clients.program import Parameters, main, system, tell

IDLE: Final = 1.0
TURN: Final = 0.1


def read(given: Parameters) -> None:
    """Joins, waits for its share and for the word to go, and reads to the end.

    What is assigned is paused until then: no member reads while others still join.
    """
    with closing(system(given).reader(given)) as member:
        is_ready = False
        while not has_input():
            member.poll(0.05)
            if not is_ready and member.share() == given["share"]:
                is_ready = True
                tell("ready")
        begun, cpu = time.monotonic(), time.process_time()
        member.resume()
        taken, last, used = 0, begun, cpu
        # The first records may take a while; from then on a pause is the end.
        while records := member.poll(10 * IDLE if taken == 0 else IDLE):
            taken += len(records)
            last, used = time.monotonic(), time.process_time()
        tell("done", records=taken, seconds=last - begun, cpu=used - cpu, begun=begun, ended=last)


def stay(given: Parameters) -> None:
    """Joins at the word to go, leaves in order at the next."""
    log = DeliveryLog(given["log"])
    tell("ready")
    sys.stdin.readline()
    with closing(system(given).member(given)) as member:
        tell("joined", guardian=member.guardian)
        while not has_input():
            log.add(map(member.place, member.poll(TURN)))
    tell("done")


def produce(given: Parameters) -> None:
    """Sends a record to each partition in each interval, until the next word."""
    value = b"v" * given["size"]
    with closing(system(given).Sender(given, "rebalance")) as sender:
        tell("ready")
        sys.stdin.readline()
        sent = 0
        for _ in every(given["interval"]):
            for partition in sender.partitions:
                sender.put(value, partition)
            sent += len(sender.partitions)
        sender.flush()
    tell("done", records=sent)


if __name__ == "__main__":
    main({"read": read, "stay": stay, "produce": produce})
