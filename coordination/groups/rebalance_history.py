"""What happened in a group: its last rebalances and resets, for people. Nothing of the protocol reads it.

```
/groups/<group>/events           the last ENTRIES, at most MOST_BYTES; compare-and-set
/groups/<group>/left/<member>    how a member went, until the plan without it is noted
```

| how a member went | who says so in `left/` |
|---|---|
| it left in order | itself, in the transaction that removes its node; the note is empty |
| it gave its place up: its application stays away, its node was removed | itself, before its session ends |
| its process died | its guardian, before it closes the session (guardian_process.py) |
| anything else: cut off, stopped for longer than its session, killed where no guardian could help | nobody |

Whoever has written a plan notes it: one write per plan, which takes the notes of those who left away as
well; never on the way of a commit, and after the plan stands. Dying before the write loses one entry;
the gap shows in the generations. An entry that cannot be written is given up.

How long it took until all that moved was owned again is found out a moment later by who wrote the entry
(`measure`), or by who looks: by the server's clock, from the plan to the youngest owner's node, as long
as all of them are still as it was planned. These nodes also say what had to be stolen, and from whom.
"""

from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Final

import msgspec
import zstandard

from folkmoot.coordination import paths
from folkmoot.coordination.groups import ownership
from folkmoot.coordination.groups.membership import MemberInfo, seat
from folkmoot.coordination.groups.plan_format import Plan
from folkmoot.coordination.zookeeper.operations import (
    BadVersion,
    Delete,
    Exists,
    Get,
    Multi,
    MultiFailed,
    Node,
    NoNode,
    Recipe,
    SessionLost,
    Set,
    Stat,
    ZooKeeperError,
)
from folkmoot.coordination.zookeeper.recipes import children, ensure, retry_on_connection_loss
from folkmoot.protocol.records import TopicPartition

ENTRIES: Final = 100
MOST_BYTES: Final = 64 * 1024
TRIES: Final = 3
MOST_LOOKS: Final = 50
"""If more partitions moved, only who looks at the group finds out when they were owned again."""
_MOST_NAMED: Final = 200
"""So many partitions of one entry are named; the others are counted."""
_MOST_SAID: Final = 200
"""Letters of a reason."""
_ZSTD: Final = b"\x28\xb5\x2f\xfd"


class Move(msgspec.Struct, frozen=True, array_like=True):
    """A partition that the plan gives to another: None is nobody."""

    topic: str
    partition: int
    old: str | None
    new: str | None


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One rebalance, or one reset by an administrator.

    `joined` and `left` by their seats, with why, as far as that is known. `moves` has the first of
    `moved` partitions. `took` (s) is the time from the plan until all that moved was owned again;
    `stolen` has those partitions of them that somebody did not let go in time, and who that was.
    """

    at_ms: int
    generation: int = 0
    by: str = ""
    joined: dict[str, str] = {}
    left: dict[str, str] = {}
    moved: int = 0
    moves: list[Move] = []
    took: float | None = None
    stolen: dict[str, str] = {}
    reset: dict[str, int] = {}


_decoder = msgspec.json.Decoder(list[Entry])


def record(
    group: str,
    by: str,
    before: Plan,
    after: Plan,
    known: Mapping[str, MemberInfo],
    names: Collection[str] = (),
) -> Recipe[None]:
    """Note the plan just written. `known` is what members published, by their seats.

    `names` are those of the members that it was made for: how these go concerns a later plan. Raises
    nothing but SessionLost.
    """
    try:
        stat: Stat | None = yield from retry_on_connection_loss(Exists(paths.plan(group)))
        if stat is not None:
            yield from _append(group, rebalance(stat.mtime, by, before, after, known), names)
    except SessionLost:
        raise
    except ZooKeeperError:
        return


def record_reset(group: str, by: str, offsets: Mapping[TopicPartition, int]) -> Recipe[None]:
    """Note a reset that was done; if that cannot be, it is not noted."""
    with suppress(ZooKeeperError):
        stat: Stat | None = yield from retry_on_connection_loss(
            Exists(paths.offset(group, *max(offsets)))
        )
        some = {str(each): offset for each, offset in sorted(offsets.items())[:_MOST_NAMED]}
        if stat is not None:
            yield from _append(group, Entry(stat.mtime, by=by, moved=len(offsets), reset=some))


def measure(group: str) -> Recipe[bool]:
    """Add to the last entry how long it took, if that can be said. → whether it is of use to ask again.

    Raises nothing but SessionLost.
    """
    try:
        found, version = yield from _read(group)
        if version is None or not found or found[-1].took is not None:
            return False
        if not 0 < found[-1].moved <= MOST_LOOKS:
            return False
        measured = yield from _measured(group, found[-1], MOST_LOOKS)
        if measured.took is None:
            return True
        yield Set(paths.events(group), _encode([*found[:-1], measured]), version)
    except SessionLost:
        raise
    except ZooKeeperError:
        pass  # somebody has noted more by now, or nobody knows
    return False


def entries(group: str) -> Recipe[list[Entry]]:
    """What was noted, oldest first; of the last rebalance with the time that it has taken."""
    found, _ = yield from _read(group)
    if found and found[-1].took is None:
        found[-1] = yield from _measured(group, found[-1], len(found[-1].moves))
    return found


def rebalance(
    at_ms: int, by: str, before: Plan, after: Plan, known: Mapping[str, MemberInfo]
) -> Entry:
    """What a plan changes."""
    old, new = _owners(before), _owners(after)
    moves = [
        Move(*each, old.get(each), new.get(each))
        for each in sorted(old.keys() | new.keys())
        if old.get(each) != new.get(each)
    ]
    away = {seat for seat, standing in after.static.items() if standing.absent}
    was_away = {seat for seat, standing in before.static.items() if standing.absent}
    there, was_there = set(after.members) - away, set(before.members) - was_away
    left = {}
    for each in [*was_there, *was_away]:
        if each in away and each in was_there:
            left[each] = f"is waited for, {after.static[each].grace:g} s"
        elif each not in after.members:
            left[each] = "did not come back in time" if each in was_away else ""
    joined = {each: _back(each, known) for each in there - was_there}
    ordered = {each: joined[each] for each in after.members if each in joined}
    gone = {each: left[each] for each in before.members if each in left}
    return Entry(at_ms, after.generation, by, ordered, gone, len(moves), moves[:_MOST_NAMED])


def _back(seat: str, known: Mapping[str, MemberInfo]) -> str:
    return known[seat].back if seat in known else ""


def _owners(plan: Plan) -> dict[TopicPartition, str]:
    return {
        TopicPartition(topic, number): owner
        for topic, owners in plan.assignment.items()
        for number, owner in enumerate(owners)
        if owner is not None
    }


def _append(group: str, entry: Entry, names: Collection[str] | None = None) -> Recipe[None]:
    """With what is said of those who left; None: the entry is not about members."""
    for _ in range(TRIES):
        found, version = yield from _read(group)
        if version is None:
            yield from ensure(paths.left(group))
            yield from ensure(paths.events(group))
            continue
        notes: dict[str, str] = {}
        if names is not None:
            notes = yield from _notes(group, names)
        data = _encode([*found, _with_reasons(entry, notes)])
        taken = (Delete(paths.left(group, name)) for name in notes)
        try:
            yield Multi((Set(paths.events(group), data, version), *taken))
            return
        except MultiFailed as refusal:
            if not isinstance(refusal.cause, BadVersion | NoNode):
                raise


def _notes(group: str, names: Collection[str]) -> Recipe[dict[str, str]]:
    """What is said of members that went, by their names, but for those that the plan counts on."""
    notes = {}
    for name in (yield from children(paths.left(group))):
        if name not in names:
            with suppress(NoNode):  # another planner was faster
                node: Node = yield from retry_on_connection_loss(Get(paths.left(group, name)))
                notes[name] = node.data[:_MOST_SAID].decode(errors="replace")
    return notes


def _with_reasons(entry: Entry, notes: Mapping[str, str]) -> Entry:
    """Of whom nothing is said, nobody knows more than that."""
    said = {seat(name): why or "left" for name, why in notes.items()}
    left = {}
    for each, why in entry.left.items():
        how = said.get(each, "its session ended")
        left[each] = f"{how}, {why}" if why.startswith("is waited") else why or how
    return msgspec.structs.replace(entry, left=left)


def _measured(group: str, entry: Entry, most: int) -> Recipe[Entry]:
    """With the time that it took until all that moved had its owner, if it has, and with what was stolen."""
    latest = entry.at_ms
    stolen: dict[str, str] = {}
    gained = [move for move in entry.moves if move.new is not None]
    if not gained or len(gained) > most or entry.moved > len(entry.moves):
        return entry
    for move in gained:
        partition = TopicPartition(move.topic, move.partition)
        path = paths.owner(group, *partition)
        try:
            node: Node = yield from retry_on_connection_loss(Get(path))
        except NoNode:
            return entry
        latest = max(latest, node.stat.ctime)
        owner = ownership.owner_in(path, node)
        if owner.member != move.new:
            return entry
        if owner.stolen_from not in ("", owner.member):
            stolen[str(partition)] = owner.stolen_from
    return msgspec.structs.replace(entry, took=(latest - entry.at_ms) / 1000, stolen=stolen)


def _read(group: str) -> Recipe[tuple[list[Entry], int | None]]:
    """What is noted, and the node's version; None if there is no node. Nonsense counts as nothing."""
    try:
        node: Node = yield from retry_on_connection_loss(Get(paths.events(group)))
    except NoNode:
        return [], None
    try:
        data = node.data
        if data.startswith(_ZSTD):
            if not 0 <= zstandard.frame_content_size(data) <= 64 * MOST_BYTES:
                return [], node.stat.version
            data = zstandard.ZstdDecompressor().decompress(data)
        return (_decoder.decode(data) if data else []), node.stat.version
    except (msgspec.MsgspecError, zstandard.ZstdError, ValueError):
        return [], node.stat.version


def _encode(found: list[Entry]) -> bytes:
    """As many of the last entries as there is room for."""
    found = found[-ENTRIES:]
    while True:
        data = zstandard.compress(msgspec.json.encode(found))
        if len(data) <= MOST_BYTES or not found:
            return data
        found = found[(len(found) + 1) // 2 :]
