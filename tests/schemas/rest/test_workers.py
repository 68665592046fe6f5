"""Threads for calls: bounded, and nothing is begun for whom nobody waits."""

import asyncio
from threading import Event

import pytest

from folkmoot.protocol.errors import Overloaded, RequestTimeout
from folkmoot.schemas.rest import workers
from folkmoot.schemas.rest.workers import Workers

DEADLINE = 10.0


def test_calls_run_side_by_side_on_so_many_threads_and_errors_come_back() -> None:
    async def run() -> None:
        pool = Workers(2, DEADLINE)
        first, second = Event(), Event()

        def meet(mine: Event, other: Event) -> bool:
            mine.set()
            return other.wait(DEADLINE)

        met = await asyncio.gather(
            pool.run(lambda: meet(first, second)), pool.run(lambda: meet(second, first))
        )
        assert all(met)
        with pytest.raises(ZeroDivisionError):
            await pool.run(lambda: 1 / 0)

    asyncio.run(run())


def test_a_call_that_takes_too_long_is_given_up_and_one_behind_it_is_never_begun() -> None:
    async def run() -> None:
        pool = Workers(1, 0.05)
        release, begun = Event(), list[str]()
        slow = pool.run(lambda: release.wait(DEADLINE))
        results = await asyncio.gather(
            slow, pool.run(lambda: begun.append("x")), return_exceptions=True
        )
        assert [type(each) for each in results] == [RequestTimeout] * 2
        release.set()
        last = Workers(1, DEADLINE)
        last._calls = pool._calls  # behind the one that was given up
        assert await last.run(lambda: list(begun)) == []

    asyncio.run(run())


def test_more_calls_than_may_wait_are_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "MOST_WAITING", 2)

    async def run() -> None:
        pool = Workers(1, DEADLINE)
        release, under_way = Event(), Event()

        def wait() -> bool:
            under_way.set()
            return release.wait(DEADLINE)

        waiting = [asyncio.create_task(pool.run(wait))]
        await asyncio.to_thread(under_way.wait, DEADLINE)
        waiting += [asyncio.create_task(pool.run(wait)) for _ in range(2)]
        await asyncio.sleep(0)  # so that both are in the queue
        with pytest.raises(Overloaded, match="2 calls wait already"):
            await pool.run(wait)
        release.set()
        assert await asyncio.gather(*waiting) == [True] * 3

    asyncio.run(run())
