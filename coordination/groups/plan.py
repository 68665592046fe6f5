"""A group's plan: which member shall own which partition. JSON in one node, compressed if it is long.

It has all that members need of their topics, and all subscriptions. So only the planner reads topics, and
only those members that the plan does not know.

Every version of plans, also in future, has `protocol`, `generation`, `initial_topics` and `subscribed`, and
may be compressed in this way. These are all that a member uses of a newer plan.

A thousand partitions of a hundred members take about 6 kB; a hundred thousand partitions of a thousand
members take a quarter of a node's limit.
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
"""The newest version of plans that this code makes and understands."""
MOST_REMEMBERED: Final = 1000
"""Limit of topics, and of subscriptions, that are kept although no member has them now."""
_COMPRESS_FROM: Final = 4096
_MOST_BYTES: Final = 64 * 1024 * 1024
"""Limit of a plan before compression; a frame that declares more is malformed."""
_ZSTD: Final = b"\x28\xb5\x2f\xfd"


class TopicBasis(msgspec.Struct, frozen=True):
    """A topic as the planner saw it."""

    topic_id: str
    partitions: int


class StaticMember(msgspec.Struct, frozen=True):
    """A member whose partitions are kept for `rejoin_timeout` seconds when it is gone (`absent`)."""

    rejoin_timeout: float
    absent: bool = False


class Plan(msgspec.Struct, frozen=True, dict=True):
    """`assignment[topic][partition]` is the assignee that shall own it, None if no member wants it.

    - `generation`: grows by one with every plan
    - `members`: assignee ids
    - `subscriptions`: what each present member has published (MemberInfo.subscription)
    - `initial_topics`: each topic of the group with its partitions when the group began with it, 0 if the
      topic was created later
    - `subscribed`: all subscriptions of members (MemberInfo.subscriptions)

    The last two have the latest first, and at most MOST_REMEMBERED that are not in use now.
    """

    generation: int = 0
    members: tuple[str, ...] = ()
    topics: dict[str, TopicBasis] = {}
    assignment: dict[str, list[str | None]] = {}
    static: dict[str, StaticMember] = {}
    assignor: str = ""
    protocol: int = PROTOCOL
    subscriptions: dict[str, MemberInfo] = {}
    initial_topics: dict[str, TopicBasis] = {}
    subscribed: tuple[str, ...] = ()

    def start_of(self, partition: TopicPartition) -> int | None:
        """Return the start offset if nothing is committed: 0 if the group is older than the partition."""
        began, now = self.initial_topics.get(partition.topic), self.topics.get(partition.topic)
        if began is None or now is None or began.topic_id != now.topic_id:
            return None
        return 0 if partition.partition >= began.partitions else None

    @cached_property
    def owners(self) -> Mapping[TopicPartition, str]:
        """The assignee of each partition that has one."""
        return {
            TopicPartition(topic, number): owner
            for topic, owners in self.assignment.items()
            for number, owner in enumerate(owners)
            if owner is not None
        }

    def partitions_of(self, assignee: str) -> Mapping[TopicPartition, str]:
        """Return the partitions of an assignee, with the ids of their topics."""
        return self._by_assignee.get(assignee, {})

    @cached_property
    def _by_assignee(self) -> dict[str, dict[TopicPartition, str]]:
        by_assignee: dict[str, dict[TopicPartition, str]] = {}
        for partition, owner in self.owners.items():
            by_assignee.setdefault(owner, {})[partition] = self.topics[partition.topic].topic_id
        return by_assignee


class _Head(msgspec.Struct, frozen=True):
    """The fields that every version of plans has."""

    protocol: int
    generation: int
    initial_topics: dict[str, TopicBasis] = {}
    subscribed: tuple[str, ...] = ()


_heads = msgspec.json.Decoder(_Head)
_plans = msgspec.json.Decoder(Plan)


def encode(plan: Plan) -> bytes:
    """Return the node's data: plain JSON if it is short."""
    data = msgspec.json.encode(plan)
    return data if len(data) < _COMPRESS_FROM else zstandard.compress(data)


@lru_cache(maxsize=8)  # many members may live in one process
def decode(data: bytes, understands: int = PROTOCOL) -> Plan:
    """Return the plan in a node: an empty one if it is malformed, its head only if it is newer."""
    try:
        data = decompress(data)
        head = _heads.decode(data)
        if head.protocol > understands:
            return Plan(**structs.asdict(head))
        plan = _plans.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return Plan()
    sizes = {topic: len(owners) for topic, owners in plan.assignment.items()}
    is_complete = sizes == {topic: basis.partitions for topic, basis in plan.topics.items()}
    return plan if is_complete and set(plan.members).issuperset(plan.owners.values()) else Plan()


def decompress(data: bytes) -> bytes:
    """Decompress data unless it is plain. Raises ValueError if it is broken or too large."""
    if not data.startswith(_ZSTD):
        return data
    try:
        if not 0 <= zstandard.frame_content_size(data) <= _MOST_BYTES:
            raise ValueError("the size of the zstd frame is unknown or too large")
        return zstandard.ZstdDecompressor().decompress(data)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from None
