"""The targets of Trigger.AvailableNow: exactly what existed when the query began."""

from collections.abc import Collection, Mapping

from folkmoot.protocol.errors import (
    RequestTimeout,
    UnknownTopicOrPartition,
    ZooKeeperUnreachable,
)
from folkmoot.protocol.messages import LATEST
from folkmoot.protocol.records import TopicPartition
from folkmoot.spark_apps.offsets.log_watch import BROKER_WAIT, LogWatch
from folkmoot.spark_apps.options.config import StreamConfig
from folkmoot.spark_apps.stream.group_member import ReadPlan
from folkmoot.spark_apps.stream.owned_partitions import OwnedPartition


class Targets:
    """Ends of partitions, by their topics' ids; later partitions are not read."""

    def __init__(self, ends: Mapping[tuple[TopicPartition, str], int]) -> None:
        self._ends = ends

    def end(self, partition: TopicPartition, topic_id: str) -> int:
        return self._ends.get((partition, topic_id), 0)

    def are_reached(self, partitions: Mapping[TopicPartition, OwnedPartition]) -> bool:
        return all(
            owned.position is not None and owned.position >= self.end(partition, owned.topic_id)
            for partition, owned in partitions.items()
        )


def find_targets(config: StreamConfig, logs: LogWatch, read_plan: ReadPlan) -> Targets:
    """Look up where all partitions end that the options name, whichever member owns them.

    Raises UnknownTopicOrPartition, RequestTimeout, ZooKeeperUnreachable, or why brokers do not answer.
    """
    partitions = _partitions(config, logs, read_plan)
    found = logs.find(partitions, LATEST, BROKER_WAIT)
    if unknown := partitions.keys() - found.keys():
        raise RequestTimeout(logs.describe_silence(unknown))
    return Targets({(each, partitions[each]): end for each, end in found.items()})


def _partitions(
    config: StreamConfig, logs: LogWatch, read_plan: ReadPlan
) -> dict[TopicPartition, str]:
    """Return the partitions with their topics' ids."""
    if config.assign:
        return {each: logs.topic_id(each.topic) for each in config.assigned}
    names: Collection[str] = config.topics
    if not names:
        if (plan := read_plan()) is None:
            raise ZooKeeperUnreachable("which topics there are could not be read in ZooKeeper")
        names = sorted(each for each in plan.topics if config.reads(each))
    if not names:
        raise UnknownTopicOrPartition(f"no topic matches {config.subscribePattern!r}")
    return {
        TopicPartition(topic, number): logs.topic_id(topic)
        for topic in names
        for number in logs.partitions(topic, BROKER_WAIT)
    }
