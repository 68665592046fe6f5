"""What lies in topics, and a batch that is to run again, for tests of the sink."""

from collections.abc import Sequence
from pathlib import Path

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


def forget_last_commit(checkpoint: str) -> None:
    """As if the engine had died just before it said that the last batch was committed."""
    commits = sorted(
        (each for each in (Path(checkpoint) / "commits").iterdir() if each.name.isdigit()),
        key=lambda each: int(each.name),
    )
    commits[-1].unlink()
    commits[-1].with_name(f".{commits[-1].name}.crc").unlink(missing_ok=True)
