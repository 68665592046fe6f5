"""Predictable assignors, which depend on the numbers alone.

They move more than necessary when members come and go.
"""

from itertools import islice

from folkmoot.consumers.assignors.assignor import AssignmentInput
from folkmoot.protocol.records import TopicPartition


class Range:
    """Gives each member neighbouring partitions of each topic, by name.

    Topics with the same number of partitions and the same subscribers are divided alike: one member has all
    records of a key.
    """

    name = "range"

    def assign(self, inputs: AssignmentInput) -> dict[TopicPartition, str]:
        owners: dict[TopicPartition, str] = {}
        divided: dict[str, list[TopicPartition]] = {}
        for partition in inputs.partitions():
            divided.setdefault(partition.topic, []).append(partition)
        for topic, partitions in divided.items():
            members = inputs.subscribed(topic)
            quota, larger = divmod(len(partitions), max(1, len(members)))
            remaining = iter(partitions)
            for rank, member in enumerate(members):
                some = islice(remaining, quota + (rank < larger))
                owners.update(dict.fromkeys(some, member))
        return owners


class RoundRobin:
    """Gives the members one partition each, in turns, by name."""

    name = "round-robin"

    def assign(self, inputs: AssignmentInput) -> dict[TopicPartition, str]:
        members = sorted(inputs.subscribers)
        owners: dict[TopicPartition, str] = {}
        next_index = 0
        for partition in inputs.partitions():
            for step in range(len(members)):
                member = members[(next_index + step) % len(members)]
                if partition.topic in inputs.subscribers[member].topics:
                    owners[partition] = member
                    next_index += step + 1
                    break
        return owners
