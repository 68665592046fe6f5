"""Ways of dividing that look at nothing but the numbers: for those who need them to be foreseeable.

They move more than they must when members come and go, and know no weights.
"""

from itertools import islice

from folkmoot.consumers.assignors.assignor import Question
from folkmoot.protocol.records import TopicPartition


class Range:
    """Of each topic, neighbouring partitions to one member; members in the order of their names.

    Topics with equally many partitions that the same members want are divided alike, so that records
    with one key in all of them meet at one member.
    """

    name = "range"

    def assign(self, question: Question) -> dict[TopicPartition, str]:
        owners: dict[TopicPartition, str] = {}
        for topic in sorted(question.sizes):
            takers = _takers(question, topic)
            if not takers:
                continue
            partitions = iter([each for each in question.partitions() if each.topic == topic])
            share, larger = divmod(question.sizes[topic], len(takers))
            for rank, taker in enumerate(takers):
                owners.update((each, taker) for each in islice(partitions, share + (rank < larger)))
        return owners


class RoundRobin:
    """All partitions of all topics in turn to the members in the order of their names."""

    name = "round-robin"

    def assign(self, question: Question) -> dict[TopicPartition, str]:
        members = sorted(question.subscribers)
        owners: dict[TopicPartition, str] = {}
        turn = 0
        for partition in question.partitions():
            for step in range(len(members)):
                member = members[(turn + step) % len(members)]
                if partition.topic in question.subscribers[member].topics:
                    owners[partition] = member
                    turn += step + 1
                    break
        return owners


def _takers(question: Question, topic: str) -> list[str]:
    return sorted(name for name, each in question.subscribers.items() if topic in each.topics)
