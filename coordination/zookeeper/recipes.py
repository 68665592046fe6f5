"""The recipes that all others use: reads that survive a lost reply, missing nodes, compare-and-set."""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol, TypeVar

import msgspec

from folkmoot.coordination.zookeeper import operations as zk
from folkmoot.coordination.zookeeper.operations import (
    Node,
    Operation,
    Recipe,
    Stat,
    WatchCallback,
    Write,
)

CAREFUL: Final = 100
"""Parts of a transaction after a refusal, at most: others are likely to be refused, too."""

_T = TypeVar("_T")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)


class Malformed(zk.ZooKeeperError):
    """A node's contents are not what its path promises: something else has written it."""


def retry_on_connection_loss(operation: Operation) -> Recipe[Any]:
    """Do an operation that may be done twice until its reply arrives → the answer."""
    while True:
        try:
            return (yield operation)
        except zk.ConnectionLost:
            continue


def check_foreseen(error: zk.ZooKeeperError) -> None:
    """Raise a refusal that no other client can have caused, so that trying again does not help."""
    foreseen = zk.BadVersion | zk.NodeExists | zk.NoNode
    if isinstance(error, zk.MultiFailed) and not isinstance(error.cause, foreseen):
        raise error.cause if isinstance(error.cause, zk.Refused) else error


def get_node(path: str, watch: WatchCallback | None = None) -> Recipe[Node | None]:
    """Read a node; None if it does not exist, and then it is not watched."""
    try:
        node: Node = yield from retry_on_connection_loss(zk.Get(path, watch))
    except zk.NoNode:
        return None
    return node


def delete_node(path: str) -> Recipe[None]:
    """Delete a node that may be gone."""
    with suppress(zk.NoNode):
        yield from retry_on_connection_loss(zk.Delete(path))


def children(path: str, watch: WatchCallback | None = None) -> Recipe[list[str]]:
    """The names below `path`, in no order; none if it does not exist, and then it is watched, too."""
    return (yield from get_and_watch(zk.Children(path, watch))) or []


def get_and_watch(reading: zk.Get | zk.Children) -> Recipe[Any | None]:
    """The answer to a read; None if the node does not exist, and then it is watched, too."""
    while True:
        try:
            return (yield from retry_on_connection_loss(reading))
        except zk.NoNode:
            # Only Exists watches an absent node; it may have been created meanwhile.
            exists = zk.Exists(reading.path, reading.watch)
            if reading.watch is None or (yield from retry_on_connection_loss(exists)) is None:
                return None


def numbers(path: str, watch: WatchCallback | None = None) -> Recipe[list[int]]:
    """The numbers among the names below `path`, sorted; watched as by `children`."""
    names = yield from children(path, watch)
    return sorted(int(name) for name in names if _NUMBER.fullmatch(name))


def decode(decoder: msgspec.json.Decoder[_T], path: str, node: Node) -> _T:
    """Decode a node's data. Raises Malformed."""
    try:
        return decoder.decode(node.data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"{path} holds something else than it should: {error}") from None


def read(
    decoder: msgspec.json.Decoder[_T], path: str, watch: WatchCallback | None = None
) -> Recipe[tuple[_T | None, Stat | None]]:
    """A node's decoded data, and its Stat; (None, None) if it does not exist. Raises Malformed.

    `watch` is called when the node is written or deleted; an absent one is not watched.
    """
    node = yield from get_node(path, watch)
    return (None, None) if node is None else (decode(decoder, path, node), node.stat)


def update(
    decoder: msgspec.json.Decoder[_T],
    path: str,
    change: Callable[[_T], _T],
    missing: _T | None = None,
) -> Recipe[_T]:
    """Change a node's data by compare-and-set → the data now.

    `change` is called again when another writer was faster, and when the reply was lost: its change may have
    been made then. Unchanged data is not written. An absent node is created, with its parents, from
    `missing`. Raises NoNode without `missing`, Malformed, and what `change` raises.
    """
    while True:
        node = yield from get_node(path)
        if node is not None:
            before = decode(decoder, path, node)
        elif missing is not None:
            before = missing
        else:
            raise zk.NoNode(f"{path} does not exist")
        after = change(before)
        if after == before:
            return after
        data = msgspec.json.encode(after)
        try:
            yield zk.Create(path, data) if node is None else zk.Set(path, data, node.stat.version)
        except zk.NoNode:
            parent = path.rpartition("/")[0]
            if missing is None or not parent:
                raise
            yield from ensure(parent)
            continue
        except (zk.BadVersion, zk.NodeExists, zk.ConnectionLost):
            continue
        return after


def ensure(path: str, data: bytes = b"") -> Recipe[None]:
    """Create a persistent node with `data`, and its parents, where missing.

    Raises NoNode if the chroot was deleted.
    """
    missing = [path]
    while missing:
        try:
            yield zk.Create(missing[-1], data if len(missing) == 1 else b"")
        except zk.NodeExists:
            pass
        except zk.NoNode:
            parent = missing[-1].rsplit("/", 1)[0]
            if not parent:
                raise
            missing.append(parent)
            continue
        except zk.ConnectionLost:
            continue
        missing.pop()


def get_or_create(path: str) -> Recipe[Node]:
    """Read a persistent node; create it without data if it is missing."""
    while True:
        node = yield from get_node(path)
        if node is not None:
            return node
        yield from ensure(path)


def begin_epoch(
    path: str, mine: msgspec.Struct, epoch_path: str, last: Node, data: bytes = b""
) -> Recipe[None]:
    """Try to create an ephemeral node in an epoch of its own; the caller reads whether that worked.

    The epoch is the next version of another node, which was read as `last` and gets `data`. If the process
    dies right after the transaction, the ephemeral node goes with its session, and the next one begins a
    greater epoch.
    """
    node = zk.Create(path, msgspec.json.encode(mine), ephemeral=True)
    try:
        yield zk.Multi((node, zk.Set(epoch_path, data, last.stat.version)))
    except zk.MultiFailed as refusal:
        check_foreseen(refusal)
    except zk.ConnectionLost:
        pass


class GuardRefused(zk.ZooKeeperError):
    """A guard of a transaction was refused: parts without an answer are not written, or were before that."""


class Part(Protocol):
    """Writes that belong together, beside others in one transaction. It is done once it has an answer."""

    answer: Any

    def writes(self) -> Sequence[Write]: ...

    def written(self, result: Any) -> None:
        """Set the answer: `result` is that of the first write."""

    def look(self, refused: Write | None) -> Recipe[None]:
        """Read what became of it after the refusal of a write, or (None) after a lost reply."""


def write_parts(parts: Sequence[Part], guards: Sequence[Write], most: int) -> Recipe[None]:
    """Write parts in transactions of at most `most` until all have an answer. Raises GuardRefused.

    Each transaction contains the guards. A refused part looks what became of it; the others are sent again.
    """
    while parts := [part for part in parts if part.answer is None]:
        batch: list[tuple[Part | None, Write]] = [(None, guard) for guard in guards]
        batch += ((part, write) for part in parts[:most] for write in part.writes())
        try:
            results = yield zk.Multi(tuple(write for _, write in batch))
        except zk.MultiFailed as refusal:
            check_foreseen(refusal)
            refused, write = batch[refusal.failed]
            if refused is None:
                raise GuardRefused(f"another process has taken over: {refusal}") from None
            most = min(most, CAREFUL)
            yield from refused.look(write)
        except zk.ConnectionLost:
            for part in parts[:most]:
                yield from part.look(None)
        else:
            for (sent, _), result in zip(batch, results, strict=True):
                if sent is not None and sent.answer is None:
                    sent.written(result)
