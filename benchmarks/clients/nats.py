"""NATS JetStream through nats-py.

Settings, and why they are its best here: up to 1,000 publishes wait for their acknowledgement at a
time (`publish_async`); a durable pull consumer fetches 1,000 messages a call and acknowledges each,
as its clients must to be at least once.
"""

import asyncio
from pathlib import Path
from typing import Final

import nats
from nats.js import JetStreamContext

from benchmarks.clients.program import Parameters, Stopwatch, main, read_columns

IN_FLIGHT: Final = 1_000
TAKE: Final = 1_000
WAIT: Final = 10.0


def produce(given: Parameters) -> None:
    asyncio.run(_produce(given))


def consume(given: Parameters) -> None:
    asyncio.run(_consume(given))


async def _produce(given: Parameters) -> None:
    keys, values = read_columns(Path(given["records"]), given["count"])
    topic, warm = given["topic"], given["warm"]
    clock = Stopwatch()
    client = await nats.connect(given["address"])
    stream = client.jetstream(publish_async_max_pending=IN_FLIGHT)
    await _send(stream, topic, keys[:warm], values[:warm])
    clock.start()
    await _send(stream, topic, keys[warm:], values[warm:])
    clock.stop()
    clock.tell(len(values) - warm)
    await client.close()


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


async def _consume(given: Parameters) -> None:
    topic, count = given["topic"], given["count"]
    clock = Stopwatch()
    client = await nats.connect(given["address"])
    stream = client.jetstream()
    pull = await stream.pull_subscribe(f"{topic}.>", durable="benchmark")
    taken = size = 0
    clock.start()
    while taken < count:
        messages = await pull.fetch(min(TAKE, count - taken), timeout=WAIT)
        for message in messages:
            size += len(message.data)
            await message.ack()
        taken += len(messages)
    await client.flush()
    info = await stream.stream_info(topic)
    clock.stop()
    clock.tell(taken, bytes=size, end=info.state.messages)
    await client.close()


async def _create(given: Parameters) -> None:
    from benchmarks.clients.program import tell

    client = await nats.connect(given["address"])
    await client.jetstream().add_stream(name=given["topic"], subjects=[f"{given['topic']}.>"])
    await client.close()
    tell("done")


def create(given: Parameters) -> None:
    asyncio.run(_create(given))


async def _delete(given: Parameters) -> None:
    from benchmarks.clients.program import tell

    client = await nats.connect(given["address"])
    await client.jetstream().delete_stream(given["topic"])
    await client.close()
    tell("done")


def delete(given: Parameters) -> None:
    asyncio.run(_delete(given))


if __name__ == "__main__":
    main({"create": create, "delete": delete, "produce": produce, "consume": consume})
