"""Members of a group: one ephemeral, sequential node each. The number in its name is the member's age.

A name is never used again, so it stands for one incarnation. The names alone tell which member is the oldest
and must plan. A node whose name no member can have is ignored; a member whose data is malformed subscribes to
nothing.

A plan gives partitions to *assignees*. A member's assignee id is its name, or is made of its instance id, so
that the next process with that id keeps the partitions. The youngest node of an assignee counts, and its
process removes the older ones. A process ends when a younger one has removed its node, so that two processes
with one instance id do not remove each other for ever.

```
consumer-9f3a…-0000000003            assignee id: the same
worker-1=9f3a…-0000000004            assignee id: worker-1=
```
"""

import re
from collections.abc import Collection, Iterable
from contextlib import suppress
from functools import lru_cache

import msgspec

from folkmoot.coordination import paths
from folkmoot.coordination.zookeeper import operations as zk
from folkmoot.coordination.zookeeper import recipes
from folkmoot.coordination.zookeeper.operations import Recipe, WatchCallback

_NAME = re.compile(r".+-\d{10}", re.ASCII | re.DOTALL)
_INSTANCE_ENDS = "="


class MemberInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """A member's data in its node; durations in seconds."""

    topics: tuple[str, ...]
    host: str
    revoke_timeout: float
    """Limit for releasing a partition."""
    protocol: int = 1
    """The newest version of plans that it understands."""
    pattern: str = ""
    """A regular expression that also subscribes to all topics whose whole name matches."""
    assignors: tuple[str, ...] = ()
    """Assignors that it supports, preferred first."""
    rack: str = ""
    rejoin_timeout: float = 0.0
    """How long its partitions are kept after it is gone; 0 without an instance id."""
    previous: str = ""
    """How its membership before ended, if it had one. For people."""
    pid: int = 0
    """Its process number. For people."""

    def wants(self, topic: str) -> bool:
        """Return whether it subscribes to a topic. An invalid pattern matches nothing."""
        return topic in self.topics or (bool(self.pattern) and _matches(self.pattern, topic))

    @property
    def subscriptions(self) -> tuple[str, ...]:
        """Its topics, and its pattern between slashes."""
        return (*self.topics, f"/{self.pattern}/") if self.pattern else self.topics

    def unmet_by(self, topics: Collection[str]) -> tuple[str, ...]:
        """Return those of `subscriptions` that none of these topics fulfils."""
        unmet = tuple(each for each in self.topics if each not in topics)
        is_met = not self.pattern or any(_matches(self.pattern, each) for each in topics)
        return unmet if is_met else (*unmet, f"/{self.pattern}/")

    def subscription(self) -> "MemberInfo":
        """Return the part that a plan depends on."""
        return msgspec.structs.replace(self, host="", revoke_timeout=0.0, previous="", pid=0)


class Member(msgspec.Struct, frozen=True):
    """A member's node: name, contents, and when it joined (ms, the server's clock)."""

    name: str
    info: MemberInfo
    joined_ms: int


class Superseded(msgspec.Struct, frozen=True):
    """A younger process has the instance id."""


@lru_cache(maxsize=10_000)
def _matches(pattern: str, topic: str) -> bool:
    try:
        return re.fullmatch(pattern, topic) is not None
    except re.error:
        return False


def is_wanted(topic: str, subscriptions: Collection[str]) -> bool:
    """Return whether one of these `MemberInfo.subscriptions` is for the topic."""
    patterns = (each[1:-1] for each in subscriptions if each.startswith("/"))
    return topic in subscriptions or any(_matches(pattern, topic) for pattern in patterns)


_decoder = msgspec.json.Decoder(MemberInfo)
_MALFORMED = MemberInfo((), "", 0.0)


def age(name: str) -> int:
    """Return the number that ZooKeeper appended; smaller is older."""
    return int(name[-10:])


def assignee(name: str) -> str:
    """Return the assignee id of the member with that name."""
    instance, equals, _ = name.partition(_INSTANCE_ENDS)
    return instance + equals if equals else name


def assignees(names: Iterable[str]) -> dict[str, str]:
    """Return the youngest member of each assignee id; `names` and the result have the oldest first."""
    found = {assignee(name): name for name in names}
    return dict(sorted(found.items(), key=lambda each: age(each[1])))


def instance_of(assignee: str) -> str | None:
    """Return the instance id of a static member, None for a dynamic one."""
    return assignee.removesuffix(_INSTANCE_ENDS) if assignee.endswith(_INSTANCE_ENDS) else None


def join(group: str, prefix: str, info: MemberInfo) -> Recipe[str]:
    """Register a member, and return its name: `prefix` and a number.

    `prefix` must be unique to this call: it identifies the node after a lost reply. A server that lags may
    not show that node yet. Then the next create makes a second one, and the younger one is removed.
    """
    wanted = f"{prefix}-"
    maybe_created = False
    yield from _make_room(group)
    while True:
        try:
            node = zk.Create(paths.member(group, wanted), msgspec.json.encode(info), True, True)
            path: str = yield node
            if not maybe_created:
                return path.rsplit("/", 1)[1]
        except zk.ConnectionLost:
            maybe_created = True
        except zk.NoNode:  # the group was deleted just now
            yield from _make_room(group)
            continue
        found = [name for name in (yield from names(group)) if name.startswith(wanted)]
        for name in found[1:]:
            yield from remove(group, name)
        if found:
            return found[0]


def _make_room(group: str) -> Recipe[None]:
    for path in (paths.members(group), paths.plan(group), paths.events(group)):
        yield from recipes.ensure(path)


def join_as_static(
    group: str, instance_id: str, nonce: str, info: MemberInfo, last: str | None
) -> Recipe[str | Superseded]:
    """Register under an instance id, and remove older members with that id.

    `last` is the name that we had before; a member with the id that is younger than that has replaced us.
    """
    yield from recipes.retry_on_connection_loss(zk.Sync())
    mine = f"{instance_id}{_INSTANCE_ENDS}"
    there = [name for name in (yield from names(group)) if assignee(name) == mine]
    if last is not None and any(age(name) > age(last) for name in there):
        return Superseded()
    name = yield from join(group, f"{mine}{nonce}", info)
    for older in (yield from names(group)):
        if assignee(older) == mine and age(older) < age(name):
            yield from remove(group, older)
    # A return in time needs no new plan, which would delete these notes.
    for event, member in departures((yield from recipes.children(paths.events(group)))):
        if assignee(member) == mine:
            yield from recipes.delete_node(f"{paths.events(group)}/{event}")
    return name


def departures(events: Iterable[str]) -> list[tuple[str, str]]:
    """Return the notes among a group's events (history.py): the event's name, and the member that went."""
    notes = (each for each in sorted(events) if each.startswith(("gone-", "left-")))
    return [(each, each.partition("-")[2]) for each in notes]


def leave(group: str, member: str) -> Recipe[None]:
    """Remove the member's node, and note in the same transaction that it left (history.py)."""
    writes = (
        zk.Delete(paths.member(group, member)),
        zk.Create(paths.departure(group, member, "left")),
    )
    try:
        yield from recipes.retry_on_connection_loss(zk.Multi(writes))
    except zk.MultiFailed:  # it is gone, or the parent of the note is
        yield from remove(group, member)


def remove(group: str, member: str) -> Recipe[None]:
    """Remove the member's node. A crash before has the same effect one session timeout later."""
    yield from recipes.delete_node(paths.member(group, member))


def names(group: str, watch: WatchCallback | None = None) -> Recipe[tuple[str, ...]]:
    """Return the names of all live members, oldest first; `watch` is called when one joins or leaves."""
    found = yield from recipes.children(paths.members(group), watch)
    return tuple(sorted(filter(_NAME.fullmatch, found), key=age))


def exists(group: str, member: str, watch: WatchCallback | None = None) -> Recipe[bool]:
    """Return whether the member's node exists, and watch it."""
    path = paths.member(group, member)
    return (yield from recipes.retry_on_connection_loss(zk.Exists(path, watch))) is not None


def read(group: str, member: str) -> Recipe[Member | None]:
    """Return a member, None if it is gone."""
    node = yield from recipes.get_node(paths.member(group, member))
    if node is None:
        return None
    info = _MALFORMED
    with suppress(recipes.Malformed):
        info = recipes.decode(_decoder, paths.member(group, member), node)
    return Member(member, info, node.stat.ctime)
