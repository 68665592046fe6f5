"""Partitions that are read without a group."""

from typing import Any

import pytest

from folkmoot.consumers.group.events import Assigned, Committed, Left, Lost
from folkmoot.protocol.errors import ConfigError, UnknownTopicOrPartition
from folkmoot.protocol.records import TopicPartition
from folkmoot.spark_apps.options.config import StreamConfig
from folkmoot.spark_apps.stream.group_member import AssignedMember
from tests.spark_apps.stream.group import ID, FakeLogs, flights


class Finder:
    closed = False

    def close(self) -> None:
        self.closed = True


def alone(assign: str, logs: Any) -> AssignedMember:
    config = StreamConfig(zookeeper="z", assign=assign)
    finder: Any = Finder()
    return AssignedMember(config, logs, finder)


def test_assigned_partitions_are_ours_at_once_and_nobody_refuses_a_commit() -> None:
    member = alone('{"flights": [2, 0]}', FakeLogs())
    member.start()
    assert list(member.notices) == [
        Assigned(flights(0), ID, None, 0),
        Assigned(flights(2), ID, None, 0),
    ]
    assert member.read_plan().assignment == {flights(0), flights(2)}
    member.notices.clear()
    member.commit({flights(0): 5}, {flights(0): 0})
    member.begin_to_leave()
    assert list(member.notices) == [Committed(0, {flights(0): 5}, frozenset()), Left()]


@pytest.mark.parametrize(
    ("assign", "kind", "said"),
    [
        ('{"flights": [4]}', ConfigError, "flights-4: topic flights has partitions 0 to 3"),
        ('{"trains": [0]}', UnknownTopicOrPartition, "topic trains does not exist"),
    ],
)
def test_what_does_not_exist_is_refused_at_the_start(
    assign: str, kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match=said):
        alone(assign, FakeLogs()).start()


def test_a_topic_that_is_created_anew_is_assigned_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = FakeLogs()
    member = alone('{"flights": [0]}', logs)
    member.start()
    member.notices.clear()
    member.polled(0.0)
    assert not member.notices
    monkeypatch.setattr(logs, "topic_id", {"flights": "another"}.__getitem__)
    member.polled(0.0)
    lost, assigned = member.notices
    assert isinstance(lost, Lost)
    assert assigned == Assigned(TopicPartition("flights", 0), "another", None, 0)
