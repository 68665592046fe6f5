"""Jobs beside the event loop: their order, their outcomes, and the end of their threads."""

import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue

import pytest

from folkmoot.brokers.server import job_queue as module
from folkmoot.brokers.server.job_queue import JobQueue
from folkmoot.protocol.errors import Overloaded, StorageError
from tests.waiting import eventually


class Loop:
    """A job queue whose callbacks are done by whoever takes them."""

    def __init__(self) -> None:
        self.posted: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.jobs = JobQueue()
        self.jobs.start(self.posted.put)

    def turn(self) -> None:
        self.posted.get(timeout=10)()


def test_jobs_of_one_key_are_done_in_order_and_reported_where_they_are_posted() -> None:
    loop, done = Loop(), list[tuple[int, int]]()
    me = threading.get_ident()
    for number in range(20):
        loop.jobs.submit(
            "a",
            partial(lambda each: (each, threading.get_ident()), number),
            lambda result: done.append((result[0], threading.get_ident())),  # type: ignore[index]
        )
    for _ in range(20):
        loop.turn()
    assert done == [(number, me) for number in range(20)]
    loop.jobs.close()


def test_a_job_that_takes_long_does_not_hold_up_those_of_another_key() -> None:
    loop, done = Loop(), list[object]()
    release = threading.Event()
    loop.jobs.submit("cleaner", release.wait, done.append)
    loop.jobs.submit("flush", lambda: "flushed", done.append)
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
        loop.jobs.submit("a", partial(fail, error), done.append)
    loop.jobs.submit("a", lambda: "done", done.append)
    for _ in range(3):
        loop.turn()
    assert done[0] is failure
    assert isinstance(done[1], ZeroDivisionError)
    assert done[2] == "done"
    loop.jobs.close()


def test_more_jobs_than_may_wait_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 2)
    jobs = JobQueue()
    for _ in range(2):
        jobs.submit("a", int, lambda result: None)
    with pytest.raises(Overloaded):
        jobs.submit("a", int, lambda result: None)
    jobs.submit("b", int, lambda result: None)


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

    loop.jobs.submit("flush", job, lambda result: None)
    loop.jobs.submit("flush", lambda: done.append("one behind it"), lambda result: None)
    begun.wait()
    closing = threading.Thread(target=loop.jobs.close, daemon=True)
    closing.start()
    eventually(lambda: "waits for a job that has not ended: flush" in caplog.text)
    assert closing.is_alive(), "somebody would close the logs beside a thread that still works"
    release.set()
    closing.join()
    assert done == ["the job under way"]
