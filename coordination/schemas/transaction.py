"""Changes that hold only if nothing has changed that they were decided on."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import msgspec

from folkmoot.coordination.zookeeper.operations import (
    Check,
    ConnectionLost,
    Create,
    Delete,
    Multi,
    MultiFailed,
    Recipe,
    Set,
    Stat,
    Write,
)
from folkmoot.coordination.zookeeper.recipes import Malformed, read
from folkmoot.protocol.errors import RegistryError

_T = TypeVar("_T")
_Known = dict[str, tuple[Any, Stat | None]]


class Transaction:
    """What was read, by the version of each node, and what is to be written if that still holds.

    `uncertain`: the reply to an earlier try was lost, so what is to be done may be done already.
    """

    def __init__(self, known: _Known | None = None, uncertain: bool = False) -> None:
        self.uncertain = uncertain
        self.writes: list[Write] = []
        self.read_before: _Known = {}
        self._known = known or {}
        self._put: set[str] = set()
        self._needed: list[Write] = []

    def read(self, decoder: msgspec.json.Decoder[_T], path: str) -> Recipe[_T | None]:
        """What a node holds, None if there is none; the same each time. Raises Malformed."""
        if path in self._known:
            self.read_before[path] = self._known[path]
        elif path not in self.read_before:
            self.read_before[path] = yield from read(decoder, path)
        found: _T | None = self.read_before[path][0]
        return found

    def rely_on(self, path: str) -> None:
        """That a node is still there, whatever it holds."""
        self._needed.append(Check(path))

    def put(self, path: str, data: bytes) -> None:
        """Write a node that was read, or create it if there was none."""
        stat = self.read_before[path][1]
        self._put.add(path)
        self.writes.append(Create(path, data) if stat is None else Set(path, data, stat.version))

    def give_up(self) -> None:
        """Write nothing: what was decided is a refusal."""
        self.writes.clear()
        self._put.clear()

    def multi(self) -> Multi:
        """The writes, and checks of all that was read and is not written."""
        writes = [*self.writes, *self._needed]
        for path, (_, stat) in self.read_before.items():
            if path in self._put:
                continue
            if stat is None:
                writes += (Create(path), Delete(path))  # refused where there is one by now
            else:
                writes.append(Check(path, stat.version))
        return Multi(tuple(writes))


def decided(decide: Callable[[Transaction], Recipe[_T]]) -> Recipe[_T]:
    """Carry out what `decide` decides on, in one transaction → what it returns.

    Whatever it has read is checked by that transaction; if something has changed since, that is read
    anew, and `decide` is asked again. Its refusals, too, hold only for what it has read. Raises them,
    Malformed, TooLarge.
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
            transaction.give_up()
        multi = transaction.multi()
        try:
            yield multi
        except ConnectionLost:
            uncertain = uncertain or bool(transaction.writes)
            known, failed = {}, None
        except MultiFailed as error:
            path = multi.writes[error.failed].path
            if multi == failed:
                raise Malformed(
                    f"{path} is not what other nodes say of it: {error.cause}"
                ) from None
            failed = multi
            # Only this is known to have changed. What has changed besides, the next try will tell.
            known = transaction.read_before if path in transaction.read_before else {}
            known.pop(path, None)
        else:
            if refusal is not None:
                raise refusal
            return cast(_T, answer)
