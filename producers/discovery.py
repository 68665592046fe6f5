"""What a producer asks ZooKeeper: where brokers are, and ids that nobody else has."""

from typing import TypeVar

from folkmoot.coordination import producer_ids
from folkmoot.coordination.brokers import live
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.operations import Recipe
from folkmoot.coordination.zookeeper.session import Connect, Session, SessionState
from folkmoot.protocol.errors import ZooKeeperUnreachable

ANSWER_WAIT = 5.0
IDS_AT_ONCE = 8
"""Most producers use one in their life."""

_T = TypeVar("_T")


class Discovery:
    """Finds the addresses of live brokers; one thread at a time may call.

    The session stays open between calls: it is asked only when all known brokers have failed, which
    is the moment at which ZooKeeper should not have to be found first. A lost session is replaced.
    """

    def __init__(self, connect: Connect, session_timeout: float, listener: str) -> None:
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
        brokers = self._ask(live()).values()
        listener = self._listener
        return [each.listeners[listener] for each in brokers if listener in each.listeners]

    def producer_ids(self) -> range:
        """Ids that nobody else has or will have. Raises ZooKeeperUnreachable, ZooKeeperError."""
        return self._ask(producer_ids.take(IDS_AT_ONCE))

    def _ask(self, recipe: Recipe[_T]) -> _T:
        self.open()
        session = self._session
        if session is None or session.state is not SessionState.CONNECTED:
            raise ZooKeeperUnreachable("ZooKeeper does not answer at the moment")
        return execute(session, recipe, ANSWER_WAIT)

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
