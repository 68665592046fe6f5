"""Watches: what rings, when, and how often."""

from collections.abc import Callable

import pytest

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
from folkmoot.coordination.zookeeper.session import Store, perform
from tests.contracts.backends import Backend, settle


@pytest.fixture
def other(backend: Backend) -> Store:
    return backend.open()


class Rings:
    """Rings by name; those of one store have all rung once `of` returns."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._rung: list[str] = []

    def __call__(self, name: str) -> Callable[[], None]:
        return lambda: self._rung.append(name)

    def so_far(self) -> list[str]:
        """What has rung since the last call."""
        settle(self._store)
        rung, self._rung = self._rung, []
        return rung


@pytest.fixture
def rings(store: Store) -> Rings:
    return Rings(store)


def test_a_read_node_rings_once_when_it_is_written(
    store: Store, other: Store, rings: Rings
) -> None:
    perform(store, Create("/a"))
    perform(store, Get("/a", rings("a")))
    assert rings.so_far() == []
    perform(other, Set("/a", b"1"))
    assert rings.so_far() == ["a"]
    perform(other, Set("/a", b"2"))
    perform(other, Delete("/a"))
    assert rings.so_far() == []


@pytest.mark.parametrize("write", [Set("/a", b"1"), Delete("/a"), Multi((Set("/a", b""),))])
def test_a_watched_node_rings_however_it_changes(
    store: Store, other: Store, rings: Rings, write: Operation
) -> None:
    perform(store, Create("/a"))
    perform(store, Get("/a", rings("get")))
    perform(store, Exists("/a", rings("exists")))
    perform(other, write)
    assert sorted(rings.so_far()) == ["exists", "get"]


def test_an_absent_node_rings_when_it_appears(store: Store, other: Store, rings: Rings) -> None:
    assert perform(store, Exists("/a", rings("a"))) is None
    perform(other, Create("/b"))
    assert rings.so_far() == []
    perform(other, Create("/a"))
    assert rings.so_far() == ["a"]


def test_a_failed_read_watches_nothing(store: Store, other: Store, rings: Rings) -> None:
    for operation in (Get("/a", rings("get")), Children("/a", rings("children"))):
        with pytest.raises(NoNode):
            perform(store, operation)
    perform(other, Create("/a"))
    perform(other, Create("/a/b"))
    perform(other, Set("/a", b"1"))
    assert rings.so_far() == []


def test_children_ring_when_one_comes_or_goes_and_not_for_their_data(
    store: Store, other: Store, rings: Rings
) -> None:
    perform(store, Create("/a"))
    perform(store, Children("/a", rings("came")))
    perform(other, Set("/a", b"1"))
    assert rings.so_far() == []
    perform(other, Create("/a/b"))
    assert rings.so_far() == ["came"]
    perform(store, Children("/a", rings("went")))
    perform(other, Set("/a/b", b"1"))
    perform(other, Create("/a/b/c"))
    perform(other, Delete("/a/b/c"))
    assert rings.so_far() == []
    perform(other, Delete("/a/b"))
    assert rings.so_far() == ["went"]
    perform(store, Children("/a", rings("parent")))
    perform(other, Delete("/a"))
    assert rings.so_far() == ["parent"]


def test_a_node_does_not_ring_for_its_children(store: Store, other: Store, rings: Rings) -> None:
    perform(store, Create("/a"))
    perform(store, Get("/a", rings("a")))
    perform(other, Create("/a/b"))
    assert rings.so_far() == []


def test_ones_own_writes_ring_too(store: Store, rings: Rings) -> None:
    perform(store, Exists("/a", rings("a")))
    perform(store, Create("/a"))
    assert rings.so_far() == ["a"]


def test_a_transaction_rings_for_each_of_its_writes_and_a_failed_one_for_none(
    store: Store, other: Store, rings: Rings
) -> None:
    perform(store, Create("/a"))
    perform(store, Get("/a", rings("a")))
    perform(store, Exists("/b", rings("b")))
    perform(store, Children("/", rings("children")))
    with pytest.raises(MultiFailed):
        perform(other, Multi((Set("/a", b"1"), Create("/b"), Delete("/no"))))
    assert rings.so_far() == []
    perform(other, Multi((Set("/a", b"1"), Create("/b"), Delete("/b"))))
    assert sorted(rings.so_far()) == ["a", "b", "children"]


def test_the_end_of_a_session_rings_for_its_nodes(store: Store, other: Store, rings: Rings) -> None:
    perform(other, Create("/a", ephemeral=True))
    perform(store, Exists("/a", rings("a")))
    perform(store, Children("/", rings("children")))
    other.close()
    assert sorted(rings.so_far()) == ["a", "children"]
    assert perform(store, Exists("/a")) is None


def test_a_ring_armed_twice_rings_once(store: Store, other: Store) -> None:
    perform(store, Create("/a"))
    rung: list[None] = []

    def ring() -> None:
        rung.append(None)

    for _ in range(3):
        perform(store, Get("/a", ring))
    perform(other, Set("/a", b"1"))
    settle(store)
    assert len(rung) == 1
    perform(store, Get("/a", ring))
    perform(other, Set("/a", b"2"))
    settle(store)
    assert len(rung) == 2


def test_a_ring_comes_before_the_answer_that_shows_the_change(store: Store, other: Store) -> None:
    perform(store, Create("/a", b"0"))
    for number in range(1, 200):
        rung: list[int] = []
        perform(store, Get("/a", lambda rung=rung: rung.append(1)))  # type: ignore[misc]
        other.submit(Set("/a", b"%d" % number), lambda _: None)
        while perform(store, Get("/a")).data != b"%d" % number:
            pass
        assert rung
