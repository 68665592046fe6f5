"""The best division when members differ: as balanced as can be, and of those the cheapest.

Balance is measured as the sum of load² ÷ weight, which every shift from a fuller to an emptier member
makes smaller; cost is what an assignor says of a kind of partition at a member (a move costs 1). This
is a flow of least cost: members are nodes, a partition that `a` holds and `b` may hold is an edge
from a to b, and one more node, the sink, stands for "one partition more or fewer". A division is the
best one if and only if no cycle of edges makes it better, so cycles that do are looked for
(Bellman-Ford, all edges at a time) and gone through until there is none. All numbers are integers,
so that every process finds the same division.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import lcm
from typing import Final

import numpy as np
import numpy.typing as npt

from folkmoot.protocol.records import TopicPartition

_Numbers = npt.NDArray[np.int64]

_FAR: Final = 2**61
"""More than any path costs: there is no edge."""
_MOST_SCALE: Final = 10_000
"""Weights whose common multiple is beyond it are rounded, so that sums stay below _FAR."""

Kind = tuple[str, str | None, str]
"""Partitions that are alike to an assignor: topic, former owner, rack of the leader."""
Cost = Callable[[Kind, str], int]


@dataclass(slots=True)
class _Member:
    """What one has now, by kind, and what it costs to have one more or one fewer."""

    name: str
    weight: int
    load: int = 0
    held: dict[Kind, list[TopicPartition]] = field(default_factory=dict)

    def take(self, kind: Kind, partition: TopicPartition) -> None:
        self.held.setdefault(kind, []).append(partition)
        self.load += 1

    def give(self, kind: Kind) -> TopicPartition:
        partition = self.held[kind].pop()
        if not self.held[kind]:
            del self.held[kind]
        self.load -= 1
        return partition


class Flow:
    """One division, made by `divide`: everything somewhere first, then better until nothing is."""

    def __init__(
        self,
        weights: Mapping[str, int],
        takers: Mapping[str, frozenset[str]],
        kinds: Mapping[TopicPartition, Kind],
        cost: Cost,
    ) -> None:
        """`takers` are the members that want a topic; `kinds` has the partitions in their order."""
        self._members = [_Member(name, weights[name]) for name in sorted(weights)]
        self._places = {member.name: place for place, member in enumerate(self._members)}
        self._kinds = kinds
        self._takers = takers
        self._costs: dict[Kind, _Numbers] = {}
        for kind in dict.fromkeys(kinds.values()):
            row = np.full(len(self._members), _FAR, np.int64)
            for name in takers.get(kind[0], ()):
                row[self._places[name]] = cost(kind, name)
            self._costs[kind] = row
        scale = min(lcm(*weights.values()), _MOST_SCALE)
        dearest = max(
            (int(row[row < _FAR].max(initial=0)) for row in self._costs.values()), default=0
        )
        self._unit = scale * (2 * (dearest + 1) * (len(self._members) + 1))

    def divide(self) -> dict[TopicPartition, str]:
        """The owner of every partition that somebody takes."""
        self._start()
        if len(self._members) > 1:
            self._improve()
        return {
            partition: member.name
            for member in self._members
            for some in member.held.values()
            for partition in some
        }

    def _start(self) -> None:
        """Each where it was if it may, else to whoever is least loaded; the pickiest topics first."""
        homeless: list[TopicPartition] = []
        for partition, (topic, home, _) in self._kinds.items():
            if home is not None and home in self._takers.get(topic, ()):
                self._members[self._places[home]].take(self._kinds[partition], partition)
            else:
                homeless.append(partition)
        homeless.sort(key=lambda partition: (len(self._takers.get(partition.topic, ())), partition))
        for partition in homeless:
            kind = self._kinds[partition]
            takers = [self._members[self._places[each]] for each in self._takers.get(kind[0], ())]
            if takers:
                costs = self._costs[kind]
                least = min(
                    takers,
                    key=lambda taker: (
                        self._more(taker),
                        int(costs[self._places[taker.name]]),
                        taker.name,
                    ),
                )
                least.take(kind, partition)

    def _more(self, member: _Member) -> int:
        """What one partition more adds to the sum of load² ÷ weight, in our units."""
        return self._unit * (2 * member.load + 1) // member.weight

    def _fewer(self, member: _Member) -> int:
        return -(self._unit * (2 * member.load - 1) // member.weight)

    def _improve(self) -> None:
        size = len(self._members)
        edges = np.full((size + 1, size + 1), _FAR, np.int64)
        for place in range(size):
            self._update(edges, place)
        while cycle := _bad_cycle(edges):
            for source, target in zip(cycle, (*cycle[1:], cycle[0]), strict=True):
                if source < size and target < size:
                    self._shift(source, target)
            for place in cycle:
                if place < size:
                    self._update(edges, place)

    def _update(self, edges: _Numbers, place: int) -> None:
        """What it costs to shift one partition from this member to each other, and to the sink.

        An edge into the sink is a partition that stays here; one out of it, a partition that leaves.
        """
        member, sink = self._members[place], len(self._members)
        edges[place, :] = _FAR
        for kind in member.held:
            costs = self._costs[kind]
            change = np.where(costs < _FAR, costs - costs[place], _FAR)
            np.minimum(edges[place, :sink], change, out=edges[place, :sink])
        edges[place, place] = _FAR
        edges[place, sink] = self._more(member)
        edges[sink, place] = self._fewer(member) if member.load else _FAR

    def _shift(self, source: int, target: int) -> None:
        giver, taker = self._members[source], self._members[target]
        kind = min(
            (kind for kind in giver.held if self._costs[kind][target] < _FAR),
            key=lambda kind: (
                int(self._costs[kind][target] - self._costs[kind][source]),
                str(kind),
            ),
        )
        taker.take(kind, giver.give(kind))


def _bad_cycle(edges: _Numbers) -> Sequence[int]:
    """The nodes of a cycle whose edges sum up to less than 0; nothing if there is none."""
    size = len(edges)
    nodes = np.arange(size)
    distance = np.zeros(size, np.int64)
    before = np.full(size, -1, np.int64)
    while True:
        through = distance[:, None] + edges
        nearest = through.argmin(axis=0)
        shorter = through[nearest, nodes]
        better = shorter < distance
        if not better.any():
            return ()
        distance = np.where(better, shorter, distance)
        before = np.where(better, nearest, before)
        cycle = _cycle(before.tolist())
        if cycle:
            return cycle


def _cycle(before: Sequence[int]) -> Sequence[int]:
    """A cycle among nodes that each name the one before them, in the direction of the edges."""
    mark = [0] * len(before)
    for first in range(len(before)):
        node = first
        while node >= 0 and not mark[node]:
            mark[node] = first + 1
            node = before[node]
        if node >= 0 and mark[node] == first + 1:
            cycle = [node]
            while (node := before[cycle[-1]]) != cycle[0]:
                cycle.append(node)
            return cycle[::-1]
    return ()
