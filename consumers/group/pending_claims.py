"""The partitions of a member's share that it has yet to claim. Pure.

**Bytes.** When a session ends, ZooKeeper writes the paths of all its nodes into one transaction. One of
two megabytes keeps its servers from starting again (ZOOKEEPER-4306). So no more than MAX_OWNED_BYTES is
claimed; the rest has no owner, and an alarm reports it.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from math import inf
from typing import Final

from folkmoot.consumers.group.liveness import Timing
from folkmoot.coordination import paths
from folkmoot.coordination.groups.ownership import Blocked, ClaimRequest, MalformedOffset, Owner
from folkmoot.coordination.zookeeper.operations import path_bytes
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


class PendingClaims:
    """Our share of the plan, and the claims that are in flight or due."""

    def __init__(self, group: str, timing: Timing) -> None:
        self.share: Mapping[TopicPartition, str] = {}
        """The planned partitions, with the topics' ids."""
        self.rebalances = 0
        """Shares taken."""
        self.chroot = ""
        self.beyond_limit = 0
        """Partitions not claimed because of MAX_OWNED_BYTES."""
        self._group = group
        self._timing = timing
        self._pending: dict[TopicPartition, _PendingClaim] = {}

    @property
    def in_flight(self) -> list[TopicPartition]:
        return [partition for partition, pending in self._pending.items() if pending.in_flight]

    def malformed(self) -> dict[TopicPartition, str]:
        reasons = sorted(
            (partition, pending.malformed) for partition, pending in self._pending.items()
        )
        return {partition: why for partition, why in reasons if why}

    def deadline(self) -> float:
        """When the next claim is due."""
        return min(
            (pending.claim_at for pending in self._pending.values() if not pending.in_flight),
            default=inf,
        )

    def take_due(
        self,
        owned: Collection[TopicPartition],
        now: float,
        start_of: Callable[[TopicPartition], int | None],
    ) -> dict[TopicPartition, ClaimRequest]:
        """Return the claims to send now, for our share without what is `owned`.

        `start_of` gives the plan's start of partitions without a committed offset.
        """
        due: dict[TopicPartition, ClaimRequest] = {}
        room: int | None = None
        self.beyond_limit = 0
        for partition, topic_id in self.share.items():
            pending = self._pending.get(partition)
            if partition in owned or (pending and (pending.in_flight or now < pending.claim_at)):
                continue
            if room is None:
                room = MAX_OWNED_BYTES - sum(map(self._path_bytes, (*owned, *self.in_flight)))
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

    def won(self, partition: TopicPartition) -> None:
        self._pending.pop(partition, None)

    def refused(
        self,
        partition: TopicPartition,
        answer: object,
        is_ours: Callable[[Owner], bool],
        now: float,
    ) -> bool:
        """Claim the partition later, if our share still has it. Return whether the plan refused the claim.

        `is_ours`: whether the owner is an earlier process of ours, which need not be waited for.
        """
        pending = self._pending.pop(partition, None) or _PendingClaim()
        if partition not in self.share:
            return False
        self._pending[partition] = pending
        pending.in_flight, pending.malformed = False, ""
        if isinstance(answer, Blocked):
            self._wait_for_owner(pending, answer.owner, is_ours(answer.owner), now)
        elif isinstance(answer, MalformedOffset):
            pending.malformed = answer.reason
            pending.claim_at = now + self._timing.retry
        else:
            pending.stale, pending.claim_at = True, now + self._timing.patience
        return pending.stale

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
        if partition in self._pending:
            pending = self._pending[partition]
            pending.changed, pending.claim_at = True, now

    def take_share(self, share: Mapping[TopicPartition, str], is_next: bool, now: float) -> None:
        """Take our share of a newer plan: drop claims outside it, and repeat stale ones.

        A release timeout continues under the next plan, so that quick plans do not prevent a steal. It
        restarts if we missed a plan in between (not `is_next`): that one may have given the partition back.
        """
        self.share = share
        self.rebalances += 1
        for partition, pending in list(self._pending.items()):
            if pending.in_flight:
                if not (is_next and partition in share):
                    pending.owner = None  # the next answer that names it counts as the first
                continue
            if partition not in share:
                del self._pending[partition]
                continue
            if not is_next:
                pending.steal_at = now + pending.steal_pause
            if pending.stale:
                pending.stale, pending.claim_at = False, now

    def drop(self) -> None:
        """Claim nothing more; claims in flight are still answered."""
        self._pending = {partition: self._pending[partition] for partition in self.in_flight}
        self.beyond_limit = 0

    def forget(self) -> None:
        """The session has ended: its claims are never answered."""
        self.share, self.beyond_limit = {}, 0
        self._pending.clear()

    def _path_bytes(self, partition: TopicPartition) -> int:
        return path_bytes(paths.owner(self._group, *partition), self.chroot)
