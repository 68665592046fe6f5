"""Sessions between a test and its ZooKeeper: they count what is asked, and lose what they are told to."""

from collections.abc import Callable
from typing import Literal

from folkmoot.coordination.zookeeper.operations import ConnectionLost, Operation
from folkmoot.coordination.zookeeper.session import Outcome, Session
from tests.forwarding_session import ForwardingSession
from tests.memory_zookeeper import MemoryZooKeeper

Loss = Literal["request", "reply"] | None
"""What is lost of an operation: it was never done, or done and nobody was told."""


def memory_session() -> Session:
    return MemoryZooKeeper().connect()


class CountingSession(ForwardingSession):
    """A session that counts operations and loses those for which `lose` names a loss."""

    def __init__(
        self, session: Session, lose: Callable[[Operation], Loss] = lambda _: None
    ) -> None:
        super().__init__(session)
        self.asked = 0
        self._lose = lose

    def submit(self, operation: Operation, done: Callable[[Outcome], None]) -> None:
        self.asked += 1
        lost = Outcome(None, ConnectionLost("lost by the test"))
        match self._lose(operation):
            case "request":
                done(lost)
            case "reply":
                self._session.submit(operation, lambda _: done(lost))
            case None:
                self._session.submit(operation, done)
