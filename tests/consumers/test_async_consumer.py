"""What only a consumer on an event loop can do wrong: a blocked loop, a loop that ends, tasks."""

import asyncio
import threading
import time
from concurrent.futures import Future
from typing import Any

import pytest

from folkmoot.consumers.client.async_consumer import AsyncConsumer
from folkmoot.coordination.connector import connector
from folkmoot.coordination.zookeeper.session import Session
from folkmoot.protocol.errors import (
    ClosedError,
    ConcurrentUse,
    NotOwner,
    RequestTimeout,
    ZooKeeperUnreachable,
)
from folkmoot.protocol.records import TopicPartition
from tests.consumers.parts import PARTITIONS, Bench, until
from tests.consumers.tasks import cancelled, member, owns, take
from tests.surfaces import eventually, run

NEVER = 3600.0


# -- one loop, several tasks ----------------------------------------------------------------------


def test_one_task_reads_at_a_time(bench: Bench) -> None:
    async def scenario() -> None:
        async with member(bench) as consumer:
            waiting = asyncio.create_task(consumer.poll(30.0))
            await asyncio.sleep(0)
            for read in (consumer.poll(0.0), consumer.poll_batch(0.0), anext(aiter(consumer))):
                with pytest.raises(ConcurrentUse, match="another task reads"):
                    await read
            await cancelled(waiting)

    run(scenario)


def test_two_tasks_may_start_it_and_each_is_told_how_that_went(bench: Bench) -> None:
    attempts: list[float] = []

    def connect(session_timeout: float) -> Session:
        attempts.append(session_timeout)
        if len(attempts) < 3:
            raise ZooKeeperUnreachable("no server answers")
        return connector(bench.zookeeper)(session_timeout)

    async def scenario() -> None:
        consumer = AsyncConsumer(zookeeper=connect)
        for outcome in (ZooKeeperUnreachable, AsyncConsumer):
            started = await asyncio.gather(
                consumer.start(), consumer.start(), return_exceptions=True
            )
            assert [type(each) for each in started] == [outcome] * 2
        assert len(attempts) == 3
        await consumer.assign([bench.partition(0)])
        await consumer.close()

    run(scenario)


@pytest.mark.parametrize("word", ["records", "batches", "arrow"])
def test_a_second_task_that_iterates_is_refused_and_commits_nothing_of_the_first(
    bench: Bench, word: str
) -> None:
    bench.send(range(10))

    async def scenario() -> None:
        async with member(bench, auto_commit=False) as consumer:
            working, finished = asyncio.Event(), asyncio.Event()
            iterate: Any = {"batches": consumer.batches, "arrow": consumer.arrow}
            begin = iterate.get(word, lambda: aiter(consumer))

            async def work() -> None:
                async for _ in begin():
                    working.set()
                    await finished.wait()
                    return

            first = asyncio.create_task(work())
            await asyncio.wait_for(working.wait(), 20.0)
            for read in (anext(begin()), consumer.poll(0.0), consumer.poll_batch(0.0)):
                with pytest.raises(ConcurrentUse, match="another task reads"):
                    await read
            assert await consumer.committed(bench.partition(0)) is None
            finished.set()
            await first
            await consumer.poll(0.0)  # the iteration is left

    run(scenario)


def test_an_iteration_may_be_stepped_through_by_tasks_that_end(bench: Bench) -> None:
    """As `asyncio.wait_for` does it."""
    bench.send(range(3))

    async def scenario() -> None:
        async with member(bench) as consumer:
            records: Any = aiter(consumer)
            for offset in range(3):
                step = asyncio.create_task(anext(records))
                assert (await step).offset == offset

            async def read() -> None:
                with pytest.raises(ConcurrentUse):
                    await anext(aiter(consumer))

            await asyncio.create_task(read())

    run(scenario)


def test_reading_what_is_there_lets_other_tasks_have_their_turn(bench: Bench) -> None:
    bench.send(range(1_000))

    async def scenario() -> None:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async with member(bench) as consumer:
            await owns(consumer)
            counting = asyncio.create_task(count())
            await take(consumer, 10)
            for read in (consumer.poll(1.0, 1), consumer.poll_batch(1.0, 1), consumer.poll(0.0, 1)):
                before = turns
                assert await read
                assert turns > before
            await cancelled(counting)

    run(scenario)


def test_a_closed_consumer_leaves_nothing_that_the_loop_waits_for(bench: Bench) -> None:
    """The next one has the same descriptors, and heard nothing of its brokers for seconds."""
    bench.send(range(10))

    async def scenario() -> None:
        loop: Any = asyncio.get_running_loop()
        before = len(loop._selector.get_map())
        for _ in range(2):
            async with AsyncConsumer(zookeeper=bench.zookeeper) as consumer:
                await consumer.assign([bench.partition(0)])
                assert await take(consumer, 10) == list(range(10))
            assert len(loop._selector.get_map()) == before

    run(scenario)


def test_a_consumer_of_another_loop_is_refused_at_once(bench: Bench) -> None:
    async def scenario() -> None:
        async with member(bench) as consumer:

            async def use() -> None:
                for call in (consumer.poll, consumer.commit, consumer.close, consumer.start):
                    with pytest.raises(ConcurrentUse, match="the event loop that started it"):
                        await call()
                with pytest.raises(ConcurrentUse, match="the event loop that started it"):
                    await anext(aiter(consumer))

            await asyncio.wait_for(asyncio.to_thread(asyncio.run, use()), 10.0)
            await owns(consumer)

    run(scenario)


def test_a_timeout_that_never_comes_is_refused(bench: Bench) -> None:
    async def scenario() -> None:
        async with member(bench) as consumer:
            for poll in (consumer.poll, consumer.poll_batch, consumer.poll_arrow):
                with pytest.raises(ValueError, match="timeout=nan"):
                    await asyncio.wait_for(poll(float("nan")), 5.0)
            await owns(consumer)

    run(scenario)


def test_several_consumers_share_a_loop_and_divide_the_partitions(bench: Bench) -> None:
    bench.send(range(300), partition=None)

    async def scenario() -> None:
        got: list[int] = []
        consumers = [member(bench) for _ in range(3)]

        async def read(consumer: AsyncConsumer) -> None:
            async with consumer:
                async for record in consumer:
                    got.append(int(record.value or b""))

        async with asyncio.TaskGroup() as tasks:
            for consumer in consumers:
                tasks.create_task(read(consumer))
            await eventually(lambda: [len(each.assignment()) for each in consumers] == [1, 1, 1])
            await eventually(lambda: set(got) >= set(range(300)))
            for consumer in consumers:
                consumer.stop()

    run(scenario)
    assert [bench.committed(number) for number in range(PARTITIONS)] == [100] * PARTITIONS


def test_a_read_and_a_commit_that_wait_do_not_block_the_loop(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with member(bench, auto_commit=False) as consumer:
            await owns(consumer)
            bench.send([7])
            await take(consumer, 1)
            group: Any = consumer._core.group
            commit = group.member.commit
            monkeypatch.setattr(group.member, "commit", lambda *given, **options: Future[Any]())
            committing = asyncio.create_task(consumer.commit(timeout=0.3))
            reading = asyncio.create_task(consumer.poll(0.3))
            ticks = 0
            while not (committing.done() and reading.done()):
                await asyncio.sleep(0.005)
                ticks += 1
            assert ticks > 20
            assert isinstance(committing.exception(), RequestTimeout)
            assert reading.result() == []
            monkeypatch.setattr(group.member, "commit", commit)

    run(scenario)


# -- callbacks ------------------------------------------------------------------------------------


def test_coroutines_as_callbacks_are_waited_for_before_a_record_comes_or_a_partition_goes(
    bench: Bench,
) -> None:
    bench.send(range(10))
    told: list[Any] = []

    async def on_assign(consumer: AsyncConsumer, partitions: list[TopicPartition]) -> None:
        await asyncio.sleep(0.05)
        told.append("assigned")

    async def on_revoke(consumer: AsyncConsumer, partitions: list[TopicPartition]) -> None:
        await asyncio.sleep(0.05)
        offsets = {each: await consumer.position(each) for each in partitions}
        await consumer.commit({each: offset or 0 for each, offset in offsets.items()})
        told.append(("revoked", bench.committed()))

    async def scenario() -> None:
        options = {"on_assign": on_assign, "on_revoke": on_revoke, "auto_commit": False}
        async with member(bench, **options) as consumer:
            assert await take(consumer, 1) == [0]
            assert told
            assert told[0] == "assigned"
            assert await take(consumer, 4) == [1, 2, 3, 4]

    run(scenario)
    assert told[-1] == ("revoked", 5)


def test_a_callback_may_not_read_or_close_and_nor_may_what_it_calls(bench: Bench) -> None:
    refused: list[str] = []

    async def on_assign(consumer: AsyncConsumer, partitions: list[TopicPartition]) -> None:
        for forbidden in (consumer.poll(), consumer.close(), anext(aiter(consumer))):
            try:
                await asyncio.create_task(_await(forbidden))
            except ConcurrentUse as error:
                refused.append(str(error))

    async def scenario() -> None:
        async with member(bench, on_assign=on_assign) as consumer:
            await owns(consumer)

    run(scenario)
    assert len(refused) >= 3
    assert {"a callback may not poll, subscribe or close: call stop() to end"} == set(refused)


def test_a_task_that_a_callback_has_begun_may_read_and_close_when_the_callback_has_ended(
    bench: Bench,
) -> None:
    """As an `on_lost` that has the consumer closed by a task of its own."""
    bench.send([7])
    begun: list[asyncio.Task[list[Any]]] = []
    is_its_turn = asyncio.Event()

    async def read_and_close(consumer: AsyncConsumer) -> list[Any]:
        await is_its_turn.wait()
        found = await take(consumer, 1)
        await consumer.close()
        return found

    async def on_assign(consumer: AsyncConsumer, partitions: list[TopicPartition]) -> None:
        if not begun:
            begun.append(asyncio.create_task(read_and_close(consumer)))

    async def scenario() -> None:
        async with member(bench, on_assign=on_assign) as consumer:
            await owns(consumer)
            while not begun:  # a slow machine owns the partitions before it has called back
                await consumer.poll(0.05)
            await consumer.seek(bench.partition(0), 0)
            is_its_turn.set()
            assert await begun[0] == [7]

    run(scenario)


async def _await(awaitable: Any) -> Any:
    return await awaitable


def test_a_callback_that_never_ends_does_not_keep_close_from_ending(bench: Bench) -> None:
    async def on_revoke(consumer: AsyncConsumer, partitions: list[TopicPartition]) -> None:
        await asyncio.Event().wait()

    async def scenario() -> None:
        consumer = member(bench, on_revoke=on_revoke)
        await consumer.start()
        await owns(consumer)
        begun = time.monotonic()
        with pytest.raises(RequestTimeout, match="callback"):
            await consumer.close(0.5)
        assert time.monotonic() - begun < 20.0

    run(scenario)


class Revoking:
    """An `on_revoke` that lasts until it is let go, and does something at its end."""

    def __init__(self, bench: Bench, last: Any = None) -> None:
        self.partitions: list[TopicPartition] = []
        self.begun, self.let_go = asyncio.Event(), asyncio.Event()
        self._bench = bench
        self._last = last

    async def __call__(self, consumer: AsyncConsumer, partitions: list[TopicPartition]) -> None:
        if self.begun.is_set():  # those that it is left with, on close
            return
        self.partitions += partitions
        self.begun.set()
        await self.let_go.wait()
        if self._last is not None:
            await self._last(consumer)

    async def begin(self, consumer: AsyncConsumer, other: AsyncConsumer) -> list[int]:
        """Have another member join, and read until it has begun. → those that do not move."""
        await other.start()
        while not self.begun.is_set():
            await consumer.poll(0.05)
        moving = {each.partition for each in self.partitions}
        return [number for number in range(PARTITIONS) if number not in moving]


@pytest.mark.parametrize("word", ["poll", "poll_batch", "records"])
def test_while_on_revoke_runs_what_does_not_move_is_read_and_what_moves_is_not(
    bench: Bench, word: str
) -> None:
    async def scenario() -> None:
        revoking = Revoking(bench)
        options = {"commit_interval": NEVER, "on_revoke": revoking}
        other = member(bench)
        async with member(bench, **options) as consumer:
            await owns(consumer)
            bench.send(range(PARTITIONS), None)
            assert sorted(await take(consumer, PARTITIONS)) == [*range(PARTITIONS)]
            staying = await revoking.begin(consumer, other)
            for round_ in range(1, 4):
                sent = [round_ * PARTITIONS + number for number in range(PARTITIONS)]
                bench.send(sent, None)
                wanted = {each for each in sent if each % PARTITIONS in staying}
                assert await _values(consumer, word, len(wanted)) == wanted
            assert await consumer.position(revoking.partitions[0]) == 1
            revoking.let_go.set()
            await eventually(lambda: _gives_up(consumer, revoking.partitions), 20.0)
            moved = {each.partition for each in revoking.partitions}
            left = [n for n in range(PARTITIONS, 4 * PARTITIONS) if n % PARTITIONS in moved]
            assert sorted(await take(other, len(left))) == left
            await other.close()

    run(scenario)


async def _values(consumer: AsyncConsumer, word: str, count: int) -> set[int]:
    """Of the next records, read in one way or another."""
    found: set[int] = set()
    if word == "records":
        async for record in consumer:
            found.add(int(record.value or b""))
            if len(found) == count:
                break
    while len(found) < count:
        some = await (consumer.poll(0.5) if word == "poll" else consumer.poll_batch(0.5))
        found |= {int(record.value or b"") for record in some or ()}
    return found


async def _gives_up(consumer: AsyncConsumer, partitions: list[TopicPartition]) -> bool:
    await consumer.poll(0.05)
    return not consumer.assignment() & {*partitions}


def test_a_commit_within_on_revoke_counts_nothing_that_a_task_has_in_hand(bench: Bench) -> None:
    async def scenario() -> None:
        revoking = Revoking(bench, AsyncConsumer.commit)
        other = member(bench, auto_commit=False)
        async with member(bench, auto_commit=False, on_revoke=revoking) as consumer:
            await owns(consumer)
            bench.send(range(PARTITIONS), None)
            await take(consumer, PARTITIONS)
            staying = await revoking.begin(consumer, other)
            bench.send([7], staying[0])
            assert await take(consumer, 1) == [7]
            revoking.let_go.set()  # and the task is at work on it
            moving = [each.partition for each in revoking.partitions]
            await eventually(lambda: all(bench.committed(each) == 1 for each in moving), 20.0)
            assert [bench.committed(number) for number in staying] == [1] * len(staying)
            await consumer.commit()
            assert bench.committed(staying[0]) == 2
            await other.close()

    run(scenario)


def test_what_on_revoke_raises_meanwhile_comes_out_of_a_read_and_nothing_is_kept(
    bench: Bench,
) -> None:
    async def fail(consumer: AsyncConsumer) -> None:
        raise ZeroDivisionError

    async def scenario() -> None:
        revoking = Revoking(bench, fail)
        other = member(bench)
        async with member(bench, commit_interval=NEVER, on_revoke=revoking) as consumer:
            await owns(consumer)
            bench.send(range(PARTITIONS), None)
            await take(consumer, PARTITIONS)
            await revoking.begin(consumer, other)
            revoking.let_go.set()
            with pytest.raises(ZeroDivisionError):
                await eventually(lambda: consumer.poll(0.05), 20.0)
            moved = sorted(each.partition for each in revoking.partitions)
            assert sorted(await take(other, len(moved))) == moved  # they were not committed
            await other.close()

    run(scenario)


@pytest.mark.parametrize("ends", [True, False], ids=["ends", "does not end"])
def test_close_waits_for_an_on_revoke_that_runs_as_long_as_it_may(bench: Bench, ends: bool) -> None:
    committed: list[TopicPartition] = []

    async def commit(consumer: AsyncConsumer) -> None:
        await consumer.commit(dict.fromkeys(revoking.partitions, 1))
        committed.extend(revoking.partitions)

    async def scenario() -> None:
        consumer = await member(bench, auto_commit=False, on_revoke=revoking).start()
        other = member(bench)
        await owns(consumer)
        bench.send(range(PARTITIONS), None)
        await take(consumer, PARTITIONS)
        await revoking.begin(consumer, other)
        closing = asyncio.create_task(consumer.close(10.0 if ends else 0.5))
        if ends:
            await asyncio.sleep(0)
            revoking.let_go.set()
            await closing
            assert committed
        else:
            with pytest.raises(RequestTimeout, match="callback"):
                await closing
        assert {bench.committed(each.partition) for each in revoking.partitions} == (
            {1} if ends else {None}
        )
        await other.close()

    revoking = Revoking(bench, commit)
    run(scenario)


# -- the loop's end -------------------------------------------------------------------------------


def test_a_task_that_ends_with_its_block_leaves_the_group_and_commits(bench: Bench) -> None:
    bench.send(range(10))

    async def scenario() -> None:
        got = 0

        async def read() -> None:
            nonlocal got
            async with member(bench, commit_interval=NEVER, session_timeout=30.0) as consumer:
                async for _ in consumer:
                    got += 1

        task = asyncio.create_task(read())
        await eventually(lambda: got == 10)
        await cancelled(task)
        assert bench.committed() == 10

    run(scenario)
    with bench.member() as consumer:  # long before the session of the first would have ended
        until(consumer, lambda: len(consumer.assignment()) == PARTITIONS)


def test_a_loop_that_ends_closes_what_was_left_open(bench: Bench) -> None:
    bench.send(range(10))
    left: list[AsyncConsumer] = []

    async def scenario() -> None:
        consumer = member(bench, commit_interval=NEVER, session_timeout=30.0)
        left.append(await consumer.start())
        assert await take(consumer, 10) == list(range(10))
        await consumer.poll(0.0)  # they are processed

    run(scenario)
    assert bench.committed() == 10
    with bench.member() as consumer:
        until(consumer, lambda: len(consumer.assignment()) == PARTITIONS)

    async def afterwards() -> None:
        with pytest.raises(ClosedError):
            await left[0].poll(0.0)

    run(afterwards)


def test_close_goes_on_when_who_awaits_it_is_cancelled(bench: Bench) -> None:
    async def scenario() -> None:
        released = asyncio.Event()

        async def on_revoke(consumer: AsyncConsumer, partitions: list[TopicPartition]) -> None:
            await released.wait()

        consumer = member(bench, on_revoke=on_revoke)
        await consumer.start()
        await owns(consumer)
        closing = asyncio.create_task(consumer.close())
        await asyncio.sleep(0.05)
        await cancelled(closing)
        released.set()
        await consumer.close()
        with pytest.raises(ClosedError):
            await consumer.poll(0.0)
        await eventually(lambda: "folkmoot-consumer" not in {t.name for t in threading.enumerate()})

    run(scenario)


def test_close_does_not_wait_for_a_read_of_another_task(bench: Bench) -> None:
    async def scenario() -> None:
        consumer = member(bench)
        await consumer.start()
        await owns(consumer)
        waiting = asyncio.create_task(consumer.poll(30.0))
        await asyncio.sleep(0.05)
        begun = time.monotonic()
        await consumer.close()
        assert await waiting == []
        assert time.monotonic() - begun < 20.0

    run(scenario)


# -- a blocked loop -------------------------------------------------------------------------------


def test_a_blocked_loop_loses_its_partitions_and_is_fenced(bench: Bench) -> None:
    bench.send(range(30), partition=None)
    stolen: list[TopicPartition] = []
    is_stolen, is_over = threading.Event(), threading.Event()

    def steal() -> None:
        with bench.member(auto_commit=False) as thief:
            until(thief, lambda: bool(thief.assignment()))
            stolen.extend(thief.assignment())
            is_stolen.set()
            until(thief, is_over.is_set)

    async def scenario() -> None:
        async def has_heard() -> bool:
            await consumer.poll(0.05)
            return not consumer.assignment() & set(stolen)

        patience = {"max_processing_time": 2.0, "revoke_timeout": 0.3}
        async with member(bench, auto_commit=False, **patience) as consumer:
            assert len(await take(consumer, 30)) == 30
            thief = threading.Thread(target=steal)
            thief.start()
            try:
                is_stolen.wait(30.0)  # this loop is blocked meanwhile; the group's thread is not
                assert stolen
                with pytest.raises(NotOwner):
                    await consumer.commit()
                await eventually(has_heard)
            finally:
                is_over.set()
                await asyncio.to_thread(thief.join, 30.0)

    run(scenario)
    # All of them where this member had to join again before the first was stolen.
    assert {bench.committed(each.partition) for each in stolen} <= {None, 0}
