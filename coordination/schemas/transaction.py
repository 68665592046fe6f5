"""Transactions that are written only if nothing has changed that they were decided on."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import msgspec

from folkmoot.coordination.zookeeper import operations as zk
from folkmoot.coordination.zookeeper.operations import Multi, Recipe, Stat, Write
from folkmoot.coordination.zookeeper.recipes import Malformed, read
from folkmoot.protocol.errors import RegistryError

_T = TypeVar("_T")
_Known = dict[str, tuple[Any, Stat | None]]


class Transaction:
    """What was read, with the version of each node, and what to write while that holds.

    `uncertain`: an earlier try was not answered, and may have been done.
    """

    def __init__(self, known: _Known | None = None, uncertain: bool = False) -> None:
        self.uncertain = uncertain
        self.writes: list[Write] = []
        self.read_before: _Known = {}
        self._known = known or {}
        self._put: set[str] = set()
        self._needed: list[Write] = []

    def read(self, decoder: msgspec.json.Decoder[_T], path: str) -> Recipe[_T | None]:
        """Return what a node holds, None if it does not exist; the same each time. Raises Malformed."""
        if path in self._known:
            self.read_before[path] = self._known[path]
        elif path not in self.read_before:
            self.read_before[path] = yield from read(decoder, path)
        found: _T | None = self.read_before[path][0]
        return found

    def rely_on(self, path: str) -> None:
        """Require that a node still exists."""
        self._needed.append(zk.Check(path))

    def put(self, path: str, data: bytes) -> None:
        """Write a node that was read, or create it if it did not exist."""
        stat = self.read_before[path][1]
        self._put.add(path)
        self.writes.append(
            zk.Create(path, data) if stat is None else zk.Set(path, data, stat.version)
        )

    def multi(self, *, refused: bool) -> Multi:
        """Return the writes, none if `refused`, with checks of all that was only read."""
        writes = [*(() if refused else self.writes), *self._needed]
        for path, (_, stat) in self.read_before.items():
            if path in self._put and not refused:
                continue
            if stat is None:
                writes += (zk.Create(path), zk.Delete(path))  # fails if it exists by now
            else:
                writes.append(zk.Check(path, stat.version))
        return Multi(tuple(writes))


def decided(decide: Callable[[Transaction], Recipe[_T]]) -> Recipe[_T]:
    """Carry out what `decide` decides in one transaction, and return what it returns.

    The transaction checks everything that `decide` has read, also for its refusals. `decide` is called again
    if something has changed. Raises its refusals, Malformed, TooLarge.
    """
    known: _Known = {}
    uncertain = False
    failed: Multi | None = None
    while True:
        transaction = Transaction(known, uncertain)
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
            known, failed = {}, None
        except zk.MultiFailed as error:
            path = multi.writes[error.failed].path
            if multi == failed:
                raise Malformed(f"{path} contradicts other nodes: {error.cause}") from None
            failed = multi
            # Only this node is known to have changed; the next try shows whether others have.
            known = transaction.read_before if path in transaction.read_before else {}
            known.pop(path, None)
        else:
            if refusal is not None:
                raise refusal
            return cast(_T, answer)
