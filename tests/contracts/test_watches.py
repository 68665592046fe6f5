"""Watches: what rings, when, and how often."""

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


class Rings:
    """Rings by name; those of one session have all rung once `of` returns."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._rung: list[str] = []

    def __call__(self, name: str) -> Callable[[], None]:
        return lambda: self._rung.append(name)

    def so_far(self) -> list[str]:
        """What has rung since the last call."""
        settle(self._session)
        rung, self._rung = self._rung, []
        return rung


@pytest.fixture
def rings(session: Session) -> Rings:
    return Rings(session)


def test_a_read_node_rings_once_when_it_is_written(
    session: Session, other: Session, rings: Rings
) -> None:
    execute(session, Create("/a"))
    execute(session, Get("/a", rings("a")))
    assert rings.so_far() == []
    execute(other, Set("/a", b"1"))
    assert rings.so_far() == ["a"]
    execute(other, Set("/a", b"2"))
    execute(other, Delete("/a"))
    assert rings.so_far() == []


@pytest.mark.parametrize("write", [Set("/a", b"1"), Delete("/a"), Multi((Set("/a", b""),))])
def test_a_watched_node_rings_however_it_changes(
    session: Session, other: Session, rings: Rings, write: Operation
) -> None:
    execute(session, Create("/a"))
    execute(session, Get("/a", rings("get")))
    execute(session, Exists("/a", rings("exists")))
    execute(other, write)
    assert sorted(rings.so_far()) == ["exists", "get"]


def test_an_absent_node_rings_when_it_appears(
    session: Session, other: Session, rings: Rings
) -> None:
    assert execute(session, Exists("/a", rings("a"))) is None
    execute(other, Create("/b"))
    assert rings.so_far() == []
    execute(other, Create("/a"))
    assert rings.so_far() == ["a"]


def test_a_failed_read_watches_nothing(session: Session, other: Session, rings: Rings) -> None:
    for operation in (Get("/a", rings("get")), Children("/a", rings("children"))):
        with pytest.raises(NoNode):
            execute(session, operation)
    execute(other, Create("/a"))
    execute(other, Create("/a/b"))
    execute(other, Set("/a", b"1"))
    assert rings.so_far() == []


def test_children_ring_when_one_comes_or_goes_and_not_for_their_data(
    session: Session, other: Session, rings: Rings
) -> None:
    execute(session, Create("/a"))
    execute(session, Children("/a", rings("came")))
    execute(other, Set("/a", b"1"))
    assert rings.so_far() == []
    execute(other, Create("/a/b"))
    assert rings.so_far() == ["came"]
    execute(session, Children("/a", rings("went")))
    execute(other, Set("/a/b", b"1"))
    execute(other, Create("/a/b/c"))
    execute(other, Delete("/a/b/c"))
    assert rings.so_far() == []
    execute(other, Delete("/a/b"))
    assert rings.so_far() == ["went"]
    execute(session, Children("/a", rings("parent")))
    execute(other, Delete("/a"))
    assert rings.so_far() == ["parent"]


def test_a_node_does_not_ring_for_its_children(
    session: Session, other: Session, rings: Rings
) -> None:
    execute(session, Create("/a"))
    execute(session, Get("/a", rings("a")))
    execute(other, Create("/a/b"))
    assert rings.so_far() == []


def test_ones_own_writes_ring_too(session: Session, rings: Rings) -> None:
    execute(session, Exists("/a", rings("a")))
    execute(session, Create("/a"))
    assert rings.so_far() == ["a"]


def test_a_transaction_rings_for_each_of_its_writes_and_a_failed_one_for_none(
    session: Session, other: Session, rings: Rings
) -> None:
    execute(session, Create("/a"))
    execute(session, Get("/a", rings("a")))
    execute(session, Exists("/b", rings("b")))
    execute(session, Children("/", rings("children")))
    with pytest.raises(MultiFailed):
        execute(other, Multi((Set("/a", b"1"), Create("/b"), Delete("/no"))))
    assert rings.so_far() == []
    execute(other, Multi((Set("/a", b"1"), Create("/b"), Delete("/b"))))
    assert sorted(rings.so_far()) == ["a", "b", "children"]


def test_the_end_of_a_session_rings_for_its_nodes(
    session: Session, other: Session, rings: Rings
) -> None:
    execute(other, Create("/a", ephemeral=True))
    execute(session, Exists("/a", rings("a")))
    execute(session, Children("/", rings("children")))
    other.close()
    assert sorted(rings.so_far()) == ["a", "children"]
    assert execute(session, Exists("/a")) is None


def test_a_ring_armed_twice_rings_once(session: Session, other: Session) -> None:
    execute(session, Create("/a"))
    rung: list[None] = []

    def ring() -> None:
        rung.append(None)

    for _ in range(3):
        execute(session, Get("/a", ring))
    execute(other, Set("/a", b"1"))
    settle(session)
    assert len(rung) == 1
    execute(session, Get("/a", ring))
    execute(other, Set("/a", b"2"))
    settle(session)
    assert len(rung) == 2


def test_a_ring_comes_before_the_answer_that_shows_the_change(
    session: Session, other: Session
) -> None:
    execute(session, Create("/a", b"0"))
    for number in range(1, 200):
        rung: list[int] = []
        execute(session, Get("/a", lambda rung=rung: rung.append(1)))  # type: ignore[misc]
        other.submit(Set("/a", b"%d" % number), lambda _: None)
        while execute(session, Get("/a")).data != b"%d" % number:
            pass
        assert rung
