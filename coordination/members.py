"""Members of a group: one ephemeral, sequential node each; the number in its name is its age.

A name is new with every session, so it names one incarnation: whatever mentions it can never mean a
later process. Who lists the names knows all ages, and with them whose turn it is to plan. A node that
no member can have made is nobody; one that says nothing legible is a member that wants nothing.
"""

import re

import msgspec

from folkmoot.coordination import paths
from folkmoot.coordination.operations import (
    ConnectionLost,
    Create,
    Delete,
    Exists,
    Get,
    Node,
    NoNode,
    Ring,
    Verb,
)
from folkmoot.coordination.questions import Malformed, children, decode, surely
from folkmoot.coordination.store import ensure

_SEQUENCE_DIGITS = 10
_NAME = re.compile(rf".+-\d{{{_SEQUENCE_DIGITS}}}", re.ASCII | re.DOTALL)


class MemberInfo(msgspec.Struct, frozen=True):
    """What a member publishes: its topics, and how long it may take to give a partition up (s)."""

    topics: tuple[str, ...]
    host: str
    hand_over: float
    protocol: int = 1


_encode = msgspec.json.encode
_decoder = msgspec.json.Decoder(MemberInfo)
_ILLEGIBLE = MemberInfo((), "", 0.0)


def age(name: str) -> int:
    """The number that ZooKeeper appended; smaller is older."""
    return int(name[-_SEQUENCE_DIGITS:])


def join(group: str, prefix: str, info: MemberInfo) -> Verb[str]:
    """Register and return the member's name, `prefix` and a number.

    `prefix` must be unique to this call: if the reply is lost, it is how the node is found again.
    A server that lags may not show it yet. Then there are two when the next create is answered, and
    the younger one is taken away: nobody would ever claim what a plan gives to it.
    """
    yield from ensure(paths.members(group))
    yield from ensure(paths.plan(group))
    wanted = f"{prefix}-"
    doubtful = False
    while True:
        try:
            path: str = yield Create(
                paths.member(group, wanted), _encode(info), ephemeral=True, sequence=True
            )
            if not doubtful:
                return path.rsplit("/", 1)[1]
        except ConnectionLost:
            doubtful = True
        except NoNode:  # somebody deleted the group just now
            yield from ensure(paths.members(group))
            yield from ensure(paths.plan(group))
            continue
        found = [name for name in (yield from names(group)) if name.startswith(wanted)]
        for name in found[1:]:
            yield from leave(group, name)
        if found:
            return found[0]


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
    return tuple(sorted(filter(_NAME.fullmatch, found), key=age))


def is_there(group: str, member: str) -> Verb[bool]:
    """Whether the member's node exists; asking is a sign of life in both directions."""
    return (yield from surely(Exists(paths.member(group, member)))) is not None


def info(group: str, member: str) -> Verb[MemberInfo | None]:
    """What a member published, or None if it is gone."""
    try:
        node: Node = yield from surely(Get(paths.member(group, member)))
    except NoNode:
        return None
    try:
        return decode(_decoder, paths.member(group, member), node)
    except Malformed:
        return _ILLEGIBLE
