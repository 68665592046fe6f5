"""What lies in topics, for tests of the sink."""

from collections.abc import Sequence

from folkmoot.consumers.client.consumer import Consumer
from folkmoot.protocol.records import Record, TopicPartition


def contents(zookeeper: str, partitions: Sequence[TopicPartition]) -> list[Record]:
    """All records, partition by partition, in order."""
    found: list[Record] = []
    with Consumer(zookeeper=zookeeper, auto_offset_reset="earliest") as consumer:
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        while any((consumer.position(each) or 0) < end for each, end in ends.items()):
            found += consumer.poll(1.0)
    return sorted(found, key=lambda record: (record.topic, record.partition, record.offset))
