"""Finding brokers in ZooKeeper, and what else is asked there on a thread that must not wait for long."""

from collections.abc import Callable
from typing import TypeVar

from folkmoot.coordination.brokers import addresses
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.operations import Recipe
from folkmoot.coordination.zookeeper.session import Session, SessionState
from folkmoot.protocol.errors import ZooKeeperUnreachable

_T = TypeVar("_T")

ANSWER_WAIT = 5.0


class ZooKeeperDiscovery:
    """Finds the addresses of live brokers, and answers other questions; one thread at a time may call.

    The session stays open between calls: it is asked only when all known brokers have failed, which
    is the moment at which ZooKeeper should not have to be found first. A lost session is replaced, by
    what `connect` returns for it: a member's own session of the moment, or None, will do as well.
    """

    def __init__(
        self, connect: Callable[[float], Session | None], session_timeout: float, listener: str
    ) -> None:
        self._connect = connect
        self._session_timeout = session_timeout
        self._listener = listener
        self._session: Session | None = None

    def open(self) -> None:
        """Raises ZooKeeperUnreachable."""
        if self._session is None or self._session.state is SessionState.LOST:
            self._session = self._connect(self._session_timeout)

    def __call__(self) -> list[str]:
        """Raises ZooKeeperUnreachable."""
        return self.ask(addresses(self._listener))

    def ask(self, question: Recipe[_T]) -> _T:
        """What the recipe returns. Raises ZooKeeperUnreachable, at once while nobody answers."""
        self.open()
        session = self._session
        if session is None or session.state is not SessionState.CONNECTED:
            raise ZooKeeperUnreachable("ZooKeeper does not answer at the moment")
        return execute(session, question, ANSWER_WAIT)

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
