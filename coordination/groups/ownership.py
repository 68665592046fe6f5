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

A lost reply is no verdict, nor is a refusal: each recipe looks whose nonce and epoch are there then.
docs/groups.md says what happens if the process dies right before a transaction, or right after it.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import msgspec
from msgspec.structs import replace

from folkmoot.coordination import paths
from folkmoot.coordination.groups.membership import assignee
from folkmoot.coordination.zookeeper import operations as zk
from folkmoot.coordination.zookeeper.operations import Recipe, WatchCallback
from folkmoot.coordination.zookeeper.recipes import (
    GuardRefused,
    Malformed,
    check_foreseen,
    decode,
    ensure,
    read,
    retry_on_connection_loss,
    write_parts,
)
from folkmoot.protocol.records import TopicPartition

CLAIMS_PER_TRANSACTION: Final = 100
COMMITS_PER_TRANSACTION: Final = 500
"""Half of what a transaction may hold if all names are as long as they may be."""


class Owner(msgspec.Struct, frozen=True, omit_defaults=True):
    """The owner's node: who, in which incarnation and epoch, and how long it may take to let go (s)."""

    member: str
    nonce: str
    epoch: int
    hand_over: float


class OffsetState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The offset's node. `offset` is the next record to process, None if nothing was committed;
    `metadata` is what the application said beside it.

    `reset` marks the last reset (offset_admin.py), so that whoever made it finds out that it was done;
    later owners carry it along.
    """

    offset: int | None = None
    epoch: int = 0
    member: str = ""
    nonce: str = ""
    topic_id: str = ""
    reset: str = ""
    metadata: str = ""


class Claim(msgspec.Struct, frozen=True):
    """A partition held: `state` as last written by the holder, `version` the fence it stands on."""

    state: OffsetState
    version: int


class Blocked(msgspec.Struct, frozen=True):
    """The partition still has an owner; the watch given to `claim` tells when that changes."""

    owner: Owner


class Stale(msgspec.Struct, frozen=True):
    """The plan, or the claimant's own membership, is not what the claimant believes: read again."""


class MalformedOffset(msgspec.Struct, frozen=True):
    """Somebody else has written over the offset, which cannot be guessed: a reset mends it."""

    reason: str


class Fenced(msgspec.Struct, frozen=True):
    """Somebody else has the current epoch; nothing was written."""


Answer = Claim | Blocked | Stale | MalformedOffset


class ClaimRequest(msgspec.Struct, frozen=True):
    """A partition of the topic with that id, to be taken from its owner if that is still `steal_from`.

    `start` is the offset to commit with the claim if none is committed; None: the consumer finds one.
    """

    topic_id: str
    steal_from: Owner | None = None
    start: int | None = None


class Claimant(msgspec.Struct, frozen=True):
    """Who claims: its name, the nonce of its incarnation, how long it may take to let go (s).

    Owners are known by their assignee id, as in plans; the node that must be there is that of the name.
    """

    group: str
    name: str
    nonce: str
    hand_over: float

    @property
    def assignee(self) -> str:
        return assignee(self.name)


encode = msgspec.json.encode
_owner_decoder = msgspec.json.Decoder(Owner)
_state_decoder = msgspec.json.Decoder(OffsetState)
_NOBODY = Owner("", "", 0, 0.0)
_UNCLAIMED = OffsetState()


def claim(
    me: Claimant,
    wanted: Mapping[TopicPartition, ClaimRequest],
    plan_version: int,
    watch: Callable[[TopicPartition], WatchCallback],
) -> Recipe[dict[TopicPartition, Answer]]:
    """Own partitions from exactly their committed offsets on, if the plan of that version stands.

    Where none is committed, from the request's `start` on, which is committed with the claim.

    The watch of a partition is set on the node of the owner that blocks it. On one's own node `verify` sets
    it, which is to follow: a fenced holder must learn of it.
    """
    done: dict[TopicPartition, Answer] = {}
    attempts = [_Attempt(partition, request) for partition, request in wanted.items()]
    while todo := [each for each in attempts if each.partition not in done]:
        some = todo[:CLAIMS_PER_TRANSACTION]
        yield from _prepare(me, some, done)
        if some := [each for each in some if each.partition not in done]:
            yield from _send(me, some, plan_version, watch, done)
    return done


def _send(
    me: Claimant,
    some: list["_Attempt"],
    plan_version: int,
    watch: Callable[[TopicPartition], WatchCallback],
    done: dict[TopicPartition, Answer],
) -> Recipe[None]:
    """One transaction, and what follows if it is refused, or not answered."""
    is_planned = zk.Check(paths.plan(me.group), plan_version)
    writes: list[zk.Write] = [is_planned, zk.Check(paths.member(me.group, me.name))]
    whose: list[_Attempt | None] = [None, None]  # each write is
    for each in some:
        writes += each.writes
        whose += [each] * len(each.writes)
    try:
        results = yield zk.Multi(tuple(writes))
    except zk.MultiFailed as refusal:
        check_foreseen(refusal)
        refused = whose[refusal.failed]
        if refused is None:
            for each in some:
                won = each.is_in_doubt and (yield from _held(me, each.partition, each.state.epoch))
                done[each.partition] = won or Stale()
        elif isinstance(refusal.cause, zk.NodeExists):
            yield from _look_at_owners(me, some, watch, done)
        elif isinstance(writes[refusal.failed], zk.Create):
            yield from make_room(me.group, [refused.partition.topic])
    except zk.ConnectionLost:
        for each in some:
            each.is_in_doubt = True
    else:
        for attempt, result in zip(whose, results, strict=True):
            if attempt is not None and isinstance(result, int):  # its offset's new version
                done[attempt.partition] = Claim(attempt.state, result)


@dataclass(slots=True)
class _Attempt:
    """A claim under way: `state` and `writes` of the transaction to come, or just sent."""

    partition: TopicPartition
    request: ClaimRequest
    state: OffsetState = _UNCLAIMED
    writes: tuple[zk.Write, ...] = ()
    steals: bool = False
    is_in_doubt: bool = False
    """A transaction was not answered: it may have won, whatever is read next."""


def _prepare(
    me: Claimant, some: Iterable[_Attempt], done: dict[TopicPartition, Answer]
) -> Recipe[None]:
    """Read what the next transaction stands on, and find what is won already."""
    nodes = yield from offset_nodes(me.group, [each.partition for each in some])
    for each in some:
        node, request = nodes[each.partition], each.request
        path, owner_path = (
            paths.offset(me.group, *each.partition),
            paths.owner(me.group, *each.partition),
        )
        try:
            was = state_of(path, node)
        except Malformed as error:
            done[each.partition] = MalformedOffset(str(error))
            continue
        if (was.nonce, was.epoch) == (me.nonce, each.state.epoch):
            done[each.partition] = Claim(was, node.stat.version)
            continue
        kept = was.offset if was.topic_id in ("", request.topic_id) else None
        epoch = next_epoch(was, node)
        each.state = OffsetState(
            *(request.start if kept is None else kept, epoch, me.assignee, me.nonce),
            *(request.topic_id, was.reset),
            metadata="" if kept is None else was.metadata,
        )
        owner = Owner(me.assignee, me.nonce, epoch, me.hand_over)
        # The owner first: one that commits meanwhile refuses the claim as its owner, and not by a version
        # that is another one with each commit.
        each.writes = (
            zk.Create(owner_path, encode(owner), ephemeral=True),
            zk.Set(path, encode(each.state), node.stat.version),
        )
        robbed = request.steal_from
        # Else another owns it by now, or nobody.
        each.steals = (
            robbed is not None and (yield from owner_of(me.group, each.partition)) == robbed
        )
        if each.steals:
            each.writes = (each.writes[1], zk.Delete(owner_path), each.writes[0])


def _look_at_owners(
    me: Claimant,
    some: Iterable[_Attempt],
    watch: Callable[[TopicPartition], WatchCallback],
    done: dict[TopicPartition, Answer],
) -> Recipe[None]:
    """One has an owner: so may others, each of which would cost a transaction in vain."""
    for each in some:
        if each.partition not in done and not each.steals:
            owner = yield from owner_of(me.group, each.partition, watch(each.partition))
            # It may be ourselves, if the last transaction was not answered: then what is read next tells.
            if owner is not None and (owner.nonce, owner.epoch) != (me.nonce, each.state.epoch):
                done[each.partition] = Blocked(owner)


def release(me: Claimant, held: Mapping[TopicPartition, tuple[Claim, int | None]]) -> Recipe[None]:
    """Commit offsets (None: as committed) and let the partitions go, in the same transactions.

    Of claims that were fenced meanwhile, or if we are no member any more, nothing is written.
    """
    yield from commit(me, held, lets_go=True)


def commit(
    me: Claimant,
    offsets: Mapping[TopicPartition, tuple[Claim, int | None]],
    metadata: Mapping[TopicPartition, str] = MappingProxyType({}),
    *,
    lets_go: bool = False,
) -> Recipe[dict[TopicPartition, Claim | Fenced]]:
    """Write the offset of every partition under its claim; many partitions per transaction.

    Who is no member any more is fenced from everything. An offset may be written more than once, never
    under another epoch than its claim's. What was said beside the last one goes with it, unless there
    is new `metadata`. With `lets_go` the owners' nodes are deleted with them.
    """
    parts = [
        _Part(
            *(me, each),
            claim.state
            if offset is None
            else replace(claim.state, offset=offset, metadata=metadata.get(each, "")),
            *(claim.version, lets_go),
        )
        for each, (claim, offset) in offsets.items()
    ]
    is_member = zk.Check(paths.member(me.group, me.name))
    with suppress(GuardRefused):
        yield from write_parts(parts, (is_member,), COMMITS_PER_TRANSACTION // (1 + lets_go))
    return {part.partition: part.answer or Fenced() for part in parts}


@dataclass(slots=True)
class _Part:
    """What an offset's node is to hold under a claim; `lets_go`: the owner's node is deleted with it."""

    me: Claimant
    partition: TopicPartition
    state: OffsetState
    version: int
    lets_go: bool
    answer: Claim | Fenced | None = None

    def writes(self) -> list[zk.Write]:
        path, owner_path = (
            paths.offset(self.me.group, *self.partition),
            paths.owner(self.me.group, *self.partition),
        )
        written = zk.Set(path, encode(self.state), self.version)
        return [written, zk.Delete(owner_path)] if self.lets_go else [written]

    def written(self, result: int) -> None:
        self.answer = Claim(self.state, result)

    def look(self, refused: zk.Write | None) -> Recipe[None]:
        found = yield from _held(self.me, self.partition, self.state.epoch)
        if found is None:
            self.answer = Fenced()
            return
        if self.lets_go and (yield from owner_of(self.me.group, self.partition)) is None:
            self.lets_go = False  # done, or removed by hand: the offset still counts
        if found.state == self.state and not self.lets_go:
            self.answer = found
        self.version = found.version


def verify(
    me: Claimant, partition: TopicPartition, held: Claim, watch: WatchCallback
) -> Recipe[bool]:
    """True if the owner's node is still ours; `watch` is set again for its next change."""
    owner = yield from owner_of(me.group, partition, watch)
    return owner is not None and (owner.nonce, owner.epoch) == (me.nonce, held.state.epoch)


def committed(group: str, partition: TopicPartition) -> Recipe[OffsetState | None]:
    """The offset's node as it is, None if nobody ever claimed the partition. Raises Malformed."""
    state, _ = yield from read(_state_decoder, paths.offset(group, *partition))
    return state


def state_of(path: str, node: zk.Node) -> OffsetState:
    """Raises Malformed: an offset cannot be guessed."""
    return decode(_state_decoder, path, node)


def owner_of(
    group: str, partition: TopicPartition, watch: WatchCallback | None = None
) -> Recipe[Owner | None]:
    """Who owns a partition now; `watch` tells of the next change, if there is an owner.

    An owner that is illegible is a nobody that will not let go: it can be stolen from.
    """
    try:
        owner, _ = yield from read(_owner_decoder, paths.owner(group, *partition), watch)
    except Malformed:
        return _NOBODY
    return owner


def _held(me: Claimant, partition: TopicPartition, epoch: int) -> Recipe[Claim | None]:
    """What this incarnation holds under that epoch, read back in doubt; None if the fence is not ours.

    The nonce alone would not do: an earlier epoch of the same incarnation is not the one asked for.
    """
    try:
        state, stat = yield from read(_state_decoder, paths.offset(me.group, *partition))
    except Malformed:
        return None
    if state is None or stat is None or (state.nonce, state.epoch) != (me.nonce, epoch):
        return None
    return Claim(state, stat.version)


def offset_nodes(
    group: str, partitions: Iterable[TopicPartition]
) -> Recipe[dict[TopicPartition, zk.Node]]:
    """The offsets' nodes; those of first claims are created, in one transaction, with their parents.

    Where the first is missing all are taken to be, as they are when a group begins; if that is refused,
    each is looked for.
    """
    todo = {each: paths.offset(group, *each) for each in partitions}
    found: dict[TopicPartition, zk.Node] = {}
    guesses = True
    while True:
        for each, path in todo.items():
            try:
                found[each] = yield from retry_on_connection_loss(zk.Get(path))
            except zk.NoNode:
                if guesses and not found:
                    break
        todo = {each: path for each, path in todo.items() if each not in found}
        if not todo:
            return found
        try:
            yield zk.Multi(tuple(zk.Create(path, encode(_UNCLAIMED)) for path in todo.values()))
            continue
        except zk.ConnectionLost:
            pass  # it is there, or is asked for again
        except zk.MultiFailed as refusal:
            check_foreseen(refusal)  # that one is there is no harm: it is read
            if isinstance(refusal.cause, zk.NoNode):
                yield from make_room(group, {each.topic for each in todo})
        guesses = False


def next_epoch(state: OffsetState, node: zk.Node) -> int:
    """Greater than any that this partition had in this group, under this node or an earlier one."""
    return max(state.epoch, node.stat.czxid) + 1


def make_room(group: str, topics: Iterable[str]) -> Recipe[None]:
    """The parents of offsets' and owners' nodes."""
    for topic in sorted(topics):
        yield from ensure(paths.offsets(group, topic))
        yield from ensure(paths.owners(group, topic))
