"""A kitchen in one event loop: tables order, two cooks of one group work, and each order is answered.

    folkmoot dev &                             # prints the address to export
    export FOLKMOOT_ZOOKEEPER=...
    folkmoot topic create orders --partitions 3
    folkmoot topic create served --partitions 3
    python examples/asyncio_orders.py

Everything is awaited in tasks of one loop: full buffers, records that are not there yet, commits and
partitions that change hands stop the task that meets them, and no other.
"""

import asyncio
import os
import sys

from folkmoot import AsyncConsumer, AsyncProducer, TopicPartition

TABLES, ORDERS = 4, 25


async def guest(producer: AsyncProducer, table: int) -> None:
    """Orders one dish after the other, and waits at the end until all orders are in the log."""
    sent = [
        await producer.send("orders", f"dish {number}".encode(), key=f"table {table}".encode())
        for number in range(ORDERS)
    ]
    places = await asyncio.gather(*sent)
    print(f"table {table}: {len(places)} orders in partition {places[0].partition}")


async def cook(name: str, zookeeper: str, producer: AsyncProducer, served: set[bytes]) -> None:
    """Takes orders of its partitions until all tables have what they wanted."""

    async def on_revoke(consumer: AsyncConsumer, partitions: list[TopicPartition]) -> None:
        # Still ours: what was cooked is to be in the log before another cook takes over.
        await producer.flush()

    async with AsyncConsumer(
        zookeeper=zookeeper, group="kitchen", topics=["orders"], on_revoke=on_revoke
    ) as consumer:
        while len(served) < TABLES * ORDERS:
            for order in await consumer.poll(0.2, max_records=10):
                await asyncio.sleep(0)  # where a real cook would await something
                dish = b"%s for %s" % (order.value or b"", order.key or b"")
                await producer.send("served", dish, key=order.key, headers={"cook": name.encode()})
                served.add(dish)


async def main() -> int:
    zookeeper = os.environ.get("FOLKMOOT_ZOOKEEPER")
    if zookeeper is None:
        print("set FOLKMOOT_ZOOKEEPER to the address of a cluster: see `folkmoot dev`")
        return 2
    served: set[bytes] = set()
    async with AsyncProducer(zookeeper=zookeeper) as producer, asyncio.TaskGroup() as tasks:
        for name in ("Ada", "Ben"):
            tasks.create_task(cook(name, zookeeper, producer, served))
        for table in range(TABLES):
            tasks.create_task(guest(producer, table))
    print(f"{len(served)} dishes served, {producer.metrics()['records_delivered']} records sent")
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
