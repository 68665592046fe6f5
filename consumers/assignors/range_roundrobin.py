"""Assignors that look at nothing but the numbers: for those who need the division to be foreseeable.

They move more than they must when members come and go.
"""

from collections import Counter

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
        divided = Counter(partition.topic for partition in given.partitions())
        done: Counter[str] = Counter()
        members = {topic: given.subscribed(topic) for topic in divided}
        for partition in given.partitions():
            topic = partition.topic
            if members[topic]:
                share, larger = divmod(divided[topic], len(members[topic]))
                place, first = done[topic], larger * (share + 1)
                rank = place // (share + 1) if place < first else larger + (place - first) // share
                owners[partition] = members[topic][rank]
                done[topic] += 1
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
