"""Reassignments: a partition's replicas move to other brokers, or become more or fewer.

The topic's node says what is being moved (topics.Reassignment), so whoever reads who holds a partition
reads that, too, and a new controller goes on from there:

1. A reassignment is *started* by a compare-and-set of the topic's node.
2. The controller *ends* it, in one transaction under a check of its epoch: the topic's node has the target
   alone, and the state an ISR and a leader out of it. Neither can be seen by a new session without the other.
3. A replica that is not in the list any more, nor in the ISR, deletes its log when its broker reads that.

To *cancel* is to go back: the target becomes what it was originally.

docs/replication.md ("Moving replicas") says why that loses nothing, and what happens if a process dies
right before each step, or right after it.
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
from folkmoot.protocol.errors import (
    InvalidReplicaAssignment,
    NoReassignmentInProgress,
    ReassignmentInProgress,
    UnknownTopicOrPartition,
)

AT_ONCE = partition_states.STATES_PER_TRANSACTION - 1
"""So many reassignments of one topic are ended in one transaction."""
MOST_BYTES: Final = zk.MAX_REQUEST_BYTES * 9 // 10
"""A topic's node gets so large at most: what ends some of them has to fit beside it."""


def start(name: str, targets: Mapping[int, Sequence[int]], throttle: int = 0) -> Recipe[TopicInfo]:
    """Move partitions' replicas to these brokers (partition → brokers, preferred first); those that are
    there already are left alone.

    All or none. Raises UnknownTopicOrPartition, InvalidReplicaAssignment, ReassignmentInProgress,
    ConfigError if `min_in_sync` is above the number of replicas, Malformed. A lost reply is answered by
    looking: the same reassignment is ours, or somebody's who wanted the same.
    """
    started = yield from _change(name, targets, throttle)
    return (yield from topics.update(name, started))


def check(name: str, targets: Mapping[int, Sequence[int]]) -> Recipe[None]:
    """Raises what `start` would raise now, and changes nothing."""
    yield from _change(name, targets, throttle=0)


def _change(
    name: str, targets: Mapping[int, Sequence[int]], throttle: int
) -> Recipe[Callable[[TopicInfo], TopicInfo]]:
    """What `start` makes of a topic, if it can be done to the topic that is there now."""
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
                raise ReassignmentInProgress(
                    f"{name}-{number} is being moved from {running.original} to {running.target}: wait "
                    "until that has ended, or cancel it"
                )
        moved = replace(topic, partitions=partitions, reassignments=moves)
        if len(topics.written(name, moved, 0).data) > MOST_BYTES:
            raise InvalidReplicaAssignment(
                f"{len(moves)} partitions of {name} at once are more than its node can hold: move some "
                "of them, and the others when that has ended"
            )
        return moved

    started(seen)
    with_states = yield from partition_states.partitions_of(seen.topic_id)
    for number in sorted(targets.keys() - set(with_states)):
        raise InvalidReplicaAssignment(
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
    count, listed = len(topic.partitions), ", ".join(map(str, target))
    if not 0 <= number < count:
        raise UnknownTopicOrPartition(
            f"topic {name} has no partition {number}, only 0 to {count - 1}"
        )
    if not target or len(set(target)) < len(target):
        why = "names a broker twice" if target else "is empty"
        raise InvalidReplicaAssignment(f"{name}-{number}: the list of brokers [{listed}] {why}")
    for each in target:
        if each not in live:
            raise InvalidReplicaAssignment(
                f"{name}-{number}: broker {each} is not registered: start it, or name another"
            )
        if each in drained and each not in topic.partitions[number]:
            raise InvalidReplicaAssignment(
                f"{name}-{number}: broker {each} is drained: name another, or take that back with "
                f"`folkmoot broker drain {each} --cancel`"
            )
    topics.check_in_sync(name, topic.config, len(target))


def cancel(name: str, partitions: Iterable[int] | None = None) -> Recipe[list[int]]:
    """Have partitions go back to the brokers they are being moved from; None: all that are being moved.

    → which. It takes until enough of those are in sync. Raises UnknownTopicOrPartition,
    NoReassignmentInProgress, Malformed. A lost reply is answered by looking: what is where it came from
    by then was taken back.
    """
    named = None if partitions is None else list(partitions)
    tried: dict[int, Reassignment] = {}

    def cancelled(topic: TopicInfo) -> TopicInfo:
        if tried and all(
            number not in topic.reassignments and topic.partitions[number:][:1] == [move.original]
            for number, move in tried.items()
        ):
            return topic
        tried.clear()
        for number in _running(name, topic, named):
            tried[number] = topic.reassignments[number]
        back = {number: replace(move, target=move.original) for number, move in tried.items()}
        return replace(topic, reassignments={**topic.reassignments, **back})

    yield from topics.update(name, cancelled)
    return list(tried)


def set_throttle(name: str, throttle: int) -> Recipe[list[int]]:
    """Have what is being moved of a topic be copied at so many bytes a second by each broker; 0: at any.

    → which partitions. Raises UnknownTopicOrPartition, NoReassignmentInProgress, Malformed.
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
        raise NoReassignmentInProgress(f"no partition of topic {name} is being moved")
    which = sorted(topic.reassignments if named is None else set(named))
    for number in which:
        if number not in topic.reassignments:
            raise NoReassignmentInProgress(f"{name}-{number} is not being moved")
    return which


def end(
    name: str,
    topic_id: str,
    endings: Mapping[int, tuple[Reassignment, StateWrite]],
    guard: zk.Check,
) -> Recipe[None]:
    """End reassignments, at most AT_ONCE: each list of replicas becomes the target, and each state what
    goes with that. Raises GuardRefused, Malformed.

    All or none. Whether it was done is for the caller to read: somebody may have changed something
    meanwhile. One that is not what it was, such as cancelled, is left alone.
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
        reassigned = topic.reassigned + 1
        ended = replace(
            topic,
            partitions=partitions,
            reassignments=moves,
            reassigned=reassigned,
            revision=topic.revision + 1,
        )
        writes: list[zk.Write] = [guard, topics.written(name, ended, version)]
        writes += [
            partition_states.written(
                TopicIdPartition(topic_id, number),
                replace(write, state=replace(write.state, reassigned=reassigned)),
            )
            for number, write in due.items()
        ]
        try:
            yield zk.Multi(tuple(writes))
        except zk.MultiFailed as refusal:
            recipes.check_foreseen(refusal)
            if refusal.failed == 0:
                raise GuardRefused(f"another controller has been elected: {refusal}") from None
        except zk.ConnectionLost:
            continue
        return
