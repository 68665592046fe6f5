"""A read of what is there now: which partitions and offsets, and the tasks that read them.

Nobody joins a group for it. What Spark hands over of a query's filters narrows the read: partitions and
topics are left out, offsets and the beginning of a time become ends of ranges. The end of a time does
not: a record of an earlier time may lie behind those of later ones, since applications set timestamps.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

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
from folkmoot.protocol.quantities import EPOCH
from folkmoot.protocol.records import TopicPartition
from folkmoot.spark_apps import bounds, planning
from folkmoot.spark_apps.config import BatchConfig, Bound
from folkmoot.spark_apps.log_watch import LogWatch, Place
from folkmoot.spark_apps.offsets import NO_EPOCH, Range
from folkmoot.spark_apps.planning import Task

SESSION_TIMEOUT: Final = 6.0
BROKER_WAIT: Final = 30.0
SAMPLE_WAIT: Final = 0.5
_MILLISECOND: Final = timedelta(milliseconds=1)
_COMPARISONS: Final = (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)


def tasks(config: BatchConfig, filters: Sequence[Filter]) -> list[Task]:
    """The tasks of a read of what lies between the bounds, as far as the filters may be true.

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
        partitions = {
            each: topics[each.topic].topic_id for each in every if _may_have(each, filters)
        }
        ranges = _ranges(config, filters, partitions, logs)
        places = {
            each: Place(partitions[each], range_.first, NO_EPOCH) for each, range_ in ranges.items()
        }
        with closing(Wakeup()) as nobody:
            logs.watch(places, SAMPLE_WAIT, nobody)  # tells how large records are
        sizes = {each: range_.size for each, range_ in ranges.items()}
        records = planning.task_records(sizes, config, logs)
        topic_ids = {topic: basis.topic_id for topic, basis in topics.items()}
        return planning.tasks(ranges, topic_ids, records, logs, logs.brokers() if ranges else ())


def _topics(config: BatchConfig, finder: ZooKeeperDiscovery) -> dict[str, TopicBasis]:
    """Those that are read, with their ids and numbers of partitions."""
    wants = MemberInfo(config.topics, "", 0.0, pattern=config.subscribePattern)
    topics = finder.ask(group_plans.wanted_topics([wants]))
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
    config: BatchConfig,
    filters: Sequence[Filter],
    partitions: Mapping[TopicPartition, str],
    logs: LogWatch,
) -> dict[TopicPartition, Range]:
    """What is read of each partition, without those of which it is nothing."""
    for topic in sorted({each.topic for each in partitions}):
        logs.partitions(topic, BROKER_WAIT)
    first = _complete(logs, partitions, bounds.resolved(config.starting(), partitions, logs))
    end = _complete(logs, partitions, bounds.resolved(config.ending(), partitions, logs))
    last = _complete(logs, partitions, logs.find(partitions, LATEST, BROKER_WAIT))
    for each in partitions:
        if end[each] > last[each] or first[each] > last[each]:
            asked = max(first[each], end[each])
            raise OffsetOutOfRange(
                f"{each} ends at {last[each]}: offset {asked} does not exist yet"
            )
        if first[each] > end[each]:
            raise ConfigError(
                f"{each} is to be read from {first[each]} to {end[each]}: end behind it"
            )
    earliest = [low for each in filters if (low := _earliest(each)) is not None]
    if earliest and partitions:
        for each, offset in logs.first_at(dict.fromkeys(partitions, max(earliest))).items():
            first[each] = max(first[each], end[each] if offset is None else offset)
    ranges = {}
    for each in partitions:
        low, high = _offsets(filters, first[each], end[each])
        if low < high:
            ranges[each] = Range(low, high)
    return ranges


def _complete(
    logs: LogWatch, partitions: Mapping[TopicPartition, str], found: dict[TopicPartition, int]
) -> dict[TopicPartition, int]:
    if silent := partitions.keys() - found.keys():
        raise RequestTimeout(logs.why_silent(silent))
    return found


# -- filters --------------------------------------------------------------------------------------------


def is_known(each: Filter) -> bool:
    """Whether a filter narrows the read."""
    return isinstance(each, _COMPARISONS) and (
        each.attribute in (("partition",), ("offset",), ("timestamp",))
        or (each.attribute == ("topic",) and isinstance(each, EqualTo | In))
    )


def is_exact(each: Filter) -> bool:
    """Whether the read gives what the filter lets through and nothing else, so that Spark need not look."""
    if not is_known(each):
        return False
    match each:
        case EqualTo((name,), _):
            return name != "timestamp"
        case In((name,), _):
            return name in ("partition", "topic")
    return each.attribute in (("partition",), ("offset",))  # type: ignore[attr-defined]


def _may_have(partition: TopicPartition, filters: Iterable[Filter]) -> bool:
    """Whether no filter on partitions or topics leaves it out."""
    values = {("partition",): partition.partition, ("topic",): partition.topic}
    return all(
        _is_true(each, values[each.attribute])  # type: ignore[attr-defined]
        for each in filters
        if getattr(each, "attribute", None) in values
    )


def _is_true(comparison: Filter, value: Any) -> bool:
    match comparison:
        case EqualTo(_, other):
            return bool(value == other)
        case In(_, others):
            return value in others
        case LessThan(_, other):
            return bool(value < other)
        case LessThanOrEqual(_, other):
            return bool(value <= other)
        case GreaterThan(_, other):
            return bool(value > other)
        case GreaterThanOrEqual(_, other):
            return bool(value >= other)
    return True


def _offsets(filters: Iterable[Filter], first: int, end: int) -> tuple[int, int]:
    """A range, narrowed by filters on offsets."""
    for each in filters:
        match each:
            case EqualTo(("offset",), offset):
                first, end = max(first, offset), min(end, offset + 1)
            case In(("offset",), offsets):
                some = [offset for offset in offsets if offset is not None]
                first, end = max(first, min(some, default=end)), min(end, max(some, default=-1) + 1)
            case LessThan(("offset",), offset):
                end = min(end, offset)
            case LessThanOrEqual(("offset",), offset):
                end = min(end, offset + 1)
            case GreaterThan(("offset",), offset):
                first = max(first, offset + 1)
            case GreaterThanOrEqual(("offset",), offset):
                first = max(first, offset)
    return first, end


def _earliest(each: Filter) -> int | None:
    """The time (ms) before which a filter lets nothing through."""
    match each:
        case (
            EqualTo(("timestamp",), datetime() as moment)
            | GreaterThan(("timestamp",), datetime() as moment)
            | GreaterThanOrEqual(("timestamp",), datetime() as moment)
        ):
            known = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
            return (known - EPOCH) // _MILLISECOND
    return None
