"""Ownership of partitions: fenced claims, releases, and commits of offsets under them.

The owner's node says who owns; the *offset's* node is the fence. Every claim rewrites it with the
next epoch, so that its version moves, and every commit is conditional on the version that the owner
itself wrote last. A zombie's commit therefore fails for ever (a check of the owner's node would not
do: a node deleted and created again has version 0 again).

The offset's node itself may be deleted, with its group or by hand, and made anew, and reach that
version again. So every write also checks the writer's own node among the members, whose name is never
given again: who was a member of the group that was deleted can write nothing. And an epoch begins
above the transaction number (czxid) that made the offset's node: each epoch has a transaction of its
own, so no earlier node of that name can have come so far, and what applications keep as a fencing
token stays the highest there was.

Each recipe ends with a definite answer even if a reply is lost: it reads back and recognises its own
hand by the nonce and the epoch. What it reads may be old, from a server that lags; the write that
follows is conditional, and a write that was refused is followed by reads that are not older than it.
So a refusal is no verdict either: whoever was refused looks whose epoch it is.

SessionLost gets out, and Malformed for an offset that somebody else has written over.
"""

from collections.abc import Mapping

import msgspec

from folkmoot.coordination import paths
from folkmoot.coordination.groups import membership as members
from folkmoot.coordination.zookeeper.operations import (
    ANY_VERSION,
    BadVersion,
    Check,
    ConnectionLost,
    Create,
    Delete,
    Get,
    Multi,
    MultiFailed,
    Node,
    NodeExists,
    NoNode,
    Recipe,
    Set,
    WatchCallback,
    Write,
    ZooKeeperError,
)
from folkmoot.coordination.zookeeper.recipes import (
    Malformed,
    decode,
    ensure,
    retry_on_connection_loss,
)
from folkmoot.protocol.records import TopicPartition

COMMITS_PER_TRANSACTION = 500
"""Half of what a transaction may hold if all names are as long as they may be."""
CAREFUL_COMMITS = 100
"""After one that a single partition has failed: who has lost many sends less in vain for each."""


class Owner(msgspec.Struct, frozen=True, omit_defaults=True):
    """The owner's node: who, in which incarnation and epoch, and how long it may take to let go (s).

    `stolen_from` is who did not let go in time, if it had to be taken away. For people.
    """

    member: str
    nonce: str
    epoch: int
    hand_over: float
    stolen_from: str = ""


class OffsetState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The offset's node. `offset` is the next record to process, None if nothing was committed.

    `reset` marks the last reset (resets.py), so that whoever made it finds out that it was done;
    later owners carry it along.
    """

    offset: int | None = None
    epoch: int = 0
    member: str = ""
    nonce: str = ""
    topic_id: str = ""
    reset: str = ""


class Claim(msgspec.Struct, frozen=True):
    """A partition held: `state` as last written by the holder, `version` the fence it stands on."""

    state: OffsetState
    version: int


class Blocked(msgspec.Struct, frozen=True):
    """The partition still has an owner; the ring given to `claim` tells when that changes."""

    owner: Owner


class Stale(msgspec.Struct, frozen=True):
    """The plan, or the claimant's own membership, is not what the claimant believes: read again."""


class Fenced(msgspec.Struct, frozen=True):
    """Somebody else has the current epoch; nothing was written."""


class Claimant(msgspec.Struct, frozen=True):
    """Who claims: its name, the nonce of its incarnation, its hand-over time (s).

    Owners are known by their seat, as in plans; the node that must be there is that of the name.
    """

    group: str
    name: str
    nonce: str
    hand_over: float

    @property
    def seat(self) -> str:
        return members.seat(self.name)


encode = msgspec.json.encode
_owner_decoder = msgspec.json.Decoder(Owner)
_state_decoder = msgspec.json.Decoder(OffsetState)
_NOBODY = Owner("", "", 0, 0.0)


def claim(
    me: Claimant,
    partition: TopicPartition,
    topic_id: str,
    plan_version: int,
    ring: WatchCallback,
    steal_from: Owner | None = None,
) -> Recipe[Claim | Blocked | Stale]:
    """Own `partition` from exactly its committed offset on, if the plan of that version stands.

    One transaction: the plan and the claimant's node are checked, the owner's node is created, the
    offset's node gets the next epoch. With `steal_from` that owner's node is deleted in the same
    step. `ring` rings when the owner's node changes, be it ours (we are fenced) or another's (it is
    our turn). Dying before the transaction changes nothing; dying after it frees the partition with
    the session.
    """
    group, (topic, number) = me.group, partition
    offset_path = paths.offset(group, topic, number)
    owner_path = paths.owner(group, topic, number)
    epoch = 0  # of the attempt under way
    doubtful = -1  # of one that was not answered: it may have won, whatever the next read says
    while True:
        try:
            old = yield from offset_node(group, partition)
            if steal_from is not None and (yield from owner_of(group, partition)) != steal_from:
                steal_from = None
            was = state_of(offset_path, old)
            if (was.nonce, was.epoch) == (me.nonce, doubtful):
                return (yield from _watched(me, partition, Claim(was, old.stat.version), ring))
            kept = was.offset if was.topic_id in ("", topic_id) else None
            epoch = next_epoch(was, old)
            new = OffsetState(kept, epoch, me.seat, me.nonce, topic_id, was.reset)
            robbed = "" if steal_from is None else steal_from.member
            owner = Owner(me.seat, me.nonce, epoch, me.hand_over, robbed)
            writes: list[Write] = [
                Check(paths.plan(group), plan_version),
                Check(paths.member(group, me.name), ANY_VERSION),
                Set(offset_path, encode(new), old.stat.version),
            ]
            if steal_from is not None:
                writes.append(Delete(owner_path))
            writes.append(Create(owner_path, encode(owner), ephemeral=True))
            results = yield Multi(tuple(writes))
            held = Claim(new, results[2])
        except MultiFailed as refusal:
            check_foreseen(refusal)
            if doubtful == epoch:
                found = yield from _held(me, partition, epoch)
                if found is not None:
                    return (yield from _watched(me, partition, found, ring))
            if isinstance(refusal.cause, NodeExists):
                blocking = yield from _watch_owner(group, partition, ring)
                if blocking is not None:
                    return Blocked(blocking)
                continue  # it let go in between
            if refusal.failed < 2:
                return Stale()
            if isinstance(refusal.cause, NoNode) and refusal.failed > 2:
                yield from _ensure_parents(group, topic)
            continue  # the offset moved, or an owner came or went: look again
        except ConnectionLost:
            doubtful = epoch
            found = yield from _held(me, partition, epoch)
            if found is None:
                continue
            held = found
        return (yield from _watched(me, partition, held, ring))


def release(
    me: Claimant, partition: TopicPartition, held: Claim, offset: int | None
) -> Recipe[None]:
    """Commit `offset` (None: as committed) and let the partition go, in one transaction.

    If the claim was fenced meanwhile, or we are no member any more, nothing is written.
    """
    group, (topic, number) = me.group, partition
    is_member = Check(paths.member(group, me.name), ANY_VERSION)
    state = held.state if offset is None else msgspec.structs.replace(held.state, offset=offset)
    let_go: tuple[Write, ...] = (Delete(paths.owner(group, topic, number)),)
    version = held.version
    while True:
        try:
            fenced = Set(paths.offset(group, topic, number), encode(state), version)
            yield Multi((is_member, fenced, *let_go))
            return
        except (MultiFailed, ConnectionLost) as refusal:
            check_foreseen(refusal)
            if isinstance(refusal, MultiFailed) and refusal.failed == 0:
                return
            found = yield from _held(me, partition, state.epoch)
            if found is None:
                return
            version = found.version
            if (yield from owner_of(group, partition)) is None:
                if found.state.offset == state.offset:
                    return
                let_go = ()  # the owner's node was removed by hand: the offset still counts


def commit(
    me: Claimant, offsets: Mapping[TopicPartition, tuple[Claim, int]]
) -> Recipe[dict[TopicPartition, Claim | Fenced]]:
    """Write the offset of every partition under its claim; many partitions per transaction.

    One fenced partition fails the transaction it is in: it is taken out and the rest is sent again.
    Who is no member any more is fenced from everything. An offset may be written more than once, never
    under another epoch than its claim's.
    """
    is_member = Check(paths.member(me.group, me.name), ANY_VERSION)
    done: dict[TopicPartition, Claim | Fenced] = {}
    todo = {
        partition: Claim(msgspec.structs.replace(held.state, offset=offset), held.version)
        for partition, (held, offset) in offsets.items()
    }
    most = COMMITS_PER_TRANSACTION
    while todo:
        some = list(todo)[:most]
        writes = [
            Set(paths.offset(me.group, *each), encode(todo[each].state), todo[each].version)
            for each in some
        ]
        try:
            _, *versions = yield Multi((is_member, *writes))
        except MultiFailed as refusal:
            check_foreseen(refusal)
            if refusal.failed == 0:
                return done | dict.fromkeys(todo, Fenced())
            most = CAREFUL_COMMITS
            yield from _sort_out(me, [some[refusal.failed - 1]], todo, done)
        except ConnectionLost:
            yield from _sort_out(me, some, todo, done)
        else:
            for each, version in zip(some, versions, strict=True):
                done[each] = Claim(todo.pop(each).state, version)
    return done


def verify(
    me: Claimant, partition: TopicPartition, held: Claim, ring: WatchCallback
) -> Recipe[bool]:
    """True if the owner's node is still ours; `ring` is armed again for its next change."""
    owner = yield from _watch_owner(me.group, partition, ring)
    return owner is not None and (owner.nonce, owner.epoch) == (me.nonce, held.state.epoch)


def owner_of(group: str, partition: TopicPartition) -> Recipe[Owner | None]:
    """Who owns a partition now."""
    return (yield from _watch_owner(group, partition, None))


def committed(group: str, partition: TopicPartition) -> Recipe[OffsetState | None]:
    """The offset's node as it is, None if nobody ever claimed the partition. Raises Malformed."""
    path = paths.offset(group, *partition)
    try:
        node: Node = yield from retry_on_connection_loss(Get(path))
    except NoNode:
        return None
    return state_of(path, node)


def state_of(path: str, node: Node) -> OffsetState:
    """Raises Malformed: an offset cannot be guessed. An empty node was created and never claimed."""
    return decode(_state_decoder, path, node) if node.data else OffsetState()


def _watch_owner(
    group: str, partition: TopicPartition, ring: WatchCallback | None
) -> Recipe[Owner | None]:
    path = paths.owner(group, *partition)
    try:
        node: Node = yield from retry_on_connection_loss(Get(path, ring))
    except NoNode:
        return None
    return owner_in(path, node)


def owner_in(path: str, node: Node) -> Owner:
    """An owner that is none, written by hand, is a nobody that will not let go: it can be stolen from."""
    try:
        return decode(_owner_decoder, path, node)
    except Malformed:
        return _NOBODY


def check_foreseen(error: ZooKeeperError) -> None:
    """Raises a refusal that no other member can have caused: asking again would be no help."""
    foreseen = BadVersion | NodeExists | NoNode
    if isinstance(error, MultiFailed) and not isinstance(error.cause, foreseen):
        raise error


def _watched(
    me: Claimant, partition: TopicPartition, held: Claim, ring: WatchCallback
) -> Recipe[Claim | Blocked | Stale]:
    """The claim just won, with the holder's watch on its own node: a fenced holder must learn of it."""
    return held if (yield from verify(me, partition, held, ring)) else Stale()


def _held(me: Claimant, partition: TopicPartition, epoch: int) -> Recipe[Claim | None]:
    """What this incarnation holds under that epoch, read back in doubt; None if the fence is not ours.

    The nonce alone would not do: an earlier epoch of the same incarnation is not the one asked for.
    """
    path = paths.offset(me.group, *partition)
    try:
        node: Node = yield from retry_on_connection_loss(Get(path))
    except NoNode:
        return None
    state = state_of(path, node)
    ours = (state.nonce, state.epoch) == (me.nonce, epoch)
    return Claim(state, node.stat.version) if ours else None


def _sort_out(
    me: Claimant,
    some: list[TopicPartition],
    todo: dict[TopicPartition, Claim],
    done: dict[TopicPartition, Claim | Fenced],
) -> Recipe[None]:
    """In doubt: which of `some` were written, which must be sent again, which are fenced."""
    for each in some:
        sent = todo[each]
        found = yield from _held(me, each, sent.state.epoch)
        if found is None:
            done[each] = Fenced()
            del todo[each]
        elif found.state.offset == sent.state.offset:
            done[each] = found
            del todo[each]
        else:
            todo[each] = Claim(sent.state, found.version)


def offset_node(group: str, partition: TopicPartition) -> Recipe[Node]:
    """The offset's node, created if this is the first claim ever, with its parents if of any."""
    path = paths.offset(group, *partition)
    while True:
        try:
            node: Node = yield from retry_on_connection_loss(Get(path))
            return node
        except NoNode:
            pass
        try:
            yield Create(path, encode(OffsetState()))
        except (NodeExists, ConnectionLost):
            continue  # it is there, ours or somebody's who was faster, or is asked for again
        except NoNode:
            yield from _ensure_parents(group, partition.topic)


def next_epoch(state: OffsetState, node: Node) -> int:
    """Greater than any that this partition had in this group, under this node or an earlier one."""
    return max(state.epoch, node.stat.czxid) + 1


def _ensure_parents(group: str, topic: str) -> Recipe[None]:
    yield from ensure(paths.offsets(group, topic))
    yield from ensure(paths.owners(group, topic))
