"""The partitions that a member owns, and those that the plan gives it and that it does not own yet.

```
          claim_due             Claim                revoke             drained, then release_drained
(none) ─────────────► claiming ───────► owned ───────────────► revoking ─────────────► releasing ─► (none)
           Blocked, Stale, │ ▲            │
           MalformedOffset ▼ │            └─ `verify` says no, a commit was fenced, the session is over:
                         waiting             told as Lost
```

**Claims.** A change of the owner's node is never forgotten: watches fire once, and may do so before the
answer of the very claim that armed them. One that comes while a claim is under way makes its answer
old; it is acted on after it.

**Writes.** Every write under a claim moves the fence that the next write stands on, so at most one
commit is under way, and nothing is released while one is. An answer about a claim that is no longer held
is ignored: ZooKeeper has decided by the fence already. What the consumer says names the epoch that it
speaks of, and counts for that claim only.

**Bytes.** When a session ends ZooKeeper writes the paths of all its nodes into one transaction, and one of
two megabytes keeps its servers from ever starting again (ZOOKEEPER-4306). So no more is claimed than
MAX_OWNED_BYTES; the rest has no owner, and an alarm says so. Pure: effects are appended to the list given.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
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
"""Of the paths of one session's owner nodes; three quarters of ZooKeeper's default `jute.maxbuffer`."""
NEVER: Final = float("inf")


@dataclass(slots=True)
class _Wanted:
    """A partition that is not owned yet: a claim is under way (`asked`), or is due at `ask_at`.

    `patience` is what the owner is left, from when it has to let go; `stale`: the claim was refused for
    the plan, not for the owner; `malformed` is why the offset cannot be read.
    """

    ask_at: float = 0.0
    asked: bool = False
    changed: bool = False
    owner: Owner | None = None
    steal_at: float = NEVER
    patience: float = NEVER
    stale: bool = False
    malformed: str = ""


@dataclass(slots=True)
class _Owned:
    """A partition that is ours until it is released or fenced.

    What is declined, or lost in silence, is drained at once. The consumer has until `drain_by` for that,
    once it has begun.
    """

    claim: Claim
    revoking: bool = False
    drain_by: float = NEVER
    drained: bool = False
    releasing: bool = False
    final_offset: int | None = None


class Task(msgspec.Struct, frozen=True):
    """An effect: a recipe of coordination/groups, to be carried out with these arguments.

    `done` is called with what it returns. It ends with its session: then nothing is called.
    """

    recipe: Callable[..., Recipe[Any]]
    arguments: tuple[Any, ...]
    done: Callable[[Any], None]


class EndSession(msgspec.Struct, frozen=True):
    """An effect: close the session, since nobody can tell what of it still stands.

    `has_failed`: ZooKeeper refused something, so that the next session waits for longer each time.
    """

    why: str
    has_failed: bool = False


Effect = Task | Notice | EndSession


class OwnedPartitions:
    """Those of one incarnation of a member; `me` is who claims, `watch` tells of an owner's node."""

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
        """Something was lost, or is to be given up by a time, since the owner of this has looked."""
        self.fenced_commits = 0
        self.lost = 0
        """Partitions that went without being given up."""
        self.chroot = ""
        self.beyond_limit = 0
        """Partitions of ours that are not claimed: the session owns as much as it may."""
        self._effects = effects
        self._timing = timing
        self._watch = watch
        self._revoke_timeout = revoke_timeout
        self._wanted: dict[TopicPartition, _Wanted] = {}
        self._owned: dict[TopicPartition, _Owned] = {}
        self._asked: list[
            tuple[int, Mapping[TopicPartition, tuple[int, int]], Mapping[TopicPartition, str]]
        ] = []
        self._committing: tuple[int, frozenset[TopicPartition]] | None = None
        self._has_drained = False  # there may be something that is drained and not being released

    def __contains__(self, partition: TopicPartition) -> bool:
        return partition in self._owned

    def __len__(self) -> int:
        return len(self._owned)

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(tuple(self._owned))

    @property
    def idle(self) -> bool:
        """Nothing is owned, no claim can be won any more, no commit is under way."""
        claiming = any(wanted.asked for wanted in self._wanted.values())
        return not self._owned and not claiming and self._committing is None

    def malformed(self) -> dict[TopicPartition, str]:
        """What cannot be claimed, since its offset cannot be read, and why."""
        found = sorted((each, wanted.malformed) for each, wanted in self._wanted.items())
        return {each: why for each, why in found if why}

    def topic_id(self, partition: TopicPartition) -> str:
        """The id of the topic that was claimed."""
        return self._owned[partition].claim.state.topic_id

    # -- claims -----------------------------------------------------------------------------------

    def deadline(self) -> float | None:
        """When the next partition is to be claimed."""
        return min((each.ask_at for each in self._wanted.values() if not each.asked), default=None)

    def claim_due(
        self,
        mine: Mapping[TopicPartition, str],
        now: float,
        start_of: Callable[[TopicPartition], int | None],
    ) -> dict[TopicPartition, ClaimRequest]:
        """What to claim: what of the plan's share is not owned, and neither under way nor put off.

        `start_of` is where to start, by the plan, what the group has committed nothing of.
        """
        due: dict[TopicPartition, ClaimRequest] = {}
        room: int | None = None
        self.beyond_limit = 0
        for partition, topic_id in mine.items():
            wanted = self._wanted.get(partition)
            if partition in self._owned or (wanted and (wanted.asked or now < wanted.ask_at)):
                continue
            if room is None:
                room = MAX_OWNED_BYTES - sum(map(self._path_bytes, self._in_zookeeper()))
            if self._path_bytes(partition) > room:
                self.beyond_limit += 1
                self._wanted.pop(partition, None)  # it is looked at again with the next change
                continue
            room -= self._path_bytes(partition)
            wanted = self._wanted.setdefault(partition, _Wanted())
            steal_from = wanted.owner if now >= wanted.steal_at else None
            wanted.asked, wanted.changed, wanted.stale = True, False, False
            due[partition] = ClaimRequest(topic_id, steal_from, start_of(partition))
        return due

    def claimed(
        self,
        answers: Mapping[TopicPartition, object],
        is_wanted: Callable[[TopicPartition, str], bool],
        is_ours: Callable[[Owner], bool],
        now: float,
    ) -> bool:
        """Take the answers to claims. → whether one is stale.

        `is_wanted` tells whether the plan still gives us a partition of a topic with that id (any: "");
        `is_ours` whether an owner need not be waited for.
        """
        stale = False
        for partition, answer in answers.items():
            wanted = self._wanted.pop(partition, None) or _Wanted()
            if isinstance(answer, Claim):
                self._won(partition, answer, wanted, is_wanted)
            elif is_wanted(partition, ""):
                self._wanted[partition] = wanted
                wanted.asked, wanted.malformed = False, ""
                if isinstance(answer, Blocked):
                    self._blocked(wanted, answer.owner, is_ours(answer.owner), now)
                elif isinstance(answer, MalformedOffset):
                    wanted.malformed = answer.reason
                    wanted.ask_at = now + self._timing.retry
                else:
                    stale = wanted.stale = True
                    wanted.ask_at = now + self._timing.patience
        return stale

    def _won(
        self,
        partition: TopicPartition,
        claim: Claim,
        wanted: _Wanted,
        is_wanted: Callable[[TopicPartition, str], bool],
    ) -> None:
        """Ours. If it is not wanted any more nobody was told, so nobody needs to be asked."""
        state = claim.state
        if is_wanted(partition, state.topic_id):
            self._owned[partition] = _Owned(claim)
            self._effects.append(
                Assigned(partition, state.topic_id, state.offset, state.epoch, state.reset)
            )
            self.verify(partition)
        else:
            self._owned[partition] = _Owned(claim, revoking=True, drained=True)
            self._has_drained = True

    def _blocked(self, wanted: _Wanted, owner: Owner, ours: bool, now: float) -> None:
        """The owner's revoke timeout begins when it is first seen, and is not begun anew by looks."""
        if wanted.owner != owner:
            wanted.owner = owner
            wanted.patience = 0.0 if ours else owner.hand_over + self._timing.steal_margin
            wanted.ask_at = wanted.steal_at = now + wanted.patience
        else:
            wanted.ask_at = max(wanted.steal_at, now + self._timing.patience)
        if wanted.changed:
            wanted.ask_at = now

    def owner_changed(self, partition: TopicPartition, now: float) -> None:
        """The owner's node may have changed."""
        if partition in self._owned:
            self.verify(partition)
        elif partition in self._wanted:
            wanted = self._wanted[partition]
            wanted.changed, wanted.ask_at = True, now

    def keep(self, mine: Mapping[TopicPartition, str], is_next: bool, now: float) -> None:
        """A newer plan is known: what it does not give us is not claimed, what was stale may be.

        What it leaves to us is waited for as before: plans that follow each other quickly do not
        keep a partition from being stolen. But one that we have missed may have given it back: then
        (not `is_next`) the owner has its time from now on, as when one has that we have seen.
        """
        for partition, wanted in list(self._wanted.items()):
            if wanted.asked:
                if not (is_next and partition in mine):
                    wanted.owner = None  # seen anew by the next answer that names it
                continue
            if partition not in mine:
                del self._wanted[partition]
                continue
            if not is_next:
                wanted.steal_at = now + wanted.patience
            if wanted.stale:
                wanted.stale, wanted.ask_at = False, now

    def give_up_claims(self) -> None:
        """Claim nothing more; what is under way will be answered all the same."""
        self._wanted = {each: wanted for each, wanted in self._wanted.items() if wanted.asked}
        self.beyond_limit = 0

    def _in_zookeeper(self) -> Iterator[TopicPartition]:
        """What this session has nodes for, or is about to have."""
        yield from self._owned
        yield from (each for each, wanted in self._wanted.items() if wanted.asked)

    def _path_bytes(self, partition: TopicPartition) -> int:
        return path_bytes(paths.owner(self.me.group, *partition), self.chroot)

    # -- giving up --------------------------------------------------------------------------------

    def revoke(self, partition: TopicPartition) -> None:
        """Ask the consumer, once, to finish with a partition."""
        owned = self._owned[partition]
        if not owned.revoking:
            owned.revoking = True
            self._effects.append(Revoking(partition))

    def revoke_all(self) -> None:
        for partition in self:
            self.revoke(partition)

    def draining(self, partition: TopicPartition, epoch: int, now: float) -> None:
        """The consumer is done with what was under way, and begins to finish with a partition."""
        owned = self._owned.get(partition)
        if owned is not None and owned.claim.state.epoch == epoch and owned.revoking:
            owned.drain_by = min(owned.drain_by, now + self._revoke_timeout)
            self.has_changed = True

    def overdue_at(self) -> float | None:
        """When the consumer will have taken too long to finish with something."""
        times = (owned.drain_by for owned in self._owned.values() if not owned.drained)
        return min(times, default=None)

    def give_up_overdue(self, now: float) -> None:
        """Let go of that without the consumer: nothing of it is committed any more."""
        for partition, owned in self._owned.items():
            if owned.drain_by <= now and not owned.drained:
                self._tell(partition, owned, "its on_revoke took longer than revoke_timeout")
                owned.drained = self._has_drained = True

    def drained(self, partition: TopicPartition, epoch: int, offset: int | None) -> None:
        """The consumer has finished with a partition that is being revoked; commit `offset`, if any.

        Not if it speaks of an earlier claim: then it has not heard of this one yet.
        """
        owned = self._owned.get(partition)
        if owned is None or owned.claim.state.epoch != epoch:
            return
        if owned.revoking and not owned.drained:
            owned.drained = self._has_drained = True
            owned.final_offset = offset

    def release_drained(self) -> dict[TopicPartition, tuple[Claim, int | None]]:
        """What is drained, to be released together, after all commits that were asked for before."""
        if not self._has_drained or self._committing is not None:
            return {}
        self._has_drained = False
        due = {
            partition: owned
            for partition, owned in self._owned.items()
            if owned.drained and not owned.releasing
        }
        for owned in due.values():
            owned.releasing = True
        return {partition: (owned.claim, owned.final_offset) for partition, owned in due.items()}

    def released(self, held: Mapping[TopicPartition, tuple[Claim, int | None]]) -> None:
        for partition, (claim, _) in held.items():
            if self._owns(partition, claim):
                del self._owned[partition]

    def verify(self, partition: TopicPartition) -> None:
        """Look whether the owner's node is still ours; one being released goes anyway."""
        owned = self._owned[partition]
        if not owned.releasing:
            asked = self.me, partition, owned.claim, self._watch(partition)
            done = partial(self.verified, partition, owned.claim)
            self._effects.append(Task(ownership.verify, asked, done))

    def verified(self, partition: TopicPartition, held: Claim, ours: object) -> None:
        if ours is False and self._owns(partition, held):
            self._drop(partition, "another member took it over, or its offset was reset")

    # -- commits ----------------------------------------------------------------------------------

    def commit(
        self,
        token: int,
        offsets: Mapping[TopicPartition, tuple[int, int]],
        metadata: Mapping[TopicPartition, str] = MappingProxyType({}),
    ) -> None:
        """Write next offsets, each with the epoch of its claim, as soon as the last commit is answered.

        Not of a claim that does not stand any more, or is being released.

        The epoch is that of the Assigned under which the consumer did the work. The partition may have
        been lost and claimed again since, and the consumer not yet have heard of it.
        """
        self._asked.append((token, offsets, metadata))
        self._commit_next()

    def committed(
        self,
        token: int,
        offsets: Mapping[TopicPartition, tuple[Claim, int]],
        refused: set[TopicPartition],
        answers: Mapping[TopicPartition, object],
    ) -> None:
        """Adopt the new fences; what was fenced is lost."""
        self._committing = None
        done: dict[TopicPartition, int] = {}
        for partition, (before, offset) in offsets.items():
            answer, owned = answers.get(partition), self._owned.get(partition)
            if owned is not None and owned.claim.state.epoch != before.state.epoch:
                owned = None  # it was lost, and claimed again
            if isinstance(answer, Claim):
                done[partition] = offset
                if owned is not None:
                    owned.claim = answer
            else:
                refused.add(partition)
                self.fenced_commits += 1
                if owned is not None:
                    self._drop(partition, "a commit was fenced")
        self._effects.append(Committed(token, done, frozenset(refused)))
        self._commit_next()

    def _commit_next(self) -> None:
        while self._asked and self._committing is None:
            token, offsets, metadata = self._asked.pop(0)
            ours = {
                partition: (owned.claim, offset)
                for partition, (epoch, offset) in offsets.items()
                if (owned := self._owned.get(partition)) is not None
                and owned.claim.state.epoch == epoch
                and not owned.releasing
            }
            refused = set(offsets) - set(ours)
            if not ours:
                self._effects.append(Committed(token, {}, frozenset(refused)))
                continue
            self._committing = token, frozenset(offsets)
            done = partial(self.committed, token, ours, refused)
            self._effects.append(Task(ownership.commit, (self.me, ours, metadata), done))

    def _refuse_asked(self) -> None:
        for token, offsets, _ in self._asked:
            self._effects.append(Committed(token, {}, frozenset(offsets)))
        self._asked.clear()

    # -- the end of all ---------------------------------------------------------------------------

    def let_go_of_all(self, reason: str) -> None:
        """ZooKeeper does not answer: stop at once with everything; no commit that waits is begun any more.

        The session may live all the same, and the owners' nodes with it. So they are released, under
        the fence as ever, as soon as somebody answers: whoever is to own next need not wait, and
        nobody else would ever remove the node of a partition that is gone with its topic.
        """
        for partition, owned in self._owned.items():
            self._tell(partition, owned, reason)
            owned.revoking = owned.drained = self._has_drained = True
        self._refuse_asked()

    def forget(self, reason: str) -> None:
        """The session is over, and the owners' nodes with it: no answer of it will come."""
        for partition in self:
            self._drop(partition, reason)
        self._refuse_asked()
        if self._committing is not None:
            token, refused = self._committing
            self._effects.append(Committed(token, {}, refused))
            self._committing = None
        self._wanted.clear()
        self.beyond_limit = 0

    def _owns(self, partition: TopicPartition, claim: Claim) -> bool:
        owned = self._owned.get(partition)
        return owned is not None and owned.claim.state.epoch == claim.state.epoch

    def _drop(self, partition: TopicPartition, reason: str) -> None:
        self.has_changed = True
        self._tell(partition, self._owned.pop(partition), reason)

    def _tell(self, partition: TopicPartition, owned: _Owned, reason: str) -> None:
        """Of its loss, unless it was given up already."""
        if not owned.drained:
            self.lost += 1
            self._effects.append(Lost(partition, reason))
