"""Recipes that all others are made of: reads that survive a lost reply, nodes that are there, updates."""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol, TypeVar

import msgspec

from folkmoot.coordination.zookeeper.operations import (
    BadVersion,
    Children,
    ConnectionLost,
    Create,
    Delete,
    Exists,
    Get,
    Multi,
    MultiFailed,
    Node,
    NodeExists,
    NoNode,
    Operation,
    Recipe,
    Refused,
    Set,
    Stat,
    WatchCallback,
    Write,
    ZooKeeperError,
)

CAREFUL: Final = 100
"""After a refusal a transaction has at most so many parts: one that has lost many sends less in vain."""

_T = TypeVar("_T")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)


class Malformed(ZooKeeperError):
    """A node does not hold what its path promises: something else has written it."""


def retry_on_connection_loss(operation: Operation) -> Recipe[Any]:
    """The answer to an operation that may be done again, however often replies are lost."""
    while True:
        try:
            return (yield operation)
        except ConnectionLost:
            continue


def check_foreseen(error: ZooKeeperError) -> None:
    """Raises a refusal that no other client can have caused: asking again would be no help."""
    foreseen = BadVersion | NodeExists | NoNode
    if isinstance(error, MultiFailed) and not isinstance(error.cause, foreseen):
        raise error.cause if isinstance(error.cause, Refused) else error


def get_node(path: str, watch: WatchCallback | None = None) -> Recipe[Node | None]:
    """A node, None if it does not exist, which is not watched."""
    try:
        node: Node = yield from retry_on_connection_loss(Get(path, watch))
    except NoNode:
        return None
    return node


def delete_node(path: str) -> Recipe[None]:
    """Delete a node, unless it is gone."""
    with suppress(NoNode):
        yield from retry_on_connection_loss(Delete(path))


def children(path: str, watch: WatchCallback | None = None) -> Recipe[list[str]]:
    """The names below `path`, in no order; none if it does not exist, which is watched as well."""
    return (yield from watched(Children(path, watch))) or []


def watched(reading: Get | Children) -> Recipe[Any | None]:
    """The answer to a read, None if the node does not exist, which is watched as well."""
    while True:
        try:
            return (yield from retry_on_connection_loss(reading))
        except NoNode:
            # An absent node is watched by asking whether it exists; it may have come by then.
            exists = Exists(reading.path, reading.watch)
            if reading.watch is None or (yield from retry_on_connection_loss(exists)) is None:
                return None


def numbers(path: str, watch: WatchCallback | None = None) -> Recipe[list[int]]:
    """Those of the names below `path` that are numbers, as `children` has them, sorted."""
    names = yield from children(path, watch)
    return sorted(int(name) for name in names if _NUMBER.fullmatch(name))


def decode(decoder: msgspec.json.Decoder[_T], path: str, node: Node) -> _T:
    """What a node holds. Raises Malformed."""
    try:
        return decoder.decode(node.data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"{path} holds something else than it should: {error}") from None


def read(
    decoder: msgspec.json.Decoder[_T], path: str, watch: WatchCallback | None = None
) -> Recipe[tuple[_T | None, Stat | None]]:
    """What a node holds, and its Stat; (None, None) if it does not exist. Raises Malformed.

    `watch` is called when an existing one is written or goes; an absent one is not watched.
    """
    node = yield from get_node(path, watch)
    return (None, None) if node is None else (decode(decoder, path, node), node.stat)


def update(
    decoder: msgspec.json.Decoder[_T],
    path: str,
    change: Callable[[_T], _T],
    missing: _T | None = None,
) -> Recipe[_T]:
    """Replace what a node holds by `change` of it, by compare-and-set → what it holds now.

    `change` is asked again when somebody else was faster, and when the reply was lost: then its change
    may have been made already. What it leaves as it was is not written. Where there is no node, one is
    created, with its parents, as if it had held `missing`. Raises NoNode without `missing`, Malformed, and
    what `change` raises.
    """
    while True:
        node = yield from get_node(path)
        if node is not None:
            before = decode(decoder, path, node)
        elif missing is not None:
            before = missing
        else:
            raise NoNode(f"{path} does not exist")
        after = change(before)
        if after == before:
            return after
        data = msgspec.json.encode(after)
        try:
            yield Create(path, data) if node is None else Set(path, data, node.stat.version)
        except NoNode:
            parent = path.rpartition("/")[0]
            if missing is None or not parent:
                raise
            yield from ensure(parent)
            continue
        except (BadVersion, NodeExists, ConnectionLost):
            continue
        return after


def ensure(path: str, data: bytes = b"") -> Recipe[None]:
    """Create a persistent node with `data`, and its parents, where missing.

    Raises NoNode if the chroot is not there any more: whoever connects next makes it anew.
    """
    missing = [path]
    while missing:
        try:
            yield Create(missing[-1], data if len(missing) == 1 else b"")
        except NodeExists:
            pass
        except NoNode:
            parent = missing[-1].rsplit("/", 1)[0]
            if not parent:
                raise
            missing.append(parent)
            continue
        except ConnectionLost:
            continue
        missing.pop()


def ensured(path: str, data: bytes = b"") -> Recipe[Node]:
    """A persistent node as it is, made with `data` where it is missing."""
    while True:
        node = yield from get_node(path)
        if node is not None:
            return node
        yield from ensure(path, data)


def begin_epoch(
    path: str, mine: msgspec.Struct, epoch_path: str, last: Node, noted: bytes = b""
) -> Recipe[None]:
    """Try to create an ephemeral node in an epoch of its own, the next version of another node, which was
    `last` seen and gets `noted`. Read what came of it.

    A death right before the transaction leaves at most the epoch's node; right after it the ephemeral node
    goes with its session, and the next one begins a greater epoch.
    """
    node = Create(path, msgspec.json.encode(mine), ephemeral=True)
    try:
        yield Multi((node, Set(epoch_path, noted, last.stat.version)))
    except MultiFailed as refusal:
        check_foreseen(refusal)
    except ConnectionLost:
        pass


class GuardRefused(ZooKeeperError):
    """What all parts stand on has changed: those without an answer are not written, or were before."""


class Part(Protocol):
    """Writes that belong together, beside others in one transaction. It is over once it has an answer."""

    answer: Any

    def writes(self) -> Sequence[Write]: ...

    def written(self, result: Any) -> None:
        """Note that it is over: `result` is that of the first of its writes."""

    def look(self, refused: Write | None) -> Recipe[None]:
        """Read what became of it. That write was refused; None: the transaction was not answered."""
        ...


def write_parts(parts: Sequence[Part], guards: Sequence[Write], most: int) -> Recipe[None]:
    """Write parts in transactions of `most` until all have an answer; the guards are in each.

    A part that is refused looks what became of it; the others are sent again. Raises GuardRefused.
    """
    while parts := [part for part in parts if part.answer is None]:
        batch: list[tuple[Part | None, Write]] = [(None, guard) for guard in guards]
        batch += ((part, write) for part in parts[:most] for write in part.writes())
        try:
            results = yield Multi(tuple(write for _, write in batch))
        except MultiFailed as refusal:
            check_foreseen(refusal)
            refused, write = batch[refusal.failed]
            if refused is None:
                raise GuardRefused(f"somebody else has taken over: {refusal}") from None
            most = min(most, CAREFUL)
            yield from refused.look(write)
        except ConnectionLost:
            for part in parts[:most]:
                yield from part.look(None)
        else:
            for (done, _), result in zip(batch, results, strict=True):
                if done is not None and done.answer is None:
                    done.written(result)
