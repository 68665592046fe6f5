"""A group's log for people: its last rebalances and resets. No protocol reads it.

```
/groups/<group>/events/log-<bytes>-<number>   one rebalance or reset, compressed to this size
                      /left-<member>          it left in order: written with the removal of its node
                      /gone-<member>          how it went otherwise, written by itself before its end
```

The transaction that writes a plan also creates the entry. It deletes the oldest ones, so that a megabyte
stays, and the notes of members that the entry reports as gone. A member that is cut off leaves no note. A
plan is written without its entry where the transaction would be too large, or is refused because of it.
"""

import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from itertools import islice
from typing import Final

import msgspec
import zstandard

from folkmoot.coordination import paths
from folkmoot.coordination.groups.membership import MemberInfo, assignee, departures
from folkmoot.coordination.groups.plan import Plan, decompress
from folkmoot.coordination.zookeeper import operations as zk
from folkmoot.coordination.zookeeper.operations import Recipe
from folkmoot.coordination.zookeeper.recipes import children, ensure, get_node
from folkmoot.protocol.records import TopicPartition

HISTORY_BYTES: Final = 1_000_000
SMALLEST_ENTRY: Final = 500
"""Bytes that an entry counts at least: so there are at most 2,000."""
ENTRY_BYTES: Final = 32 * 1024
"""Limit of a compressed entry; moves and resets beyond it are left out, members are not."""
MOST_NOTES: Final = 200
"""Limit of the notes that one plan takes in; the next plan takes others."""
MOST_LETTERS: Final = 200
"""Limit of a reason."""


class Move(msgspec.Struct, frozen=True, array_like=True):
    """A partition with its old and its new owner; None for no owner."""

    topic: str
    partition: int
    old: str | None
    new: str | None


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One rebalance, or one reset by an administrator.

    `joined` and `left` map assignee ids to reasons, where these are known. `moved` counts the partitions of
    `moves` or `reset`, which have the first ones only if there are too many. An entry without a generation
    and without `by` has the members that went since the last plan.
    """

    at_ms: int = 0
    generation: int = 0
    by: str = ""
    joined: dict[str, str] = {}
    left: dict[str, str] = {}
    moved: int = 0
    moves: list[Move] = []
    reset: dict[str, int] = {}


_NAME: Final = re.compile(r"log-(\d{5,7})-\d{10}")
_decoder = msgspec.msgpack.Decoder(Entry)


def notes(
    group: str,
    by: str,
    before: Plan,
    after: Plan,
    members: Mapping[str, MemberInfo],
    names: Collection[str],
) -> Recipe[list[zk.Write]]:
    """Return what the transaction that writes a plan adds to the log and deletes from it.

    `names` are the nodes of the present members: their notes concern a later plan.
    """
    events = yield from children(paths.events(group))
    reasons: dict[str, str] = {}
    deletions: list[zk.Write] = []
    departed = [each for each in departures(events) if each[1] not in names]
    for event, member in departed[:MOST_NOTES]:
        path = f"{paths.events(group)}/{event}"
        reasons[assignee(member)] = "left"
        if event.startswith("gone-"):
            reasons[assignee(member)], _ = yield from _reason(path)
        deletions.append(zk.Delete(path))
    entry = _rebalance(by, before, after, members, reasons)
    return [*_append(group, events, entry), *deletions]


def record_reset(group: str, by: str, offsets: Mapping[TopicPartition, int]) -> Recipe[None]:
    """Add a reset to the log, unless ZooKeeper refuses."""
    reset = {str(each): offset for each, offset in sorted(offsets.items())}
    with suppress(zk.ZooKeeperError):
        yield from ensure(paths.events(group))
        events = yield from children(paths.events(group))
        entry = Entry(by=by, moved=len(offsets), reset=reset)
        yield zk.Multi(tuple(_append(group, events, entry)))


def entry_names(group: str) -> Recipe[list[str]]:
    """Return the names of the entries' nodes, oldest first."""
    return _logged((yield from children(paths.events(group))))


def entry(group: str, name: str) -> Recipe[Entry | None]:
    """Return an entry with the time when ZooKeeper created it, None if it is gone or malformed."""
    node = yield from get_node(f"{paths.events(group)}/{name}")
    if node is not None:
        with suppress(msgspec.MsgspecError, ValueError):
            found = _decoder.decode(decompress(node.data))
            return msgspec.structs.replace(found, at_ms=node.stat.ctime)
    return None


def departure(group: str, plan: Plan, names: Collection[str]) -> Recipe[Entry | None]:
    """Return which members went since the last plan, and why: no plan follows the last member.

    `names` are the nodes of the present members. The time is 0 if no member left a note.
    """
    left = dict.fromkeys(_present(plan), "its session ended")
    for name in names:
        left.pop(assignee(name), None)
    at_ms = 0
    for event, member in departures((yield from children(paths.events(group)))) if left else ():
        if member not in names and assignee(member) in left:
            reason, noted_ms = yield from _reason(f"{paths.events(group)}/{event}")
            left[assignee(member)] = reason
            at_ms = max(at_ms, noted_ms)
    return Entry(at_ms=at_ms, left=left) if left else None


def _rebalance(
    by: str,
    before: Plan,
    after: Plan,
    members: Mapping[str, MemberInfo],
    reasons: Mapping[str, str],
) -> Entry:
    moves = [
        Move(*each, before.owners.get(each), after.owners.get(each))
        for each in sorted(before.owners.keys() | after.owners.keys())
        if before.owners.get(each) != after.owners.get(each)
    ]
    were, are = dict.fromkeys(_present(before)), dict.fromkeys(_present(after))
    left = {each: reasons.get(each, "its session ended") for each in were if each not in are}
    for each in left.keys() & after.static.keys():
        left[each] += f", is waited for, {after.static[each].rejoin_timeout:g} s"
    for each in before.static:
        if each not in after.static and each not in were and each not in are:
            left[each] = "did not come back in time"
    joined = {
        each: members[each].previous if each in members else "" for each in are if each not in were
    }
    return Entry(0, after.generation, by, joined, left, len(moves), moves)


def _present(plan: Plan) -> list[str]:
    """Return the assignees that were there when the plan was made."""
    absent = {each for each, standing in plan.static.items() if standing.absent}
    return [each for each in plan.members if each not in absent]


def _logged(events: Collection[str]) -> list[str]:
    """Return the names of the entries, oldest first: names end with ZooKeeper's ten digits."""
    return sorted(filter(_NAME.fullmatch, events), key=lambda name: name[-10:])


def _append(group: str, events: Collection[str], entry: Entry) -> list[zk.Write]:
    most = entry.moved
    while len(data := zstandard.compress(msgspec.msgpack.encode(entry))) > ENTRY_BYTES and most:
        most //= 2
        reset = dict(islice(entry.reset.items(), most))
        entry = msgspec.structs.replace(entry, moves=entry.moves[:most], reset=reset)
    creation = zk.Create(f"{paths.events(group)}/log-{len(data):05}-", data, sequence=True)
    room = HISTORY_BYTES - max(len(data), SMALLEST_ENTRY)
    deletions = []
    for name in reversed(_logged(events)):
        room -= max(int(name[4:-11]), SMALLEST_ENTRY)
        if room < 0:
            deletions.append(zk.Delete(f"{paths.events(group)}/{name}"))
    return [creation, *deletions]


def _reason(path: str) -> Recipe[tuple[str, int]]:
    """Return a note's text and time (ms)."""
    node = yield from get_node(path)
    if node is None:  # another planner was faster
        return "left", 0
    return node.data[:MOST_LETTERS].decode(errors="replace") or "left", node.stat.ctime
