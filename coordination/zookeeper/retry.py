"""Reading verbs that every other verb uses: a lost reply to a question is asked for again."""

from typing import Any, TypeVar

import msgspec

from folkmoot.coordination.zookeeper.operations import (
    Children,
    ConnectionLost,
    Exists,
    Node,
    NoNode,
    Operation,
    Ring,
    StoreError,
    Verb,
)

_T = TypeVar("_T")


class Malformed(StoreError):
    """A node does not hold what its path promises: something else has written it."""


def surely(question: Operation) -> Verb[Any]:
    """The answer to a reading operation, however often replies are lost."""
    while True:
        try:
            return (yield question)
        except ConnectionLost:
            continue


def children(path: str, watch: Ring | None = None) -> Verb[list[str]]:
    """The names below `path`, in no order; none if it does not exist, which is watched as well."""
    while True:
        try:
            found: list[str] = yield from surely(Children(path, watch))
            return found
        except NoNode:
            # An absent node is watched by asking whether it exists; it may have come by then.
            if (yield from surely(Exists(path, watch))) is None:
                return []


def decode(decoder: msgspec.json.Decoder[_T], path: str, node: Node) -> _T:
    """What a node holds. Raises Malformed."""
    try:
        return decoder.decode(node.data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"{path} holds something else than it should: {error}") from None
