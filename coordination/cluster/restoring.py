"""Topics put back into ZooKeeper from brokers' directories: same ids, options, replicas, epochs.

The leader must have all committed records. The replica whose log goes furthest has them: the one with the
highest leader epoch of its last record, then with the highest end. So the directories of all replicas are
needed, except those of brokers that are declared gone for ever. Only this replica is in sync at first, in a
leader epoch that is not below any that a replica has acted in; the others join by fetching.

A state that still exists and is not older than the directories stays. The states are written first, the
topic's node last. As a topic without a node is ignored, a crash in between changes nothing, and a second run
completes it. A recorded deletion of the topic is taken back with it.
"""

from collections.abc import Collection, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from folkmoot.coordination import partition_states, paths, topics
from folkmoot.coordination.partition_states import RESTORING, PartitionState, TopicIdPartition
from folkmoot.coordination.topics import TopicInfo
from folkmoot.coordination.zookeeper import operations as zk
from folkmoot.coordination.zookeeper import recipes
from folkmoot.coordination.zookeeper.operations import Recipe
from folkmoot.protocol.errors import ConfigError, TopicExists


class ReplicaOnDisk(msgspec.Struct, frozen=True, omit_defaults=True):
    """A replica in one broker's directory. Epochs are -1 if there is none.

    `partitions` is the topic's number of partitions, 0 if the directory does not describe the topic.
    """

    broker: int
    topic: str
    topic_id: str
    partition: int
    leader_epoch: int = -1
    last_epoch: int = -1
    log_end: int = 0
    partitions: int = 0
    replicas: tuple[int, ...] = ()
    config: dict[str, str] = {}
    reassigned: int = 0
    had_page_cache: bool = False
    revision: int = 0


def topic_of(
    name: str,
    found: Sequence[ReplicaOnDisk],
    lost_brokers: Collection[int] = (),
    scanned_brokers: Collection[int] = (),
) -> tuple[TopicInfo, dict[int, PartitionState]]:
    """Return a topic and the states of its partitions, as all replicas `found` of its id describe them.

    The directories of `lost_brokers` are lost for ever; those of `scanned_brokers` were read and may have no
    replica of the topic. Raises ConfigError if no directory describes the topic, or one with a replica is
    missing.
    """
    known = [each for each in found if each.partitions]
    if not known:
        raise ConfigError(f"topic {name}: no directory describes it: create it again")
    looked_at = {each.broker for each in found}.union(scanned_brokers)
    newest = max(known, key=lambda each: each.revision)
    # Partitions that were not moved do not have the number of later reassignments.
    reassigned = max(each.reassigned for each in known)
    replicas: list[list[int]] = []
    states = {}
    for number in range(newest.partitions):
        mine = [each for each in found if each.partition == number]
        described = (each for each in mine if each.partitions)
        facts = max(described, key=lambda each: each.revision, default=None)
        if facts is None and not lost_brokers:
            raise ConfigError(
                f"{name}-{number} is in none of these directories: give those of all brokers, or name with "
                "--without the brokers that are gone for good"
            )
        holders = [min(looked_at)] if facts is None else list(facts.replicas)
        missing = set(holders).difference(looked_at, lost_brokers)
        if missing:
            raise ConfigError(
                f"{name}-{number} has replicas on brokers {sorted(missing)}, whose directories are not "
                "given: give them, or name with --without the brokers that are gone for good"
            )
        replicas.append(holders)
        states[number] = _state(holders, mine, reassigned)
    topic = TopicInfo(
        *(newest.topic_id, replicas, newest.config),
        reassigned=reassigned,
        had_page_cache=newest.had_page_cache,
        revision=newest.revision + 1,
    )
    return topic, states


def _state(
    holders: Sequence[int], found: Sequence[ReplicaOnDisk], reassigned: int
) -> PartitionState:
    epoch = max((max(each.leader_epoch, each.last_epoch) for each in found), default=-1)
    if epoch < 0:  # nothing was appended
        return PartitionState(holders[0], 0, (holders[0],), 0, reassigned=reassigned)
    order = {broker: -index for index, broker in enumerate(holders)}
    best = max(
        (each for each in found if each.broker in order),
        key=lambda each: (each.last_epoch, each.log_end, order[each.broker]),
    )
    return PartitionState(best.broker, epoch, (best.broker,), 0, reassigned=reassigned)


def restore(
    name: str, topic: TopicInfo, states: Mapping[int, PartitionState]
) -> Recipe[TopicInfo | None]:
    """Put a topic back, and return it, None if nothing was missing.

    Raises TopicExists if another topic has the name, Malformed.
    """
    topic_id = topic.topic_id
    yield from recipes.ensure(paths.TOPICS)
    yield from recipes.ensure(paths.PARTITIONS)
    restored: TopicInfo | None = None
    while True:
        found = yield from topics.read_with_version(name)
        if found is not None and found[0].topic_id != topic_id:
            raise TopicExists(
                f"topic {name} exists with another id, {found[0].topic_id}: give this one another name "
                "(--as NAME)"
            )
        # Checked again after the topic's node: until then a deletion may have been carried out.
        has_all = yield from _restore_states(topic_id, states)
        if found is not None and found[0].revision >= topic.revision - 1:
            if has_all:
                return restored
            topic = replace(found[0], revision=found[0].revision + 1)
        writes: list[zk.Write] = []
        if found is None:
            writes.append(zk.Create(paths.topic(name), msgspec.json.encode(topic)))
        else:
            writes.append(topics.written(name, topic, found[1]))
        deletion = zk.Exists(paths.deletion(topic_id))
        if (yield from recipes.retry_on_connection_loss(deletion)) is not None:
            writes.append(zk.Delete(paths.deletion(topic_id)))
        try:
            yield zk.Multi(tuple(writes))
            restored = topic
        except zk.MultiFailed as refusal:
            recipes.check_foreseen(refusal)
        except zk.ConnectionLost:
            if (yield from topics.read(name)) == topic:
                restored = topic


def _restore_states(topic_id: str, states: Mapping[int, PartitionState]) -> Recipe[bool]:
    """Put states back, with a parent that shows no removal; return whether all were there.

    A new node begins with partition epoch 0. So its state gets a higher leader epoch than the earlier one, by
    which brokers that have not seen it missing know the newer one. Its leader begins another epoch.
    """
    numbers = yield from partition_states.partitions_of(topic_id)
    now: dict[int, PartitionState] = {}
    for number in numbers:
        found = yield from partition_states.read(TopicIdPartition(topic_id, number))
        if found is not None:
            now[number] = found.state
    wanted = {**states, **_no_older(now, states)}
    if (yield from partition_states.is_intact(topic_id)) and wanted == now:
        return True
    parent = paths.partition_states(topic_id)
    # After a crash before the next write the directories still have what was missing or older.
    for number in numbers:
        removed = yield from _remove(TopicIdPartition(topic_id, number))
        if removed is not None:
            wanted.update(_no_older({number: removed}, states))
    yield from recipes.delete_node(parent)
    yield from recipes.ensure(parent, RESTORING)
    for number, state in sorted(wanted.items()):
        path = paths.partition_state(topic_id, number)
        yield from recipes.ensure(path, msgspec.json.encode(_above(state)))
    yield from recipes.retry_on_connection_loss(zk.Set(parent, b""))
    return False


def _above(state: PartitionState) -> PartitionState:
    """Return the state in the next leader epoch, which its leader has not begun."""
    epoch, unclean = state.leader_epoch + 1, state.unclean_epoch
    if state.leader_epoch == 0 or unclean > state.leader_epoch:
        unclean = epoch + 1  # nothing was appended, or an unclean election is not done yet
    return replace(state, leader_epoch=epoch, unclean_epoch=unclean, active=False)


def _no_older(
    found: Mapping[int, PartitionState], states: Mapping[int, PartitionState]
) -> dict[int, PartitionState]:
    return {
        number: state
        for number, state in found.items()
        if number not in states or state.leader_epoch >= states[number].leader_epoch
    }


def _remove(partition: TopicIdPartition) -> Recipe[PartitionState | None]:
    """Remove a state, and return its last contents, None if it was gone."""
    while True:
        found = yield from partition_states.read(partition)
        if found is None:
            return None
        deletion = zk.Delete(paths.partition_state(*partition), found.partition_epoch)
        try:
            yield from recipes.retry_on_connection_loss(deletion)
            return found.state
        except zk.NoNode:
            return found.state  # removed by us if a reply was lost
        except zk.BadVersion:
            continue  # its leader wrote meanwhile
