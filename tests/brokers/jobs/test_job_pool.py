"""Jobs beside the event loop: their order, their outcomes, and the end of their threads."""

import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue

import pytest

from folkmoot.brokers.jobs import job_pool as module
from folkmoot.brokers.jobs.job_pool import JobPool
from folkmoot.brokers.jobs.jobs import Lane
from folkmoot.protocol.errors import ConfigError, Overloaded, StorageError
from tests.waiting import eventually


class Loop:
    """A job pool whose callbacks are done by whoever takes them."""

    def __init__(self) -> None:
        self.posted: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.jobs = JobPool()
        self.jobs.start(self.posted.put)

    def turn(self) -> None:
        self.posted.get(timeout=10)()


def test_jobs_of_a_lane_with_one_thread_are_done_in_order_and_reported_where_they_are_posted() -> (
    None
):
    loop, done = Loop(), list[tuple[int, int]]()
    me = threading.get_ident()
    for number in range(20):
        loop.jobs.submit(
            Lane.NOTES,
            partial(lambda each: (each, threading.get_ident()), number),
            lambda result: done.append((result[0], threading.get_ident())),  # type: ignore[index]
        )
    for _ in range(20):
        loop.turn()
    assert done == [(number, me) for number in range(20)]
    loop.jobs.close()


def test_a_job_that_takes_long_does_not_hold_up_those_of_another_lane() -> None:
    loop, done = Loop(), list[object]()
    release = threading.Event()
    loop.jobs.submit(Lane.COMPACTION, release.wait, done.append)
    loop.jobs.submit(Lane.NOTES, lambda: "flushed", done.append)
    loop.turn()
    assert done == ["flushed"]
    release.set()
    loop.turn()
    assert done == ["flushed", True]
    loop.jobs.close()


def test_what_a_job_ends_with_is_its_outcome_and_the_next_is_done() -> None:
    loop, done = Loop(), list[object]()
    failure = StorageError("a bad disk")

    def fail(error: Exception) -> None:
        raise error

    for error in (failure, ZeroDivisionError("a bug")):
        loop.jobs.submit(Lane.NOTES, partial(fail, error), done.append)
    loop.jobs.submit(Lane.NOTES, lambda: "done", done.append)
    for _ in range(3):
        loop.turn()
    assert done[0] is failure
    assert isinstance(done[1], ZeroDivisionError)
    assert done[2] == "done"
    loop.jobs.close()


def test_a_request_is_refused_where_more_jobs_wait_than_may_and_nothing_else_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 2)
    jobs = JobPool()
    for _ in range(2):
        jobs.submit_for_request(Lane.READ, int, lambda result: None)
    with pytest.raises(Overloaded):
        jobs.submit_for_request(Lane.READ, int, lambda result: None)
    jobs.submit_for_request(Lane.INDEX, int, lambda result: None)
    jobs.submit(Lane.READ, int, lambda result: None)


def test_a_pool_that_may_start_no_thread_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a container may have no more processes."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    jobs = JobPool()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(ConfigError, match="can't start new thread"):
        jobs.start(lambda work: None)
    jobs.close()


def test_closing_returns_when_the_job_under_way_has_ended_and_leaves_the_rest_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "REMIND_AFTER", 0.01)
    loop, done = Loop(), list[str]()
    begun, release = threading.Event(), threading.Event()

    def job() -> None:
        begun.set()
        release.wait()
        done.append("the job under way")

    loop.jobs.submit(Lane.NOTES, job, lambda result: None)
    loop.jobs.submit(Lane.NOTES, lambda: done.append("one behind it"), lambda result: None)
    begun.wait()
    closing = threading.Thread(target=loop.jobs.close, daemon=True)
    closing.start()
    eventually(lambda: "waits for a job that has not ended: notes" in caplog.text)
    assert closing.is_alive(), "somebody would close the logs beside a thread that still works"
    release.set()
    closing.join()
    assert done == ["the job under way"]


def test_a_lane_does_as_many_jobs_side_by_side_as_it_has_threads() -> None:
    loop, done = Loop(), list[object]()
    together = threading.Barrier(Lane.DISK.threads)
    for _ in range(Lane.DISK.threads):
        loop.jobs.submit(Lane.DISK, lambda: together.wait(10) >= 0, done.append)
    for _ in range(Lane.DISK.threads):
        loop.turn()
    assert done == [True] * Lane.DISK.threads
    loop.jobs.close()
