"""Start offsets of partitions without a committed offset."""

from collections.abc import Mapping
from typing import Final

from folkmoot.protocol.messages import EARLIEST
from folkmoot.protocol.records import TopicPartition
from folkmoot.spark_apps.offsets import bounds
from folkmoot.spark_apps.offsets.checkpoint import Ends, InitialTopic
from folkmoot.spark_apps.offsets.log_watch import LogWatch
from folkmoot.spark_apps.options.config import Bound, StreamConfig
from folkmoot.spark_apps.stream.group_member import ReadPlan

_EARLIEST: Final = Bound(EARLIEST)


class StartOffsets:
    """Finds starts by the options, for partitions that were there when the query first began.

    Later partitions are read from their start; those that appeared since the group began come with an
    offset. A start must be committed before anything is read there: a successor would look up another
    `latest`.
    """

    def __init__(self, config: StreamConfig, logs: LogWatch, read_plan: ReadPlan) -> None:
        self.topics: Mapping[str, InitialTopic] | None = None
        """The topics as they were when the query first began; None until that is known."""
        self._config = config
        self._logs = logs
        self._read_plan = read_plan

    def restore(self, batch: Ends) -> None:
        """Take the topics from the checkpoint, if it has them."""
        if batch.ranges:
            self.topics = batch.initial_topics

    def note_topics(self) -> None:
        """Take the topics from the group's plan, once. Raises ConfigError if an option names a partition
        that none of them has."""
        if self.topics is not None or (plan := self._read_plan()) is None:
            return
        self.topics = {
            topic: InitialTopic(basis.topic_id, basis.partitions)
            for topic, basis in plan.topics.items()
            if self._config.reads(topic)
        }
        counts = {topic: each.partitions for topic, each in self.topics.items()}
        bounds.check_existing(self._config.starting(), counts, "startingOffsets")

    def find(self, partitions: Mapping[TopicPartition, str]) -> dict[TopicPartition, int]:
        """Return the starts of partitions with their topics' ids, as far as brokers answer in time.

        Raises NoOffset, OffsetOutOfRange.
        """
        old = {each: of for each, of in partitions.items() if self._existed_at_start(each, of)}
        new = {each: of for each, of in partitions.items() if each not in old}
        starts: dict[TopicPartition, int] = {}
        for unresolved, bound in ((old, self._config.starting()), (new, _EARLIEST)):
            if unresolved:
                found = bounds.resolve(bound, unresolved, self._logs)
                starts |= bounds.drop_unconfirmed(bound, found, unresolved, self._logs)
        return starts

    def _existed_at_start(self, partition: TopicPartition, topic_id: str) -> bool:
        initial = (self.topics or {}).get(partition.topic)
        if initial is None or initial.topic_id != topic_id:
            return False
        return partition.partition < initial.partitions
