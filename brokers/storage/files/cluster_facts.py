"""The facts about the cluster in a data directory: the cluster can be restored from the brokers' disks.

The first line of the file `topic` is the topic's name, the second these facts behind their checksum. It is
on disk before the log takes its first record. A death while it is written leaves the one before.
"""

from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from folkmoot.brokers.storage.files.atomic_file import write_atomic
from folkmoot.coordination.topics import TopicInfo
from folkmoot.protocol.checksum import crc32c
from folkmoot.protocol.errors import InvalidName
from folkmoot.protocol.names import check_name

TOPIC_FILE: Final = "topic"
HIGHEST_BELIEVED: Final = 2**30
HIGHEST_PRODUCER: Final = 2**62
"""No broker gives an id above it: a client made it up, and there would be no room for new ones."""


class PartitionFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """The part of its topic's node that concerns a partition, and the topic's number of partitions."""

    partitions: int
    replicas: tuple[int, ...]
    config: dict[str, str] = {}
    reassigned: int = 0
    had_page_cache: bool = False
    revision: int = 0

    @classmethod
    def of(cls, topic: TopicInfo, partition: int) -> "PartitionFacts":
        return cls(
            *(len(topic.partitions), tuple(topic.partitions[partition]), topic.config),
            *(topic.reassigned, topic.had_page_cache, topic.revision),
        )


class HighestIds(msgspec.Struct):
    """The highest ids of producers and of schemas in batches: new ones are above.

    They are on disk about a second later. A kill before that, together with the loss of ZooKeeper, forgets
    the last ones; producer ids begin with the time, too (Broker).
    """

    producer: int = -1
    schema: int = 0

    def note_ids(self, producer_id: int, schema_id: int) -> None:
        """Note the ids in a batch. One that is far too high was given by no broker."""
        if self.producer < producer_id <= HIGHEST_PRODUCER:
            self.producer = producer_id
        if self.schema < schema_id <= HIGHEST_BELIEVED:
            self.schema = schema_id


_decoder: Final = msgspec.json.Decoder(PartitionFacts)


def save_facts(directory: Path, topic: str, facts: PartitionFacts | None) -> None:
    """Put them on disk. Raises OSError."""
    encoded = b"" if facts is None else msgspec.json.encode(facts)
    line = b"%08x %b\n" % (crc32c(encoded), encoded) if encoded else b""
    write_atomic(directory / TOPIC_FILE, b"%b\n%b" % (topic.encode(), line))


def topic_in(directory: Path) -> str:
    """Return the topic's name in a partition's directory, "" if it cannot be read."""
    return load_facts(directory)[0]


def load_facts(directory: Path) -> tuple[str, PartitionFacts | None]:
    """Return the topic's name, "" if it cannot be read, and the facts, None if they are damaged."""
    try:
        first, _, rest = (directory / TOPIC_FILE).read_bytes().partition(b"\n")
    except OSError:
        return "", None
    checksum, _, encoded = rest.rstrip(b"\n").partition(b" ")
    facts = None
    if encoded and checksum == b"%08x" % crc32c(encoded):
        with suppress(msgspec.MsgspecError):
            facts = _decoder.decode(encoded)
    try:
        name = first.decode("ascii").strip()
        check_name("topic", name)
    except (UnicodeDecodeError, InvalidName):
        name = ""
    return name, facts


def is_same(one: PartitionFacts | None, other: PartitionFacts | None) -> bool:
    """Compare all but what other partitions change: the topic's revision, and its count of moves."""
    if one is None or other is None:
        return one is other
    return one == msgspec.structs.replace(other, revision=one.revision, reassigned=one.reassigned)
