"""An ensemble in memory whose n-th request loses its reply, or is lost itself."""

from collections.abc import Iterator

from folkmoot.coordination.zookeeper.operations import Create, Set
from tests.memory_zookeeper import MemorySession, MemoryZooKeeper, Request


class LossyZooKeeper(MemoryZooKeeper):
    """Counts requests; the one with the number `lost` ends with ConnectionLost.

    With `executed` it has taken effect all the same.
    """

    def __init__(self, lost: int, *, executed: bool) -> None:
        super().__init__(deliver=self._deliver)
        self.requests = 0
        self._lost = lost
        self._executed = executed

    def _deliver(self, request: Request) -> None:
        number = self.requests
        self.requests += 1
        if number != self._lost or self._executed:
            request.execute()
        if number == self._lost:
            request.lose()
        else:
            request.reply()


def every_loss(most: int) -> Iterator[tuple[LossyZooKeeper, MemorySession]]:
    """For each of the first requests an ensemble that loses it, in both ways, and a session."""
    for lost in range(most):
        for executed in (False, True):
            ensemble = LossyZooKeeper(lost, executed=executed)
            yield ensemble, ensemble.connect()


def write(session: MemorySession, path: str, data: bytes) -> None:
    """Put a node there by a bare operation, whatever it may mean."""
    session.submit(Create(path, data), lambda _: session.submit(Set(path, data), lambda _: None))
