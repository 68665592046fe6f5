"""What an onlooker sees of the group: plans, moves of partitions, who gained and who gave up."""

from collections import Counter
from collections.abc import Mapping

from folkmoot.coordination.groups.inspection import GroupState

Owners = dict[int, str]
"""Partition → client, for those that have an owner."""


def client(member: str) -> str:
    """The client id in a member's name, `<client id>-<nonce>-<number>`."""
    return member.rsplit("-", 2)[0]


class Watch:
    """Turns looks at a group into what there is to tell. Pure: no I/O, no clock.

    A rebalance is a new plan. It is settled when every partition is owned by the member that the
    plan names; what moved since the last time that was so is told then.
    """

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self.generation = 0
        self.gained: Counter[str] = Counter()
        self.given_up: Counter[str] = Counter()
        self.owners: Owners = {}
        self.settled = False
        self._members: frozenset[str] = frozenset()
        self._told: Owners = {}

    @property
    def shares(self) -> dict[str, list[int]]:
        """The partitions of each client that owns some."""
        shares: dict[str, list[int]] = {}
        for partition, owner in sorted(self.owners.items()):
            shares.setdefault(owner, []).append(partition)
        return dict(sorted(shares.items()))

    def see(self, group: GroupState | None) -> list[str]:
        """Take in a look at the group. → lines to show."""
        if group is None:
            return []
        lines = []
        if group.plan.generation != self.generation:
            lines.append(self._planned(group))
        owners = {
            each.partition.partition: client(each.owner)
            for each in group.partitions
            if each.owner is not None
        }
        self._count(owners)
        self.owners = owners
        self.settled = group.state == "stable" and len(owners) == self.partitions
        if self.settled and owners != self._told:
            lines.append(self._moved(owners))
            self._told = owners
        return lines

    def _planned(self, group: GroupState) -> str:
        members = frozenset(map(client, group.members))
        came, left = sorted(members - self._members), sorted(self._members - members)
        self.generation, self._members = group.plan.generation, members
        why = [f"{', '.join(came)} joined"] if came else []
        why += [f"{', '.join(left)} left"] if left else []
        reason = f" ({'; '.join(why)})" if why else ""
        return f"rebalance {group.plan.generation}: {len(members)} members{reason}"

    def _count(self, owners: Owners) -> None:
        for partition in range(self.partitions):
            before, now = self.owners.get(partition), owners.get(partition)
            if before != now:
                if before is not None:
                    self.given_up[before] += 1
                if now is not None:
                    self.gained[now] += 1

    def _moved(self, owners: Owners) -> str:
        moves: Mapping[tuple[str, str], int] = Counter(
            (self._told[partition], owner)
            for partition, owner in owners.items()
            if partition in self._told and self._told[partition] != owner
        )
        shares = ", ".join(f"{name} {len(some)}" for name, some in self.shares.items())
        moved = "; ".join(f"{old} → {new}: {count}" for (old, new), count in sorted(moves.items()))
        return f"  settled: {shares}" + (f"  (moved {moved})" if moved else "")
