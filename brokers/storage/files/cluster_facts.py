"""What a data directory says of the cluster, so that this can be put together again from the brokers' disks.

The file `topic` has the topic's name in its first line, for people, and these facts in the second one, behind
their checksum. It is on disk before the log takes its first record. Who dies while it is written leaves the
one before.
"""

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
"""An id above it was never given: a client made it up, and new ids would find no room above."""


class PartitionFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """A partition's share of its topic's node, and how many partitions the topic has."""

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
    """The highest ids of producers and of schemas that were seen in batches: new ones are above.

    They are on disk about a second later. A kill before that, together with the loss of ZooKeeper, forgets
    what came last; producer ids begin with the time all the same (Broker).
    """

    producer: int = -1
    schema: int = 0

    def seen(self, producer_id: int, schema_id: int) -> None:
        """A batch was appended. An id that is far too high is none of ours."""
        if self.producer < producer_id <= HIGHEST_PRODUCER:
            self.producer = producer_id
        if self.schema < schema_id <= HIGHEST_BELIEVED:
            self.schema = schema_id


_decoder: Final = msgspec.json.Decoder(PartitionFacts)


def save_facts(directory: Path, topic: str, facts: PartitionFacts | None) -> None:
    """On disk when this returns. Raises OSError."""
    said = b"" if facts is None else msgspec.json.encode(facts)
    line = b"%08x %b\n" % (crc32c(said), said) if said else b""
    write_atomic(directory / TOPIC_FILE, b"%b\n%b" % (topic.encode(), line))


def topic_in(directory: Path) -> str:
    """The topic's name that lies in a partition's directory, "" if it cannot be read."""
    return load_facts(directory)[0]


def load_facts(directory: Path) -> tuple[str, PartitionFacts | None]:
    """The topic's name, "" if it cannot be read, and the facts, None if they cannot be trusted."""
    try:
        first, _, rest = (directory / TOPIC_FILE).read_bytes().partition(b"\n")
    except OSError:
        return "", None
    checksum, _, said = rest.rstrip(b"\n").partition(b" ")
    facts = None
    if said and checksum == b"%08x" % crc32c(said):
        try:
            facts = _decoder.decode(said)
        except msgspec.MsgspecError:
            facts = None
    try:
        name = first.decode("ascii").strip()
        check_name("topic", name)
    except (UnicodeDecodeError, InvalidName):
        name = ""
    return name, facts


def is_same(one: PartitionFacts | None, other: PartitionFacts | None) -> bool:
    """But for what changes with other partitions: the topic's revision, and how often replicas were moved."""
    if one is None or other is None:
        return one is other
    return one == msgspec.structs.replace(other, revision=one.revision, reassigned=one.reassigned)
