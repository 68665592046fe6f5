"""Topics put back into ZooKeeper as brokers' directories know them: same ids, options, replicas, epochs.

Whoever leads must have all that was committed. Of all replicas that has the one whose log goes furthest, by
the leader epoch of its last record first, then by its end: so the directories of all replicas are needed, or
it must be said which brokers are gone for good. It alone is in sync at first, in an epoch that is not below
any that a replica has acted in; the others join by fetching.

A state that is still there, and no older than the directories, stays. The states are written first, the
topic's node last: nobody does anything about a topic without a node, so who dies on the way has changed
nothing for anybody, and to do it again ends it. A deletion that is noted for the topic is taken back with it.
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


class FoundReplica(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one broker's directory says of a partition. `leader_epoch`, `last_epoch`: -1 where there is none.
    `partitions` is 0 where it does not know what its topic is."""

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
    found: Sequence[FoundReplica],
    gone: Collection[int] = (),
    given: Collection[int] = (),
) -> tuple[TopicInfo, dict[int, PartitionState]]:
    """A topic as all that was `found` of its id knows it, and the states of its partitions.

    `gone` are brokers whose directories will not come back, `given` those besides that were looked at and
    have nothing of the topic.

    Raises ConfigError if it is not known what the topic is, or a replica's directory is missing.
    """
    known = [each for each in found if each.partitions]
    if not known:
        raise ConfigError(f"topic {name}: its directories do not say what it is: create it anew")
    looked_at = {each.broker for each in found}.union(given)
    newest = max(known, key=lambda each: each.revision)
    # Partitions that were not moved themselves do not note how often others were.
    reassigned = max(each.reassigned for each in known)
    replicas: list[list[int]] = []
    states = {}
    for number in range(newest.partitions):
        mine = [each for each in found if each.partition == number]
        facts = max((each for each in mine if each.partitions), key=_revision, default=None)
        if facts is None and not gone:
            raise ConfigError(
                f"{name}-{number} is in none of these directories: give those of all brokers, or say with "
                "--without which ones are gone for good"
            )
        holders = [min(looked_at)] if facts is None else list(facts.replicas)
        missing = set(holders).difference(looked_at, gone)
        if missing:
            raise ConfigError(
                f"{name}-{number} has replicas on brokers {sorted(missing)}, whose directories are not "
                "given: give them, or say with --without that they are gone for good"
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


def _revision(found: FoundReplica) -> int:
    return found.revision


def _state(
    holders: Sequence[int], found: Sequence[FoundReplica], reassigned: int
) -> PartitionState:
    epoch = max((max(each.leader_epoch, each.last_epoch) for each in found), default=-1)
    if epoch < 0:  # nothing was appended
        return PartitionState(holders[0], 0, (holders[0],), 0, reassigned=reassigned)
    order = {broker: -place for place, broker in enumerate(holders)}
    best = max(
        (each for each in found if each.broker in order),
        key=lambda each: (each.last_epoch, each.log_end, order[each.broker]),
    )
    return PartitionState(best.broker, epoch, (best.broker,), 0, reassigned=reassigned)


def restore(
    name: str, topic: TopicInfo, states: Mapping[int, PartitionState]
) -> Recipe[TopicInfo | None]:
    """Put a topic back → as it is now; None if nothing was missing. Raises TopicExists if another topic has
    the name, Malformed."""
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
        # Looked at again behind the topic's node: a deletion was carried out until then.
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
    """Have these states there, and their parent as if none had ever been removed. True: they were.

    A node that is made anew begins with partition epoch 0. So its state has a leader epoch above the former
    one's: brokers that have not seen it missing know by that which is newer. Its leader begins another epoch.
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
    # What is missing, or older, is known by the directories again if we die before it is written.
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
    """The same in a higher leader epoch, which its leader has not begun."""
    epoch, unclean = state.leader_epoch + 1, state.unclean_epoch
    if state.leader_epoch == 0 or unclean > state.leader_epoch:
        unclean = (
            epoch + 1
        )  # it leads with what it has: nothing was appended, or that was asked for
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
    """Remove a state → what it was at the last, None if it was gone."""
    while True:
        found = yield from partition_states.read(partition)
        if found is None:
            return None
        deletion = zk.Delete(paths.partition_state(*partition), found.partition_epoch)
        try:
            yield from recipes.retry_on_connection_loss(deletion)
            return found.state
        except zk.NoNode:
            return found.state  # by us, where a reply was lost
        except zk.BadVersion:
            continue  # its leader has written meanwhile
