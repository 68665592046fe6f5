"""Reading verbs that every other verb uses: a lost reply to a question is asked for again."""

from typing import Any

from folkmoot.coordination.operations import (
    Children,
    ConnectionLost,
    Exists,
    NoNode,
    Operation,
    Ring,
    Verb,
)


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
