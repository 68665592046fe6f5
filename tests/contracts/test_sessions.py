"""Sessions: what they own, how they end, and what is left of them."""

import pytest

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
from folkmoot.coordination.zookeeper.session import Outcome, SessionState, Store, perform
from tests.contracts.backends import Backend
from tests.waiting import eventually


@pytest.fixture
def other(backend: Backend) -> Store:
    return backend.open()


def test_a_store_starts_connected(store: Store) -> None:
    assert store.state is SessionState.CONNECTED
    assert store.session_timeout == 10.0


def test_ephemeral_nodes_go_with_their_session_and_no_others(store: Store, other: Store) -> None:
    perform(other, Create("/mine", ephemeral=True))
    perform(other, Create("/kept"))
    perform(other, Multi((Create("/mine-too", ephemeral=True),)))
    perform(store, Create("/yours", ephemeral=True))
    other.close()
    assert sorted(perform(store, Children("/"))) == ["kept", "yours"]


def test_a_closed_store_is_lost_and_answers_so(store: Store, other: Store) -> None:
    states: list[SessionState] = []
    store.listen(states.append)
    store.close()
    store.close()
    assert store.state is SessionState.LOST
    assert states == [SessionState.LOST]
    with pytest.raises(SessionLost):
        perform(store, Create("/late"))
    assert perform(other, Exists("/late")) is None


def test_every_operation_has_one_outcome_when_the_store_is_closed(
    store: Store, other: Store
) -> None:
    outcomes: list[tuple[int, Outcome]] = []

    def create(number: int) -> None:
        store.submit(Create(f"/{number:04d}"), lambda outcome: outcomes.append((number, outcome)))

    for number in range(1000):
        create(number)
    store.close()
    assert sorted(number for number, _ in outcomes) == list(range(1000))
    done = {number for number, outcome in outcomes if outcome.error is None}
    assert done <= {int(name) for name in perform(other, Children("/"))}
    refused = [outcome.error for _, outcome in outcomes if outcome.error is not None]
    assert all(isinstance(error, SessionLost) for error in refused)


def test_an_expired_session_is_lost_for_good(backend: Backend, store: Store, other: Store) -> None:
    states: list[SessionState] = []
    rung: list[str] = []
    store.listen(states.append)
    perform(store, Create("/mine", ephemeral=True))
    perform(store, Get("/mine", lambda: rung.append("data")))
    perform(store, Exists("/absent", lambda: rung.append("absent")))
    perform(store, Children("/", lambda: rung.append("children")))
    backend.expire(store)
    eventually(lambda: store.state is SessionState.LOST)
    eventually(lambda: len(rung) == 3)
    assert sorted(rung) == ["absent", "children", "data"]
    assert states[-1] is SessionState.LOST
    assert perform(other, Exists("/mine")) is None
    operations: list[Operation] = [Exists("/"), Create("/zombie"), Multi((Create("/zombie"),))]
    for operation in operations:
        with pytest.raises(SessionLost):
            perform(store, operation)
    assert perform(other, Children("/")) == []
    store.close()
    assert rung.count("data") == 1


def test_operations_under_way_at_an_expiry_all_end(
    backend: Backend, store: Store, other: Store
) -> None:
    perform(store, Create("/a", b"0"))
    outcomes: list[Outcome] = []
    submitted = 0
    expired = False
    while store.state is not SessionState.LOST:
        for _ in range(20):
            store.submit(Set("/a", b"x"), outcomes.append)
            submitted += 1
        if submitted > 300 and not expired:
            expired = True
            backend.expire(store)
        answered = submitted
        eventually(lambda: len(outcomes) >= answered - 100)  # noqa: B023
    eventually(lambda: len(outcomes) == submitted)
    version = perform(other, Get("/a")).stat.version
    done = sum(outcome.error is None for outcome in outcomes)
    assert done <= version <= submitted
    assert perform(other, Get("/a")).stat.version == version
