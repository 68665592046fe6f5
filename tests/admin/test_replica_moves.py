"""Which partitions an administrator's plan to move replicas is about."""

from typing import Any

import pytest
from msgspec.structs import replace

from folkmoot.admin import replica_moves
from folkmoot.admin.config import AdminConfig
from folkmoot.admin.replica_moves import ReplicaMoves
from folkmoot.coordination import brokers, partition_states, topics
from folkmoot.coordination.brokers import Registration
from folkmoot.coordination.cluster.cluster_status import ClusterStatus, read_cluster
from folkmoot.coordination.partition_states import (
    MISSING,
    PartitionState,
    StateWrite,
    TopicIdPartition,
)
from folkmoot.coordination.topics import TopicInfo
from folkmoot.coordination.zookeeper.execute import execute
from tests.memory_zookeeper import MemoryZooKeeper

CONFIG = AdminConfig(zookeeper="z:1", client_id="me")


def test_a_plan_is_about_the_partitions_named_or_all() -> None:
    ensemble = MemoryZooKeeper()
    session = ensemble.connect()
    for number in (1, 2):
        mine = Registration({}, f"n{number}", f"d{number}")
        execute(ensemble.connect(), brokers.register(number, mine))
    topic = execute(session, topics.create("t", 3, [1]))
    led = StateWrite(PartitionState(1, 1, (1,), 1, active=True), MISSING)
    states = {TopicIdPartition(topic.topic_id, number): led for number in range(3)}
    execute(session, partition_states.write(states))
    moves = ReplicaMoves(session, CONFIG, 10.0)

    def planned(*partitions: int) -> list[tuple[int, list[int], list[int]]]:
        found = moves.plan("t", partitions or None, [2], None)
        return [(each.partition.partition, each.original, each.target) for each in found]

    assert planned() == [(number, [1], [2]) for number in range(3)]
    assert planned(2, 1) == [(1, [1], [2]), (2, [1], [2])]


def test_a_drain_is_taken_back_though_some_of_it_ends_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ensemble = MemoryZooKeeper()
    session = ensemble.connect()
    for number in (1, 2):
        mine = Registration({}, f"n{number}", f"d{number}")
        execute(ensemble.connect(), brokers.register(number, mine))
    topic = execute(session, topics.create("t", 3, [1]))
    led = StateWrite(PartitionState(1, 1, (1,), 1, active=True), MISSING)
    states = {TopicIdPartition(topic.topic_id, number): led for number in range(3)}
    execute(session, partition_states.write(states))
    moves = ReplicaMoves(session, CONFIG, 10.0)
    moves.drain(1, 0)

    def first_has_ended(topic: TopicInfo) -> TopicInfo:
        others = {number: move for number, move in topic.reassignments.items() if number}
        return replace(topic, partitions=[[2], *topic.partitions[1:]], reassignments=others)

    def read_and_end(*arguments: Any) -> ClusterStatus:
        found = read_cluster(*arguments)
        execute(session, topics.update("t", first_has_ended))
        return found

    monkeypatch.setattr(replica_moves, "read_cluster", read_and_end)
    assert moves.cancel_drain(1) == [("t", 1), ("t", 2)]
    monkeypatch.undo()
    assert [each.is_cancelled for each in moves.running(None)] == [True, True]
