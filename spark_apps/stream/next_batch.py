"""The end of the next micro-batch, made of what is held and what is new."""

from collections.abc import Mapping

from folkmoot.protocol.records import TopicPartition
from folkmoot.spark_apps.offsets.checkpoint import Range
from folkmoot.spark_apps.offsets.log_watch import End, ReadPosition
from folkmoot.spark_apps.stream.owned_partitions import OwnedPartition
from folkmoot.spark_apps.stream.targets import Targets


def lags(
    partitions: Mapping[TopicPartition, OwnedPartition],
    ends: Mapping[TopicPartition, End],
    targets: Targets | None,
) -> dict[TopicPartition, int]:
    """Return the records to read of each partition; below 0 if its log ends too early."""
    result = {}
    for partition, at in ends.items():
        owned = partitions[partition]
        assert owned.position is not None
        end = at.offset
        if targets is not None:
            end = min(end, targets.end(partition, owned.topic_id))
        result[partition] = end - owned.position
    return result


def ranges(
    partitions: Mapping[TopicPartition, OwnedPartition],
    positions: Mapping[TopicPartition, ReadPosition],
    ends: Mapping[TopicPartition, End],
    quotas: Mapping[TopicPartition, int],
) -> tuple[dict[TopicPartition, Range], dict[str, str]]:
    """Return the range of each partition, of as many records as its quota says, and the topics' ids."""
    # If a topic was created anew, a partition whose end is known decides which id it has.
    by_certainty = sorted(positions, key=lambda partition: (partition in ends, partition))
    topic_ids = {partition.topic: positions[partition].topic_id for partition in by_certainty}
    result = {}
    for partition, owned in partitions.items():
        if owned.position is not None and topic_ids.get(partition.topic) == owned.topic_id:
            size = quotas.get(partition, 0)
            epoch = ends[partition].epoch if size else owned.epoch
            result[partition] = Range(owned.position, owned.position + size, epoch, owned.reset)
    return result, topic_ids
