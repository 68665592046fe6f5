"""A read of what is there now: which partitions and offsets, and the tasks that read them.

It joins no group. Options alone narrow the read. Spark's filters do not: it keeps one reader
for all uses of a frame, so that one use would get the rows of another's filters.
"""

from collections.abc import Mapping
from contextlib import closing
from typing import Final

from folkmoot.coordination.connector import connector
from folkmoot.coordination.discovery import ZooKeeperDiscovery
from folkmoot.coordination.groups import planning as group_plans
from folkmoot.coordination.groups.membership import MemberInfo
from folkmoot.coordination.groups.plan import TopicBasis
from folkmoot.coordination.wakeup import Wakeup
from folkmoot.protocol.errors import (
    ConfigError,
    OffsetOutOfRange,
    RequestTimeout,
    UnknownTopicOrPartition,
)
from folkmoot.protocol.messages import EARLIEST, LATEST
from folkmoot.protocol.records import TopicPartition
from folkmoot.spark_apps.offsets import bounds
from folkmoot.spark_apps.offsets.checkpoint import NO_EPOCH, Range
from folkmoot.spark_apps.offsets.log_watch import BROKER_WAIT, LogWatch, ReadPosition
from folkmoot.spark_apps.options.config import BatchConfig, Bound
from folkmoot.spark_apps.tasks import planning
from folkmoot.spark_apps.tasks.planning import Task

SESSION_TIMEOUT: Final = 6.0
SAMPLE_WAIT: Final = 0.5


def tasks(config: BatchConfig) -> list[Task]:
    """The tasks of a read of what lies between the bounds.

    Raises UnknownTopicOrPartition, ConfigError where a partition begins behind its end, OffsetOutOfRange
    for offsets that do not exist yet, NoOffset, ZooKeeperUnreachable, or why brokers do not answer.
    """
    finder = ZooKeeperDiscovery(connector(config.zookeeper), SESSION_TIMEOUT, config.listener)
    with closing(finder), closing(LogWatch(config, finder)) as logs:
        topics = _topics(config, finder)
        every = config.assigned or [
            TopicPartition(topic, number)
            for topic, basis in topics.items()
            for number in range(basis.partitions)
        ]
        partitions = {each: topics[each.topic].topic_id for each in every}
        ranges = _ranges(config, partitions, logs)
        if not ranges:
            return []
        positions = {
            each: ReadPosition(partitions[each], range_.first, NO_EPOCH)
            for each, range_ in ranges.items()
        }
        with closing(Wakeup()) as unused_wakeup:
            logs.watch(positions, SAMPLE_WAIT, unused_wakeup)  # reports the size of records
        sizes = {each: range_.size for each, range_ in ranges.items()}
        records = planning.task_records(sizes, config, logs)
        topic_ids = {topic: basis.topic_id for topic, basis in topics.items()}
        return planning.tasks(ranges, topic_ids, records, logs, logs.brokers())


def _topics(config: BatchConfig, finder: ZooKeeperDiscovery) -> dict[str, TopicBasis]:
    """Those that are read, with their ids and numbers of partitions."""
    subscription = MemberInfo(config.topics, "", 0.0, pattern=config.subscribePattern)
    topics = finder.ask(group_plans.wanted_topics([subscription]))
    if config.subscribePattern and not topics:
        raise UnknownTopicOrPartition(f"no topic matches {config.subscribePattern!r}")
    for topic in config.topics:
        if topic not in topics:
            raise UnknownTopicOrPartition(f"topic {topic} does not exist")
    counts = {topic: basis.partitions for topic, basis in topics.items()}
    assigned = Bound(EARLIEST, dict.fromkeys(config.assigned, 0))
    for name, bound in (
        ("assign", assigned),
        ("startingOffsets", config.starting()),
        ("endingOffsets", config.ending()),
    ):
        bounds.check_existing(bound, counts, name)
    return topics


def _ranges(
    config: BatchConfig, partitions: Mapping[TopicPartition, str], logs: LogWatch
) -> dict[TopicPartition, Range]:
    """Return the ranges to read, without empty ones."""
    for topic in sorted({each.topic for each in partitions}):
        logs.partitions(topic, BROKER_WAIT)
    first = _complete(logs, partitions, bounds.resolve(config.starting(), partitions, logs))
    end = _complete(logs, partitions, bounds.resolve(config.ending(), partitions, logs))
    last = _complete(logs, partitions, logs.find(partitions, LATEST, BROKER_WAIT))
    for each in partitions:
        if end[each] > last[each] or first[each] > last[each]:
            requested = max(first[each], end[each])
            raise OffsetOutOfRange(
                f"{each} ends at {last[each]}: offset {requested} does not exist yet"
            )
        if first[each] > end[each]:
            raise ConfigError(
                f"{each} cannot be read from {first[each]} to {end[each]}: "
                "the end must not be before the start"
            )
    return {each: Range(first[each], end[each]) for each in partitions if first[each] < end[each]}


def _complete(
    logs: LogWatch, partitions: Mapping[TopicPartition, str], offsets: dict[TopicPartition, int]
) -> dict[TopicPartition, int]:
    if silent := partitions.keys() - offsets.keys():
        raise RequestTimeout(logs.describe_silence(silent))
    return offsets
