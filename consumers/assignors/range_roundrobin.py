"""Assignors that look at nothing but the numbers: for those who need the division to be foreseeable.

They move more than they must when members come and go.
"""

from itertools import islice

from folkmoot.consumers.assignors.assignor import AssignmentInput
from folkmoot.protocol.records import TopicPartition


class Range:
    """Of each topic, neighbouring partitions to one member; members in the order of their names.

    Topics with equally many partitions and the same subscribers are divided alike, so that records
    with one key in all of them meet at one member.
    """

    name = "range"

    def assign(self, given: AssignmentInput) -> dict[TopicPartition, str]:
        owners: dict[TopicPartition, str] = {}
        divided: dict[str, list[TopicPartition]] = {}
        for partition in given.partitions():
            divided.setdefault(partition.topic, []).append(partition)
        for topic, partitions in divided.items():
            members = given.subscribed(topic)
            share, larger = divmod(len(partitions), max(1, len(members)))
            remaining = iter(partitions)
            for rank, member in enumerate(members):
                some = islice(remaining, share + (rank < larger))
                owners.update(dict.fromkeys(some, member))
        return owners


class RoundRobin:
    """All partitions of all topics in turn to the members in the order of their names."""

    name = "round-robin"

    def assign(self, given: AssignmentInput) -> dict[TopicPartition, str]:
        members = sorted(given.subscribers)
        owners: dict[TopicPartition, str] = {}
        turn = 0
        for partition in given.partitions():
            for step in range(len(members)):
                member = members[(turn + step) % len(members)]
                if partition.topic in given.subscribers[member].topics:
                    owners[partition] = member
                    turn += step + 1
                    break
        return owners
