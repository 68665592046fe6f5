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
BATCH_SIZE: Final = 5_000
WAIT_MS: Final = 10_000
GROUP: Final = "benchmark"


def _connect(parameters: Parameters) -> redis.Redis:
    host, _, port = parameters["address"].partition(":")
    return redis.Redis(host=host, port=int(port), protocol=2)


def produce(parameters: Parameters) -> None:
    client = _connect(parameters)
    columns = read_columns(Path(parameters["records"]), parameters["count"])
    time_sending(parameters, columns, partial(_send, client, parameters["topic"]))
    client.close()


def _send(client: redis.Redis, topic: str, keys: list[bytes], values: list[bytes]) -> None:
    rows = zip(keys, values, strict=True)
    while chunk := list(islice(rows, PIPELINE)):
        pipeline = client.pipeline(transaction=False)
        for key, value in chunk:
            pipeline.execute_command("XADD", topic, "*", "k", key, "v", value)
        pipeline.execute()


def consume(parameters: Parameters) -> None:
    topic, count = parameters["topic"], parameters["count"]
    clock = Stopwatch()
    client = _connect(parameters)
    group = f"{GROUP}-{client.client_id()}"
    client.xgroup_create(topic, group, id="0")
    read_count = size = 0
    clock.start()
    while read_count < count:
        reply = client.xreadgroup(group, "one", {topic: ">"}, count=BATCH_SIZE, block=WAIT_MS)
        if not reply:
            break
        entries = reply[0][1]
        for _, fields in entries:
            size += len(fields[b"v"])
        client.execute_command("XACK", topic, group, *[entry for entry, _ in entries])
        read_count += len(entries)
    clock.stop()
    clock.report(read_count, bytes=size, end=client.xlen(topic))
    client.close()


if __name__ == "__main__":
    main({"produce": produce, "consume": consume})
