"""What lies in topics, and a batch that is to run again, for tests of the sink."""

from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

from folkmoot.admin.admin import Admin
from folkmoot.consumers.client.consumer import Consumer
from folkmoot.network.client import Connections
from folkmoot.protocol.messages import Api, MetadataRequest
from folkmoot.protocol.records import Record, TopicPartition
from tests.waiting import eventually


def await_partitions(zookeeper: str, topic: str, count: int) -> None:
    """Until every broker says that the topic, as it was created last, has so many."""

    def is_told(address: str) -> bool:
        brokers.send(address, Api.METADATA, MetadataRequest([topic]))
        (reply,) = eventually(lambda: brokers.poll(1.0))
        topics = () if reply.response is None else reply.response.topics
        return [(each.topic_id, len(each.partitions)) for each in topics] == [(topic_id, count)]

    with Admin(zookeeper=zookeeper) as admin, closing(Connections("test")) as brokers:
        topic_id = admin.topic_ids([topic])[topic]
        for broker in admin.describe_brokers().values():
            eventually(partial(is_told, broker.listeners["client"]))


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
