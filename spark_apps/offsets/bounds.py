"""Start and end of reading: the offsets that the options name, looked up at brokers if necessary."""

from collections.abc import Mapping

from folkmoot.consumers.lag import is_beyond
from folkmoot.protocol.errors import ConfigError, NoOffset, OffsetOutOfRange
from folkmoot.protocol.messages import EARLIEST, LATEST
from folkmoot.protocol.records import TopicPartition
from folkmoot.spark_apps.offsets.log_watch import LogWatch
from folkmoot.spark_apps.options.config import Bound


def resolved(
    bound: Bound, partitions: Mapping[TopicPartition, str], logs: LogWatch
) -> dict[TopicPartition, int]:
    """Return the offsets at a bound, of partitions with their topics' ids, as far as brokers answer in time.

    Raises NoOffset where a partition has no record of the time asked for, and the bound is not lenient.
    """
    found: dict[TopicPartition, int] = {}
    places: dict[TopicPartition, int] = {}
    times: dict[TopicPartition, int] = {}
    for each in partitions:
        time = bound.times.get(each, bound.time)
        if time is not None:
            times[each] = time
        else:
            places[each] = bound.offsets.get(each, bound.place)
    for each, first in (logs.first_at(times) if times else {}).items():
        if first is not None:
            found[each] = first
        elif bound.lenient:
            places[each] = LATEST
        else:
            raise NoOffset(
                f"{each} has no record of {times[each]} ms or later: set "
                "startingOffsetsByTimestampStrategy=latest to begin at its end"
            )
    found.update({each: place for each, place in places.items() if place >= 0})
    for end in (EARLIEST, LATEST):
        asked = {each: partitions[each] for each, place in places.items() if place == end}
        if asked:
            found.update(logs.find(asked, end))
    return found


def existing(
    bound: Bound,
    found: Mapping[TopicPartition, int],
    ids: Mapping[TopicPartition, str],
    logs: LogWatch,
) -> dict[TopicPartition, int]:
    """Return what was `found`, without offsets named in the options that no leader has confirmed.

    Raises OffsetOutOfRange for one behind its log's end.
    """
    named = {each: ids[each] for each in found if found[each] == bound.offsets.get(each)}
    ends = logs.find(named, LATEST) if named else {}
    for each, end in sorted(ends.items()):
        if is_beyond(found[each], end):
            raise OffsetOutOfRange(f"{each} ends at {end}: it cannot be read from {found[each]} on")
    return {each: at for each, at in found.items() if each not in named or each in ends}


def check_existing(bound: Bound, counts: Mapping[str, int], name: str) -> None:
    """Raise ConfigError for a partition that is named and that its topic does not have."""
    for each in (*bound.offsets, *bound.times):
        if each.topic in counts and each.partition >= counts[each.topic]:
            raise ConfigError(
                f"option {name!r} names {each}: topic {each.topic} has partitions 0 to "
                f"{counts[each.topic] - 1}"
            )
