"""Stores between a test and its ZooKeeper: they count what is asked, and lose what they are told to."""

from collections.abc import Callable
from typing import Literal

from folkmoot.coordination.zookeeper.memory import MemoryZooKeeper
from folkmoot.coordination.zookeeper.operations import ConnectionLost, Operation
from folkmoot.coordination.zookeeper.session import Outcome, SessionState, Store

Loss = Literal["request", "reply"] | None
"""What is lost of an operation: it was never done, or done and nobody was told."""


def memory_store() -> Store:
    return MemoryZooKeeper().connect()


class CountingStore:
    """A store that counts operations and loses those for which `lose` names a loss."""

    def __init__(self, store: Store, lose: Callable[[Operation], Loss] = lambda _: None) -> None:
        self.asked = 0
        self._store = store
        self._lose = lose

    @property
    def state(self) -> SessionState:
        return self._store.state

    @property
    def session_timeout(self) -> float:
        return self._store.session_timeout

    def last_acknowledged(self) -> float:
        return self._store.last_acknowledged()

    def listen(self, listener: Callable[[SessionState], None]) -> None:
        self._store.listen(listener)

    def submit(self, operation: Operation, done: Callable[[Outcome], None]) -> None:
        self.asked += 1
        lost = Outcome(None, ConnectionLost("lost by the test"))
        match self._lose(operation):
            case "request":
                done(lost)
            case "reply":
                self._store.submit(operation, lambda _: done(lost))
            case None:
                self._store.submit(operation, done)

    def close(self) -> None:
        self._store.close()
