"""Where brokers are, from ZooKeeper."""

from folkmoot.coordination.brokers import live
from folkmoot.coordination.store import Connect, SessionState, Store, ask
from folkmoot.protocol.errors import ZooKeeperUnreachable

ANSWER_WAIT = 5.0


class Discovery:
    """Finds the addresses of live brokers; one thread at a time may call.

    The session stays open between calls: it is asked only when all known brokers have failed, which
    is the moment at which ZooKeeper should not have to be found first. A lost session is replaced.
    """

    def __init__(self, connect: Connect, session_timeout: float, listener: str) -> None:
        self._connect = connect
        self._session_timeout = session_timeout
        self._listener = listener
        self._store: Store | None = None

    def open(self) -> None:
        """Raises ZooKeeperUnreachable."""
        if self._store is None or self._store.state is SessionState.LOST:
            self._store = self._connect(self._session_timeout)

    def __call__(self) -> list[str]:
        """Raises ZooKeeperUnreachable."""
        self.open()
        store = self._store
        if store is None or store.state is not SessionState.CONNECTED:
            raise ZooKeeperUnreachable("ZooKeeper does not answer at the moment")
        brokers = ask(store, live(), ANSWER_WAIT).values()
        listener = self._listener
        return [each.listeners[listener] for each in brokers if listener in each.listeners]

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
