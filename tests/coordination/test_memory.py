"""What the ZooKeeper in memory does beyond the contract: its faults, on demand and in order."""

import threading
from collections.abc import Callable

import pytest

from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.operations import (
    Children,
    ConnectionLost,
    Create,
    Exists,
    Get,
    Operation,
    SessionLost,
    Set,
    WatchCallback,
)
from folkmoot.coordination.zookeeper.session import Outcome, SessionState
from tests.memory_zookeeper import MemorySession, MemoryZooKeeper, Request

Answers = list[object]


def into(answers: Answers) -> Callable[[Outcome], None]:
    """Keeps results, and the classes of errors."""
    return lambda outcome: answers.append(
        outcome.result if outcome.error is None else type(outcome.error)
    )


def appender(fired: list[str], name: str) -> WatchCallback:
    return lambda: fired.append(name)


@pytest.fixture
def ensemble() -> MemoryZooKeeper:
    return MemoryZooKeeper()


@pytest.fixture
def session(ensemble: MemoryZooKeeper) -> MemorySession:
    return ensemble.connect()


def exists(ensemble: MemoryZooKeeper, path: str) -> bool:
    return path in ensemble.snapshot()


# -- sessions ---------------------------------------------------------------------------------------


def test_a_suspended_session_waits_and_keeps_what_it_has(
    ensemble: MemoryZooKeeper, session: MemorySession
) -> None:
    states: list[SessionState] = []
    session.listen(states.append)
    execute(session, Create("/mine", ephemeral=True))
    ensemble.suspend(session)
    answers: Answers = []
    session.submit(Create("/late"), into(answers))
    assert answers == []
    assert not exists(ensemble, "/late")
    ensemble.resume(session)
    assert answers == ["/late"]
    assert exists(ensemble, "/mine")
    assert states == [SessionState.SUSPENDED, SessionState.CONNECTED]


def test_watches_fire_when_the_connection_breaks(
    ensemble: MemoryZooKeeper, session: MemorySession
) -> None:
    fired: list[str] = []
    execute(session, Exists("/a", appender(fired, "a")))
    ensemble.suspend(session)
    assert fired == ["a"]
    execute(ensemble.connect(), Create("/a"))
    ensemble.resume(session)
    assert fired == ["a"]


def test_a_session_that_expires_while_suspended_is_a_zombie_until_it_resumes(
    ensemble: MemoryZooKeeper, session: MemorySession
) -> None:
    execute(session, Create("/mine", ephemeral=True))
    ensemble.suspend(session)
    answers: Answers = []
    session.submit(Create("/zombie"), into(answers))
    ensemble.expire(session)
    assert not exists(ensemble, "/mine")
    assert (session.state, answers) == (SessionState.SUSPENDED, [])
    ensemble.resume(session)
    assert (session.state, answers) == (SessionState.LOST, [SessionLost])
    assert not exists(ensemble, "/zombie")


def test_closed_while_suspended_it_leaves_its_nodes_to_the_expiry(
    ensemble: MemoryZooKeeper, session: MemorySession
) -> None:
    execute(session, Create("/mine", ephemeral=True))
    ensemble.suspend(session)
    session.close()
    assert session.state is SessionState.LOST
    assert exists(ensemble, "/mine")
    ensemble.expire(session)
    assert not exists(ensemble, "/mine")


# -- delivery ---------------------------------------------------------------------------------------


class Held:
    """A network that holds every request until the test says what becomes of it."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.watches: list[WatchCallback] = []
        self.now = 0.0
        self.ensemble = MemoryZooKeeper(
            clock=lambda: self.now,
            deliver=self.requests.append,
            notify=lambda _, watch: self.watches.append(watch),
        )
        self.session = self.ensemble.connect()
        self.answers: Answers = []

    def submit(self, operation: Operation) -> Request:
        self.session.submit(operation, into(self.answers))
        return self.requests.pop()

    def carry_out(self, operation: Operation) -> None:
        request = self.submit(operation)
        request.execute()
        request.reply()


def test_a_request_takes_effect_when_executed_and_is_answered_when_replied_to() -> None:
    held = Held()
    request = held.submit(Create("/a"))
    assert not exists(held.ensemble, "/a")
    request.execute()
    assert exists(held.ensemble, "/a")
    assert held.answers == []
    request.reply()
    request.reply()
    assert held.answers == ["/a"]


def test_a_reply_may_be_lost_after_the_write_or_the_request_before_it() -> None:
    held = Held()
    after = held.submit(Create("/after"))
    after.execute()
    after.lose()
    held.submit(Create("/before")).lose()
    assert held.answers == [ConnectionLost, ConnectionLost]
    assert exists(held.ensemble, "/after")
    assert not exists(held.ensemble, "/before")


def test_what_is_under_way_is_lost_with_the_connection_and_may_still_arrive() -> None:
    held = Held()
    request = held.submit(Create("/a"))
    held.ensemble.suspend(held.session)
    assert held.answers == [ConnectionLost]
    request.execute()
    request.reply()
    assert exists(held.ensemble, "/a")
    assert held.answers == [ConnectionLost]


def test_a_request_of_an_expired_session_does_nothing() -> None:
    held = Held()
    request = held.submit(Create("/zombie"))
    held.ensemble.expire(held.session)
    request.execute()
    assert held.answers == [SessionLost]
    assert not exists(held.ensemble, "/zombie")


def test_a_read_may_be_answered_from_the_past_and_its_watch_is_due_then() -> None:
    held = Held()
    held.carry_out(Create("/a", b"old"))
    past = held.ensemble.snapshot()
    held.carry_out(Set("/a", b"new"))
    fired: list[str] = []
    held.answers.clear()
    read = held.submit(Get("/a", appender(fired, "a")))
    read.execute(past)
    read.reply()
    assert [node.data for node in held.answers] == [b"old"]  # type: ignore[attr-defined]
    assert len(held.watches) == 1
    # What has not changed since is watched as ever.
    children = held.submit(Children("/a", appender(fired, "children")))
    children.execute(past)
    children.reply()
    assert len(held.watches) == 1
    held.carry_out(Create("/a/b"))
    for watch in held.watches:
        watch()
    assert fired == ["a", "children"]


def test_time_is_the_clock_that_was_given() -> None:
    held = Held()
    held.now = 12.5
    request = held.submit(Create("/a"))
    held.now = 13.0
    request.execute()
    held.now = 14.0
    request.reply()
    assert held.session.last_acknowledged() == 12.5
    assert held.ensemble.snapshot()["/a"].ctime == 13_000
    held.submit(Exists("/a")).lose()
    assert held.session.last_acknowledged() == 12.5


# -- threads ----------------------------------------------------------------------------------------


def test_threads_may_share_a_session_and_an_ensemble(ensemble: MemoryZooKeeper) -> None:
    shared = ensemble.connect()
    execute(shared, Create("/a"))
    versions: list[int] = []

    def write(session: MemorySession) -> None:
        versions.extend(execute(session, Set("/a", b"")) for _ in range(500))

    sessions = [shared, shared, ensemble.connect(), ensemble.connect()]
    threads = [threading.Thread(target=write, args=(session,)) for session in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(versions) == list(range(1, 2001))
