"""Members of a group: one ephemeral, sequential node each; the number in its name is its age.

A name is new with every session, so it names one incarnation: whatever mentions it can never mean a
later process. Who lists the names knows all ages, and with them whose turn it is to plan.
"""

import msgspec

from folkmoot.coordination import paths
from folkmoot.coordination.operations import (
    ConnectionLost,
    Create,
    Delete,
    Get,
    Node,
    NoNode,
    Ring,
    Verb,
)
from folkmoot.coordination.questions import children, surely
from folkmoot.coordination.store import ensure

_SEQUENCE_DIGITS = 10


class MemberInfo(msgspec.Struct, frozen=True):
    """What a member publishes: its topics, and how long it may take to give a partition up (s)."""

    topics: tuple[str, ...]
    host: str
    hand_over: float
    protocol: int = 1


_encode = msgspec.json.encode
_decoder = msgspec.json.Decoder(MemberInfo)


def age(name: str) -> int:
    """The number that ZooKeeper appended; smaller is older."""
    return int(name[-_SEQUENCE_DIGITS:])


def join(group: str, prefix: str, info: MemberInfo) -> Verb[str]:
    """Register and return the member's name, `prefix` and a number.

    `prefix` must be unique to this call: if the reply is lost, it is how the node is found again.
    """
    yield from ensure(paths.members(group))
    yield from ensure(paths.plan(group))
    wanted = f"{prefix}-"
    while True:
        try:
            path: str = yield Create(
                paths.member(group, wanted), _encode(info), ephemeral=True, sequence=True
            )
            return path.rsplit("/", 1)[1]
        except ConnectionLost:
            for name in (yield from names(group)):
                if name.startswith(wanted):
                    return name


def leave(group: str, member: str) -> Verb[None]:
    """Remove the member's node. Dying right before has the same effect one session timeout later."""
    while True:
        try:
            yield Delete(paths.member(group, member))
            return
        except NoNode:
            return
        except ConnectionLost:
            continue


def names(group: str, watch: Ring | None = None) -> Verb[tuple[str, ...]]:
    """The names of all live members, oldest first; `watch` rings when one joins or leaves."""
    found = yield from children(paths.members(group), watch)
    return tuple(sorted(found, key=age))


def info(group: str, member: str) -> Verb[MemberInfo | None]:
    """What a member published, or None if it is gone."""
    try:
        node: Node = yield from surely(Get(paths.member(group, member)))
    except NoNode:
        return None
    return _decoder.decode(node.data)
