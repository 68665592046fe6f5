"""How far the logs of a history go: what is sent, and where `latest` is at any moment."""

from collections import defaultdict

from folkmoot.protocol.records import TopicPartition


class Logs:
    """The ends of partitions, each of the topic with an id; a log that nobody has sent to is empty."""

    def __init__(self) -> None:
        self._ends: defaultdict[tuple[TopicPartition, str], int] = defaultdict(int)
        self._before: dict[tuple[TopicPartition, str], int] = {}
        """The highest end, before a cut, of logs that have lost their end."""

    def end(self, partition: TopicPartition, topic_id: str) -> int:
        """The offset that the next record gets."""
        return self._ends[partition, topic_id]

    def send(self, partition: TopicPartition, topic_id: str, count: int) -> None:
        """So many records more."""
        self._ends[partition, topic_id] += count

    def reach(self, partition: TopicPartition, topic_id: str, offset: int) -> None:
        """Somebody processes all below the offset: it was sent, at the latest right before."""
        self._ends[partition, topic_id] = max(self._ends[partition, topic_id], offset)

    def cut(self, partition: TopicPartition, topic_id: str, end: int) -> None:
        """It loses what lies behind."""
        self._before[partition, topic_id] = self.highest(partition, topic_id)
        self._ends[partition, topic_id] = end

    def highest(self, partition: TopicPartition, topic_id: str) -> int:
        """The highest end that it ever had."""
        key = partition, topic_id
        return max(self._ends[key], self._before.get(key, 0))

    def end_after_cut(self, partition: TopicPartition, topic_id: str) -> int | None:
        """The end of a log that was cut; None of others, which have whatever is processed of them."""
        key = partition, topic_id
        return self._ends[key] if key in self._before else None
