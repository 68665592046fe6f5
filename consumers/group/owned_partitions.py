"""The partitions that a member owns, and those that it has yet to claim. Pure: it appends effects.

```
          claim_due             Claim                revoke             drained, then release_drained
(none) ─────────────► claiming ───────► owned ───────────────► revoking ─────────────► releasing ─► (none)
           Blocked, Stale, │ ▲            │
           MalformedOffset ▼ │            └─ `verify` fails, a commit is fenced, the session ends: Lost
                         waiting
```

**Claims.** A watch on the owner's node may fire before the answer of the claim that set it. A change
during a claim therefore makes its answer outdated: the claim is repeated after it.

**Writes.** Every write under a claim moves the fence that the next write needs. So at most one commit is
in flight, and nothing is released during one. Answers about a lost claim are ignored: ZooKeeper has
decided by the fence. The consumer names the epoch in each call, which then counts for that claim only.

**Bytes.** When a session ends, ZooKeeper writes the paths of all its nodes into one transaction. One of
two megabytes keeps its servers from starting again (ZOOKEEPER-4306). So no more than MAX_OWNED_BYTES is
claimed; the rest has no owner, and an alarm reports it.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from math import inf
from types import MappingProxyType
from typing import Any, Final

import msgspec

from folkmoot.consumers.group.events import Assigned, Committed, Lost, Notice, Revoking
from folkmoot.consumers.group.liveness import Timing
from folkmoot.coordination import paths
from folkmoot.coordination.groups import ownership
from folkmoot.coordination.groups.ownership import (
    Blocked,
    Claim,
    Claimant,
    ClaimRequest,
    MalformedOffset,
    Owner,
)
from folkmoot.coordination.zookeeper.operations import Recipe, WatchCallback, path_bytes
from folkmoot.protocol.records import TopicPartition

MAX_OWNED_BYTES: Final = 800_000
"""Paths of a session's owner nodes; three quarters of ZooKeeper's default `jute.maxbuffer`."""


@dataclass(slots=True)
class _PendingClaim:
    """A partition to claim: a claim is in flight, or due at `claim_at`.

    `steal_pause` is the time that the owner has from when it must release the partition. `stale`: the plan
    refused the claim, not the owner. `malformed` is why the offset cannot be read.
    """

    claim_at: float = 0.0
    in_flight: bool = False
    changed: bool = False
    owner: Owner | None = None
    steal_at: float = inf
    steal_pause: float = inf
    stale: bool = False
    malformed: str = ""


class _Stage(IntEnum):
    """How far an owned partition is on its way out."""

    OWNED = 0
    REVOKING = 1
    DRAINED = 2
    """The consumer has finished with it, or has no say: it never had it, or took too long."""
    RELEASING = 3


@dataclass(slots=True)
class _Owned:
    """A partition that is ours until it is released or fenced.

    Once `draining` was called, the consumer has until `drain_by`.
    """

    claim: Claim
    stage: _Stage = _Stage.OWNED
    drain_by: float = inf
    final_offset: int | None = None


class Task(msgspec.Struct, frozen=True):
    """An effect: execute a recipe of coordination/groups, and call `done` with its result.

    It ends with its session, without a call.
    """

    recipe: Callable[..., Recipe[Any]]
    arguments: tuple[Any, ...]
    done: Callable[[Any], None]


class EndSession(msgspec.Struct, frozen=True):
    """An effect: close the session, since its nodes are unknown.

    `has_failed`: ZooKeeper refused something; the next session waits longer each time.
    """

    why: str
    has_failed: bool = False


Effect = Task | Notice | EndSession


class OwnedPartitions:
    """Those of a member in one session; `me` claims, `watch` makes the watch of an owner's node."""

    def __init__(
        self,
        me: Claimant,
        effects: list[Effect],
        timing: Timing,
        watch: Callable[[TopicPartition], WatchCallback],
        revoke_timeout: float,
    ) -> None:
        self.me = me
        self.has_changed = False
        """A partition was lost, or has a new deadline; the member resets it."""
        self.fenced_commits = 0
        self.lost = 0
        """Partitions lost without a release."""
        self.chroot = ""
        self.beyond_limit = 0
        """Partitions not claimed because of MAX_OWNED_BYTES."""
        self._effects = effects
        self._timing = timing
        self._watch = watch
        self._revoke_timeout = revoke_timeout
        self._pending: dict[TopicPartition, _PendingClaim] = {}
        self._owned: dict[TopicPartition, _Owned] = {}
        self._queued_commits: list[
            tuple[int, Mapping[TopicPartition, tuple[int, int]], Mapping[TopicPartition, str]]
        ] = []
        self._committing: tuple[int, frozenset[TopicPartition]] | None = None
        self._has_drained = False  # a drained partition may have yet to be released

    def __contains__(self, partition: TopicPartition) -> bool:
        return partition in self._owned

    def __len__(self) -> int:
        return len(self._owned)

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(tuple(self._owned))

    @property
    def is_idle(self) -> bool:
        """No partition is owned, no claim can succeed any more, no commit is in flight."""
        claiming = any(pending.in_flight for pending in self._pending.values())
        return not self._owned and not claiming and self._committing is None

    def malformed(self) -> dict[TopicPartition, str]:
        reasons = sorted(
            (partition, pending.malformed) for partition, pending in self._pending.items()
        )
        return {partition: why for partition, why in reasons if why}

    def topic_id(self, partition: TopicPartition) -> str:
        return self._owned[partition].claim.state.topic_id

    # -- claims -----------------------------------------------------------------------------------

    def deadline(self) -> float:
        """When the next claim is due."""
        return min(
            (pending.claim_at for pending in self._pending.values() if not pending.in_flight),
            default=inf,
        )

    def claim_due(
        self,
        assignment: Mapping[TopicPartition, str],
        now: float,
        start_of: Callable[[TopicPartition], int | None],
    ) -> dict[TopicPartition, ClaimRequest]:
        """Return the claims to send now, for our share of the plan.

        `start_of` gives the plan's start of partitions without a committed offset.
        """
        due: dict[TopicPartition, ClaimRequest] = {}
        room: int | None = None
        self.beyond_limit = 0
        for partition, topic_id in assignment.items():
            pending = self._pending.get(partition)
            if partition in self._owned or (
                pending and (pending.in_flight or now < pending.claim_at)
            ):
                continue
            if room is None:
                in_flight = (other for other, pending in self._pending.items() if pending.in_flight)
                room = MAX_OWNED_BYTES - sum(map(self._path_bytes, (*self._owned, *in_flight)))
            if self._path_bytes(partition) > room:
                self.beyond_limit += 1
                self._pending.pop(partition, None)  # looked at again with the next change
                continue
            room -= self._path_bytes(partition)
            pending = self._pending.setdefault(partition, _PendingClaim())
            steal_from = pending.owner if now >= pending.steal_at else None
            pending.in_flight, pending.changed, pending.stale = True, False, False
            due[partition] = ClaimRequest(topic_id, steal_from, start_of(partition))
        return due

    def claimed(
        self,
        answers: Mapping[TopicPartition, object],
        is_wanted: Callable[[TopicPartition, str], bool],
        is_ours: Callable[[Owner], bool],
        now: float,
    ) -> bool:
        """Take the answers to claims. Return whether one is stale.

        `is_wanted`: whether the plan still gives us a partition of this topic id (any: ""). `is_ours`:
        whether the owner is an earlier process of ours, which need not be waited for.
        """
        stale = False
        for partition, answer in answers.items():
            pending = self._pending.pop(partition, None) or _PendingClaim()
            if isinstance(answer, Claim):
                self._own(partition, answer, is_wanted(partition, answer.state.topic_id))
            elif is_wanted(partition, ""):
                self._pending[partition] = pending
                pending.in_flight, pending.malformed = False, ""
                if isinstance(answer, Blocked):
                    self._wait_for_owner(pending, answer.owner, is_ours(answer.owner), now)
                elif isinstance(answer, MalformedOffset):
                    pending.malformed = answer.reason
                    pending.claim_at = now + self._timing.retry
                else:
                    stale = pending.stale = True
                    pending.claim_at = now + self._timing.patience
        return stale

    def _own(self, partition: TopicPartition, claim: Claim, is_wanted: bool) -> None:
        """It is ours. If it is not wanted any more, release it; the consumer never had it."""
        state = claim.state
        if is_wanted:
            self._owned[partition] = _Owned(claim)
            self._effects.append(
                Assigned(partition, state.topic_id, state.offset, state.epoch, state.reset)
            )
            self.verify(partition)
        else:
            self._owned[partition] = _Owned(claim, _Stage.DRAINED)
            self._has_drained = True

    def _wait_for_owner(
        self, pending: _PendingClaim, owner: Owner, is_ours: bool, now: float
    ) -> None:
        """The owner's release timeout begins when we first see this owner; later looks do not restart it."""
        if pending.owner != owner:
            pending.owner = owner
            pending.steal_pause = (
                0.0 if is_ours else owner.release_timeout + self._timing.steal_margin
            )
            pending.claim_at = pending.steal_at = now + pending.steal_pause
        else:
            pending.claim_at = max(pending.steal_at, now + self._timing.patience)
        if pending.changed:
            pending.claim_at = now

    def owner_changed(self, partition: TopicPartition, now: float) -> None:
        if partition in self._owned:
            self.verify(partition)
        elif partition in self._pending:
            pending = self._pending[partition]
            pending.changed, pending.claim_at = True, now

    def apply_assignment(
        self, assignment: Mapping[TopicPartition, str], is_next: bool, now: float
    ) -> None:
        """Take our share of a newer plan: drop claims outside it, and repeat stale ones.

        A release timeout continues under the next plan, so that quick plans do not prevent a steal. It
        restarts if we missed a plan in between (not `is_next`): that one may have given the partition back.
        """
        for partition, pending in list(self._pending.items()):
            if pending.in_flight:
                if not (is_next and partition in assignment):
                    pending.owner = None  # the next answer that names it counts as the first
                continue
            if partition not in assignment:
                del self._pending[partition]
                continue
            if not is_next:
                pending.steal_at = now + pending.steal_pause
            if pending.stale:
                pending.stale, pending.claim_at = False, now

    def drop_claims(self) -> None:
        """Claim nothing more; claims in flight are still answered."""
        self._pending = {
            partition: pending for partition, pending in self._pending.items() if pending.in_flight
        }
        self.beyond_limit = 0

    def _path_bytes(self, partition: TopicPartition) -> int:
        return path_bytes(paths.owner(self.me.group, *partition), self.chroot)

    # -- releases ---------------------------------------------------------------------------------

    def revoke(self, partition: TopicPartition) -> None:
        """Ask the consumer, once, to finish with a partition."""
        owned = self._owned[partition]
        if owned.stage is _Stage.OWNED:
            owned.stage = _Stage.REVOKING
            self._effects.append(Revoking(partition))

    def revoke_all(self) -> None:
        for partition in self:
            self.revoke(partition)

    def draining(self, partition: TopicPartition, epoch: int, now: float) -> None:
        """The consumer has finished the work under way; `drained` must follow in time."""
        owned = self._owned.get(partition)
        if owned is not None and owned.claim.state.epoch == epoch and owned.stage > _Stage.OWNED:
            owned.drain_by = min(owned.drain_by, now + self._revoke_timeout)
            self.has_changed = True

    def overdue_at(self) -> float:
        """When the next `drained` is overdue."""
        times = (owned.drain_by for owned in self._owned.values() if owned.stage < _Stage.DRAINED)
        return min(times, default=inf)

    def release_overdue(self, now: float) -> None:
        """Release what is overdue, without a commit."""
        for partition, owned in self._owned.items():
            if owned.drain_by <= now and owned.stage < _Stage.DRAINED:
                self._report_loss(partition, owned, "its on_revoke took longer than revoke_timeout")
                owned.stage, self._has_drained = _Stage.DRAINED, True

    def drained(self, partition: TopicPartition, epoch: int, offset: int | None) -> None:
        """The consumer has finished with a revoked partition; commit `offset`, if any."""
        owned = self._owned.get(partition)
        if owned is None or owned.claim.state.epoch != epoch:
            return
        if owned.stage is _Stage.REVOKING:
            owned.stage, self._has_drained = _Stage.DRAINED, True
            owned.final_offset = offset

    def release_drained(self) -> dict[TopicPartition, tuple[Claim, int | None]]:
        """Return what to release now, together, and after all commits in flight."""
        if not self._has_drained or self._committing is not None:
            return {}
        self._has_drained = False
        due = {
            partition: owned
            for partition, owned in self._owned.items()
            if owned.stage is _Stage.DRAINED
        }
        for owned in due.values():
            owned.stage = _Stage.RELEASING
        return {partition: (owned.claim, owned.final_offset) for partition, owned in due.items()}

    def released(self, claims: Mapping[TopicPartition, tuple[Claim, int | None]]) -> None:
        for partition, (claim, _) in claims.items():
            if self._owns(partition, claim):
                del self._owned[partition]

    def verify(self, partition: TopicPartition) -> None:
        """Check that the owner's node is still ours, unless it is being released."""
        owned = self._owned[partition]
        if owned.stage < _Stage.RELEASING:
            arguments = self.me, partition, owned.claim, self._watch(partition)
            done = partial(self.verified, partition, owned.claim)
            self._effects.append(Task(ownership.verify, arguments, done))

    def verified(self, partition: TopicPartition, claim: Claim, is_ours: object) -> None:
        if is_ours is False and self._owns(partition, claim):
            self._drop(partition, "another member took it over, or its offset was reset")

    # -- commits ----------------------------------------------------------------------------------

    def commit(
        self,
        token: int,
        offsets: Mapping[TopicPartition, tuple[int, int]],
        metadata: Mapping[TopicPartition, str] = MappingProxyType({}),
    ) -> None:
        """Write next offsets once the last commit is answered.

        Each offset has the epoch of the Assigned under which the work was done. It is refused if we have
        another claim by now, of which the consumer may not know yet, or are releasing it.
        """
        self._queued_commits.append((token, offsets, metadata))
        self._commit_next()

    def committed(
        self,
        token: int,
        offsets: Mapping[TopicPartition, tuple[Claim, int]],
        refused: set[TopicPartition],
        answers: Mapping[TopicPartition, object],
    ) -> None:
        """Take the new fences; fenced partitions are lost."""
        self._committing = None
        done: dict[TopicPartition, int] = {}
        for partition, (before, offset) in offsets.items():
            answer, is_held = answers.get(partition), self._owns(partition, before)
            if isinstance(answer, Claim):
                done[partition] = offset
                if is_held:
                    self._owned[partition].claim = answer
            else:
                refused.add(partition)
                self.fenced_commits += 1
                if is_held:
                    self._drop(partition, "a commit was fenced")
        self._effects.append(Committed(token, done, frozenset(refused)))
        self._commit_next()

    def _commit_next(self) -> None:
        while self._queued_commits and self._committing is None:
            token, offsets, metadata = self._queued_commits.pop(0)
            commits = {
                partition: (owned.claim, offset)
                for partition, (epoch, offset) in offsets.items()
                if (owned := self._owned.get(partition)) is not None
                and owned.claim.state.epoch == epoch
                and owned.stage < _Stage.RELEASING
            }
            refused = set(offsets) - set(commits)
            if not commits:
                self._effects.append(Committed(token, {}, frozenset(refused)))
                continue
            self._committing = token, frozenset(offsets)
            done = partial(self.committed, token, commits, refused)
            self._effects.append(Task(ownership.commit, (self.me, commits, metadata), done))

    def _refuse_queued(self) -> None:
        for token, offsets, _ in self._queued_commits:
            self._effects.append(Committed(token, {}, frozenset(offsets)))
        self._queued_commits.clear()

    # -- the end ----------------------------------------------------------------------------------

    def abandon_all(self, reason: str) -> None:
        """ZooKeeper is silent: report all as lost, and refuse commits that were not sent.

        The session and its owner nodes may live on. So they are released, under the fence, as soon as
        ZooKeeper answers: other members would wait for them, and those of a deleted topic would stay.
        """
        for partition, owned in self._owned.items():
            self._report_loss(partition, owned, reason)
            owned.stage, self._has_drained = max(owned.stage, _Stage.DRAINED), True
        self._refuse_queued()

    def forget(self, reason: str) -> None:
        """The session has ended, and its owner nodes with it: its requests are never answered."""
        for partition in self:
            self._drop(partition, reason)
        self._refuse_queued()
        if self._committing is not None:
            token, refused = self._committing
            self._effects.append(Committed(token, {}, refused))
            self._committing = None
        self._pending.clear()
        self.beyond_limit = 0

    def _owns(self, partition: TopicPartition, claim: Claim) -> bool:
        owned = self._owned.get(partition)
        return owned is not None and owned.claim.state.epoch == claim.state.epoch

    def _drop(self, partition: TopicPartition, reason: str) -> None:
        self.has_changed = True
        self._report_loss(partition, self._owned.pop(partition), reason)

    def _report_loss(self, partition: TopicPartition, owned: _Owned, reason: str) -> None:
        """Unless the consumer has finished with it."""
        if owned.stage < _Stage.DRAINED:
            self.lost += 1
            self._effects.append(Lost(partition, reason))
