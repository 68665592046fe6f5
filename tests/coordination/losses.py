"""Ensembles in memory that lose replies, and whose servers lag."""

from collections.abc import Iterator

from folkmoot.coordination.zookeeper.operations import (
    Children,
    Create,
    Exists,
    Get,
    Multi,
    Operation,
    Set,
    Sync,
)
from tests.memory_zookeeper import MemorySession, MemoryZooKeeper, Request, Tree


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


class LaggingZooKeeper(MemoryZooKeeper):
    """Once it is armed, carries a transaction or the making of an ephemeral node out and loses the reply;
    the next server does not know of that yet. It catches up with the next write, as servers do."""

    def __init__(self) -> None:
        super().__init__(deliver=self._deliver)
        self.armed = False
        self._view: Tree | None = None

    def lag(self, view: Tree) -> None:
        """Reads are answered by what was there then, until a Sync or a write."""
        self._view = view

    def _deliver(self, request: Request) -> None:
        is_read = isinstance(request.operation, Get | Exists | Children)
        if isinstance(request.operation, Sync):
            self._view = None
        before = self.snapshot()
        request.execute(self._view if is_read else None)
        is_awaited = isinstance(request.operation, Multi) or _is_member(request.operation)
        if self.armed and is_awaited:
            self.armed, self._view = False, before
            request.lose()
            return
        if not is_read:
            self._view = None
        request.reply()


def _is_member(operation: Operation) -> bool:
    return isinstance(operation, Create) and operation.ephemeral


def every_loss(most: int) -> Iterator[tuple[LossyZooKeeper, MemorySession]]:
    """For each of the first requests an ensemble that loses it, in both ways, and a session."""
    for lost in range(most):
        for executed in (False, True):
            ensemble = LossyZooKeeper(lost, executed=executed)
            yield ensemble, ensemble.connect()


def write(session: MemorySession, path: str, data: bytes) -> None:
    """Put a node there by a bare operation, whatever it may mean."""
    session.submit(Create(path, data), lambda _: session.submit(Set(path, data), lambda _: None))
