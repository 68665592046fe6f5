"""Operations on one partition run one after another, whatever the disk does meanwhile."""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from folkmoot.brokers.jobs.serial_queue import SerialQueue


class Disk:
    """A pool of threads whose jobs end when the test says so, in the order that it says."""

    def __init__(self) -> None:
        self.jobs: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = deque()

    def run(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.jobs.append((work, done))

    def finish_one(self) -> None:
        work, done = self.jobs.popleft()
        try:
            found = work()
        except Exception as error:
            done(error)
        else:
            done(found)


def _fail() -> None:
    raise OSError("the disk is full")


def test_an_operation_begins_when_the_one_before_it_has_ended() -> None:
    disk, seen = Disk(), list[str]()
    queue = SerialQueue(disk.run)

    async def operation(name: str, jobs: int) -> None:
        seen.append(f"{name} begins")
        for number in range(jobs):
            assert await queue.job(partial(int, number)) == number
        seen.append(f"{name} ends")

    queue.add(operation("flush", 2))
    queue.add(operation("cut", 1))
    assert seen == ["flush begins"]
    assert len(disk.jobs) == 1
    disk.finish_one()
    assert seen == ["flush begins"]
    disk.finish_one()
    assert seen == ["flush begins", "flush ends", "cut begins"]
    disk.finish_one()
    assert seen[-1] == "cut ends"
    assert queue.is_idle


def test_an_operation_without_a_job_runs_at_once_and_leaves_the_queue_idle() -> None:
    ended = list[bool]()
    queue = SerialQueue(Disk().run)

    async def operation() -> None:
        ended.append(True)

    queue.add(operation())
    assert ended == [True]
    assert queue.is_idle


def test_an_operation_that_is_added_by_another_runs_behind_those_that_wait() -> None:
    disk, seen = Disk(), list[str]()
    queue = SerialQueue(disk.run)

    async def note(name: str) -> None:
        seen.append(name)

    async def first() -> None:
        await queue.job(lambda: None)
        queue.add(note("third"))

    queue.add(first())
    queue.add(note("second"))
    disk.finish_one()
    assert seen == ["second", "third"]


def test_what_a_job_raises_is_raised_in_its_operation() -> None:
    disk, seen = Disk(), list[str]()
    queue = SerialQueue(disk.run)

    async def operation() -> None:
        with pytest.raises(OSError, match="full"):
            await queue.job(_fail)
        seen.append("caught")

    queue.add(operation())
    disk.finish_one()
    assert seen == ["caught"]
    assert queue.is_idle


def test_an_operation_that_fails_does_not_stop_those_behind_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk, seen = Disk(), list[str]()
    queue = SerialQueue(disk.run)

    async def fails() -> None:
        await queue.job(_fail)

    async def follows() -> None:
        seen.append("follows")

    queue.add(fails())
    queue.add(follows())
    disk.finish_one()
    assert seen == ["follows"]
    assert "an operation on a partition failed" in caplog.text


def test_a_closed_queue_ends_what_is_under_way_and_begins_nothing_more() -> None:
    disk, seen = Disk(), list[str]()
    queue = SerialQueue(disk.run)

    async def operation(name: str) -> None:
        await queue.job(lambda: None)
        seen.append(name)

    queue.add(operation("first"))
    queue.add(operation("second"))
    queue.close()
    disk.finish_one()
    assert seen == ["first"]
    assert not disk.jobs
    assert queue.is_idle


def test_a_job_that_ends_at_once_needs_no_second_turn() -> None:
    seen = list[int]()
    queue = SerialQueue(lambda work, done: done(work()))

    async def operation() -> None:
        for number in range(1000):
            seen.append(await queue.job(partial(int, number)))

    queue.add(operation())
    assert seen == list(range(1000))


def test_an_operation_that_is_run_now_does_its_jobs_itself_and_gives_its_result() -> None:
    disk = Disk()
    queue = SerialQueue(disk.run)

    async def operation() -> int:
        return await queue.job(lambda: 1) + await queue.job(lambda: 2)

    async def fails() -> None:
        await queue.job(_fail)

    assert queue.run_now(operation()) == 3
    with pytest.raises(OSError, match="disk is full"):
        queue.run_now(fails())
    assert (queue.is_idle, list(disk.jobs)) == (True, [])
    queue.job(lambda: None)
    assert len(disk.jobs) == 1, "the pool has its jobs again"
