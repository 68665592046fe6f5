"""What only a producer on an event loop can do wrong: block it, lose what a cancelled task had in hand."""

import asyncio
import gc
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from folkmoot.coordination.zookeeper.session import Session
from folkmoot.producers.accumulator import Accumulator
from folkmoot.producers.async_producer import SENDS_IN_A_ROW, AsyncProducer, _Hub
from folkmoot.protocol.errors import (
    BufferFull,
    ClosedError,
    ConcurrentUse,
    CorruptBatch,
    FlushTimeout,
    RequestTimeout,
    SerializationError,
    UnknownTopicOrPartition,
)
from folkmoot.schemas.values.serialization import WouldWait
from tests.producers.fakes import FakeCluster
from tests.producers.test_both_surfaces import know
from tests.surfaces import eventually, run
from tests.waiting import eventually as eventually_in_thread


def make(cluster: FakeCluster, **options: Any) -> AsyncProducer:
    return AsyncProducer(zookeeper=cluster.connect, **options)


async def fill(producer: AsyncProducer, cluster: FakeCluster) -> None:
    """Until there is no room; nothing is acknowledged until the cluster is no longer silent."""
    await know(producer, "t")
    cluster.silent = True
    while producer.metrics()["buffered_bytes"] < producer.config.buffer_bytes:
        await producer.send("t", bytes(10_000))


FULL = {"buffer_bytes": 50_000, "delivery_timeout": 20.0, "request_timeout": 0.2}


def test_a_full_buffer_stops_the_task_that_sends_and_no_other(cluster: FakeCluster) -> None:
    async def scenario() -> None:
        async with make(cluster, **FULL) as producer:
            await fill(producer, cluster)
            waiting = asyncio.create_task(producer.send("t", b"late"))
            steps = 0
            while steps < 100:
                await asyncio.sleep(0)
                steps += 1
            assert not waiting.done()
            cluster.silent = False
            delivery = await waiting
            assert (await delivery).topic == "t"

    run(scenario)
    assert cluster.values().count(b"late") == 1


def test_a_task_that_is_cancelled_while_it_waits_for_room_has_not_sent(
    cluster: FakeCluster,
) -> None:
    async def scenario() -> None:
        async with make(cluster, **FULL) as producer:
            await fill(producer, cluster)
            before = producer.unacknowledged()
            for send in (
                producer.send("t", b"never"),
                producer.send_batch("t", [b"never"]),
            ):
                waiting: asyncio.Task[Any] = asyncio.create_task(send)
                await asyncio.sleep(0.02)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
            assert producer.unacknowledged() == before
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(producer.send("t", b"never"), 0.02)
            cluster.silent = False
            await (await producer.send("t", b"after"))

    run(scenario)
    assert b"never" not in cluster.values()
    assert cluster.values().count(b"after") == 1


def test_a_topic_that_nobody_knows_yet_stops_the_task_that_sends_and_no_other(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("folkmoot.producers.sender.TOPIC_PATIENCE", 60.0)

    async def scenario() -> None:
        async with make(cluster) as producer:
            cluster.topics = ()
            waiting = asyncio.create_task(producer.send("late", b"v"))
            given_up = asyncio.create_task(producer.send("late", b"never"))
            await asyncio.sleep(0.02)
            given_up.cancel()
            cluster.topics = ("late",)
            await (await waiting)

    run(scenario)
    assert cluster.values("late") == [b"v"]


def test_nothing_is_kept_of_tasks_that_have_waited_in_vain(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("folkmoot.producers.sender.TOPIC_PATIENCE", 60.0)

    def pending() -> int:
        """How many futures there are that somebody may wait for."""
        futures = [each for each in gc.get_objects() if isinstance(each, asyncio.Future)]
        return sum(not future.done() for future in futures)

    async def scenario() -> None:
        async with make(cluster, max_block=0.001, request_timeout=0.2) as producer:
            await know(producer, "t")
            cluster.silent = True
            delivery = await producer.send("t", b"v")
            batch = await producer.send_batch("t", [b"v"])
            before = pending()
            for _ in range(20):
                with pytest.raises(UnknownTopicOrPartition):
                    await producer.send("missing", b"v")
                with pytest.raises(FlushTimeout):
                    await producer.flush(0.001)
                for each in (delivery, batch):
                    with pytest.raises(RequestTimeout):
                        await each.result(timeout=0.001)
            waiting = asyncio.create_task(delivery.result())
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert pending() == before
            cluster.silent = False
            assert (await delivery).topic == "t"

    run(scenario)


def test_room_goes_to_those_who_have_waited_longest(cluster: FakeCluster) -> None:
    order: list[int] = []

    async def scenario() -> None:
        async with make(cluster, **FULL) as producer:
            await fill(producer, cluster)

            async def send(number: int) -> None:
                await producer.send("t", b"%d" % number, partition=0)
                order.append(number)

            async with asyncio.TaskGroup() as tasks:
                for number in range(50):
                    tasks.create_task(send(number))
                await asyncio.sleep(0.02)
                cluster.silent = False

    run(scenario)
    assert order == list(range(50))


def test_who_has_waited_longest_goes_first_also_where_room_comes_and_goes(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, order = random.Random(5), list[int]()
    admission = Accumulator.admission

    def now_and_then(accumulator: Accumulator, *wanted: Any) -> Callable[[], bool]:
        is_admitted = admission(accumulator, *wanted)
        return lambda: source.random() < 0.3 and is_admitted()

    monkeypatch.setattr(Accumulator, "admission", now_and_then)

    async def scenario() -> None:
        async with make(cluster) as producer:

            async def send(number: int) -> None:
                await producer.send_batch("t", [b"%d" % number], partition=0)
                order.append(number)

            tasks = [asyncio.create_task(send(number)) for number in range(20)]
            while not all(task.done() for task in tasks):
                producer._hub.notify()
                await asyncio.sleep(0)

    run(scenario)
    assert order == list(range(20))


def test_who_waits_in_vain_for_a_turn_is_told_so_and_keeps_nobody(cluster: FakeCluster) -> None:
    async def scenario() -> None:
        async with make(cluster, **FULL, max_block=0.3) as producer:
            await fill(producer, cluster)
            sends = [producer.send("t", b"never") for _ in range(5)]
            found = await asyncio.gather(*sends, return_exceptions=True)
            assert [type(each) for each in found] == [BufferFull] * 5
            cluster.silent = False
            await producer.flush()
            await (await producer.send("t", b"after"))

    run(scenario)
    assert b"never" not in cluster.values()


def test_a_send_is_begun_by_who_awaits_it(cluster: FakeCluster) -> None:
    async def scenario() -> None:
        async with make(cluster, partitioner="sticky") as producer:
            await producer.partitions_of("t")
            task = asyncio.create_task(producer.send("t", b"cancelled"))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            producer.send("t", b"closed").close()
            await producer.send("t", b"0", headers=iter([("a", b"b")]))
            await asyncio.gather(*[producer.send("t", b"%d" % number) for number in range(1, 9)])
            await asyncio.wait_for(producer.send("t", b"9", on_delivery=print), 10)

    run(scenario)
    assert cluster.values() == [b"%d" % number for number in range(10)]


def test_a_loop_of_sends_lets_other_tasks_in(cluster: FakeCluster) -> None:
    async def scenario() -> None:
        async with make(cluster) as producer:
            await producer.send("t", b"first")
            steps = 0

            async def step() -> None:
                nonlocal steps
                while True:
                    steps += 1
                    await asyncio.sleep(0)

            other = asyncio.create_task(step())
            for _ in range(5 * SENDS_IN_A_ROW):
                await producer.send("t", b"v")
            assert steps >= 4
            other.cancel()

    run(scenario)


def test_many_tasks_await_their_deliveries_and_the_loop_looks_once_for_many(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    look = _Hub._look

    def counted(hub: _Hub) -> None:
        nonlocal looks
        looks += 1
        look(hub)

    monkeypatch.setattr(_Hub, "_look", counted)

    async def scenario() -> None:
        async with make(cluster, linger=60.0) as producer:
            await producer.partitions_of("t")
            deliveries = [await producer.send("t", b"%d" % n, b"%d" % n) for n in range(2_000)]
            flushing = asyncio.create_task(producer.flush())
            places = await asyncio.gather(*deliveries)
            await flushing
            assert len({place[:3] for place in places}) == 2_000
            for number, place in enumerate(places):
                record = cluster.logs[place[:2]][place.offset]  # type: ignore[index]
                assert record.value == b"%d" % number

    run(scenario)
    assert looks < 100


def test_cancelling_who_awaits_a_delivery_changes_nothing_for_the_record(
    cluster: FakeCluster,
) -> None:
    async def scenario() -> None:
        async with make(cluster, linger=60.0) as producer:
            delivery = await producer.send("t", b"v")
            waiting = asyncio.create_task(delivery.result())
            other = asyncio.create_task(delivery.result())
            await asyncio.sleep(0)
            waiting.cancel()
            await producer.flush()
            assert (await other).offset == 0
            assert (await delivery).offset == 0
            assert waiting.cancelled()

    run(scenario)


def test_a_failure_that_only_a_cancelled_task_asked_about_is_raised_by_flush(
    cluster: FakeCluster,
) -> None:
    cluster.failing = CorruptBatch.code

    async def scenario() -> None:
        async with make(cluster, linger=60.0) as producer:
            delivery = await producer.send("t", b"v")
            waiting = asyncio.create_task(delivery.result())
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(CorruptBatch):
                await producer.flush()

    run(scenario)


def test_a_task_that_ends_with_its_block_still_closes(cluster: FakeCluster) -> None:
    async def scenario() -> AsyncProducer:
        producer = make(cluster, linger=60.0)

        async def work() -> None:
            async with producer:
                await producer.send("t", b"sent before")
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await eventually(producer.unacknowledged)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(ClosedError):
            await producer.send("t", b"v")
        return producer

    run(scenario)
    assert cluster.values() == [b"sent before"]


def test_close_goes_on_when_who_awaits_it_is_cancelled(cluster: FakeCluster) -> None:
    async def scenario() -> None:
        producer = make(cluster, linger=60.0)
        await producer.start()
        cluster.silent = True
        delivery = await producer.send("t", b"v")
        closing = asyncio.create_task(producer.close(0.5))
        await asyncio.sleep(0.02)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        with pytest.raises(ClosedError):
            await producer.send("t", b"v")
        assert not delivery.done()
        await producer.close()
        assert isinstance(await delivery.exception(), ClosedError)

    run(scenario)


def test_a_start_that_is_cancelled_leaves_nothing_open(cluster: FakeCluster) -> None:
    opened: list[Session] = []
    is_over = threading.Event()

    def connect(session_timeout: float) -> Session:
        assert is_over.wait(30.0)
        session = cluster.connect(session_timeout)
        opened.append(session)
        return session

    async def scenario() -> None:
        producer = AsyncProducer(zookeeper=connect)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(producer.start(), 0.02)
        is_over.set()
        await eventually(lambda: opened and opened[0].state.name == "LOST")

    run(scenario)
    opened.clear()
    is_over.clear()

    async def hasty() -> None:
        await asyncio.wait_for(AsyncProducer(zookeeper=connect).start(), 0.02)

    with pytest.raises(TimeoutError):  # and the loop ends before the connection is there
        run(hasty)
    is_over.set()
    eventually_in_thread(lambda: opened and opened[0].state.name == "LOST")


def test_connecting_does_not_block_the_loop(cluster: FakeCluster) -> None:
    steps = 0

    def connect(session_timeout: float) -> Session:
        before = steps
        eventually_in_thread(lambda: steps > before + 3)
        return cluster.connect(session_timeout)

    async def scenario() -> None:
        async def step() -> None:
            nonlocal steps
            while True:
                steps += 1
                await asyncio.sleep(0.01)

        other = asyncio.create_task(step())
        async with AsyncProducer(zookeeper=connect):
            other.cancel()

    run(scenario)


def test_another_loop_may_not_have_it(cluster: FakeCluster) -> None:
    producers: list[AsyncProducer] = []

    async def begin() -> None:
        producers.append(make(cluster))
        await producers[0].start()

    async def go_on() -> None:
        with pytest.raises(ConcurrentUse, match="event loop"):
            await producers[0].start()

    run(begin)
    run(go_on)
    producers[0]._core.close()


def test_several_producers_share_a_loop(cluster: FakeCluster) -> None:
    async def scenario() -> None:
        async with make(cluster) as one, make(cluster) as two:
            sent = [await producer.send("t", b"v") for producer in (one, two) for _ in range(10)]
            assert len({(await delivery)[:3] for delivery in sent}) == 20

    run(scenario)


@pytest.mark.parametrize("ending", [asyncio.CancelledError, SystemExit, KeyboardInterrupt])
def test_a_serializer_that_raises_no_exception_of_its_own_leaves_no_task_waiting(
    cluster: FakeCluster, ending: type[BaseException]
) -> None:
    """What may wait for a registry is called in a thread: such an error is not one of a future's."""

    class Serializer:
        def serialize(self, topic: str, value: object) -> bytes:
            if threading.current_thread() is threading.main_thread():
                raise WouldWait
            raise ending

    async def scenario() -> None:
        async with make(cluster, value_serializer=Serializer()) as producer:
            with pytest.raises(SerializationError):
                await asyncio.wait_for(producer.send("t", b"v"), 10.0)

    run(scenario)
