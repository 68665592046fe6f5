"""How far the logs of a history go: what is sent, and where `latest` is at any moment."""

from collections import defaultdict

from folkmoot.protocol.records import TopicPartition


class Logs:
    """The ends of partitions, each of the topic with an id; a log that nobody has sent to is empty."""

    def __init__(self) -> None:
        self._ends: defaultdict[tuple[TopicPartition, str], int] = defaultdict(int)

    def end(self, partition: TopicPartition, topic_id: str) -> int:
        """The offset that the next record gets."""
        return self._ends[partition, topic_id]

    def send(self, partition: TopicPartition, topic_id: str, count: int) -> None:
        """So many records more."""
        self._ends[partition, topic_id] += count

    def reach(self, partition: TopicPartition, topic_id: str, offset: int) -> None:
        """Somebody processes all below the offset: it was sent, at the latest right before."""
        self._ends[partition, topic_id] = max(self._ends[partition, topic_id], offset)
