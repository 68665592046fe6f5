"""Tasks that are cancelled while a consumer works for them: nothing is lost, and nothing committed."""

import asyncio
import time
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.consumers.parts import Bench, values
from tests.consumers.tasks import cancelled, member, owns, take
from tests.surfaces import eventually, run

NEVER = 3600.0


def test_what_was_on_its_way_to_a_cancelled_task_is_read_by_the_next_and_not_committed(
    bench: Bench,
) -> None:
    bench.send(range(1_000))

    async def scenario() -> None:
        got: list[int] = []
        async with member(bench, commit_interval=NEVER) as consumer:
            await owns(consumer)
            await consumer.seek(bench.partition(0), 0)
            words = (consumer.poll, consumer.poll_batch, consumer.poll_arrow)
            for number in range(90):
                task: asyncio.Task[Any] = asyncio.create_task(words[number % 3](1.0, 10))
                # From not begun to done and not yet told.
                for _ in range(number // 10):
                    await asyncio.sleep(0.0003)
                if not task.done():
                    await cancelled(task)
                else:
                    some = task.result()
                    if number % 3 == 2:
                        got += [int(value) for value in some.column("value").to_pylist()]
                    elif some is not None:
                        got += values(some)
            before = len(got)
            await consumer.commit()
            assert bench.committed() in (before, None)
            got += await take(consumer, 1_000 - before)
        assert got == list(range(1_000))

    run(scenario)


def test_an_iteration_that_is_cancelled_goes_on_where_it_was(bench: Bench) -> None:
    bench.send(range(2_000))

    async def scenario() -> None:
        got: list[int] = []
        async with member(bench, commit_interval=NEVER) as consumer:

            async def read() -> None:
                async for record in consumer:
                    got.append(int(record.value or b""))
                    if len(got) % 100 == 0:
                        await asyncio.sleep(0)

            while len(got) < 2_000:
                task = asyncio.create_task(read())
                await asyncio.sleep(0.005)
                await cancelled(task)
        assert got == list(range(2_000))

    run(scenario)
    assert bench.committed() == 2_000


@pytest.mark.parametrize("pauses", [0, 1, 2, 5])
def test_who_is_cancelled_after_asking_for_another_record_is_done_with_the_last(
    bench: Bench, pauses: int
) -> None:
    bench.send(range(10))

    async def scenario() -> None:
        loop = asyncio.get_running_loop()

        def cancel_later(task: "asyncio.Task[None]", left: int) -> None:
            if left:
                loop.call_soon(cancel_later, task, left - 1)
            else:
                task.cancel()

        async def read() -> None:
            async with member(bench, commit_interval=NEVER) as consumer:
                async for record in consumer:
                    if record.offset == 9:
                        cancel_later(task, pauses + 1)

        task = asyncio.create_task(read())
        with pytest.raises(asyncio.CancelledError):
            await task

    run(scenario)
    assert bench.committed() == 10


@pytest.mark.parametrize("is_closed", [True, False])
def test_who_fails_while_working_on_a_record_is_not_done_with_it(
    bench: Bench, is_closed: bool
) -> None:
    """Nor if it has not closed the consumer, which the loop does then."""
    bench.send(range(10))

    async def read() -> None:
        async with AsyncExitStack() as stack:
            consumer = await member(bench, commit_interval=NEVER).start()
            if is_closed:
                stack.push_async_exit(consumer)
            async for record in consumer:
                if record.offset == 9:
                    raise KeyError

    with pytest.raises(KeyError):
        run(read)
    assert bench.committed() == 9


def test_a_wait_ends_at_once_when_its_task_is_cancelled_or_another_wants_something(
    bench: Bench,
) -> None:
    async def scenario() -> None:
        async with member(bench) as consumer:
            await owns(consumer)
            while await consumer.position(bench.partition(0)) is None:
                await consumer.poll(0.05)
            waiting = asyncio.create_task(consumer.poll(60.0))
            await asyncio.sleep(0.05)
            begun = time.monotonic()
            for _ in range(5):
                assert await consumer.position(bench.partition(0)) == 0
                await consumer.commit()
            assert not waiting.done()
            await cancelled(waiting)
            assert await consumer.poll(0.0) == []
            assert time.monotonic() - begun < 30.0
            waiting = asyncio.create_task(consumer.poll(30.0))
            await asyncio.sleep(0.05)
            bench.send([7])
            assert values(await waiting) == [7]

    run(scenario)


def test_a_start_that_is_cancelled_leaves_no_member_behind(bench: Bench) -> None:
    async def scenario() -> None:
        for pause in (0.0, 0.005, 0.02):
            task = asyncio.create_task(member(bench).start())
            await asyncio.sleep(pause)
            if not task.done():
                await cancelled(task)
            else:
                await task.result().close()
        async with member(bench) as consumer:
            await owns(consumer)
            await eventually(lambda: consumer.health().generation)

    run(scenario)
