"""Finding brokers in ZooKeeper, and what else is asked there on a thread that must not wait for long."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, TypeVar

from msgspec import Meta

from folkmoot.coordination.brokers import addresses
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.operations import Recipe
from folkmoot.coordination.zookeeper.session import (
    LONGEST_SESSION,
    SHORTEST_SESSION,
    Connect,
    Session,
    SessionState,
)
from folkmoot.protocol.errors import ZooKeeperUnreachable
from folkmoot.protocol.names import check_name
from folkmoot.protocol.options import check_options

_T = TypeVar("_T")

ANSWER_WAIT = 5.0


@dataclass(frozen=True, kw_only=True)
class ClientConfig:
    """What every client can be told; durations in seconds."""

    zookeeper: str | Connect = ""
    """ZooKeeper's connect string with its chroot, or something that opens a session."""
    client_id: str = "client"
    """What brokers see, and what begins the names of members and threads."""
    listener: str = "client"
    """Which of the brokers' listeners to connect to."""
    session_timeout: Annotated[float, Meta(ge=SHORTEST_SESSION, le=LONGEST_SESSION)] = 6.0
    """After this long without a sign of life ZooKeeper ends the client's session; a member's partitions
    go to others then."""
    request_timeout: Annotated[float, Meta(gt=0)] = 30.0
    """After this long without an answer a request to a broker is taken for lost, and sent again."""

    def __post_init__(self) -> None:
        check_options(self)
        check_name("client id", self.client_id)


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
