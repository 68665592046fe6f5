"""The end of the next micro-batch, made of what is held and what is new."""

from collections.abc import Mapping

from folkmoot.protocol.records import TopicPartition
from folkmoot.spark_apps.offsets.checkpoint import Range
from folkmoot.spark_apps.offsets.log_watch import End, Place
from folkmoot.spark_apps.stream.held_partitions import HeldPartition
from folkmoot.spark_apps.stream.targets import Targets


def lags(
    partitions: Mapping[TopicPartition, HeldPartition],
    ends: Mapping[TopicPartition, End],
    targets: Targets | None,
) -> dict[TopicPartition, int]:
    """Return the records to read of each partition; below 0 if its log ends too early."""
    found = {}
    for partition, at in ends.items():
        held = partitions[partition]
        assert held.position is not None
        end = at.offset
        if targets is not None:
            end = min(end, targets.end(partition, held.topic_id))
        found[partition] = end - held.position
    return found


def ranges(
    partitions: Mapping[TopicPartition, HeldPartition],
    places: Mapping[TopicPartition, Place],
    ends: Mapping[TopicPartition, End],
    quotas: Mapping[TopicPartition, int],
) -> tuple[dict[TopicPartition, Range], dict[str, str]]:
    """Return the range of each partition, of as many records as its quota says, and the topics' ids."""
    # If a topic was created anew, a partition whose end is known decides which id it has.
    by_certainty = sorted(places, key=lambda partition: (partition in ends, partition))
    topic_ids = {partition.topic: places[partition].topic_id for partition in by_certainty}
    found = {}
    for partition, held in partitions.items():
        if held.position is not None and topic_ids.get(partition.topic) == held.topic_id:
            size = quotas.get(partition, 0)
            epoch = ends[partition].epoch if size else held.epoch
            found[partition] = Range(held.position, held.position + size, epoch, held.reset)
    return found, topic_ids
