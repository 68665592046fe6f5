"""What tests of consumers on an event loop share."""

import asyncio
from typing import Any

import pytest

from folkmoot.consumers.client.async_consumer import AsyncConsumer
from tests.consumers.parts import PARTITIONS, Bench, values
from tests.surfaces import eventually


async def take(consumer: Any, count: int) -> list[int]:
    """The values of the next `count` records."""
    taken: list[int] = []

    async def enough() -> bool:
        taken.extend(values(await consumer.poll(0.2, count - len(taken))))
        return len(taken) >= count

    await eventually(enough, 20.0)
    return taken


def member(bench: Bench, **options: Any) -> AsyncConsumer:
    return AsyncConsumer(zookeeper=bench.zookeeper, **bench.settings(**options))


async def owns(consumer: AsyncConsumer, count: int = PARTITIONS) -> None:
    async def all_of_them() -> bool:
        await consumer.poll(0.05)
        return len(consumer.assignment()) == count

    await eventually(all_of_them, 20.0)


async def cancelled(task: "asyncio.Task[Any]") -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
