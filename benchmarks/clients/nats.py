"""NATS JetStream through nats-py.

Settings, and why they are its best here: up to 1,000 publishes wait for their acknowledgement at a
time (`publish_async`); a durable pull consumer fetches 1,000 messages a call and acknowledges each,
as its clients must to be at least once.
"""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

import nats
from nats.js import JetStreamContext

from benchmarks.clients.program import (
    Parameters,
    Stopwatch,
    Work,
    main,
    read_columns,
    report_event,
    time_sending,
)

IN_FLIGHT: Final = 1_000
BATCH_SIZE: Final = 1_000
WAIT: Final = 10.0


def produce(parameters: Parameters) -> None:
    columns = read_columns(Path(parameters["records"]), parameters["count"])
    with asyncio.Runner() as runner:
        client = runner.run(nats.connect(parameters["address"]))
        stream = client.jetstream(publish_async_max_pending=IN_FLIGHT)

        def send(keys: list[bytes], values: list[bytes]) -> None:
            runner.run(_send(stream, parameters["topic"], keys, values))

        time_sending(parameters, columns, send)
        runner.run(client.close())


async def _send(
    stream: JetStreamContext, topic: str, keys: list[bytes], values: list[bytes]
) -> None:
    """The key is the last part of the subject, which is how JetStream has keys."""
    waiting: list[asyncio.Future[object]] = []
    for key, value in zip(keys, values, strict=True):
        waiting.append(await stream.publish_async(f"{topic}.{key.decode()}", value))
        if len(waiting) >= IN_FLIGHT:
            await asyncio.gather(*waiting)
            waiting.clear()
    await asyncio.gather(*waiting)


async def _consume(parameters: Parameters) -> None:
    topic, count = parameters["topic"], parameters["count"]
    clock = Stopwatch()
    client = await nats.connect(parameters["address"])
    stream = client.jetstream()
    pull = await stream.pull_subscribe(f"{topic}.>", durable="benchmark")
    read_count = size = 0
    clock.start()
    while read_count < count:
        messages = await pull.fetch(min(BATCH_SIZE, count - read_count), timeout=WAIT)
        for message in messages:
            size += len(message.data)
            await message.ack()
        read_count += len(messages)
    await client.flush()
    info = await stream.stream_info(topic)
    clock.stop()
    clock.report(read_count, bytes=size, end=info.state.messages)
    await client.close()


async def _create(parameters: Parameters) -> None:
    client = await nats.connect(parameters["address"])
    await client.jetstream().add_stream(
        name=parameters["topic"], subjects=[f"{parameters['topic']}.>"]
    )
    await client.close()
    report_event("done")


async def _delete(parameters: Parameters) -> None:
    client = await nats.connect(parameters["address"])
    await client.jetstream().delete_stream(parameters["topic"])
    await client.close()
    report_event("done")


def _run(work: Callable[[Parameters], Coroutine[Any, Any, None]]) -> Work:
    return lambda parameters: asyncio.run(work(parameters))


if __name__ == "__main__":
    verbs = {"create": _run(_create), "delete": _run(_delete), "consume": _run(_consume)}
    main({**verbs, "produce": produce})
