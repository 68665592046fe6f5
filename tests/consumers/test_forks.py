"""What a consumer is in a forked child: closed, and harmless to its parent."""

import asyncio
import os
import signal
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from folkmoot.admin.admin import Admin
from folkmoot.admin.async_admin import AsyncAdmin
from folkmoot.protocol.errors import ClosedError
from tests.consumers.parts import Bench, take
from tests.consumers.tasks import member
from tests.consumers.tasks import take as take_async
from tests.memory_zookeeper import MemoryZooKeeper
from tests.surfaces import run

LONG = 20


def in_child(work: Callable[[], object]) -> int:
    """The exit code of a child that does it: 0 if that has raised nothing; it may not take long."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads, on purpose
        child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(LONG)
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def refused(call: Callable[[], object]) -> None:
    with pytest.raises(ClosedError, match="made before a fork"):
        call()


def test_in_a_forked_child_a_consumer_is_closed_and_its_parent_s_goes_on(bench: Bench) -> None:
    bench.send(range(10))
    first = bench.partition(0)
    with bench.member(auto_commit=False) as consumer:
        assert take(consumer, 4) == [0, 1, 2, 3]

        def use() -> None:
            uses: list[Callable[[], object]] = [
                *(consumer.start, consumer.poll, consumer.poll_batch, consumer.commit),
                *(partial(next, iter(consumer)), partial(consumer.seek, first, 0)),
                *(partial(consumer.position, first), partial(consumer.committed, first)),
            ]
            for each in uses:
                refused(each)
            consumer.stop()
            consumer.close()
            consumer.__exit__(None, None, None)
            consumer.__exit__(ClosedError, ClosedError("refused"), None)

        assert in_child(use) == 0
        assert take(consumer, 3) == [4, 5, 6]
        consumer.commit()
    assert bench.committed() == 7


def test_a_consumer_that_is_started_in_the_child_works_there(bench: Bench) -> None:
    bench.send(range(3))
    consumer = bench.member(guardian=False)

    def use() -> None:
        with consumer:
            assert take(consumer, 3) == [0, 1, 2]

    assert in_child(use) == 0
    assert bench.committed() == 3


def test_in_a_forked_child_a_consumer_of_an_event_loop_is_closed(bench: Bench) -> None:
    bench.send(range(10))

    async def scenario() -> None:
        async with member(bench, auto_commit=False) as consumer:
            assert await take_async(consumer, 4) == [0, 1, 2, 3]

            def use() -> None:
                async def read() -> Any:
                    return [record async for record in consumer]

                for call in (consumer.start, consumer.poll, consumer.commit, read):
                    refused(lambda call=call: asyncio.run(call()))  # type: ignore[misc]
                consumer.stop()
                asyncio.run(consumer.close())

            assert in_child(use) == 0
            assert await take_async(consumer, 3) == [4, 5, 6]

    run(scenario)


def test_in_a_forked_child_an_admin_is_closed() -> None:
    """Nobody would answer it there, nor carry its calls out."""
    connect = MemoryZooKeeper().connect

    async def scenario() -> None:
        with Admin(zookeeper=connect) as admin:
            async with AsyncAdmin(zookeeper=connect) as its_twin:

                def use() -> None:
                    for call in (admin.start, admin.topics):
                        refused(call)
                    admin.close()
                    for ask in (its_twin.start, its_twin.topics):
                        refused(lambda ask=ask: asyncio.run(ask()))  # type: ignore[misc]
                    asyncio.run(its_twin.close())

                assert in_child(use) == 0
                assert admin.topics() == await its_twin.topics() == []

    run(scenario)
