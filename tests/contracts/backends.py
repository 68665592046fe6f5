"""A real ZooKeeper and the one in memory, as the contract tests see them."""

from contextlib import ExitStack
from typing import Protocol

from kazoo.client import KazooClient

from folkmoot.coordination.zookeeper.kazoo_adapter import ZooKeeperStore, connect
from folkmoot.coordination.zookeeper.memory import MemoryStore, MemoryZooKeeper
from folkmoot.coordination.zookeeper.operations import Exists
from folkmoot.coordination.zookeeper.session import Store, perform
from tests.waiting import eventually


class Backend(Protocol):
    """Sessions on one empty tree, closed after the test."""

    def open(self) -> Store: ...

    def expire(self, store: Store) -> None:
        """End a connected session from outside; its holder hears of it."""
        ...


class MemoryBackend:
    def __init__(self, cleanup: ExitStack) -> None:
        self.ensemble = MemoryZooKeeper()
        self._cleanup = cleanup

    def open(self) -> Store:
        store = self.ensemble.connect()
        self._cleanup.callback(store.close)
        return store

    def expire(self, store: Store) -> None:
        assert isinstance(store, MemoryStore)
        self.ensemble.expire(store)


class RealBackend:
    def __init__(self, cleanup: ExitStack, connect_string: str) -> None:
        self.connect_string = connect_string
        self._cleanup = cleanup

    def open(self) -> Store:
        store = connect(self.connect_string, 10.0)
        self._cleanup.callback(store.close)
        return store

    def expire(self, store: Store) -> None:
        assert isinstance(store, ZooKeeperStore)
        end_session(self.connect_string, store)


def end_session(connect_string: str, store: ZooKeeperStore) -> None:
    """Close the session in its holder's name, as an expiry or a guardian would."""
    servers = connect_string.partition("/")[0]
    other = KazooClient(hosts=servers, client_id=(store.session_id, store.password))
    other.start()
    other.stop()
    other.close()


def settle(store: Store) -> None:
    """All rings caused by what was answered before, on any session, have rung in this one.

    ZooKeeper queues the events of a write to their sessions before it answers the writer, and a
    store calls rings and answers in the order of its connection.
    """
    perform(store, Exists("/"))


def wait_for_rings(rings: list[str], *expected: str) -> None:
    eventually(lambda: len(rings) >= len(expected))
    assert sorted(rings) == sorted(expected)
