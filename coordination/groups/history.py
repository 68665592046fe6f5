"""What happened in a group, for people: who owned what when, and why. Nothing of the protocol reads it.

```
/groups/<group>/events/plan-<number>     a rebalance: written in the transaction that writes its plan
                      /reset-<number>    offsets reset by an administrator
                      /left-<member>     it left in order: written with the removal of its node
                      /gone-<member>     how it went otherwise: said by it, or its guardian, before its end
```

Whoever plans takes the last two into the entry of the plan without that member, and a static member that
is back takes its own away; of whom nothing is said (cut off, stopped for longer than its session, killed
where no guardian could help) nobody knows more. The server's clock says when. The last ENTRIES are kept.
"""

from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Final

import msgspec
import zstandard

from folkmoot.coordination import paths
from folkmoot.coordination.groups.membership import MemberInfo, assignee, departures
from folkmoot.coordination.groups.plan import Plan, decompress
from folkmoot.coordination.zookeeper import operations as zk
from folkmoot.coordination.zookeeper.operations import Recipe
from folkmoot.coordination.zookeeper.recipes import children, ensure, retry_on_connection_loss
from folkmoot.protocol.records import TopicPartition

ENTRIES: Final = 100
MOST_NAMED: Final = 100
"""So many partitions of one entry, and of those that went for a reason, are named."""
_MOST_NOTES: Final = 500
"""So many notes are taken away by one plan, whose transaction would otherwise not fit."""
_MOST_SAID: Final = 200
"""Letters of a reason."""


class Move(msgspec.Struct, frozen=True, array_like=True):
    """A partition that the plan gives to another: None is nobody."""

    topic: str
    partition: int
    old: str | None
    new: str | None


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One rebalance, or one reset by an administrator.

    `joined` and `left` by assignee id, with why, as far as that is known. `moves` has the first of
    `moved` partitions. Without a generation and without `by` it is what nobody planned for yet.
    """

    at_ms: int = 0
    generation: int = 0
    by: str = ""
    joined: dict[str, str] = {}
    left: dict[str, str] = {}
    moved: int = 0
    moves: list[Move] = []
    reset: dict[str, int] = {}


_decoder = msgspec.json.Decoder(Entry)


def notes(
    group: str,
    by: str,
    before: Plan,
    after: Plan,
    members: Mapping[str, MemberInfo],
    names: Collection[str],
) -> Recipe[list[zk.Write]]:
    """What the transaction that writes a plan does besides: note it, and take away what is noted or old.

    `names` are those of the members that are there: how these go concerns a later plan.
    """
    found = sorted((yield from children(paths.events(group))))
    said: dict[str, str] = {}
    done: list[zk.Write] = []
    for name, member in departures(found)[:_MOST_NOTES]:
        if member not in names:
            said[assignee(member)] = "left"
            if name.startswith("gone-") and len(said) <= MOST_NAMED:
                said[assignee(member)], _ = yield from _reason(f"{paths.events(group)}/{name}")
            done.append(zk.Delete(f"{paths.events(group)}/{name}"))
    numbered = [name for name in found if name.startswith(("plan-", "reset-"))]
    numbered.sort(key=lambda name: name.rpartition("-")[2])
    done += [zk.Delete(f"{paths.events(group)}/{name}") for name in numbered[: -ENTRIES + 1]]
    entry = rebalance(by, before, after, members, said)
    return [_creation(group, "plan", entry), *done]


def record_reset(group: str, by: str, offsets: Mapping[TopicPartition, int]) -> Recipe[None]:
    """Note a reset that was done; if that cannot be, it is not noted."""
    some = {str(each): offset for each, offset in sorted(offsets.items())[:MOST_NAMED]}
    with suppress(zk.ZooKeeperError):
        yield from ensure(paths.events(group))
        yield _creation(group, "reset", Entry(by=by, moved=len(offsets), reset=some))


def entries(group: str) -> Recipe[list[Entry]]:
    """What was noted, oldest first."""
    found: dict[int, Entry] = {}
    for name in (yield from children(paths.events(group))):
        if name.startswith(("plan-", "reset-")):
            with suppress(zk.NoNode, msgspec.MsgspecError, ValueError):
                path = f"{paths.events(group)}/{name}"
                node: zk.Node = yield from retry_on_connection_loss(zk.Get(path))
                entry = _decoder.decode(decompress(node.data))
                entry = msgspec.structs.replace(entry, at_ms=node.stat.ctime)
                found[node.stat.czxid] = entry
    return [found[number] for number in sorted(found)]


def departure(group: str, plan: Plan, names: Collection[str]) -> Recipe[Entry | None]:
    """Who went since the last plan, and why: after the last member nobody plans, and notes it.

    `names` are those of the members that are there. The time is 0 where nothing was noted.
    """
    gone = _present(plan) - {assignee(name) for name in names}
    said: dict[str, str] = {}
    at_ms = 0
    for name, member in departures((yield from children(paths.events(group))) if gone else ()):
        if member not in names and assignee(member) in gone:
            said[assignee(member)], noted_ms = yield from _reason(f"{paths.events(group)}/{name}")
            at_ms = max(at_ms, noted_ms)
    left = {each: said.get(each, "its session ended") for each in plan.members if each in gone}
    return Entry(at_ms=at_ms, left=left) if left else None


def rebalance(
    by: str,
    before: Plan,
    after: Plan,
    members: Mapping[str, MemberInfo],
    said: Mapping[str, str] = {},
) -> Entry:
    """What a plan changes; `said` is why members went, as far as that is known."""
    moves = [
        Move(*each, before.owners.get(each), after.owners.get(each))
        for each in sorted(before.owners.keys() | after.owners.keys())
        if before.owners.get(each) != after.owners.get(each)
    ]
    left = {}
    for each in _present(before) - _present(after):
        left[each] = said.get(each, "its session ended")
        if each in after.static:
            left[each] += f", is waited for, {after.static[each].rejoin_timeout:g} s"
    gone = before.static.keys() - after.static.keys() - _present(before) - _present(after)
    left |= dict.fromkeys(gone, "did not come back in time")
    came = _present(after) - _present(before)
    joined = {
        each: members[each].previous if each in members else ""
        for each in after.members
        if each in came
    }
    ordered = {each: left[each] for each in before.members if each in left}
    return Entry(0, after.generation, by, joined, ordered, len(moves), moves[:MOST_NAMED])


def _present(plan: Plan) -> set[str]:
    """Who was there when the plan was made."""
    return {
        each for each in plan.members if each not in plan.static or not plan.static[each].absent
    }


def _creation(group: str, kind: str, entry: Entry) -> zk.Create:
    data = zstandard.compress(msgspec.json.encode(entry))
    return zk.Create(f"{paths.events(group)}/{kind}-", data, sequence=True)


def _reason(path: str) -> Recipe[tuple[str, int]]:
    """What a note says of who went, and when (ms)."""
    with suppress(zk.NoNode):  # another planner was faster
        node: zk.Node = yield from retry_on_connection_loss(zk.Get(path))
        return node.data[:_MOST_SAID].decode(errors="replace") or "left", node.stat.ctime
    return "left", 0
