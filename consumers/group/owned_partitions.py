"""The partitions that a member owns, with their commits and releases. Pure: it appends effects.

```
          take_due              Claim                revoke             drained, then release_drained
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
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from math import inf
from types import MappingProxyType
from typing import Any

import msgspec

from folkmoot.consumers.group.events import Assigned, Committed, Lost, Notice, Revoking
from folkmoot.consumers.group.pending_claims import PendingClaims
from folkmoot.coordination.groups import ownership
from folkmoot.coordination.groups.ownership import Claim, Claimant
from folkmoot.coordination.zookeeper.operations import Recipe, WatchCallback
from folkmoot.protocol.records import TopicPartition


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


class LogLine(msgspec.Struct, frozen=True):
    """An effect: log this text, after the group's name, at a level of `logging`."""

    level: int
    text: str


Effect = Task | Notice | EndSession | LogLine


class OwnedPartitions:
    """Those of a member in one session; `me` claims, `watch` makes the watch of an owner's node."""

    def __init__(
        self,
        me: Claimant,
        effects: list[Effect],
        claims: PendingClaims,
        watch: Callable[[TopicPartition], WatchCallback],
        revoke_timeout: float,
    ) -> None:
        self.me = me
        self.claims = claims
        self.watch = watch
        self.has_changed = False
        """A partition was lost, or has a new deadline; the member resets it."""
        self.has_drained = False
        """A drained partition may have yet to be released."""
        self.fenced_commits = 0
        self.lost = 0
        """Partitions lost without a release."""
        self._effects = effects
        self._revoke_timeout = revoke_timeout
        self._owned: dict[TopicPartition, _Owned] = {}
        self._queued_commits: list[
            tuple[int, Mapping[TopicPartition, tuple[int, int]], Mapping[TopicPartition, str]]
        ] = []
        self._committing: tuple[int, frozenset[TopicPartition]] | None = None

    def __contains__(self, partition: object) -> bool:
        return partition in self._owned

    def __len__(self) -> int:
        return len(self._owned)

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(tuple(self._owned))

    @property
    def is_idle(self) -> bool:
        """No partition is owned, no claim can succeed any more, no commit is in flight."""
        return not self._owned and not self.claims.in_flight and self._committing is None

    def revoke_unplanned(self) -> None:
        """Revoke the partitions outside our share of the plan, or of an earlier topic of their name."""
        share = self.claims.share
        for partition, owned in self._owned.items():
            if share.get(partition) != owned.claim.state.topic_id:
                self.revoke(partition)

    # -- claims -----------------------------------------------------------------------------------

    def own(self, partition: TopicPartition, claim: Claim, *, is_wanted: bool) -> None:
        """It is ours. If it is not wanted any more, release it; the consumer never had it."""
        state = claim.state
        self.claims.won(partition)
        if is_wanted:
            self._owned[partition] = _Owned(claim)
            self._effects.append(
                Assigned(partition, state.topic_id, state.offset, state.epoch, state.reset)
            )
            self.verify(partition)
        else:
            self._owned[partition] = _Owned(claim, _Stage.DRAINED)
            self.has_drained = True

    def owner_changed(self, partition: TopicPartition, now: float) -> None:
        if partition in self._owned:
            self.verify(partition)
        else:
            self.claims.owner_changed(partition, now)

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
                owned.stage, self.has_drained = _Stage.DRAINED, True

    def drained(self, partition: TopicPartition, epoch: int, offset: int | None) -> None:
        """The consumer has finished with a revoked partition; commit `offset`, if any."""
        owned = self._owned.get(partition)
        if owned is None or owned.claim.state.epoch != epoch:
            return
        if owned.stage is _Stage.REVOKING:
            owned.stage, self.has_drained = _Stage.DRAINED, True
            owned.final_offset = offset

    def release_drained(self) -> dict[TopicPartition, tuple[Claim, int | None]]:
        """Return what to release now, together, and after all commits in flight."""
        if not self.has_drained or self._committing is not None:
            return {}
        self.has_drained = False
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
            arguments = self.me, partition, owned.claim, self.watch(partition)
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
        if self._committing is not None:
            self._queued_commits.append((token, offsets, metadata))
            return
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
            return
        self._committing = token, frozenset(offsets)
        done = partial(self.committed, token, commits, refused)
        self._effects.append(Task(ownership.commit, (self.me, commits, metadata), done))

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
            answer, owned = answers.get(partition), self._owned.get(partition)
            is_held = owned is not None and owned.claim.state.epoch == before.state.epoch
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
        while self._queued_commits and self._committing is None:
            self.commit(*self._queued_commits.pop(0))

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
            owned.stage, self.has_drained = max(owned.stage, _Stage.DRAINED), True
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
        self.claims.forget()

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
