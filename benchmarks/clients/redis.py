"""Redis Streams through redis-py, whose replies hiredis parses in C.

Settings, and why they are its best here: pipelines of 1,000 commands without a transaction (each is
one round trip); one group member reads 5,000 entries a call and acknowledges them with one XACK.
RESP2 and no decoding: the replies stay bytes.
"""

from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

import redis

from benchmarks.clients.program import Parameters, Stopwatch, main, read_columns, time_sending

PIPELINE: Final = 1_000
TAKE: Final = 5_000
WAIT_MS: Final = 10_000
GROUP: Final = "benchmark"


def _connect(given: Parameters) -> redis.Redis:
    host, _, port = given["address"].partition(":")
    return redis.Redis(host=host, port=int(port), protocol=2)


def produce(given: Parameters) -> None:
    client = _connect(given)
    columns = read_columns(Path(given["records"]), given["count"])
    time_sending(given, columns, partial(_send, client, given["topic"]))
    client.close()


def _send(client: redis.Redis, topic: str, keys: list[bytes], values: list[bytes]) -> None:
    rows = zip(keys, values, strict=True)
    while some := list(islice(rows, PIPELINE)):
        pipeline = client.pipeline(transaction=False)
        for key, value in some:
            pipeline.execute_command("XADD", topic, "*", "k", key, "v", value)
        pipeline.execute()


def consume(given: Parameters) -> None:
    topic, count = given["topic"], given["count"]
    clock = Stopwatch()
    client = _connect(given)
    group = f"{GROUP}-{client.client_id()}"
    client.xgroup_create(topic, group, id="0")
    taken = size = 0
    clock.start()
    while taken < count:
        reply = client.xreadgroup(group, "one", {topic: ">"}, count=TAKE, block=WAIT_MS)
        if not reply:
            break
        entries = reply[0][1]
        for _, fields in entries:
            size += len(fields[b"v"])
        client.execute_command("XACK", topic, group, *[entry for entry, _ in entries])
        taken += len(entries)
    clock.stop()
    clock.tell(taken, bytes=size, end=client.xlen(topic))
    client.close()


if __name__ == "__main__":
    main({"produce": produce, "consume": consume})
