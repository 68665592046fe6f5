"""What happened in a group, for people: who owned what when, and why. Nothing of the protocol reads it.

```
/groups/<group>/events/log-<number>      a chunk: rebalances and resets, the oldest first
                      /left-<member>     it left in order: written with the removal of its node
                      /gone-<member>     how it went otherwise: said by it, or its guardian, before its end
```

Whoever plans takes the last two into the entry of the plan without that member, and a static member that
is back takes its own away; of whom nothing is said (cut off, stopped for longer than its session, killed
where no guardian could help) nobody knows more.

The transaction that writes a plan appends its entry to the last chunk. A chunk that is full is followed by
a new one, and of these the last CHUNKS are kept, a megabyte in all. A planner that dies before the
transaction leaves neither plan nor entry. An entry is lost where the transaction would be too large with
it, or where a reset wrote the chunk at the same moment: the plan is written without it.

The server's clock says when: the last entry of a chunk was written when its node was, and the next writer
notes that time in it.
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
from folkmoot.coordination.zookeeper.recipes import children, ensure, get_node
from folkmoot.protocol.records import TopicPartition

CHUNK_BYTES: Final = 32 * 1024
"""Of a chunk, compressed. Moves that do not fit into one are left out."""
CHUNKS: Final = 32
MOST_RESET: Final = 1000
"""Partitions of a reset that are named."""
MOST_REASONS: Final = 100
"""Notes of members that went for a reason and that one plan reads."""
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

    `joined` and `left` by assignee id, with why, as far as that is known. `moves` and `reset` have the
    first of `moved` partitions where all would be too many. Without a generation and without `by` it is
    what nobody planned for yet.
    """

    at_ms: int = 0
    generation: int = 0
    by: str = ""
    joined: dict[str, str] = {}
    left: dict[str, str] = {}
    moved: int = 0
    moves: list[Move] = []
    reset: dict[str, int] = {}


_decoder = msgspec.msgpack.Decoder(list[Entry])


def notes(
    group: str,
    by: str,
    before: Plan,
    after: Plan,
    members: Mapping[str, MemberInfo],
    names: Collection[str],
) -> Recipe[list[zk.Write]]:
    """What the transaction that writes a plan does besides: append to the log, and remove what was noted.

    `names` are those of the members that are there: how these go concerns a later plan.
    """
    found = sorted((yield from children(paths.events(group))))
    said: dict[str, str] = {}
    done: list[zk.Write] = []
    for name, member in departures(found)[:_MOST_NOTES]:
        if member not in names:
            said[assignee(member)] = "left"
            if name.startswith("gone-") and len(said) <= MOST_REASONS:
                said[assignee(member)], _ = yield from _reason(f"{paths.events(group)}/{name}")
            done.append(zk.Delete(f"{paths.events(group)}/{name}"))
    entry = rebalance(by, before, after, members, said)
    return [*(yield from _appended(group, found, entry)), *done]


def record_reset(group: str, by: str, offsets: Mapping[TopicPartition, int]) -> Recipe[None]:
    """Note a reset that was done; if that cannot be, it is not noted."""
    reset = {str(each): offset for each, offset in sorted(offsets.items())[:MOST_RESET]}
    with suppress(zk.ZooKeeperError):
        yield from ensure(paths.events(group))
        found = yield from children(paths.events(group))
        entry = Entry(by=by, moved=len(offsets), reset=reset)
        yield zk.Multi(tuple((yield from _appended(group, found, entry))))


def entries(group: str) -> Recipe[list[Entry]]:
    """What was noted, oldest first."""
    found: list[Entry] = []
    for path in _chunks(group, (yield from children(paths.events(group)))):
        found += _entries((yield from get_node(path)))
    return found


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
    return Entry(0, after.generation, by, joined, ordered, len(moves), moves)


def _present(plan: Plan) -> set[str]:
    """Who was there when the plan was made."""
    return {
        each for each in plan.members if each not in plan.static or not plan.static[each].absent
    }


def _chunks(group: str, names: Collection[str]) -> list[str]:
    """The paths of the log's chunks, the oldest first."""
    return [f"{paths.events(group)}/{name}" for name in sorted(names) if name.startswith("log-")]


def _appended(group: str, names: Collection[str], entry: Entry) -> Recipe[list[zk.Write]]:
    """The writes that append an entry; `names` are those of all nodes of the log and of notes."""
    chunks = _chunks(group, names)
    if chunks:
        node = yield from get_node(chunks[-1])
        data = _encode([*_entries(node), entry])
        if node is not None and len(data) <= CHUNK_BYTES:
            return [zk.Set(chunks[-1], data, node.stat.version)]
    while len(data := _encode([entry])) > CHUNK_BYTES and entry.moves:
        entry = msgspec.structs.replace(entry, moves=entry.moves[: len(entry.moves) // 2])
    created = zk.Create(f"{paths.events(group)}/log-", data, sequence=True)
    return [created, *(zk.Delete(path) for path in chunks[: 1 - CHUNKS])]


def _encode(entries: list[Entry]) -> bytes:
    return zstandard.compress(msgspec.msgpack.encode(entries))


def _entries(node: zk.Node | None) -> list[Entry]:
    """What a chunk holds; nothing if it is gone or illegible."""
    if node is None:
        return []
    try:
        *found, last = _decoder.decode(decompress(node.data))
    except (msgspec.MsgspecError, ValueError):
        return []
    return [*found, msgspec.structs.replace(last, at_ms=node.stat.mtime)]


def _reason(path: str) -> Recipe[tuple[str, int]]:
    """What a note says of who went, and when (ms)."""
    node = yield from get_node(path)
    if node is None:  # another planner was faster
        return "left", 0
    return node.data[:_MOST_SAID].decode(errors="replace") or "left", node.stat.ctime
