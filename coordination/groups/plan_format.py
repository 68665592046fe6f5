"""How a plan lies in its node: JSON, compressed with zstd where it is long.

```
{"protocol":1,"generation":7,"assignor":"sticky","members":["a-…3","w1="],
 "static":{"w1=":{"grace":30.0,"wish":391,"absent":false}},
 "topics":{"t":["6b…",[0,0,1,-1]]}}          topic: id, and per partition a place in members, -1: nobody
```

Every kind of plan there will ever be has `protocol` and `generation` in that place and may be
compressed in that way, so that whoever does not understand the rest understands what it has there.
A thousand partitions and a hundred members take some 6 kB, a hundred thousand partitions a tenth of
what a node may hold.
"""

from typing import Final

import msgspec
import zstandard

from folkmoot.protocol.records import TopicPartition

PROTOCOL: Final = 1
"""The newest kind of plan that this code makes and understands."""

_COMPRESS_FROM: Final = 4096
_MOST_BYTES: Final = 64 * 1024 * 1024
"""A plan that claims to be larger is none: nobody can have written it."""
_ZSTD: Final = b"\x28\xb5\x2f\xfd"


class TopicBasis(msgspec.Struct, frozen=True):
    """A topic as the planner saw it: the id tells it from a later topic of the same name."""

    topic_id: str
    partitions: int


class Standing(msgspec.Struct, frozen=True):
    """A seat that is kept for `grace` seconds when nobody sits there.

    `wish` is the number of what its member had published; `absent`: nobody sat there when the plan
    was made, so its share was left as it was.
    """

    grace: float
    wish: int
    absent: bool = False


class Plan(msgspec.Struct, frozen=True):
    """`assignment[topic][partition]` is the seat that shall own it, None if nobody can.

    `members` are seats. `generation` grows by one with every plan.
    """

    generation: int = 0
    members: tuple[str, ...] = ()
    topics: dict[str, TopicBasis] = {}
    assignment: dict[str, list[str | None]] = {}
    static: dict[str, Standing] = {}
    assignor: str = ""
    protocol: int = PROTOCOL

    def share(self, seat: str) -> dict[TopicPartition, str]:
        """What a seat shall own, with the ids of the topics."""
        return {
            TopicPartition(topic, number): self.topics[topic].topic_id
            for topic, owners in self.assignment.items()
            for number, owner in enumerate(owners)
            if owner == seat
        }


class _Head(msgspec.Struct, frozen=True):
    """What every kind of plan has."""

    protocol: int
    generation: int


class _Written(msgspec.Struct, frozen=True):
    protocol: int
    generation: int
    assignor: str
    members: tuple[str, ...]
    static: dict[str, Standing]
    topics: dict[str, tuple[str, list[int]]]


_heads = msgspec.json.Decoder(_Head)
_bodies = msgspec.json.Decoder(_Written)


def encode(plan: Plan) -> bytes:
    """The node's data; short ones can be read with any tool."""
    places: dict[str | None, int] = {member: place for place, member in enumerate(plan.members)}
    places[None] = -1
    topics = {
        topic: (basis.topic_id, [places[owner] for owner in plan.assignment[topic]])
        for topic, basis in plan.topics.items()
    }
    head = (plan.protocol, plan.generation, plan.assignor)
    data = msgspec.json.encode(_Written(*head, plan.members, plan.static, topics))
    return data if len(data) < _COMPRESS_FROM else zstandard.compress(data)


def decode(data: bytes, understands: int = PROTOCOL) -> Plan:
    """What lies there; what is no plan counts as none, one of a newer kind as its head."""
    try:
        if data.startswith(_ZSTD):
            data = _decompress(data)
        head = _heads.decode(data)
        if head.protocol > understands:
            return Plan(generation=head.generation, protocol=head.protocol)
        return _plan(_bodies.decode(data))
    except (msgspec.MsgspecError, zstandard.ZstdError, ValueError, IndexError, RecursionError):
        return Plan()


def _plan(found: _Written) -> Plan:
    """Raises IndexError for an owner that is no member."""
    owners = (*found.members, None)
    assignment: dict[str, list[str | None]] = {}
    for topic, (_, places) in found.topics.items():
        if places and not -1 <= min(places) <= max(places) < len(found.members):
            raise IndexError(f"{topic} has an owner that is no member")
        assignment[topic] = [owners[place] for place in places]
    return Plan(
        generation=found.generation,
        members=found.members,
        topics={name: TopicBasis(each[0], len(each[1])) for name, each in found.topics.items()},
        assignment=assignment,
        static=found.static,
        assignor=found.assignor,
        protocol=found.protocol,
    )


def _decompress(data: bytes) -> bytes:
    """Raises ValueError if it is larger than it may be."""
    size = zstandard.frame_content_size(data)
    if not 0 <= size <= _MOST_BYTES:
        raise ValueError(f"{size} bytes are no plan")
    return zstandard.ZstdDecompressor().decompress(data)
