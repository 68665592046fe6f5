"""Members of a group: one ephemeral, sequential node each; the number in its name is its age.

A name is new with every session, so it names one incarnation: whatever mentions it can never mean a
later process. Who lists the names knows all ages, and with them whose turn it is to plan. A node that
no member can have made is nobody; one that says nothing legible is a member that wants nothing.

A plan gives partitions to *seats*. A member's seat is its name, unless it has an instance id: then the
seat is that id, and whoever takes it next finds everything as it was. Of several nodes for one seat
the youngest counts; whoever makes it removes the older ones, and whose node was removed by a younger
one ends instead of coming back, so that two processes with one id do not chase each other.

```
consumer-9f3a…-0000000003            seat: the same
worker-1=9f3a…-0000000004            seat: worker-1=
```
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from zlib import crc32

import msgspec

from folkmoot.coordination import paths
from folkmoot.coordination.zookeeper.operations import (
    ConnectionLost,
    Create,
    Delete,
    Exists,
    Get,
    Multi,
    MultiFailed,
    Node,
    NoNode,
    Recipe,
    Sync,
    WatchCallback,
)
from folkmoot.coordination.zookeeper.recipes import (
    Malformed,
    children,
    decode,
    ensure,
    retry_on_connection_loss,
)

_SEQUENCE_DIGITS = 10
_NAME = re.compile(rf".+-\d{{{_SEQUENCE_DIGITS}}}", re.ASCII | re.DOTALL)
_SEAT_ENDS = "="


class MemberInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a member publishes; durations in seconds."""

    topics: tuple[str, ...]
    host: str
    hand_over: float
    """How long it may take to give a partition up."""
    protocol: int = 1
    """The newest kind of plan that it understands."""
    pattern: str = ""
    """A regular expression: it wants the topics, too, whose whole name matches."""
    assignors: tuple[str, ...] = ()
    """Ways of dividing that it supports, preferred first."""
    weight: int = 1
    rack: str = ""
    grace: float = 0.0
    """How long its seat is kept when it is gone; for members with an instance id."""
    back: str = ""
    """If it was a member before: what became of that. For people."""

    def wants(self, topic: str) -> bool:
        """A pattern that is none matches nothing."""
        return topic in self.topics or (bool(self.pattern) and _matches(self.pattern, topic))

    def wish(self) -> int:
        """A number that differs when a plan has to be made anew for this member."""
        wanted = (self.topics, self.pattern, self.protocol, self.assignors, self.weight, self.rack)
        return crc32(_encode((wanted, self.grace)))


class Superseded(msgspec.Struct, frozen=True):
    """A younger process has the seat: this one has no business here any more."""


@lru_cache(maxsize=10_000)
def _matches(pattern: str, topic: str) -> bool:
    try:
        return re.fullmatch(pattern, topic) is not None
    except re.error:
        return False


_encode = msgspec.json.encode
_decoder = msgspec.json.Decoder(MemberInfo)
_ILLEGIBLE = MemberInfo((), "", 0.0)


def age(name: str) -> int:
    """The number that ZooKeeper appended; smaller is older."""
    return int(name[-_SEQUENCE_DIGITS:])


def seat(name: str) -> str:
    """What a plan calls the member with that name."""
    instance, equals, _ = name.partition(_SEAT_ENDS)
    return instance + equals if equals else name


def prefix(name: str) -> str:
    """What the member called itself: it ends with the nonce of its incarnation."""
    return name[: -_SEQUENCE_DIGITS - 1]


def seats(names: Iterable[str]) -> dict[str, str]:
    """Who sits where: the youngest member of each seat; `names` are the oldest first, and so are these."""
    return dict(sorted(((seat(name), name) for name in names), key=lambda found: age(found[1])))


def seat_of(instance_id: str) -> str:
    return f"{instance_id}{_SEAT_ENDS}"


def join(group: str, prefix: str, info: MemberInfo) -> Recipe[str]:
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


def take_seat(
    group: str, instance_id: str, nonce: str, info: MemberInfo, last: str | None
) -> Recipe[str | Superseded]:
    """Register for a seat and remove who sat there before; `last` is the name that we had before.

    A member younger than `last` has taken the seat from us: it stays. Dying after the node is made
    and before the older one is removed leaves both; the younger counts for all who see them, and the
    older ends with its session at the latest.
    """
    yield from ensure(paths.members(group))
    yield from retry_on_connection_loss(Sync())
    mine = seat_of(instance_id)
    there = [name for name in (yield from names(group)) if seat(name) == mine]
    if last is not None and any(age(name) > age(last) for name in there):
        return Superseded()
    name = yield from join(group, f"{mine}{nonce}", info)
    for older in (yield from names(group)):
        if seat(older) == mine and age(older) < age(name):
            yield from leave(group, older)
    return name


def bid_farewell(group: str, member: str) -> Recipe[None]:
    """As `leave`, and say in the same transaction that it was in order (chronicle.py takes note).

    A note that is not empty says something else: that the process died, or why it gave up its place.
    """
    removal, note = Delete(paths.member(group, member)), Create(paths.left(group, member))
    while True:
        try:
            yield Multi((removal, note))
            return
        except ConnectionLost:
            continue
        except MultiFailed as refusal:
            if refusal.failed == 0 or not isinstance(refusal.cause, NoNode):
                return (yield from leave(group, member))
            yield from ensure(paths.left(group))


def leave(group: str, member: str) -> Recipe[None]:
    """Remove the member's node. Dying right before has the same effect one session timeout later."""
    while True:
        try:
            yield Delete(paths.member(group, member))
            return
        except NoNode:
            return
        except ConnectionLost:
            continue


def names(group: str, watch: WatchCallback | None = None) -> Recipe[tuple[str, ...]]:
    """The names of all live members, oldest first; `watch` rings when one joins or leaves."""
    found = yield from children(paths.members(group), watch)
    return tuple(sorted(filter(_NAME.fullmatch, found), key=age))


def is_there(group: str, member: str) -> Recipe[bool]:
    """Whether the member's node exists; asking is a sign of life in both directions."""
    return (yield from retry_on_connection_loss(Exists(paths.member(group, member)))) is not None


def info(group: str, member: str) -> Recipe[MemberInfo | None]:
    """What a member published, or None if it is gone."""
    found = yield from look(group, member)
    return None if found is None else found[0]


def look(group: str, member: str) -> Recipe[tuple[MemberInfo, int] | None]:
    """What a member published, and when it joined (ms, the server's clock), or None if it is gone."""
    try:
        node: Node = yield from retry_on_connection_loss(Get(paths.member(group, member)))
    except NoNode:
        return None
    try:
        return decode(_decoder, paths.member(group, member), node), node.stat.ctime
    except Malformed:
        return _ILLEGIBLE, node.stat.ctime


def instance_of(seat: str) -> str | None:
    """The instance id of a static member's seat."""
    return seat.removesuffix(_SEAT_ENDS) if seat.endswith(_SEAT_ENDS) else None
