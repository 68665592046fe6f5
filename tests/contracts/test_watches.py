"""Watches: what fires, when, and how often."""

from collections.abc import Callable

import pytest

from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.operations import (
    Children,
    Create,
    Delete,
    Exists,
    Get,
    Multi,
    MultiFailed,
    NoNode,
    Operation,
    Set,
)
from folkmoot.coordination.zookeeper.session import Session
from tests.contracts.backends import Backend, settle


@pytest.fixture
def other(backend: Backend) -> Session:
    return backend.open()


class Watches:
    """Watches by name; those of one session have all fired once `of` returns."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._fired: list[str] = []

    def __call__(self, name: str) -> Callable[[], None]:
        return lambda: self._fired.append(name)

    def so_far(self) -> list[str]:
        """What has fired since the last call."""
        settle(self._session)
        fired, self._fired = self._fired, []
        return fired


@pytest.fixture
def watches(session: Session) -> Watches:
    return Watches(session)


def test_a_read_node_fires_once_when_it_is_written(
    session: Session, other: Session, watches: Watches
) -> None:
    execute(session, Create("/a"))
    execute(session, Get("/a", watches("a")))
    assert watches.so_far() == []
    execute(other, Set("/a", b"1"))
    assert watches.so_far() == ["a"]
    execute(other, Set("/a", b"2"))
    execute(other, Delete("/a"))
    assert watches.so_far() == []


@pytest.mark.parametrize("write", [Set("/a", b"1"), Delete("/a"), Multi((Set("/a", b""),))])
def test_a_watched_node_fires_however_it_changes(
    session: Session, other: Session, watches: Watches, write: Operation
) -> None:
    execute(session, Create("/a"))
    execute(session, Get("/a", watches("get")))
    execute(session, Exists("/a", watches("exists")))
    execute(other, write)
    assert sorted(watches.so_far()) == ["exists", "get"]


def test_an_absent_node_fires_when_it_appears(
    session: Session, other: Session, watches: Watches
) -> None:
    assert execute(session, Exists("/a", watches("a"))) is None
    execute(other, Create("/b"))
    assert watches.so_far() == []
    execute(other, Create("/a"))
    assert watches.so_far() == ["a"]


def test_a_failed_read_watches_nothing(session: Session, other: Session, watches: Watches) -> None:
    for operation in (Get("/a", watches("get")), Children("/a", watches("children"))):
        with pytest.raises(NoNode):
            execute(session, operation)
    execute(other, Create("/a"))
    execute(other, Create("/a/b"))
    execute(other, Set("/a", b"1"))
    assert watches.so_far() == []


def test_children_fire_when_one_comes_or_goes_and_not_for_their_data(
    session: Session, other: Session, watches: Watches
) -> None:
    execute(session, Create("/a"))
    execute(session, Children("/a", watches("came")))
    execute(other, Set("/a", b"1"))
    assert watches.so_far() == []
    execute(other, Create("/a/b"))
    assert watches.so_far() == ["came"]
    execute(session, Children("/a", watches("went")))
    execute(other, Set("/a/b", b"1"))
    execute(other, Create("/a/b/c"))
    execute(other, Delete("/a/b/c"))
    assert watches.so_far() == []
    execute(other, Delete("/a/b"))
    assert watches.so_far() == ["went"]
    execute(session, Children("/a", watches("parent")))
    execute(other, Delete("/a"))
    assert watches.so_far() == ["parent"]


def test_a_node_does_not_fire_for_its_children(
    session: Session, other: Session, watches: Watches
) -> None:
    execute(session, Create("/a"))
    execute(session, Get("/a", watches("a")))
    execute(other, Create("/a/b"))
    assert watches.so_far() == []


def test_ones_own_writes_fire_too(session: Session, watches: Watches) -> None:
    execute(session, Exists("/a", watches("a")))
    execute(session, Create("/a"))
    assert watches.so_far() == ["a"]


def test_a_transaction_fires_for_each_of_its_writes_and_a_failed_one_for_none(
    session: Session, other: Session, watches: Watches
) -> None:
    execute(session, Create("/a"))
    execute(session, Get("/a", watches("a")))
    execute(session, Exists("/b", watches("b")))
    execute(session, Children("/", watches("children")))
    with pytest.raises(MultiFailed):
        execute(other, Multi((Set("/a", b"1"), Create("/b"), Delete("/no"))))
    assert watches.so_far() == []
    execute(other, Multi((Set("/a", b"1"), Create("/b"), Delete("/b"))))
    assert sorted(watches.so_far()) == ["a", "b", "children"]


def test_the_end_of_a_session_fires_for_its_nodes(
    session: Session, other: Session, watches: Watches
) -> None:
    execute(other, Create("/a", ephemeral=True))
    execute(session, Exists("/a", watches("a")))
    execute(session, Children("/", watches("children")))
    other.close()
    assert sorted(watches.so_far()) == ["a", "children"]
    assert execute(session, Exists("/a")) is None


def test_a_watch_armed_twice_fires_once(session: Session, other: Session) -> None:
    execute(session, Create("/a"))
    fired: list[None] = []

    def ring() -> None:
        fired.append(None)

    for _ in range(3):
        execute(session, Get("/a", ring))
    execute(other, Set("/a", b"1"))
    settle(session)
    assert len(fired) == 1
    execute(session, Get("/a", ring))
    execute(other, Set("/a", b"2"))
    settle(session)
    assert len(fired) == 2


def test_a_watch_comes_before_the_answer_that_shows_the_change(
    session: Session, other: Session
) -> None:
    execute(session, Create("/a", b"0"))
    for number in range(1, 200):
        fired: list[int] = []
        execute(session, Get("/a", lambda fired=fired: fired.append(1)))  # type: ignore[misc]
        other.submit(Set("/a", b"%d" % number), lambda _: None)
        while execute(session, Get("/a")).data != b"%d" % number:
            pass
        assert fired
