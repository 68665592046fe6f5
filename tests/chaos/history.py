"""The group as ZooKeeper's transactions tell it, and what each of them may and may not do.

Every promise about owners and commits is checked here against every transaction, in ZooKeeper's own
order. A breach is a line in `breaches`; nothing is raised, so that a run tells all that it found.
"""

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field

import msgspec

from folkmoot.coordination import paths
from folkmoot.coordination.groups import plan as plans
from folkmoot.coordination.groups.ownership import OffsetState, Owner
from folkmoot.protocol.records import TopicPartition
from tests.chaos.transactions import BAD_VERSION, Change, Transaction


@dataclass(frozen=True, slots=True)
class Claimed:
    """A claim as written: from which offset on, and whose."""

    at: float
    epoch: int
    offset: int | None
    member: str
    nonce: str


@dataclass(frozen=True, slots=True)
class Committed:
    at: float
    epoch: int
    offset: int


@dataclass(frozen=True, slots=True)
class Unowned:
    """A partition had no owner's node from `since` to `until`."""

    partition: TopicPartition
    since: float
    until: float


@dataclass(frozen=True, slots=True)
class Registered:
    """A member's node: since when, and made by which session."""

    at: float
    session: int


@dataclass(slots=True)
class Life:
    """One partition: who owns it, what was claimed and committed, in order."""

    state: OffsetState = field(default_factory=OffsetState)
    owner: Owner | None = None
    since: float = 0.0
    claims: list[Claimed] = field(default_factory=list)
    commits: list[Committed] = field(default_factory=list)
    resets: list[Committed] = field(default_factory=list)


class History:
    """Takes the transactions of a run in order. One thread uses it."""

    def __init__(self, chroot: str, group: str, partitions: list[TopicPartition]) -> None:
        self.lives = {partition: Life() for partition in partitions}
        self.members: dict[str, Registered] = {}
        """The members that are registered, by their names."""
        self.unowned: list[Unowned] = []
        self.breaches: list[str] = []
        self.refused: Counter[int] = Counter()
        """By session: transactions refused because a node had been written since."""
        self.ended: dict[int, Transaction] = {}
        """By session: what ended it."""
        self.transactions = 0
        self._planned_at: list[float] = []
        self._planned: list[dict[TopicPartition, str]] = []
        self._members = chroot + paths.members(group) + "/"
        self._plan = chroot + paths.plan(group)
        self._offsets = {chroot + paths.offset(group, *each): each for each in partitions}
        self._owners = {chroot + paths.owner(group, *each): each for each in partitions}

    def owned_by(self, name: str) -> set[TopicPartition]:
        """What a member owns; `name` is its client id."""
        return {each for each, life in self.lives.items() if _is(life.owner, name)}

    @property
    def plans(self) -> int:
        """How many were made."""
        return len(self._planned)

    def planned_for(self, partition: TopicPartition, since: float, until: float) -> set[str]:
        """Whom plans that stood in that time gave a partition to."""
        first = max(0, bisect_right(self._planned_at, since) - 1)
        last = bisect_right(self._planned_at, until)
        return {plan[partition] for plan in self._planned[first:last] if partition in plan}

    def take(self, transaction: Transaction) -> None:
        self.transactions += 1
        if transaction.error == BAD_VERSION:
            self.refused[transaction.session] += 1
        if transaction.ends:
            self.ended[transaction.session] = transaction
        for change in transaction.changes:
            if (partition := self._owners.get(change.path)) is not None:
                self._owner(partition, change, transaction.at)
            elif (partition := self._offsets.get(change.path)) is not None:
                self._offset(partition, change, transaction.at)
            elif change.path.startswith(self._members):
                name = change.path.removeprefix(self._members)
                if change.kind == "create":
                    self.members[name] = Registered(transaction.at, transaction.session)
                elif change.kind == "delete":
                    self.members.pop(name, None)
            elif change.path == self._plan and change.kind == "set":
                self._plan_made(change.data, transaction.at)
        for change in transaction.changes:
            partition = self._owners.get(change.path)
            if partition is not None and change.kind == "create":
                self._check_claimed(partition)

    def _plan_made(self, data: bytes, at: float) -> None:
        assignment = plans.decode(data).assignment
        self._planned_at.append(at)
        self._planned.append(
            {
                TopicPartition(topic, number): name
                for topic, names in assignment.items()
                for number, name in enumerate(names)
                if name is not None
            }
        )

    def _owner(self, partition: TopicPartition, change: Change, at: float) -> None:
        life = self.lives[partition]
        if change.kind == "delete":
            life.owner, life.since = None, at
        else:
            if life.since:
                self.unowned.append(Unowned(partition, life.since, at))
            life.owner, life.since = msgspec.json.decode(change.data, type=Owner), at
            if not change.ephemeral:
                self._breach(partition, at, "the owner's node is not ephemeral")

    def _offset(self, partition: TopicPartition, change: Change, at: float) -> None:
        life = self.lives[partition]
        if change.kind == "delete" or not change.data:
            if life.claims:
                self._breach(partition, at, f"the offset's node was emptied ({change.kind})")
            return
        old, new = life.state, msgspec.json.decode(change.data, type=OffsetState)
        if new.reset != old.reset:
            life.resets.append(Committed(at, new.epoch, new.offset or 0))
        elif new.epoch > old.epoch:
            # A partition that appeared after the group began starts at 0, by its first claim.
            is_start = old.offset is None and new.offset == 0
            if new.offset != old.offset and not is_start:
                self._breach(partition, at, f"a claim moved {old.offset} to {new.offset}")
            life.claims.append(Claimed(at, new.epoch, new.offset, new.member, new.nonce))
        else:
            self._check_commit(partition, at, old, new)
            if new.offset is not None and new.offset != old.offset:
                life.commits.append(Committed(at, new.epoch, new.offset))
        life.state = new

    def _check_commit(
        self, partition: TopicPartition, at: float, old: OffsetState, new: OffsetState
    ) -> None:
        if (new.epoch, new.nonce) != (old.epoch, old.nonce):
            self._breach(
                partition,
                at,
                f"a zombie committed: {new.member} in epoch {new.epoch}, "
                f"while it was {old.member}'s in epoch {old.epoch}",
            )
        if (new.offset or 0) < (old.offset or 0):
            self._breach(partition, at, f"committed went back from {old.offset} to {new.offset}")

    def _check_claimed(self, partition: TopicPartition) -> None:
        life = self.lives[partition]
        owner, state = life.owner, life.state
        if owner is not None and (owner.nonce, owner.epoch) != (state.nonce, state.epoch):
            self._breach(partition, life.since, "an owner's node came without its claim")

    def _breach(self, partition: TopicPartition, at: float, what: str) -> None:
        self.breaches.append(f"{at:.3f} {partition}: {what}")


def _is(owner: Owner | None, name: str) -> bool:
    return owner is not None and owner.member.startswith(f"{name}-")
