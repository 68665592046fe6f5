"""Topics: one persistent node each, with the topic's id, its config and the replicas of each partition.

The id distinguishes a topic from a later one of the same name: offsets, files and plans name it. So deleting
a topic removes its one node, and leaves a record of that (deletions.py).
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from uuid import uuid4

import msgspec

from folkmoot.coordination import paths
from folkmoot.coordination.deletions import CONTROLLER, Deletion, create_record
from folkmoot.coordination.placement import place_replicas
from folkmoot.coordination.topic_config import PAGE_CACHE, LogConfig
from folkmoot.coordination.zookeeper import operations as zk
from folkmoot.coordination.zookeeper import recipes
from folkmoot.coordination.zookeeper.operations import Node, Recipe, Stat, WatchCallback
from folkmoot.protocol.errors import ConfigError, TopicExists, UnknownTopicOrPartition
from folkmoot.protocol.names import check_name
from folkmoot.protocol.quantities import counted

MAX_PARTITIONS = 10_000


class Reassignment(msgspec.Struct, frozen=True, omit_defaults=True):
    """A partition's replicas are being moved from the brokers in `original` to those in `target`.

    Meanwhile it has the replicas of both. `throttle`: bytes that each broker copies for it per second at
    most; 0: no limit.
    """

    original: list[int]
    target: list[int]
    throttle: int = 0

    @property
    def is_cancelled(self) -> bool:
        return self.target == self.original

    @property
    def replicas(self) -> list[int]:
        """All brokers that hold the partition meanwhile; it prefers the leader that it had."""
        return list(dict.fromkeys((*self.original, *self.target)))


class TopicInfo(msgspec.Struct, frozen=True, rename={"topic_id": "id"}):
    """A topic: `partitions[p]` are the brokers that hold replicas of partition p, preferred first.

    `reassignments` has the partitions whose replicas are being moved (reassignments.py). `reassigned` counts
    reassignments that have ended. `had_page_cache`: `durability` was page-cache once, so that records
    acknowledged then may be in page caches alone. `revision` grows with each change: it is lower than before
    only if ZooKeeper was set back.
    """

    topic_id: str
    partitions: list[list[int]]
    config: dict[str, str] = {}
    reassignments: dict[int, Reassignment] = {}
    reassigned: int = 0
    had_page_cache: bool = False
    revision: int = 0

    def replica_count(self, partition: int) -> int:
        """The number of a partition's replicas; while they are being moved the fewest."""
        moved = self.reassignments.get(partition)
        if moved is None:
            return len(self.partitions[partition])
        return min(len(moved.original), len(moved.target))

    @property
    def replicas(self) -> int:
        """The number of replicas of each partition; the fewest if they differ."""
        return min(map(self.replica_count, range(len(self.partitions))), default=0)

    @property
    def min_in_sync(self) -> int:
        """Replicas that must be in sync for a write with `acks=all`."""
        option = self.config.get("min_in_sync", "")
        return int(option) if option.isdecimal() else LogConfig().least_in_sync(self.replicas)


_decoder = msgspec.json.Decoder(TopicInfo)


def create(
    name: str,
    partitions: int,
    brokers: Sequence[int] | Mapping[int, str],
    config: Mapping[str, str] | None = None,
    *,
    replicas: int = 1,
) -> Recipe[TopicInfo]:
    """Create a topic on the live `brokers`; a mapping has the rack of each.

    A replicated topic gets its own `durability` and `min_in_sync`, which stay when the number of its replicas
    changes. Raises TopicExists, BrokerUnreachable if there is no broker, InvalidReplicationFactor if there
    are too few, ConfigError, InvalidName.
    """
    check_name("topic", name)
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise ConfigError(
            f"{partitions} partitions are not possible: use 1 to {MAX_PARTITIONS} partitions"
        )
    assignment = place_replicas(name, partitions, replicas, _standing(brokers))
    options = dict(config or {})
    if replicas > 1:
        options.setdefault("durability", "fsync")
        options.setdefault("min_in_sync", str(LogConfig().least_in_sync(replicas)))
    check_in_sync(name, options, replicas)
    yield from recipes.ensure(paths.TOPICS)
    yield from recipes.ensure(paths.PARTITIONS)
    ids: set[str] = set()
    while True:
        # Another id each time: after a lost reply the topic may be there, or deleted again already.
        info = TopicInfo(uuid4().hex, assignment, options)
        ids.add(info.topic_id)
        node = zk.Create(paths.topic(name), msgspec.json.encode(info))
        try:
            # The states' parent distinguishes partitions without a state yet from those that lost theirs.
            yield zk.Multi((node, zk.Create(paths.partition_states(info.topic_id))))
            return info
        except zk.MultiFailed as refusal:
            if not isinstance(refusal.cause, zk.NodeExists):
                raise
            found = yield from read(name)
            if found is not None and found.topic_id in ids:
                return found
            if found is not None:  # else it was deleted meanwhile
                raise TopicExists(f"topic {name} exists already: choose another name") from None
        except zk.ConnectionLost:
            continue


def _standing(brokers: Sequence[int] | Mapping[int, str]) -> Mapping[int, str]:
    return brokers if isinstance(brokers, Mapping) else dict.fromkeys(brokers, "")


def check_in_sync(name: str, config: Mapping[str, str], replicas: int) -> None:
    """Raises ConfigError if a topic's `min_in_sync` is above its number of replicas."""
    needed = config.get("min_in_sync", "")
    if needed.isdecimal() and int(needed) > replicas:
        raise ConfigError(
            f"min_in_sync={needed} is above the {counted(replicas, 'replica')} of topic {name}: no "
            "write with acks=all could ever be acknowledged"
        )


def names(watch: WatchCallback | None = None) -> Recipe[list[str]]:
    """The names of all topics, sorted; `watch` is called when one is created or deleted."""
    return sorted((yield from recipes.children(paths.TOPICS, watch)))


def read_with_version(name: str) -> Recipe[tuple[TopicInfo, int] | None]:
    """A topic, and its node's version. Raises Malformed."""
    found, stat = yield from recipes.read(_decoder, paths.topic(name))
    return None if found is None or stat is None else (found, stat.version)


def written(name: str, topic: TopicInfo, version: int) -> zk.Set:
    """The write of a topic's node if it still has that version, for a transaction."""
    return zk.Set(paths.topic(name), msgspec.json.encode(topic), version)


def read(name: str, watch: WatchCallback | None = None) -> Recipe[TopicInfo | None]:
    """A topic, or None; `watch` is called when an existing one changes or is deleted. Raises Malformed."""
    found, _ = yield from recipes.read(_decoder, paths.topic(name), watch)
    return found


def configure(name: str, changes: Mapping[str, str | None]) -> Recipe[TopicInfo]:
    """Set a topic's own options; None removes one. The caller has checked them, except `min_in_sync`.

    Raises UnknownTopicOrPartition, ConfigError if `min_in_sync` is above the number of replicas.
    """

    def configured(topic: TopicInfo) -> TopicInfo:
        merged = {**topic.config, **changes}
        config = {key: value for key, value in merged.items() if value is not None}
        check_in_sync(name, config, topic.replicas)
        had = topic.had_page_cache or topic.config.get("durability") == PAGE_CACHE
        return msgspec.structs.replace(topic, config=config, had_page_cache=had)

    return (yield from update(name, configured))


def add_partitions(
    name: str, partitions: int, brokers: Sequence[int] | Mapping[int, str]
) -> Recipe[TopicInfo]:
    """Extend a topic to `partitions` partitions, with as many replicas each as the others have.

    Raises UnknownTopicOrPartition, BrokerUnreachable, InvalidReplicationFactor, ConfigError if it has as many
    or more. After a lost reply, as many as wanted are taken for this call's.
    """
    tried = False

    def grown(topic: TopicInfo) -> TopicInfo:
        nonlocal tried
        count = len(topic.partitions)
        if tried and count == partitions:
            return topic
        if not count < partitions <= MAX_PARTITIONS:
            raise ConfigError(
                f"topic {name} has {counted(count, 'partition')} and cannot get {partitions}: use "
                f"more than it has, up to {MAX_PARTITIONS}"
            )
        added = place_replicas(name, partitions, topic.replicas, _standing(brokers))[count:]
        tried = True
        return msgspec.structs.replace(topic, partitions=[*topic.partitions, *added])

    return (yield from update(name, grown))


def update(name: str, change: Callable[[TopicInfo], TopicInfo]) -> Recipe[TopicInfo]:
    """Change a topic's node, as recipes.update does. Raises UnknownTopicOrPartition, Malformed."""

    def changed(topic: TopicInfo) -> TopicInfo:
        after = change(topic)
        if after == topic:
            return topic
        return msgspec.structs.replace(after, revision=topic.revision + 1)

    # A server that lags could return an old topic of the name, to be written over the present one.
    yield from recipes.retry_on_connection_loss(zk.Sync())
    try:
        return (yield from recipes.update(_decoder, paths.topic(name), changed))
    except zk.NoNode:
        raise unknown(name) from None


def delete(name: str, *, by: str = "", at: float = 0.0) -> Recipe[None]:
    """Delete a topic, and record by whom and when (deletions.py); a malformed node goes without a record.

    Raises UnknownTopicOrPartition. After a lost reply the topic is deleted if the node read before is gone,
    even if there is another in its place.
    """
    path = paths.topic(name)
    seen: Stat | None = None
    is_recorded = False
    yield from recipes.ensure(paths.DELETIONS)
    yield from recipes.retry_on_connection_loss(zk.Sync())  # as in `update`
    while True:
        node = yield from recipes.get_node(path)
        now = None if node is None else node.stat
        if seen is not None and (now is None or now.czxid != seen.czxid):
            return
        if node is None:
            raise unknown(name)
        try:
            record = _record(name, node, by, at)
            if is_recorded:  # an operator has restored its node
                record = [zk.Set(each.path, each.data) for each in record]
            yield zk.Multi((zk.Delete(path, node.stat.version), *record))
        except zk.MultiFailed as refusal:
            recipes.check_foreseen(refusal)
            if isinstance(refusal.cause, zk.NoNode) and refusal.failed == 0:
                return
            seen, is_recorded = None, isinstance(refusal.cause, zk.NodeExists)
        except zk.ConnectionLost:
            seen = now
        else:
            return


def _record(name: str, node: Node, by: str, at: float) -> Sequence[zk.Create | zk.Set]:
    with suppress(recipes.Malformed):
        topic = recipes.decode(_decoder, paths.topic(name), node)
        brokers = sorted({broker for replicas in topic.partitions for broker in replicas})
        deletion = Deletion(name, at, by, (*brokers, CONTROLLER))
        return [create_record(topic.topic_id, deletion)]
    return []


def unknown(name: str) -> UnknownTopicOrPartition:
    return UnknownTopicOrPartition(f"topic {name} does not exist")
