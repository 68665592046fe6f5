"""A balanced assignor with few moves: members keep their partitions as far as the balance allows."""

from bisect import insort
from collections import defaultdict
from collections.abc import Sequence
from heapq import heappop, heappush

from folkmoot.consumers.assignors.assignor import AssignmentInput
from folkmoot.protocol.records import TopicPartition


class Sticky:
    """The default. Greedy, in three steps; 10,000 partitions of 1,000 members take well below a second.

    1. Every partition stays with its last owner, if that still subscribes to it.
    2. Each other one goes to its least loaded subscriber, topics with the fewest subscribers first. A member
       takes partitions in its own rack first.
    3. From the fullest member on, one with two more than another gives one to it, directly or through others,
       until no such pair is left: no division is more balanced.

    If all members subscribe to the same topics, no balanced division moves less.
    """

    name = "sticky"

    def assign(self, inputs: AssignmentInput) -> dict[TopicPartition, str]:
        return _Division(inputs).divide()


class _Loads:
    """The least loaded member of each group of subscribers, by heaps with outdated entries.

    A heap also has old loads of a member; there is always an entry with the current one.
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
        """Return the member's load and name."""
        heap = self._heaps[group]
        while self.of[heap[0][1]] != heap[0][0]:
            heappop(heap)
        return heap[0]


class _Division:
    """One division under way. Topics with the same subscribers are one group, known by its number."""

    def __init__(self, inputs: AssignmentInput) -> None:
        self._inputs = inputs
        subscribed = {topic: tuple(inputs.subscribed(topic)) for topic in sorted(inputs.sizes)}
        self._subscribers = sorted(
            {group for group in subscribed.values() if group}, key=_subscriber_count
        )
        numbers = {group: number for number, group in enumerate(self._subscribers)}
        self._group_of = {topic: numbers[group] for topic, group in subscribed.items() if group}
        self._loads = _Loads(self._subscribers)
        self._assigned: dict[str, dict[int, list[TopicPartition]]] = {
            member: {} for member in self._loads.of
        }

    def divide(self) -> dict[TopicPartition, str]:
        unassigned = self._keep()
        for group in sorted(unassigned):
            self._distribute(group, unassigned[group])
        self._even_out()
        return {
            partition: member
            for member, held in self._assigned.items()
            for some in held.values()
            for partition in some
        }

    def _keep(self) -> dict[int, list[TopicPartition]]:
        """Keep the last owners, and return the partitions without one, in order."""
        unassigned: dict[int, list[TopicPartition]] = {}
        wanted = [frozenset(group) for group in self._subscribers]
        for partition in self._inputs.partitions():
            group = self._group_of.get(partition.topic)
            if group is None:
                continue
            owner = self._inputs.previous.get(partition)
            if owner is not None and owner in wanted[group]:
                self._assign(owner, group, partition)
            else:
                unassigned.setdefault(group, []).append(partition)
        return unassigned

    def _assign(self, member: str, group: int, partition: TopicPartition) -> None:
        self._assigned[member].setdefault(group, []).append(partition)
        self._loads.add(member, 1)

    def _distribute(self, group: int, partitions: list[TopicPartition]) -> None:
        """Give each partition to the least loaded member, so that a topic is spread."""
        by_rack: dict[str, list[TopicPartition]] = {}
        for partition in reversed(partitions):
            by_rack.setdefault(self._inputs.racks.get(partition, ""), []).append(partition)
        for _ in partitions:
            _, member = self._loads.least(group)
            rack = self._inputs.subscribers[member].rack
            if rack not in by_rack:  # take from the largest rack: others find some in theirs
                rack = max(by_rack, key=lambda rack_name: (len(by_rack[rack_name]), rack_name))
            self._assign(member, group, by_rack[rack].pop())
            if not by_rack[rack]:
                del by_rack[rack]

    def _even_out(self) -> None:
        """Move partitions, from the fullest member on. One that can give nothing is tried again later."""
        loads = self._loads.of
        by_load = sorted((load, member) for member, load in loads.items())
        stuck: list[str] = []
        stuck_groups: set[int] = set()  # no member can get a partition of these
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
                self._assign(target, group, self._pop_from(source, group, target))
                self._loads.add(source, -1)
            for member in (giver, chain[-1][2], *stuck):
                insort(by_load, (loads[member], member))
            stuck.clear()
            stuck_groups.clear()

    def _groups_of(self, member: str) -> list[int]:
        return [group for group, held in self._assigned[member].items() if held]

    def _chain(self, giver: str, stuck_groups: set[int]) -> list[tuple[str, int, str]]:
        """Return the shortest way for a partition from the giver to a member with two fewer.

        Members in between pass on one of theirs. Without a way, return nothing, and note the reached groups.
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

    def _pop_from(self, giver: str, group: int, taker: str) -> TopicPartition:
        """Take one that is new to the giver, if there is one, and rather one in the taker's rack."""
        held, racks = self._assigned[giver][group], self._inputs.racks
        rack = self._inputs.subscribers[taker].rack
        if rack and racks:
            new = [partition for partition in held if self._inputs.previous.get(partition) != giver]
            near = [partition for partition in new or held if racks.get(partition) == rack]
            if near:
                held.remove(near[-1])
                return near[-1]
        return held.pop()  # new ones are last


def _subscriber_count(group: tuple[str, ...]) -> tuple[int, tuple[str, ...]]:
    return len(group), group
