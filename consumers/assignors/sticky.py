"""Balanced within one, with few moves: everybody keeps what they have as far as the balance allows."""

from bisect import insort
from collections import defaultdict
from collections.abc import Sequence
from heapq import heappop, heappush

from folkmoot.consumers.assignors.assignor import AssignmentInput
from folkmoot.protocol.records import TopicPartition


class Sticky:
    """The default. Greedy, in three steps; 10,000 partitions of 1,000 members take well below a second.

    1. Every partition stays with the member that had it, if that still subscribes to it.
    2. What is left goes one by one to the least loaded of its subscribers, topics with the fewest
       subscribers first. Of what it may take, a member takes a partition in its own rack first.
    3. From the fullest on, a member that has two more than another one gives one away to it, directly or
       by others that pass one on, until that is possible for nobody: no division is more balanced.

    Where all subscribe to the same topics, none as balanced moves less.
    """

    name = "sticky"

    def assign(self, given: AssignmentInput) -> dict[TopicPartition, str]:
        return _Division(given).divide()


class _Loads:
    """The least loaded member of each group of subscribers, found by heaps that are put right late.

    A heap may hold a member at a load that it no longer has; there is always an entry at the right one.
    """

    def __init__(self, groups: Sequence[Sequence[str]]) -> None:
        self.of: dict[str, int] = {}
        self._heaps: list[list[tuple[int, str]]] = [[] for _ in groups]
        self._heaps_of: defaultdict[str, list[list[tuple[int, str]]]] = defaultdict(list)
        for group, heap in zip(groups, self._heaps, strict=True):
            for member in group:
                self._heaps_of[member].append(heap)
                self.of[member] = 0
                heap.append((0, member))  # in the order of names: a heap

    def add(self, member: str, count: int) -> None:
        self.of[member] += count
        for heap in self._heaps_of[member]:
            heappush(heap, (self.of[member], member))

    def least(self, group: int) -> tuple[int, str]:
        """The load and the name of the member."""
        heap = self._heaps[group]
        while self.of[heap[0][1]] != heap[0][0]:
            heappop(heap)
        return heap[0]


class _Division:
    """One division under way. Topics with the same subscribers are one group, known by its number."""

    def __init__(self, given: AssignmentInput) -> None:
        self._given = given
        subscribed = {topic: tuple(given.subscribed(topic)) for topic in sorted(given.sizes)}
        self._subscribers = sorted({each for each in subscribed.values() if each}, key=_pickiest)
        numbers = {group: number for number, group in enumerate(self._subscribers)}
        self._group_of = {topic: numbers[each] for topic, each in subscribed.items() if each}
        self._loads = _Loads(self._subscribers)
        self._held: dict[str, dict[int, list[TopicPartition]]] = {
            member: {} for member in self._loads.of
        }

    def divide(self) -> dict[TopicPartition, str]:
        loose = self._keep()
        for group in sorted(loose):
            self._hand_out(group, loose[group])
        self._even_out()
        return {
            partition: member
            for member, held in self._held.items()
            for some in held.values()
            for partition in some
        }

    def _keep(self) -> dict[int, list[TopicPartition]]:
        """Leave everything where it was; → what has no owner, in order."""
        loose: dict[int, list[TopicPartition]] = {}
        wanted = [frozenset(group) for group in self._subscribers]
        for partition in self._given.partitions():
            group = self._group_of.get(partition.topic)
            if group is None:
                continue
            home = self._given.previous.get(partition)
            if home is not None and home in wanted[group]:
                self._take(home, group, partition)
            else:
                loose.setdefault(group, []).append(partition)
        return loose

    def _take(self, member: str, group: int, partition: TopicPartition) -> None:
        self._held[member].setdefault(group, []).append(partition)
        self._loads.add(member, 1)

    def _hand_out(self, group: int, partitions: list[TopicPartition]) -> None:
        """To whoever has least, in turn, so that the partitions of a topic are spread."""
        by_rack: dict[str, list[TopicPartition]] = {}
        for partition in reversed(partitions):
            by_rack.setdefault(self._given.racks.get(partition, ""), []).append(partition)
        for _ in partitions:
            _, member = self._loads.least(group)
            rack = self._given.subscribers[member].rack
            if rack not in by_rack:  # of what most is left, so that others find something in theirs
                rack = max(by_rack, key=lambda each: (len(by_rack[each]), each))
            self._take(member, group, by_rack[rack].pop())
            if not by_rack[rack]:
                del by_rack[rack]

    def _even_out(self) -> None:
        """The fullest gives first. Who can give nothing is looked at again after the next move."""
        loads = self._loads.of
        by_load = sorted((load, member) for member, load in loads.items())
        stuck: list[str] = []
        stuck_groups: set[int] = set()  # nobody can get anything out of these
        while by_load:
            load, giver = by_load.pop()
            if load != loads[giver]:
                continue
            if stuck_groups.issuperset(self._groups_of(giver)):
                stuck.append(giver)
                continue
            chain = self._chain(giver, stuck_groups)
            if not chain:
                stuck.append(giver)
                continue
            for source, group, target in chain:
                self._take(target, group, self._take_from(source, group, target))
                self._loads.add(source, -1)
            for member in (giver, chain[-1][2], *stuck):
                insort(by_load, (loads[member], member))
            stuck.clear()
            stuck_groups.clear()

    def _groups_of(self, member: str) -> list[int]:
        return [group for group, held in self._held[member].items() if held]

    def _chain(self, giver: str, stuck_groups: set[int]) -> list[tuple[str, int, str]]:
        """The shortest way for one partition from the giver to one who has two fewer.

        Who is in between passes on one of what it has. Nothing if there is no way; then the groups that
        can be reached are noted.
        """
        enough = self._loads.of[giver] - 2
        reached: dict[int, str] = dict.fromkeys(self._groups_of(giver), giver)  # from whom
        into: dict[str, int] = {}
        groups = list(reached)
        for group in groups:
            load, target = self._loads.least(group)
            if load <= enough:
                chain = [(reached[group], group, target)]
                while (source := chain[0][0]) != giver:
                    chain.insert(0, (reached[into[source]], into[source], source))
                return chain
            for member in self._subscribers[group]:
                if member != giver and member not in into:
                    into[member] = group
                    for other in self._groups_of(member):
                        if other not in reached:
                            reached[other] = member
                            groups.append(other)
        stuck_groups.update(groups)
        return []

    def _take_from(self, giver: str, group: int, taker: str) -> TopicPartition:
        """One that the giver has not had before, if there is one; of equals one in the taker's rack."""
        held, racks = self._held[giver][group], self._given.racks
        rack = self._given.subscribers[taker].rack
        if rack and racks:
            new = [each for each in held if self._given.previous.get(each) != giver]
            near = [each for each in new or held if racks.get(each) == rack]
            if near:
                held.remove(near[-1])
                return near[-1]
        return held.pop()  # what was handed out stands behind what was kept


def _pickiest(group: tuple[str, ...]) -> tuple[int, tuple[str, ...]]:
    return len(group), group
