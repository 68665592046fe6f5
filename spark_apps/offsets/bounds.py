"""Start and end of reading: the offsets that the options name, looked up at brokers if necessary."""

from collections.abc import Mapping

from folkmoot.consumers.lag import is_beyond
from folkmoot.protocol.errors import ConfigError, NoOffset, OffsetOutOfRange
from folkmoot.protocol.messages import EARLIEST, LATEST
from folkmoot.protocol.records import TopicPartition
from folkmoot.spark_apps.offsets.log_watch import LogWatch
from folkmoot.spark_apps.options.config import Bound


def resolve(
    bound: Bound, partitions: Mapping[TopicPartition, str], logs: LogWatch
) -> dict[TopicPartition, int]:
    """Return the offsets at a bound, of partitions with their topics' ids, as far as brokers answer in time.

    Raises NoOffset where a partition has no record of the time asked for, and the bound is not lenient.
    """
    offsets: dict[TopicPartition, int] = {}
    unresolved: dict[TopicPartition, int] = {}
    times: dict[TopicPartition, int] = {}
    for each in partitions:
        time = bound.times.get(each, bound.time)
        if time is not None:
            times[each] = time
        else:
            unresolved[each] = bound.offsets.get(each, bound.default_offset)
    for each, first in (logs.first_at(times) if times else {}).items():
        if first is not None:
            offsets[each] = first
        elif bound.lenient:
            unresolved[each] = LATEST
        else:
            raise NoOffset(
                f"{each} has no record of {times[each]} ms or later: set "
                "startingOffsetsByTimestampStrategy=latest to begin at its end"
            )
    offsets.update({each: offset for each, offset in unresolved.items() if offset >= 0})
    for end in (EARLIEST, LATEST):
        requested = {each: partitions[each] for each, offset in unresolved.items() if offset == end}
        if requested:
            offsets.update(logs.find(requested, end))
    return offsets


def drop_unconfirmed(
    bound: Bound,
    offsets: Mapping[TopicPartition, int],
    ids: Mapping[TopicPartition, str],
    logs: LogWatch,
) -> dict[TopicPartition, int]:
    """Return `offsets` without those named in the options that no leader has confirmed.

    Raises OffsetOutOfRange for one behind its log's end.
    """
    named_partitions = {
        each: ids[each] for each in offsets if offsets[each] == bound.offsets.get(each)
    }
    ends = logs.find(named_partitions, LATEST) if named_partitions else {}
    for each, end in sorted(ends.items()):
        if is_beyond(offsets[each], end):
            raise OffsetOutOfRange(
                f"{each} ends at {end}: it cannot be read from {offsets[each]} on"
            )
    return {
        each: at for each, at in offsets.items() if each not in named_partitions or each in ends
    }


def check_existing(bound: Bound, counts: Mapping[str, int], name: str) -> None:
    """Raise ConfigError for a partition that is named and that its topic does not have."""
    for each in (*bound.offsets, *bound.times):
        if each.topic in counts and each.partition >= counts[each.topic]:
            raise ConfigError(
                f"option {name!r} names {each}: topic {each.topic} has partitions 0 to "
                f"{counts[each.topic] - 1}"
            )
