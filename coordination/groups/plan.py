"""A group's plan: who shall own what. JSON in its node, compressed where it is long.

It carries all that a member needs of the topics that it is given, and what all members subscribe to, so
that only who is to plan has to look at topics, and nobody at the nodes of members that a plan knows.

Every kind of plan there will ever be has `protocol`, `generation`, `began_with` and `subscribed` and may be
compressed in that way, so that whoever does not understand the rest understands what it has there. A
thousand partitions of a hundred members take some 6 kB, a hundred thousand partitions of a thousand members
a quarter of what a node may hold.
"""

from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import Final

import msgspec
import zstandard
from msgspec import structs

from folkmoot.coordination.groups.membership import MemberInfo
from folkmoot.protocol.records import TopicPartition

PROTOCOL: Final = 1
"""The newest kind of plan that this code makes and understands."""

MOST_REMEMBERED: Final = 1000
"""Topics, and subscriptions, that are remembered though no member has them now."""

_COMPRESS_FROM: Final = 4096
_MOST_BYTES: Final = 64 * 1024 * 1024
"""What claims to be larger is nothing: nobody can have written it."""
_ZSTD: Final = b"\x28\xb5\x2f\xfd"


class TopicBasis(msgspec.Struct, frozen=True):
    """A topic as the planner saw it: the id tells it from a later topic of the same name."""

    topic_id: str
    partitions: int


class StaticMember(msgspec.Struct, frozen=True):
    """A member whose partitions are kept for `rejoin_timeout` seconds when it is gone.

    `absent`: it was gone when the plan was made, so its share was left as it was.
    """

    rejoin_timeout: float
    absent: bool = False


class Plan(msgspec.Struct, frozen=True, dict=True):
    """`assignment[topic][partition]` is the assignee that shall own it, None if nobody can.

    `members` are assignee ids; `subscriptions` has what each that is there has published (as
    MemberInfo.subscription). `generation` grows by one with every plan. `began_with` has each topic that
    the group has divided, with the partitions that were there when it began with it (none, if the topic
    was created later). `subscribed` has what members have subscribed to, as MemberInfo.wishes. Both have
    the latest first, and at most what is divided now and MOST_REMEMBERED besides.
    """

    generation: int = 0
    members: tuple[str, ...] = ()
    topics: dict[str, TopicBasis] = {}
    assignment: dict[str, list[str | None]] = {}
    static: dict[str, StaticMember] = {}
    assignor: str = ""
    protocol: int = PROTOCOL
    subscriptions: dict[str, MemberInfo] = {}
    began_with: dict[str, TopicBasis] = {}
    subscribed: tuple[str, ...] = ()

    def start_of(self, partition: TopicPartition) -> int | None:
        """Where to start if nothing is committed: 0 if it appeared after the group began, else None."""
        began, now = self.began_with.get(partition.topic), self.topics.get(partition.topic)
        if began is None or now is None or began.topic_id != now.topic_id:
            return None
        return 0 if partition.partition >= began.partitions else None

    @cached_property
    def owners(self) -> Mapping[TopicPartition, str]:
        """Who shall own each partition that somebody shall own."""
        return {
            TopicPartition(topic, number): owner
            for topic, owners in self.assignment.items()
            for number, owner in enumerate(owners)
            if owner is not None
        }

    def share(self, assignee: str) -> Mapping[TopicPartition, str]:
        """What an assignee shall own, with the ids of the topics."""
        return self._shares.get(assignee, {})

    @cached_property
    def _shares(self) -> dict[str, dict[TopicPartition, str]]:
        shares: dict[str, dict[TopicPartition, str]] = {}
        for partition, owner in self.owners.items():
            shares.setdefault(owner, {})[partition] = self.topics[partition.topic].topic_id
        return shares


class _Head(msgspec.Struct, frozen=True):
    """What every kind of plan has."""

    protocol: int
    generation: int
    began_with: dict[str, TopicBasis] = {}
    subscribed: tuple[str, ...] = ()


_heads = msgspec.json.Decoder(_Head)
_plans = msgspec.json.Decoder(Plan)


def encode(plan: Plan) -> bytes:
    """The node's data; short ones can be read with any tool."""
    data = msgspec.json.encode(plan)
    return data if len(data) < _COMPRESS_FROM else zstandard.compress(data)


@lru_cache(maxsize=8)  # many members may live in one process
def decode(data: bytes, understands: int = PROTOCOL) -> Plan:
    """What lies there; what is no plan counts as none, one of a newer kind as its head."""
    try:
        data = decompress(data)
        head = _heads.decode(data)
        if head.protocol > understands:
            return Plan(**structs.asdict(head))
        plan = _plans.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return Plan()
    sizes = {topic: len(owners) for topic, owners in plan.assignment.items()}
    is_whole = sizes == {topic: basis.partitions for topic, basis in plan.topics.items()}
    return plan if is_whole and set(plan.members).issuperset(plan.owners.values()) else Plan()


def decompress(data: bytes) -> bytes:
    """What was compressed, or not. Raises ValueError if it is broken, or larger than it may be."""
    if not data.startswith(_ZSTD):
        return data
    try:
        size = zstandard.frame_content_size(data)
        if 0 <= size <= _MOST_BYTES:
            return zstandard.ZstdDecompressor().decompress(data)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from None
    raise ValueError(f"{size} bytes are too many")
