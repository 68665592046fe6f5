"""Balanced, with the fewest moves: everybody keeps what they have as far as the balance allows."""

from collections.abc import Mapping

from folkmoot.consumers.assignors.assignor import Question
from folkmoot.consumers.assignors.flow import Cost, Flow, Kind
from folkmoot.protocol.records import TopicPartition


class Sticky:
    """The default: as balanced as the subscriptions allow, by weight, and then the fewest moves.

    Exactly the fewest, whatever the subscriptions are: members that all want the same are served by
    arithmetic, others by a flow of least cost.
    """

    name = "sticky"

    def assign(self, question: Question) -> dict[TopicPartition, str]:
        if len({(each.topics, each.weight) for each in question.subscribers.values()}) == 1:
            return _among_equals(question)
        return _divided(question, _a_move, {})


class RackAware:
    """Balanced first; then as many partitions as can be at members in the rack of their leader; and
    then the fewest moves. A member or a leader that names no rack is near to all."""

    name = "rack"

    def assign(self, question: Question) -> dict[TopicPartition, str]:
        members = question.subscribers
        far = len(question.previous) + 1  # no number of moves is worth a partition read from afar

        def cost(kind: Kind, member: str) -> int:
            here, there = members[member].rack, kind[2]
            apart = bool(here and there and here != there)
            return far * apart + _a_move(kind, member)

        return _divided(question, cost, question.racks)


def _a_move(kind: Kind, member: str) -> int:
    return int(kind[1] not in (None, member))


def _homes(question: Question) -> dict[TopicPartition, str | None]:
    """Every partition with the member that had it, if that is still there and wants it."""
    homes: dict[TopicPartition, str | None] = {}
    for partition in question.partitions():
        home = question.previous.get(partition)
        there = None if home is None else question.subscribers.get(home)
        homes[partition] = home if there is not None and partition.topic in there.topics else None
    return homes


def _divided(
    question: Question, cost: Cost, racks: Mapping[TopicPartition, str]
) -> dict[TopicPartition, str]:
    members = question.subscribers
    takers = {
        topic: frozenset(name for name, each in members.items() if topic in each.topics)
        for topic in question.sizes
    }
    kinds: dict[TopicPartition, Kind] = {
        partition: (partition.topic, home, racks.get(partition, ""))
        for partition, home in _homes(question).items()
    }
    return Flow({name: each.weight for name, each in members.items()}, takers, kinds, cost).divide()


def _among_equals(question: Question) -> dict[TopicPartition, str]:
    """All want the same and count the same: loads differ by one, and the fullest keep the larger."""
    wanted = next(iter(question.subscribers.values())).topics
    held: dict[str, list[TopicPartition]] = {name: [] for name in question.subscribers}
    loose: list[TopicPartition] = []
    for partition, home in _homes(question).items():
        if partition.topic in wanted:
            (loose if home is None else held[home]).append(partition)
    total = len(loose) + sum(map(len, held.values()))
    share, larger = divmod(total, len(held))
    fullest_first = sorted(held, key=lambda name: (-len(held[name]), name))
    shares = {name: share + (rank < larger) for rank, name in enumerate(fullest_first)}
    for name, some in held.items():
        loose += some[shares[name] :]
        del some[shares[name] :]
    loose.sort()
    hungry = [name for name in fullest_first if len(held[name]) < shares[name]]
    while loose:
        for name in hungry:  # in turn, so that the partitions of a topic are spread
            held[name].append(loose.pop(0))
        hungry = [name for name in hungry if len(held[name]) < shares[name]]
    return {partition: name for name, some in held.items() for partition in some}
