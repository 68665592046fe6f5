"""A real ZooKeeper and the one in memory, as the contract tests see them."""

from contextlib import ExitStack
from typing import Protocol

from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError

from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.kazoo_adapter import KazooSession, connect
from folkmoot.coordination.zookeeper.operations import Exists
from folkmoot.coordination.zookeeper.session import Session
from tests.memory_zookeeper import MemorySession, MemoryZooKeeper
from tests.waiting import eventually


class Backend(Protocol):
    """Sessions on one empty tree, closed after the test."""

    def open(self) -> Session: ...

    def expire(self, session: Session) -> None:
        """End a connected session from outside; its holder hears of it."""
        ...


class MemoryBackend:
    def __init__(self, cleanup: ExitStack) -> None:
        self.ensemble = MemoryZooKeeper()
        self._cleanup = cleanup

    def open(self) -> Session:
        session = self.ensemble.connect(30.0)
        self._cleanup.callback(session.close)
        return session

    def expire(self, session: Session) -> None:
        assert isinstance(session, MemorySession)
        self.ensemble.expire(session)


class RealBackend:
    def __init__(self, cleanup: ExitStack, connect_string: str) -> None:
        self.connect_string = connect_string
        self._cleanup = cleanup

    def open(self) -> Session:
        session = connect(self.connect_string, 30.0)
        self._cleanup.callback(session.close)
        return session

    def expire(self, session: Session) -> None:
        assert isinstance(session, KazooSession)
        end_session(self.connect_string, session)


def end_session(connect_string: str, session: KazooSession) -> None:
    """Close the session in its holder's name, as an expiry or a guardian would."""
    servers = connect_string.partition("/")[0]

    def ended() -> bool:
        other = KazooClient(hosts=servers, client_id=(session.session_id, session.password))
        try:
            other.start()
        except KazooTimeoutError:
            return False  # raised at once, too, if the holder has taken the session back by then
        other.stop()
        other.close()
        return True

    eventually(ended, 30.0)


def settle(session: Session) -> None:
    """All watches caused to fire by what was answered before, on any session, have fired in this one.

    ZooKeeper queues the events of a write to their sessions before it answers the writer, and a
    session calls watches and gives answers in the order of its connection.
    """
    execute(session, Exists("/"))


def wait_for_rings(rings: list[str], *expected: str) -> None:
    eventually(lambda: len(rings) >= len(expected))
    assert sorted(rings) == sorted(expected)
