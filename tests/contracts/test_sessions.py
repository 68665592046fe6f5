"""Sessions: what they own, how they end, and what is left of them."""

import pytest

from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.operations import (
    Children,
    Create,
    Exists,
    Get,
    Multi,
    Operation,
    SessionLost,
    Set,
)
from folkmoot.coordination.zookeeper.session import Outcome, Session, SessionState
from tests.contracts.backends import Backend
from tests.waiting import eventually


@pytest.fixture
def other(backend: Backend) -> Session:
    return backend.open()


def test_a_session_starts_connected(session: Session) -> None:
    assert session.state is SessionState.CONNECTED
    assert session.session_timeout == 30.0


def test_ephemeral_nodes_go_with_their_session_and_no_others(
    session: Session, other: Session
) -> None:
    execute(other, Create("/mine", ephemeral=True))
    execute(other, Create("/kept"))
    execute(other, Multi((Create("/mine-too", ephemeral=True),)))
    execute(session, Create("/yours", ephemeral=True))
    other.close()
    assert sorted(execute(session, Children("/"))) == ["kept", "yours"]


def test_a_closed_session_is_lost_and_answers_so(session: Session, other: Session) -> None:
    states: list[SessionState] = []
    session.listen(states.append)
    session.close()
    session.close()
    assert session.state is SessionState.LOST
    assert states == [SessionState.LOST]
    with pytest.raises(SessionLost):
        execute(session, Create("/late"))
    assert execute(other, Exists("/late")) is None


def test_every_operation_has_one_outcome_when_the_session_is_closed(
    session: Session, other: Session
) -> None:
    outcomes: list[tuple[int, Outcome]] = []

    def create(number: int) -> None:
        session.submit(Create(f"/{number:04d}"), lambda outcome: outcomes.append((number, outcome)))

    for number in range(1000):
        create(number)
    session.close()
    assert sorted(number for number, _ in outcomes) == list(range(1000))
    done = {number for number, outcome in outcomes if outcome.error is None}
    assert done <= {int(name) for name in execute(other, Children("/"))}
    refused = [outcome.error for _, outcome in outcomes if outcome.error is not None]
    assert all(isinstance(error, SessionLost) for error in refused)


def test_an_expired_session_is_lost_for_good(
    backend: Backend, session: Session, other: Session
) -> None:
    states: list[SessionState] = []
    fired: list[str] = []
    session.listen(states.append)
    execute(session, Create("/mine", ephemeral=True))
    execute(session, Get("/mine", lambda: fired.append("data")))
    execute(session, Exists("/absent", lambda: fired.append("absent")))
    execute(session, Children("/", lambda: fired.append("children")))
    backend.expire(session)
    eventually(lambda: session.state is SessionState.LOST)
    eventually(lambda: len(fired) == 3)
    assert sorted(fired) == ["absent", "children", "data"]
    assert states[-1] is SessionState.LOST
    assert execute(other, Exists("/mine")) is None
    operations: list[Operation] = [Exists("/"), Create("/zombie"), Multi((Create("/zombie"),))]
    for operation in operations:
        with pytest.raises(SessionLost):
            execute(session, operation)
    assert execute(other, Children("/")) == []
    session.close()
    assert fired.count("data") == 1


def test_operations_under_way_at_an_expiry_all_end(
    backend: Backend, session: Session, other: Session
) -> None:
    execute(session, Create("/a", b"0"))
    outcomes: list[Outcome] = []
    submitted = 0
    expired = False
    while session.state is not SessionState.LOST:
        for _ in range(20):
            session.submit(Set("/a", b"x"), outcomes.append)
            submitted += 1
        if submitted > 300 and not expired:
            expired = True
            backend.expire(session)
        answered = submitted
        eventually(lambda: len(outcomes) >= answered - 100)  # noqa: B023
    eventually(lambda: len(outcomes) == submitted)
    version = execute(other, Get("/a")).stat.version
    done = sum(outcome.error is None for outcome in outcomes)
    assert done <= version <= submitted
    assert execute(other, Get("/a")).stat.version == version
