"""Reassignments: a partition's replicas move to other brokers, or become more or fewer.

The topic's node has the running ones (topics.Reassignment), so a new controller continues them:

1. A reassignment is *started* by a compare-and-set of the topic's node.
2. The controller *ends* it, under a check of its epoch. One transaction makes the target the topic's list of
   replicas, and gives the state an ISR and a leader out of it.
3. A replica that is neither in the list nor in the ISR any more deletes its log when its broker reads that.

To *cancel* one, its target becomes the original list.

docs/replication.md ("Moving replicas") says why no record is lost, and what happens if a process dies right
before or after each step.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from folkmoot.coordination import brokers, partition_states, topics
from folkmoot.coordination.partition_states import StateWrite, TopicIdPartition
from folkmoot.coordination.topics import Reassignment, TopicInfo
from folkmoot.coordination.zookeeper import operations as zk
from folkmoot.coordination.zookeeper import recipes
from folkmoot.coordination.zookeeper.operations import Recipe
from folkmoot.coordination.zookeeper.recipes import GuardRefused
from folkmoot.protocol import errors

AT_ONCE = partition_states.STATES_PER_TRANSACTION - 1
"""Limit of the reassignments of a topic that one transaction ends."""
MOST_BYTES: Final = zk.MAX_REQUEST_BYTES * 9 // 10
"""Limit of a topic's node, so that the transaction that ends some reassignments has room."""


def start(name: str, targets: Mapping[int, Sequence[int]], throttle: int = 0) -> Recipe[TopicInfo]:
    """Move partitions to these brokers (partition → brokers, preferred first), all or none of them.

    Partitions that are there already stay. A call that repeats a running reassignment is harmless. Raises
    UnknownTopicOrPartition, InvalidReplicaAssignment, ReassignmentInProgress, ConfigError if `min_in_sync`
    is above the number of replicas, Malformed.
    """
    started = yield from _change(name, targets, throttle)
    return (yield from topics.update(name, started))


def check(name: str, targets: Mapping[int, Sequence[int]]) -> Recipe[None]:
    """Raise the errors of `start` without a change."""
    yield from _change(name, targets, throttle=0)


def _change(
    name: str, targets: Mapping[int, Sequence[int]], throttle: int
) -> Recipe[Callable[[TopicInfo], TopicInfo]]:
    """Return how `start` changes a topic. Raises its errors for the present topic."""
    seen = yield from topics.read(name)
    if seen is None:
        raise topics.unknown(name)
    live, drained = (yield from brokers.live()), (yield from brokers.drained())

    def started(topic: TopicInfo) -> TopicInfo:
        if topic.topic_id != seen.topic_id:
            raise topics.unknown(name)
        moves, partitions = dict(topic.reassignments), list(topic.partitions)
        for number, target in targets.items():
            _check(name, topic, number, target, live.keys(), drained)
            running = moves.get(number)
            if running is None and partitions[number] != list(target):
                move = Reassignment(partitions[number], list(target), throttle)
                moves[number], partitions[number] = move, move.replicas
            elif running is not None and running.target != list(target):
                raise errors.ReassignmentInProgress(
                    f"{name}-{number} is being moved from {running.original} to {running.target}: wait "
                    "until that has ended, or cancel it"
                )
        moved = replace(topic, partitions=partitions, reassignments=moves)
        if len(topics.written(name, moved, 0).data) > MOST_BYTES:
            raise errors.InvalidReplicaAssignment(
                f"{len(moves)} partitions of {name} at once are more than its node can hold: move fewer at "
                "a time"
            )
        return moved

    started(seen)
    with_states = yield from partition_states.partitions_of(seen.topic_id)
    for number in sorted(targets.keys() - set(with_states)):
        raise errors.InvalidReplicaAssignment(
            f"{name}-{number} has no state yet: the controller creates it; is there one?"
        )
    return started


def _check(
    name: str,
    topic: TopicInfo,
    number: int,
    target: Sequence[int],
    live: Iterable[int],
    drained: Iterable[int],
) -> None:
    last = len(topic.partitions) - 1
    if not 0 <= number <= last:
        raise errors.UnknownTopicOrPartition(
            f"topic {name} has no partition {number}, only 0 to {last}"
        )
    listed, why = ", ".join(map(str, target)), ""
    if not target or len(set(target)) < len(target):
        why = f"the list of brokers [{listed}] {'names a broker twice' if target else 'is empty'}"
    for each in target:
        if each not in live:
            why = f"broker {each} is not registered: start it, or name another"
        elif each in drained and each not in topic.partitions[number]:
            why = f"broker {each} is drained: name another, or `folkmoot broker drain {each} --cancel`"
    if why:
        raise errors.InvalidReplicaAssignment(f"{name}-{number}: {why}")
    topics.check_in_sync(name, topic.config, len(target))


def cancel(name: str, partitions: Iterable[int] | None = None) -> Recipe[list[int]]:
    """Move partitions back to their original brokers (None: all that are being moved), and return them.

    That ends once enough of the originals are in sync. Raises UnknownTopicOrPartition,
    NoReassignmentInProgress, Malformed.
    """
    named = None if partitions is None else list(partitions)
    tried: dict[int, Reassignment] = {}

    def cancelled(topic: TopicInfo) -> TopicInfo:
        if tried and all(
            number not in topic.reassignments and topic.partitions[number:][:1] == [move.original]
            for number, move in tried.items()
        ):
            return topic  # done by a try without a reply, and ended
        tried.clear()
        for number in _running(name, topic, named):
            tried[number] = topic.reassignments[number]
        back = {number: replace(move, target=move.original) for number, move in tried.items()}
        return replace(topic, reassignments={**topic.reassignments, **back})

    yield from topics.update(name, cancelled)
    return list(tried)


def set_throttle(name: str, throttle: int) -> Recipe[list[int]]:
    """Limit the copying of a topic's moves to `throttle` bytes a second and broker; 0 for no limit.

    Returns the partitions. Raises UnknownTopicOrPartition, NoReassignmentInProgress, Malformed.
    """
    which: list[int] = []

    def throttled(topic: TopicInfo) -> TopicInfo:
        which[:] = _running(name, topic, None)
        moves = {
            number: replace(move, throttle=throttle) for number, move in topic.reassignments.items()
        }
        return replace(topic, reassignments=moves)

    yield from topics.update(name, throttled)
    return which


def _running(name: str, topic: TopicInfo, named: Iterable[int] | None) -> list[int]:
    if named is None and not topic.reassignments:
        raise errors.NoReassignmentInProgress(f"no partition of topic {name} is being moved")
    which = sorted(topic.reassignments if named is None else set(named))
    for number in which:
        if number not in topic.reassignments:
            raise errors.NoReassignmentInProgress(f"{name}-{number} is not being moved")
    return which


def end(
    name: str,
    topic_id: str,
    endings: Mapping[int, tuple[Reassignment, StateWrite]],
    guard: zk.Check,
) -> Recipe[None]:
    """End at most AT_ONCE reassignments, all or none: write their targets as replicas, and these states.

    A reassignment that has another target by now, such as a cancelled one, is left alone. The caller must
    read whether it was done: another change may have come first. Raises GuardRefused, Malformed.
    """
    while True:
        found = yield from topics.read_with_version(name)
        if found is None or found[0].topic_id != topic_id:
            return
        topic, version = found
        due = {
            number: write
            for number, (move, write) in endings.items()
            if (now := topic.reassignments.get(number)) is not None and now.target == move.target
        }
        if not due:
            return
        partitions = list(topic.partitions)
        moves = dict(topic.reassignments)
        for number in due:
            partitions[number] = moves.pop(number).target
        ended = replace(
            topic,
            partitions=partitions,
            reassignments=moves,
            reassigned=topic.reassigned + 1,
            revision=topic.revision + 1,
        )
        writes: list[zk.Write] = [guard, topics.written(name, ended, version)]
        for number, write in due.items():
            state = replace(write.state, reassigned=ended.reassigned)
            partition = TopicIdPartition(topic_id, number)
            writes.append(partition_states.written(partition, replace(write, state=state)))
        try:
            yield zk.Multi(tuple(writes))
        except zk.MultiFailed as refusal:
            recipes.check_foreseen(refusal)
            if refusal.failed == 0:
                raise GuardRefused(f"another controller has been elected: {refusal}") from None
        except zk.ConnectionLost:
            continue
        return
