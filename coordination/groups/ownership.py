"""Ownership of partitions: fenced claims and releases, and commits of offsets under them.

The owner's node says who owns; the *offset's* node is the fence. Every claim writes it with the next epoch,
so its version moves, and every commit requires the version that the owner itself wrote last. So a zombie's
commit always fails. A check of the owner's node would not do: after it is deleted and created again its
version is 0 again.

An offset's node that is deleted, with its group or by hand, can reach the same version again. Therefore:

- Every write also checks the writer's own member node, whose name is never used again.
- Epochs begin above the transaction number (czxid) that created the offset's node. Each epoch is a
  transaction of its own, so all epochs of an earlier node are lower, and fencing tokens stay valid.

After a lost reply or a refusal each recipe reads whose nonce and epoch are there. docs/groups.md says what
happens if the process dies right before or after a transaction.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import msgspec
from msgspec.structs import replace

from folkmoot.coordination import paths
from folkmoot.coordination.groups.membership import assignee
from folkmoot.coordination.zookeeper import operations as zk
from folkmoot.coordination.zookeeper import recipes
from folkmoot.coordination.zookeeper.operations import Recipe, WatchCallback
from folkmoot.protocol.records import TopicPartition

CLAIMS_PER_TRANSACTION: Final = 100
COMMITS_PER_TRANSACTION: Final = 500
"""Half of what a transaction can hold if all names have the maximum length."""


class Owner(msgspec.Struct, frozen=True, omit_defaults=True):
    """An owner's node: assignee id, incarnation, epoch, and how long it may take to release (s)."""

    member: str
    nonce: str
    epoch: int
    release_timeout: float


class OffsetState(msgspec.Struct, frozen=True, omit_defaults=True):
    """An offset's node: `offset` is the next record to process, None if nothing is committed.

    `metadata` comes from the application. `reset` is the mark of the last reset (offset_admin.py), by which
    its sender knows after a lost reply that it was done; later owners keep it.
    """

    offset: int | None = None
    epoch: int = 0
    member: str = ""
    nonce: str = ""
    topic_id: str = ""
    reset: str = ""
    metadata: str = ""


class Claim(msgspec.Struct, frozen=True):
    """An owned partition: the state that its owner wrote last, and the version of its node."""

    state: OffsetState
    version: int


class Blocked(msgspec.Struct, frozen=True):
    """The partition still has an owner, whose node is watched."""

    owner: Owner


class Stale(msgspec.Struct, frozen=True):
    """The plan has changed, or the claimant is no member any more."""


class MalformedOffset(msgspec.Struct, frozen=True):
    """The offset's node is malformed: a reset repairs it."""

    reason: str


class Fenced(msgspec.Struct, frozen=True):
    """Another epoch began; nothing was written."""


Answer = Claim | Blocked | Stale | MalformedOffset


class ClaimRequest(msgspec.Struct, frozen=True):
    """How to claim a partition: of the topic with that id; from its owner if that is still `steal_from`.

    `start` is committed with the claim if nothing is committed; None leaves that to the consumer.
    """

    topic_id: str
    steal_from: Owner | None = None
    start: int | None = None


class Claimant(msgspec.Struct, frozen=True):
    """A member that claims: node name, nonce of its incarnation, how long it may take to release (s)."""

    group: str
    name: str
    nonce: str
    release_timeout: float

    @property
    def assignee(self) -> str:
        return assignee(self.name)


encode = msgspec.json.encode
_owner_decoder = msgspec.json.Decoder(Owner)
_state_decoder = msgspec.json.Decoder(OffsetState)
_MALFORMED = Owner("", "", 0, 0.0)
"""Stands for a malformed owner, which can be stolen from."""
_UNCLAIMED = OffsetState()


def claim(
    me: Claimant,
    wanted: Mapping[TopicPartition, ClaimRequest],
    plan_version: int,
    watch: Callable[[TopicPartition], WatchCallback],
) -> Recipe[dict[TopicPartition, Answer]]:
    """Own partitions from exactly their committed offsets on, if the plan still has that version.

    `watch` is set on the nodes of other owners. `verify` must follow to watch the own ones.
    """
    attempts = [_Attempt(partition, request) for partition, request in wanted.items()]
    while batch := [each for each in attempts if each.answer is None][:CLAIMS_PER_TRANSACTION]:
        yield from _prepare(me, batch)
        if batch := [each for each in batch if each.answer is None]:
            yield from _send(me, batch, plan_version, watch)
    return {each.partition: each.answer for each in attempts if each.answer is not None}


@dataclass(slots=True)
class _Attempt:
    """A claim under way, with the `state` and `writes` of its last transaction."""

    partition: TopicPartition
    request: ClaimRequest
    state: OffsetState = _UNCLAIMED
    writes: tuple[zk.Write, ...] = ()
    steals: bool = False
    maybe_written: bool = False
    """A transaction was not answered, and may have won even if the next read does not show it."""
    answer: Answer | None = None


def _prepare(me: Claimant, batch: Sequence[_Attempt]) -> Recipe[None]:
    """Read what the next transaction depends on, and find claims that have won already."""
    nodes = yield from offset_nodes(me.group, [each.partition for each in batch])
    for each in batch:
        node, request = nodes[each.partition], each.request
        path = paths.offset(me.group, *each.partition)
        try:
            was = state_of(path, node)
        except recipes.Malformed as error:
            each.answer = MalformedOffset(str(error))
            continue
        if (was.nonce, was.epoch) == (me.nonce, each.state.epoch):
            each.answer = Claim(was, node.stat.version)
            continue
        committed_offset = was.offset if was.topic_id in ("", request.topic_id) else None
        each.state = OffsetState(
            offset=request.start if committed_offset is None else committed_offset,
            epoch=next_epoch(was, node),
            member=me.assignee,
            nonce=me.nonce,
            topic_id=request.topic_id,
            reset=was.reset,
            metadata="" if committed_offset is None else was.metadata,
        )
        owner_path = paths.owner(me.group, *each.partition)
        owner = Owner(me.assignee, me.nonce, each.state.epoch, me.release_timeout)
        own = zk.Create(owner_path, encode(owner), ephemeral=True)
        fence = zk.Set(path, encode(each.state), node.stat.version)
        each.steals = request.steal_from is not None and (
            request.steal_from == (yield from owner_of(me.group, each.partition))
        )
        # If an owner commits meanwhile, its node must refuse the claim, not the version, which moves again.
        each.writes = (fence, zk.Delete(owner_path), own) if each.steals else (own, fence)


def _send(
    me: Claimant,
    batch: Sequence[_Attempt],
    plan_version: int,
    watch: Callable[[TopicPartition], WatchCallback],
) -> Recipe[None]:
    """Send one transaction, and look what became of it."""
    writes: list[tuple[_Attempt | None, zk.Write]] = [
        (None, zk.Check(paths.plan(me.group), plan_version)),
        (None, zk.Check(paths.member(me.group, me.name))),
    ]
    writes += ((each, write) for each in batch for write in each.writes)
    try:
        results = yield zk.Multi(tuple(write for _, write in writes))
    except zk.MultiFailed as refusal:
        recipes.check_foreseen(refusal)
        refused, write = writes[refusal.failed]
        if refused is None:
            for each in batch:
                won = each.maybe_written and (
                    yield from _read_claim(me, each.partition, each.state.epoch)
                )
                each.answer = won or Stale()
        elif isinstance(refusal.cause, zk.NodeExists):
            yield from _find_owners(me, batch, watch)
        elif isinstance(write, zk.Create):
            yield from make_room(me.group, [refused.partition.topic])
    except zk.ConnectionLost:
        for each in batch:
            each.maybe_written = True
    else:
        for (attempt, _), result in zip(writes, results, strict=True):
            if attempt is not None and isinstance(result, int):  # its offset's new version
                attempt.answer = Claim(attempt.state, result)


def _find_owners(
    me: Claimant,
    batch: Sequence[_Attempt],
    watch: Callable[[TopicPartition], WatchCallback],
) -> Recipe[None]:
    """Find all owners once one has refused: each of the others would cost a transaction in vain."""
    for each in batch:
        if not each.steals:
            owner = yield from owner_of(me.group, each.partition, watch(each.partition))
            # It is ourselves if an unanswered transaction has won: the next read shows that.
            if owner is not None and (owner.nonce, owner.epoch) != (me.nonce, each.state.epoch):
                each.answer = Blocked(owner)


def release(me: Claimant, held: Mapping[TopicPartition, tuple[Claim, int | None]]) -> Recipe[None]:
    """Commit offsets (None: none) and release the partitions, in the same transactions.

    Fenced claims are skipped, and all of them if `me` is no member any more.
    """
    yield from commit(me, held, and_release=True)


def commit(
    me: Claimant,
    offsets: Mapping[TopicPartition, tuple[Claim, int | None]],
    metadata: Mapping[TopicPartition, str] = MappingProxyType({}),
    *,
    and_release: bool = False,
) -> Recipe[dict[TopicPartition, Claim | Fenced]]:
    """Write offsets under their claims, many in each transaction.

    All are fenced if `me` is no member any more. After a lost reply an offset may be written again, but only
    under the epoch of its claim. `metadata` replaces what was committed before. With `and_release` the
    owners' nodes are deleted in the same transaction.
    """
    parts = []
    for partition, (claim, offset) in offsets.items():
        state = claim.state
        if offset is not None:
            state = replace(state, offset=offset, metadata=metadata.get(partition, ""))
        parts.append(_Part(me, partition, state, claim.version, and_release))
    is_member = zk.Check(paths.member(me.group, me.name))
    with suppress(recipes.GuardRefused):
        yield from recipes.write_parts(
            parts, (is_member,), COMMITS_PER_TRANSACTION // (1 + and_release)
        )
    return {part.partition: part.answer or Fenced() for part in parts}


@dataclass(slots=True)
class _Part:
    """A commit of one partition; with `and_release` its owner's node is deleted."""

    me: Claimant
    partition: TopicPartition
    state: OffsetState
    version: int
    and_release: bool
    answer: Claim | Fenced | None = None

    def writes(self) -> list[zk.Write]:
        path = paths.offset(self.me.group, *self.partition)
        writes: list[zk.Write] = [zk.Set(path, encode(self.state), self.version)]
        if self.and_release:
            writes.append(zk.Delete(paths.owner(self.me.group, *self.partition)))
        return writes

    def written(self, result: int) -> None:
        self.answer = Claim(self.state, result)

    def look(self, refused: zk.Write | None) -> Recipe[None]:
        found = yield from _read_claim(self.me, self.partition, self.state.epoch)
        if found is None:
            self.answer = Fenced()
            return
        if self.and_release and (yield from owner_of(self.me.group, self.partition)) is None:
            self.and_release = False  # done, or removed by hand: the offset still counts
        if found.state == self.state and not self.and_release:
            self.answer = found
        self.version = found.version


def verify(
    me: Claimant, partition: TopicPartition, held: Claim, watch: WatchCallback
) -> Recipe[bool]:
    """Return whether the owner's node is still ours, and watch it."""
    owner = yield from owner_of(me.group, partition, watch)
    return owner is not None and (owner.nonce, owner.epoch) == (me.nonce, held.state.epoch)


def committed(group: str, partition: TopicPartition) -> Recipe[OffsetState | None]:
    """Return what an offset's node holds, None if the partition was never claimed. Raises Malformed."""
    state, _ = yield from recipes.read(_state_decoder, paths.offset(group, *partition))
    return state


def state_of(path: str, node: zk.Node) -> OffsetState:
    """Decode an offset's node. Raises Malformed."""
    return recipes.decode(_state_decoder, path, node)


def owner_of(
    group: str, partition: TopicPartition, watch: WatchCallback | None = None
) -> Recipe[Owner | None]:
    """Return the owner of a partition, whose node is watched, None if there is none."""
    try:
        return (yield from recipes.read(_owner_decoder, paths.owner(group, *partition), watch))[0]
    except recipes.Malformed:
        return _MALFORMED


def _read_claim(me: Claimant, partition: TopicPartition, epoch: int) -> Recipe[Claim | None]:
    """Read back what this incarnation owns in this epoch, not in an earlier one of its own."""
    try:
        state, stat = yield from recipes.read(_state_decoder, paths.offset(me.group, *partition))
    except recipes.Malformed:
        return None
    if state is None or stat is None or (state.nonce, state.epoch) != (me.nonce, epoch):
        return None
    return Claim(state, stat.version)


def offset_nodes(
    group: str, partitions: Iterable[TopicPartition]
) -> Recipe[dict[TopicPartition, zk.Node]]:
    """Return the offsets' nodes; those of first claims are created, in one transaction."""
    todo = {each: paths.offset(group, *each) for each in partitions}
    found: dict[TopicPartition, zk.Node] = {}
    is_first = True
    while True:
        for each, path in todo.items():
            node = yield from recipes.get_node(path)
            if node is not None:
                found[each] = node
            elif is_first and not found:
                break  # in a new group all are missing
        is_first = False
        todo = {each: path for each, path in todo.items() if each not in found}
        if not todo:
            return found
        try:
            yield zk.Multi(tuple(zk.Create(path, encode(_UNCLAIMED)) for path in todo.values()))
        except zk.ConnectionLost:
            continue
        except zk.MultiFailed as refusal:
            recipes.check_foreseen(refusal)  # one exists by now, or their parents are missing
            if isinstance(refusal.cause, zk.NoNode):
                yield from make_room(group, {each.topic for each in todo})


def next_epoch(state: OffsetState, node: zk.Node) -> int:
    """Return an epoch above all earlier ones of this partition, under this node or a deleted one."""
    return max(state.epoch, node.stat.czxid) + 1


def make_room(group: str, topics: Iterable[str]) -> Recipe[None]:
    """Create the parents of offsets' and owners' nodes."""
    for topic in sorted(topics):
        yield from recipes.ensure(paths.offsets(group, topic))
        yield from recipes.ensure(paths.owners(group, topic))
