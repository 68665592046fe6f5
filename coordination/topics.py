"""Topics: one persistent node each, with the topic's id, the replicas of every partition, its config.

The id tells a topic from a later one of the same name: whoever holds offsets, files or plans of a
topic compares it, so deleting a topic removes its one node and nothing else. Every recipe ends with a
definite answer: a lost reply is asked for again, and `create` knows its own node by the id.
"""

from collections.abc import Callable, Mapping, Sequence
from uuid import uuid4
from zlib import crc32

import msgspec

from folkmoot.coordination import paths
from folkmoot.coordination.zookeeper import recipes
from folkmoot.coordination.zookeeper.operations import (
    BadVersion,
    ConnectionLost,
    Create,
    Delete,
    Exists,
    NodeExists,
    NoNode,
    Recipe,
    Stat,
    WatchCallback,
)
from folkmoot.protocol.errors import (
    BrokerUnreachable,
    ConfigError,
    TopicExists,
    UnknownTopicOrPartition,
)
from folkmoot.protocol.names import check_name

MAX_PARTITIONS = 10_000


class TopicInfo(msgspec.Struct, frozen=True, rename={"topic_id": "id"}):
    """A topic: `partitions[p]` are the brokers that hold replicas of partition p, preferred first."""

    topic_id: str
    partitions: list[list[int]]
    config: dict[str, str] = {}


_decoder = msgspec.json.Decoder(TopicInfo)


def spread(name: str, partitions: int, brokers: Sequence[int]) -> list[list[int]]:
    """One replica per partition, round the brokers; the name decides who is first.

    So a topic is spread as evenly as can be, and many topics of one partition are not all at the
    first broker.
    """
    ring = sorted(brokers)
    first = crc32(name.encode())
    return [[ring[(first + number) % len(ring)]] for number in range(partitions)]


def create(
    name: str,
    partitions: int,
    brokers: Sequence[int],
    config: Mapping[str, str] | None = None,
) -> Recipe[TopicInfo]:
    """Create a topic on the live `brokers`.

    Raises TopicExists, BrokerUnreachable if there is none, ConfigError, InvalidName.
    """
    check_name("topic", name)
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise ConfigError(
            f"{partitions} partitions are not possible: use 1 to {MAX_PARTITIONS} partitions"
        )
    if not brokers:
        raise BrokerUnreachable(f"no broker is alive that could take topic {name}: start one")
    info = TopicInfo(uuid4().hex, spread(name, partitions, brokers), dict(config or {}))
    yield from recipes.ensure(paths.TOPICS)
    while True:
        try:
            yield Create(paths.topic(name), msgspec.json.encode(info))
            return info
        except NodeExists:
            raise TopicExists(f"topic {name} exists already: choose another name") from None
        except ConnectionLost:
            found = yield from read(name)
            if found is not None and found.topic_id == info.topic_id:
                return info


def names(watch: WatchCallback | None = None) -> Recipe[list[str]]:
    """The names of all topics, sorted; `watch` is called when one is created or deleted."""
    return sorted((yield from recipes.children(paths.TOPICS, watch)))


def read(name: str, watch: WatchCallback | None = None) -> Recipe[TopicInfo | None]:
    """A topic, or None; `watch` is called when an existing one changes or goes. Raises Malformed."""
    found, _ = yield from recipes.read(_decoder, paths.topic(name), watch)
    return found


def configure(name: str, changes: Mapping[str, str | None]) -> Recipe[TopicInfo]:
    """Set a topic's own options; None takes one back. Raises UnknownTopicOrPartition.

    Whether the options make sense is for the caller to check. Setting them twice does no harm, so a
    lost reply is answered by doing it again.
    """

    def configured(topic: TopicInfo) -> TopicInfo:
        merged = {**topic.config, **changes}
        config = {key: value for key, value in merged.items() if value is not None}
        return msgspec.structs.replace(topic, config=config)

    return (yield from _update(name, configured))


def add_partitions(name: str, partitions: int, brokers: Sequence[int]) -> Recipe[TopicInfo]:
    """Give a topic more partitions, so that it has `partitions` of them; those that it has stay.

    Raises UnknownTopicOrPartition, BrokerUnreachable, ConfigError if it has as many or more. Keys map
    anew from then on: that is for the caller to say. A lost reply is answered by looking: as many
    partitions as we have tried to make are ours, or somebody's who wanted the same.
    """
    tried = False

    def grown(topic: TopicInfo) -> TopicInfo:
        nonlocal tried
        count = len(topic.partitions)
        if tried and count == partitions:
            return topic
        if not count < partitions <= MAX_PARTITIONS:
            raise ConfigError(
                f"topic {name} has {count} partitions and cannot get {partitions}: use more than it "
                f"has, up to {MAX_PARTITIONS}"
            )
        if not brokers:
            raise BrokerUnreachable(f"no broker is alive that could take partitions of {name}")
        tried = True
        added = spread(name, partitions, brokers)[count:]
        return msgspec.structs.replace(topic, partitions=[*topic.partitions, *added])

    return (yield from _update(name, grown))


def _update(name: str, change: Callable[[TopicInfo], TopicInfo]) -> Recipe[TopicInfo]:
    try:
        return (yield from recipes.update(_decoder, paths.topic(name), change))
    except NoNode:
        raise _unknown(name) from None


def delete(name: str) -> Recipe[None]:
    """Delete a topic. Raises UnknownTopicOrPartition.

    A lost reply is answered by looking whether the node that was seen is gone, even if another has
    taken its place since.
    """
    seen: Stat | None = None
    while True:
        now: Stat | None = yield from recipes.retry_on_connection_loss(Exists(paths.topic(name)))
        if seen is not None and (now is None or now.czxid != seen.czxid):
            return
        if now is None:
            raise _unknown(name)
        try:
            yield Delete(paths.topic(name), now.version)
        except NoNode:
            return
        except BadVersion:
            seen = None
        except ConnectionLost:
            seen = now
        else:
            return


def _unknown(name: str) -> UnknownTopicOrPartition:
    return UnknownTopicOrPartition(f"topic {name} does not exist")
