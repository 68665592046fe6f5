"""What callers of producers get wrong: it is said at once and by name, and harms nothing."""

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from folkmoot.producers.appender import AsyncDelivery, Delivery
from folkmoot.producers.async_producer import AsyncProducer
from folkmoot.producers.producer import Producer
from folkmoot.protocol.errors import ClosedError, ConcurrentUse
from tests.producers.fakes import FakeCluster
from tests.surfaces import both, run
from tests.waiting import eventually

Client = Callable[..., Any]

each = both(Producer, AsyncProducer)

UNNAMED = "a topic is named by a str, not by None"
NO_HEADER = "headers must be .* of str and bytes or None: 'a' is no header"


@each
@pytest.mark.parametrize(
    ("word", "arguments", "options", "said"),
    [
        ("send", (None, b"v"), {}, UNNAMED),
        ("send_batch", (None, [b"v"]), {}, UNNAMED),
        ("partitions_of", (None,), {}, UNNAMED),
        ("send_batch", ("t", [b"v"]), {"partition": True}, "partition must be an int, not bool"),
        ("send_batch", ("t", [b"v"]), {"partition": 1.0}, "partition must be an int, not float"),
        ("send", ("t", b"v"), {"headers": ["a"]}, NO_HEADER),
        ("send", ("t", b"v"), {"headers": "a"}, NO_HEADER),
        ("send", ("t", b"v"), {"headers": [("a", b"1", b"2")]}, "is no header"),
        ("send", ("t", b"v"), {"headers": 7}, "headers must be .* or None, not int: 7"),
        ("send_batch", ("t", [b"v"]), {"headers": [["a"]]}, NO_HEADER),
        ("send_batch", ("t", [b"v"]), {"headers": iter([{}])}, "headers must be a list with those"),
        ("send_batch", ("t", (b"v" for _ in "v")), {}, "values must be a list .* not generator"),
        ("send_batch", ("t", [b"v"], (b"k" for _ in "k")), {}, "keys must be a list .* generator"),
    ],
)
def test_what_has_the_wrong_type_is_a_type_error_that_says_what_it_should_be(
    client: Client,
    cluster: FakeCluster,
    word: str,
    arguments: tuple[Any, ...],
    options: dict[str, Any],
    said: str,
) -> None:
    async def scenario() -> None:
        async with client(zookeeper=cluster.connect) as producer:
            with pytest.raises(TypeError, match=said):
                await getattr(producer, word)(*arguments, **options)
            assert producer.unacknowledged() == 0

    run(scenario)


@each
def test_columns_go_to_a_partition_that_numpy_has_numbered(
    client: Client, cluster: FakeCluster
) -> None:
    async def scenario() -> None:
        async with client(zookeeper=cluster.connect) as producer:
            delivery = await producer.send_batch("t", [b"v"], partition=np.int64(2))
            assert await delivery == {2: [range(1)]}

    run(scenario)


def test_a_producer_is_not_closed_or_flushed_by_its_own_callback_and_goes_on(
    cluster: FakeCluster,
) -> None:
    refused: list[str] = []
    with Producer(zookeeper=cluster.connect) as producer:

        def on_delivery(delivery: Delivery) -> None:
            for call in (producer.close, producer.flush):
                with pytest.raises(ConcurrentUse) as error:
                    call()
                refused.append(str(error.value))

        producer.send("t", b"first", on_delivery=on_delivery)
        eventually(lambda: len(refused) == 2)
        assert producer.send("t", b"second").result(10).topic == "t"
    assert set(refused) == {"an on_delivery callback may not flush or close the producer"}
    with pytest.raises(ClosedError):
        producer.send("t", b"third")


def test_a_producer_of_another_loop_is_refused_at_once(cluster: FakeCluster) -> None:
    async def scenario() -> None:
        async with AsyncProducer(zookeeper=cluster.connect, linger=60.0) as producer:
            known = await producer.send("t", b"known")
            calls: list[Callable[[], Any]] = [
                *(
                    lambda: producer.send("u", b"v"),
                    lambda: producer.send("t", b"v", on_delivery=print),
                ),
                *(lambda: producer.send_batch("t", [b"v"]), lambda: producer.partitions_of("u")),
                *(producer.flush, producer.close, producer.start, known.result),
            ]

            async def use() -> None:
                for call in calls:
                    with pytest.raises(ConcurrentUse, match="the event loop that started it"):
                        await asyncio.wait_for(call(), 2.0)
                with pytest.raises(ConcurrentUse, match="the event loop that started it"):
                    await (await producer.send("t", b"known"))

            await asyncio.to_thread(asyncio.run, use())
            assert producer.unacknowledged() == 2

        async def close_again() -> None:
            await asyncio.wait_for(producer.close(), 2.0)
            with pytest.raises(ClosedError):
                await producer.send("t", b"v")

        await asyncio.to_thread(asyncio.run, close_again())

    run(scenario)
    assert cluster.values() == [b"known"] * 2


def test_a_coroutine_function_as_on_delivery_is_refused_before_anything_is_sent(
    cluster: FakeCluster,
) -> None:
    async def on_delivery(delivery: AsyncDelivery) -> None:
        raise AssertionError("nobody awaits it")

    class Told:
        async def __call__(self, delivery: AsyncDelivery) -> None:
            raise AssertionError("nobody awaits it")

    callbacks: list[Any] = [on_delivery, Told()]

    async def scenario() -> None:
        async with AsyncProducer(zookeeper=cluster.connect) as producer:
            for each in callbacks:
                with pytest.raises(TypeError, match="a plain function"):
                    await producer.send("t", b"v", on_delivery=each)
            assert producer.unacknowledged() == 0

    run(scenario)


@each
def test_a_wait_without_an_end_may_be_given_as_infinity_and_none_is_no_number(
    client: Client, cluster: FakeCluster
) -> None:
    async def scenario() -> None:
        producer = client(zookeeper=cluster.connect)
        await producer.start()
        delivery = await producer.send("t", b"v")
        assert (await delivery.result(float("inf"))).offset == 0
        late = await producer.send("t", b"w")
        await producer.flush(float("inf"))
        assert (await late.result(0)).topic == "t"
        await producer.purge(float("inf"))
        for wait in producer.flush, producer.purge:
            with pytest.raises(ValueError, match="timeout=nan is no number of seconds"):
                await wait(float("nan"))
        await producer.close(float("inf"))

    run(scenario)
