"""Members of a group: one ephemeral, sequential node each; the number in its name is its age.

A name is new with every session, so it names one incarnation: whatever mentions it can never mean a
later process. Who lists the names knows all ages, and with them whose turn it is to plan. A node that
no member can have made is nobody; one that says nothing legible is a member that wants nothing.

A plan gives partitions to *assignees*. A member's assignee id is its name, unless it has an instance id:
then it is made of that, and whoever takes it next finds everything as it was. Of several nodes for one
assignee the youngest counts; whoever makes it removes the older ones, and whose node was removed by a
younger one ends instead of coming back, so that two processes with one id do not chase each other.

```
consumer-9f3a…-0000000003            assignee id: the same
worker-1=9f3a…-0000000004            assignee id: worker-1=
```
"""

import re
from collections.abc import Collection, Iterable
from functools import lru_cache

import msgspec

from folkmoot.coordination import paths
from folkmoot.coordination.zookeeper import operations as zk
from folkmoot.coordination.zookeeper.operations import Recipe, WatchCallback
from folkmoot.coordination.zookeeper.recipes import (
    Malformed,
    children,
    decode,
    delete_node,
    ensure,
    get_node,
    retry_on_connection_loss,
)

_SEQUENCE_DIGITS = 10
_NAME = re.compile(rf".+-\d{{{_SEQUENCE_DIGITS}}}", re.ASCII | re.DOTALL)
_INSTANCE_ENDS = "="


class MemberInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a member publishes; durations in seconds."""

    topics: tuple[str, ...]
    host: str
    revoke_timeout: float
    """How long it may take to give a partition up."""
    protocol: int = 1
    """The newest kind of plan that it understands."""
    pattern: str = ""
    """A regular expression: it wants the topics, too, whose whole name matches."""
    assignors: tuple[str, ...] = ()
    """Assignors that it supports, preferred first."""
    rack: str = ""
    rejoin_timeout: float = 0.0
    """How long its partitions are kept when it is gone; for members with an instance id."""
    previous: str = ""
    """If it was a member before: what became of that. For people."""
    pid: int = 0
    """The number of its process there. For people."""

    def wants(self, topic: str) -> bool:
        """A pattern that is none matches nothing."""
        return topic in self.topics or (bool(self.pattern) and _matches(self.pattern, topic))

    @property
    def wishes(self) -> tuple[str, ...]:
        """The names that it wants, and the pattern between slashes."""
        return (*self.topics, f"/{self.pattern}/") if self.pattern else self.topics

    def unmet_by(self, topics: Collection[str]) -> tuple[str, ...]:
        """Of what it wants, what none of these topics is: names, and the pattern between slashes."""
        unmet = tuple(each for each in self.topics if each not in topics)
        if self.pattern and not any(_matches(self.pattern, each) for each in topics):
            unmet = (*unmet, f"/{self.pattern}/")
        return unmet

    def subscription(self) -> "MemberInfo":
        """The part that a plan depends on: a member that publishes another one needs another plan."""
        return msgspec.structs.replace(self, host="", revoke_timeout=0.0, previous="", pid=0)


class Member(msgspec.Struct, frozen=True):
    """A member's node: its name, what it published, when it joined (ms, the server's clock)."""

    name: str
    info: MemberInfo
    joined_ms: int


class Superseded(msgspec.Struct, frozen=True):
    """A younger process has the instance id: this one has no business here any more."""


@lru_cache(maxsize=10_000)
def _matches(pattern: str, topic: str) -> bool:
    try:
        return re.fullmatch(pattern, topic) is not None
    except re.error:
        return False


def is_wanted(topic: str, wishes: Collection[str]) -> bool:
    """Whether one of these wishes (as MemberInfo.wishes) is for the topic."""
    patterns = (each[1:-1] for each in wishes if each.startswith("/"))
    return topic in wishes or any(_matches(pattern, topic) for pattern in patterns)


_encode = msgspec.json.encode
_decoder = msgspec.json.Decoder(MemberInfo)
_ILLEGIBLE = MemberInfo((), "", 0.0)


def age(name: str) -> int:
    """The number that ZooKeeper appended; smaller is older."""
    return int(name[-_SEQUENCE_DIGITS:])


def assignee(name: str) -> str:
    """What a plan calls the member with that name."""
    instance, equals, _ = name.partition(_INSTANCE_ENDS)
    return instance + equals if equals else name


def assignees(names: Iterable[str]) -> dict[str, str]:
    """The youngest member of each assignee id; `names` are the oldest first, and so are these."""
    found = {assignee(name): name for name in names}
    return dict(sorted(found.items(), key=lambda each: age(each[1])))


def assignee_of(instance_id: str) -> str:
    return f"{instance_id}{_INSTANCE_ENDS}"


def instance_of(assignee: str) -> str | None:
    """The instance id of a static member, None for a dynamic one."""
    return assignee.removesuffix(_INSTANCE_ENDS) if assignee.endswith(_INSTANCE_ENDS) else None


def join(group: str, prefix: str, info: MemberInfo) -> Recipe[str]:
    """Register and return the member's name, `prefix` and a number.

    `prefix` must be unique to this call: if the reply is lost, it is how the node is found again.
    A server that lags may not show it yet. Then there are two when the next create is answered, and
    the younger one is removed: nobody would ever claim what a plan gives to it.
    """
    wanted = f"{prefix}-"
    doubtful = False
    yield from _make_room(group)
    while True:
        try:
            path: str = yield zk.Create(
                paths.member(group, wanted), _encode(info), ephemeral=True, sequence=True
            )
            if not doubtful:
                return path.rsplit("/", 1)[1]
        except zk.ConnectionLost:
            doubtful = True
        except zk.NoNode:  # somebody deleted the group just now
            yield from _make_room(group)
            continue
        found = [name for name in (yield from names(group)) if name.startswith(wanted)]
        for name in found[1:]:
            yield from remove(group, name)
        if found:
            return found[0]


def _make_room(group: str) -> Recipe[None]:
    for path in (paths.members(group), paths.plan(group), paths.events(group)):
        yield from ensure(path)


def join_as_static(
    group: str, instance_id: str, nonce: str, info: MemberInfo, last: str | None
) -> Recipe[str | Superseded]:
    """Register under an instance id and remove who had it; `last` is the name that we had before.

    A member younger than `last` has taken the id from us: it stays.
    """
    yield from retry_on_connection_loss(zk.Sync())
    mine = assignee_of(instance_id)
    there = [name for name in (yield from names(group)) if assignee(name) == mine]
    if last is not None and any(age(name) > age(last) for name in there):
        return Superseded()
    name = yield from join(group, f"{mine}{nonce}", info)
    for older in (yield from names(group)):
        if assignee(older) == mine and age(older) < age(name):
            yield from remove(group, older)
    # Who is back in time makes no plan, which would take these notes away.
    for event, member in departures((yield from children(paths.events(group)))):
        if assignee(member) == mine:
            yield from delete_node(f"{paths.events(group)}/{event}")
    return name


def departures(events: Iterable[str]) -> list[tuple[str, str]]:
    """Of a group's events (history.py) those that say how a member went: the event, and the member."""
    said = (each for each in sorted(events) if each.startswith(("gone-", "left-")))
    return [(each, each.partition("-")[2]) for each in said]


def leave(group: str, member: str) -> Recipe[None]:
    """Remove the member's node, and note in the same transaction that it left in order (history.py)."""
    writes = (
        zk.Delete(paths.member(group, member)),
        zk.Create(paths.departure(group, member, "left")),
    )
    try:
        yield from retry_on_connection_loss(zk.Multi(writes))
    except zk.MultiFailed:  # it is gone, or there is no place for a note
        yield from remove(group, member)


def remove(group: str, member: str) -> Recipe[None]:
    """Remove the member's node. Dying right before has the same effect one session timeout later."""
    yield from delete_node(paths.member(group, member))


def names(group: str, watch: WatchCallback | None = None) -> Recipe[tuple[str, ...]]:
    """The names of all live members, oldest first; `watch` is called when one joins or leaves."""
    found = yield from children(paths.members(group), watch)
    return tuple(sorted(filter(_NAME.fullmatch, found), key=age))


def exists(group: str, member: str, watch: WatchCallback | None = None) -> Recipe[bool]:
    """Whether the member's node exists; asking is a sign of life in both directions."""
    path = paths.member(group, member)
    return (yield from retry_on_connection_loss(zk.Exists(path, watch))) is not None


def read(group: str, member: str) -> Recipe[Member | None]:
    """A member, or None if it is gone."""
    path = paths.member(group, member)
    node = yield from get_node(path)
    if node is None:
        return None
    try:
        return Member(member, decode(_decoder, path, node), node.stat.ctime)
    except Malformed:
        return Member(member, _ILLEGIBLE, node.stat.ctime)
