"""Reading recipes that every other recipe uses: a lost reply to a question is asked for again."""

from typing import Any, TypeVar

import msgspec

from folkmoot.coordination.zookeeper.operations import (
    Children,
    ConnectionLost,
    Create,
    Exists,
    Node,
    NodeExists,
    NoNode,
    Operation,
    Recipe,
    WatchCallback,
    ZooKeeperError,
)

_T = TypeVar("_T")


class Malformed(ZooKeeperError):
    """A node does not hold what its path promises: something else has written it."""


def retry_on_connection_loss(question: Operation) -> Recipe[Any]:
    """The answer to a reading operation, however often replies are lost."""
    while True:
        try:
            return (yield question)
        except ConnectionLost:
            continue


def children(path: str, watch: WatchCallback | None = None) -> Recipe[list[str]]:
    """The names below `path`, in no order; none if it does not exist, which is watched as well."""
    while True:
        try:
            found: list[str] = yield from retry_on_connection_loss(Children(path, watch))
            return found
        except NoNode:
            # An absent node is watched by asking whether it exists; it may have come by then.
            if (yield from retry_on_connection_loss(Exists(path, watch))) is None:
                return []


def decode(decoder: msgspec.json.Decoder[_T], path: str, node: Node) -> _T:
    """What a node holds. Raises Malformed."""
    try:
        return decoder.decode(node.data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"{path} holds something else than it should: {error}") from None


def ensure(path: str) -> Recipe[None]:
    """Create a persistent node and its parents where missing; a lost reply is asked for again."""
    missing = [path]
    while missing:
        try:
            yield Create(missing[-1])
        except NodeExists:
            pass
        except NoNode:
            missing.append(missing[-1].rsplit("/", 1)[0])
            continue
        except ConnectionLost:
            continue
        missing.pop()
