"""Transactions that are written only if nothing has changed that they were decided on."""

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import msgspec

from folkmoot.coordination.zookeeper import operations as zk
from folkmoot.coordination.zookeeper.operations import Multi, Recipe, Stat, Write
from folkmoot.coordination.zookeeper.recipes import Malformed, read
from folkmoot.protocol.errors import RegistryError

_T = TypeVar("_T")

PATIENCE: Final = 5
"""Refusals of one and the same transaction after which no other client can be the cause."""


class Transaction:
    """Nodes read, with their versions, and writes that depend on them.

    `uncertain`: an earlier try was not answered, and may have been done.
    """

    def __init__(self, uncertain: bool = False) -> None:
        self.uncertain = uncertain
        self.writes: list[Write] = []
        self.checks: list[Write] = []
        """Also sent if the decision is a refusal."""
        self._read: dict[str, tuple[Any, Stat | None]] = {}
        self._put: set[str] = set()

    def read(self, decoder: msgspec.json.Decoder[_T], path: str) -> Recipe[_T | None]:
        """Return what a node holds, None if it does not exist; the same each time. Raises Malformed."""
        if path not in self._read:
            self._read[path] = yield from read(decoder, path)
        found: _T | None = self._read[path][0]
        return found

    def put(self, path: str, data: bytes) -> None:
        """Write a node that was read, or create it if it did not exist."""
        stat = self._read[path][1]
        self._put.add(path)
        self.writes.append(
            zk.Create(path, data) if stat is None else zk.Set(path, data, stat.version)
        )

    def multi(self, *, refused: bool) -> Multi:
        """Return the writes, none if `refused`, with checks of all that was only read."""
        writes = self.checks.copy() if refused else [*self.writes, *self.checks]
        for path, (_, stat) in self._read.items():
            if path in self._put and not refused:
                continue
            if stat is None:
                writes += (zk.Create(path), zk.Delete(path))  # fails if it exists by now
            else:
                writes.append(zk.Check(path, stat.version))
        return Multi(tuple(writes))


def transact(decide: Callable[[Transaction], Recipe[_T]]) -> Recipe[_T]:
    """Carry out what `decide` decides in one transaction, and return what it returns.

    The transaction checks everything that `decide` has read, also for its refusals. `decide` is called again
    if something has changed. Raises its refusals, Malformed, TooLarge.
    """
    uncertain = False
    failed: Multi | None = None
    failures = 0
    while True:
        transaction = Transaction(uncertain)
        refusal: RegistryError | None = None
        answer: _T | None = None
        try:
            answer = yield from decide(transaction)
        except RegistryError as error:
            refusal = error
        multi = transaction.multi(refused=refusal is not None)
        try:
            yield multi
        except zk.ConnectionLost:
            uncertain = uncertain or (refusal is None and bool(transaction.writes))
            failed, failures = None, 0
        except zk.MultiFailed as error:
            failures = failures + 1 if multi == failed else 1
            if failures == PATIENCE:
                path = multi.writes[error.failed].path
                raise Malformed(f"{path} contradicts other nodes: {error.cause}") from None
            failed = multi
        else:
            if refusal is not None:
                raise refusal
            return cast(_T, answer)
