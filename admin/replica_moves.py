"""Moves of replicas between brokers: plans, their costs, and their progress."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, TypeVar

from folkmoot.coordination import brokers
from folkmoot.coordination.brokers import Registration
from folkmoot.coordination.cluster import reassignments
from folkmoot.coordination.cluster.cluster_status import PartitionStatus, read_cluster
from folkmoot.coordination.placement import move, racks_of
from folkmoot.coordination.topics import names, unknown
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.operations import Recipe
from folkmoot.coordination.zookeeper.session import Session
from folkmoot.network.ask_any import ask_any
from folkmoot.network.client import Connections
from folkmoot.network.cluster import ClusterConfig
from folkmoot.protocol import errors
from folkmoot.protocol.messages import Api, LogSize, LogSizesRequest
from folkmoot.protocol.records import TopicPartition

log = logging.getLogger(__name__)

_T = TypeVar("_T")

PATIENCE: Final = 5.0
"""Seconds to wait for the sizes of logs; a plan does without those that are missing."""


class ReplicaSize(NamedTuple):
    """The size of a partition's log on one broker, and its first and last offset there."""

    broker: int
    partition: TopicPartition
    topic_id: str
    bytes: int
    log_start: int
    log_end: int


class PlannedMove(NamedTuple):
    """A partition's replicas go from `original` to `target`, and `bytes` are copied for it; None if its
    leader did not answer."""

    partition: TopicPartition
    original: list[int]
    target: list[int]
    bytes: int | None


class RunningMove(NamedTuple):
    """A partition whose replicas are being moved. The added replicas must copy `bytes`, and have `copied`;
    None where brokers did not answer. `throttle`: bytes a second, 0: no limit."""

    partition: TopicPartition
    original: list[int]
    target: list[int]
    in_sync: list[int]
    copied: int | None
    bytes: int | None
    throttle: int
    is_cancelled: bool


class ReplicaMoves:
    """Plans and starts moves in one ZooKeeper session. It lives as long as one call of Admin."""

    def __init__(self, session: Session, config: ClusterConfig, timeout: float) -> None:
        self._session = session
        self._config = config
        self._timeout = timeout

    def sizes(self, topics: Sequence[str] | None) -> list[ReplicaSize]:
        """Return the logs of the live brokers that answer in time. Raises UnknownTopicOrPartition."""
        known = self._execute(names()) if topics is not None else []
        for missing in sorted(set(topics or ()).difference(known)):
            raise unknown(missing)
        live = self._execute(brokers.live())
        return sorted(self._sizes(live, topics))

    def _sizes(
        self, live: Mapping[int, Registration], topics: Sequence[str] | None
    ) -> list[ReplicaSize]:
        listener = self._config.listener
        named = {
            broker.listeners[listener]: number
            for number, broker in live.items()
            if listener in broker.listeners
        }
        request = LogSizesRequest(None if topics is None else list(topics))
        limit = min(PATIENCE, self._timeout)
        by_broker: dict[int, list[ReplicaSize]] = {}
        with Connections.of(self._config) as connections:
            arguments = Api.LOG_SIZES, request, limit
            for reply in ask_any(connections, [*named], *arguments, again=False):
                if reply.error is None:
                    broker_id = named[reply.address]
                    by_broker[broker_id] = [
                        _size(broker_id, log_size) for log_size in reply.response.logs
                    ]
        if silent := sorted(live.keys() - by_broker.keys()):
            broker_names = ", ".join(f"broker {broker}" for broker in silent)
            log.warning(
                "the sizes of logs on %s are not known: no answer within %g s", broker_names, limit
            )
        return [size for sizes in by_broker.values() for size in sizes]

    # -- plans ------------------------------------------------------------------------------------

    def plan(
        self,
        topic: str,
        partitions: Iterable[int] | None,
        on: Sequence[int] | None,
        replicas: int | None,
    ) -> list[PlannedMove]:
        """Plan moves to the brokers `on`, or to a number of `replicas`.

        Named partitions are all placed in the order of `on`; the partitions of a whole topic take turns.
        """
        cluster = read_cluster(self._session, self._timeout, [topic])
        known = {status.partition: status for status in cluster.partitions}
        numbers = sorted(known if partitions is None else set(partitions))
        for number in numbers:
            if number not in known:
                raise errors.UnknownTopicOrPartition(
                    f"topic {topic} has no partition {number}, only 0 to {len(known) - 1}"
                )
        if on is not None:
            rotations = len(on) if partitions is None and on else 1
            targets = {
                number: [*on[number % rotations :], *on[: number % rotations]] for number in numbers
            }
        else:
            usable = racks_of(self._execute(brokers.usable()))
            current = {number: _assigned(known[number]) for number in numbers}
            targets = move(topic, current, usable, replicas)
        self._execute(reassignments.check(topic, targets))
        return self._planned([known[number] for number in numbers], targets, cluster.brokers)

    def plan_drain(self, broker: int) -> list[PlannedMove]:
        cluster = read_cluster(self._session, self._timeout)
        usable = racks_of(self._execute(brokers.usable()))
        usable.pop(broker, None)
        by_topic: dict[str, list[PartitionStatus]] = {}
        for status in cluster.partitions:
            if broker in status.replicas and not _is_leaving(status, broker):
                _check_movable(status, broker)
                by_topic.setdefault(status.topic, []).append(status)
        if not by_topic and broker not in cluster.brokers:
            raise errors.InvalidReplicaAssignment(
                f"broker {broker} is not registered and holds nothing"
            )
        moves = []
        for topic, statuses in by_topic.items():
            # Replicas on dead brokers are moved, too: a move ends only when all its targets are in sync.
            targets = move(
                topic, {status.partition: status.replicas for status in statuses}, usable
            )
            moves += self._planned(statuses, targets, cluster.brokers)
        return moves

    def _planned(
        self,
        partitions: Iterable[PartitionStatus],
        targets: Mapping[int, list[int]],
        live: Mapping[int, Registration],
    ) -> list[PlannedMove]:
        moving = [status for status in partitions if targets[status.partition] != _assigned(status)]
        topics = sorted({status.topic for status in moving})
        sizes = {
            (replica.broker, replica.partition): replica.bytes
            for replica in self._sizes(live, topics)
        }
        planned = []
        for status in moving:
            name, target = TopicPartition(status.topic, status.partition), targets[status.partition]
            size = None if status.leader is None else sizes.get((status.leader, name))
            added = len(set(target) - set(status.replicas))
            length = None if size is None else size * added
            planned.append(PlannedMove(name, _assigned(status), target, length))
        return planned

    # -- doing it ---------------------------------------------------------------------------------

    def drain(self, broker: int, throttle: int) -> list[PlannedMove]:
        """Give a broker no new replicas, and move its own to others, topic by topic.

        A second call continues where the first one ended.
        """
        self.plan_drain(broker)  # raises before anything is changed
        self._execute(brokers.set_drained(broker, True))
        planned = self.plan_drain(broker)
        by_topic: dict[str, dict[int, list[int]]] = {}
        for planned_move in planned:
            by_topic.setdefault(planned_move.partition.topic, {})[
                planned_move.partition.partition
            ] = planned_move.target
        for topic, targets in by_topic.items():
            self._execute(reassignments.start(topic, targets, throttle))
        return planned

    def cancel_drain(self, broker: int) -> list[TopicPartition]:
        self._execute(brokers.set_drained(broker, False))
        cancelled: list[TopicPartition] = []
        while leaving_by_topic := self._leaving(broker):
            for topic, numbers in leaving_by_topic.items():
                # If one of them has ended meanwhile, none was cancelled: the loop reads all again.
                with suppress(errors.NoReassignmentInProgress, errors.UnknownTopicOrPartition):
                    cancelled_numbers = self._execute(reassignments.cancel(topic, numbers))
                    cancelled += [TopicPartition(topic, number) for number in cancelled_numbers]
        return cancelled

    def _leaving(self, broker: int) -> dict[str, list[int]]:
        by_topic: dict[str, list[int]] = {}
        for status in read_cluster(self._session, self._timeout).partitions:
            moved = status.reassignment
            if moved is not None and broker in moved.original and broker not in moved.target:
                by_topic.setdefault(status.topic, []).append(status.partition)
        return by_topic

    def running(self, topics: Sequence[str] | None) -> list[RunningMove]:
        cluster = read_cluster(self._session, self._timeout, topics)
        moving = [status for status in cluster.partitions if status.reassignment is not None]
        topics_moving = sorted({status.topic for status in moving})
        replica_sizes = self._sizes(cluster.brokers, topics_moving) if moving else []
        sizes = {(replica.broker, replica.partition): replica.bytes for replica in replica_sizes}
        return [_running(status, sizes) for status in moving]

    def _execute(self, recipe: Recipe[_T]) -> _T:
        return execute(self._session, recipe, self._timeout)


def _size(broker: int, log: LogSize) -> ReplicaSize:
    partition = TopicPartition(log.topic, log.partition)
    return ReplicaSize(broker, partition, log.topic_id, log.size, log.log_start, log.log_end)


def _running(
    status: PartitionStatus, sizes: Mapping[tuple[int, TopicPartition], int]
) -> RunningMove:
    moved = status.reassignment
    assert moved is not None
    name = TopicPartition(status.topic, status.partition)
    added = [broker for broker in moved.target if broker not in moved.original]
    size = None if status.leader is None else sizes.get((status.leader, name))
    copied = None
    if size is not None:
        copied = sum(min(size, sizes.get((broker, name), 0)) for broker in added)
    return RunningMove(
        *(name, moved.original, moved.target, status.in_sync, copied),
        *(None if size is None else size * len(added), moved.throttle, moved.is_cancelled),
    )


def _assigned(status: PartitionStatus) -> list[int]:
    """Return the brokers of the replicas, or those they are moved to."""
    return status.replicas if status.reassignment is None else status.reassignment.target


def _is_leaving(status: PartitionStatus, broker: int) -> bool:
    return status.reassignment is not None and broker not in status.reassignment.target


def _check_movable(status: PartitionStatus, broker: int) -> None:
    name = f"{status.topic}-{status.partition}"
    if status.reassignment is not None:
        raise errors.ReassignmentInProgress(
            f"{name} is being moved to {status.reassignment.target}: wait until that has ended, or cancel it"
        )
    others = [other for other in status.in_sync if other != broker]
    is_alone = len(status.replicas) == 1 and broker in status.in_sync
    if not others and not is_alone:
        raise errors.InvalidReplicaAssignment(
            f"broker {broker} is the last in-sync replica of {name}: wait until others of "
            f"{list(status.replicas)} are in sync, and start those that are not alive "
            "(`folkmoot topic describe --under-replicated`)"
        )
