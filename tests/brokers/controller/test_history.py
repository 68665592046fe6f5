"""What a controller sees change becomes events, once each."""

from typing import Any

import msgspec
import pytest

from folkmoot.brokers.controller.cluster_reader import BROKERS, ClusterReader
from folkmoot.brokers.controller.history import MOST_AT_ONCE, RECORD_AFTER, History
from folkmoot.coordination import topics
from folkmoot.coordination.brokers import Registration
from folkmoot.coordination.cluster import events
from folkmoot.coordination.cluster.events import ClusterEvent
from folkmoot.coordination.partition_states import PartitionState, TopicIdPartition, VersionedState
from folkmoot.coordination.topics import Reassignment, TopicInfo
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.operations import ZooKeeperError
from tests.brokers.controller.test_controller import Scene
from tests.memory_zookeeper import MemoryZooKeeper

FIRST = TopicInfo("id1", [[1, 2]])
STATE = PartitionState(1, 3, (1, 2), 1, active=True)
ZERO = TopicIdPartition("id1", 0)


class Look:
    """A history that has seen brokers 1 and 2 and topic t."""

    def __init__(self) -> None:
        self.reader = ClusterReader(lambda: None)
        self.reader.brokers = {each: Registration({}, "n", "d", epoch=each) for each in (1, 2)}
        self.reader.topics = {"t": FIRST}
        self.reader.states = {ZERO: VersionedState(STATE, 5)}
        self.history = History()
        self.first = self.kinds(BROKERS, "t", ZERO)

    def kinds(self, *changed: object) -> list[str]:
        self.history.compare(self.reader, changed, 0.0)
        return [each.kind for each in self.history.take(0.0)]


def test_the_first_look_of_a_controller_shows_who_is_away() -> None:
    look = Look()
    assert look.first == ["controller-elected"]
    assert look.kinds(BROKERS, "t", ZERO) == []
    another = History("broker 1")
    del look.reader.brokers[2]
    another.compare(look.reader, [BROKERS, "t", ZERO], 0.0)
    assert [(each.kind, each.broker) for each in another.take(0.0)] == [
        ("controller-elected", None),
        ("broker-left", 2),
    ]


def with_broker(**changes: Any) -> dict[int, Registration]:
    known = {each: Registration({}, "n", "d", epoch=each) for each in (1, 2)}
    known[2] = msgspec.structs.replace(known[2], **changes)
    return known


@pytest.mark.parametrize(
    ("after", "kinds"),
    [
        ({1: Registration({}, "n", "d", epoch=1)}, ["broker-left"]),
        (with_broker(epoch=9), ["broker-joined"]),
        (with_broker(leaving=True), ["broker-stopping"]),
        (with_broker(), []),
    ],
)
def test_brokers_that_come_and_go_are_events(
    after: dict[int, Registration], kinds: list[str]
) -> None:
    look = Look()
    look.reader.brokers = after
    assert look.kinds(BROKERS) == kinds


MOVE = Reassignment([1, 2], [2, 3])


@pytest.mark.parametrize(
    ("before", "after", "kinds"),
    [
        (FIRST, None, ["topic-deleted"]),
        (FIRST, TopicInfo("id2", [[1]]), ["topic-deleted", "topic-created"]),
        (FIRST, TopicInfo("id1", [[1, 2], [2, 1]]), ["topic-grown"]),
        (FIRST, TopicInfo("id1", [[1, 2]], {"retention": "60"}), ["topic-changed"]),
        (FIRST, TopicInfo("id1", [[1, 2, 3]], reassignments={0: MOVE}), ["reassignment-started"]),
        (TopicInfo("id1", [[1, 2, 3]], reassignments={0: MOVE}), FIRST, ["reassignment-ended"]),
        (
            TopicInfo("id1", [[1, 2, 3]], reassignments={0: MOVE}),
            TopicInfo("id1", [[1, 2, 3]], reassignments={0: Reassignment([1, 2], [1, 2])}),
            ["reassignment-cancelled"],
        ),
        (FIRST, FIRST, []),
    ],
)
def test_topics_that_change_are_events(
    before: TopicInfo, after: TopicInfo | None, kinds: list[str]
) -> None:
    look = Look()
    look.reader.topics = {"t": before}
    look.kinds("t")
    look.reader.topics = {} if after is None else {"t": after}
    assert look.kinds("t") == kinds


@pytest.mark.parametrize(
    ("after", "kinds"),
    [
        (msgspec.structs.replace(STATE, leader=2, leader_epoch=4), ["leader-elected"]),
        (
            msgspec.structs.replace(STATE, leader=2, leader_epoch=4, isr=(2,)),
            ["leader-elected", "in-sync"],
        ),
        (msgspec.structs.replace(STATE, isr=(1,)), ["in-sync"]),
        (msgspec.structs.replace(STATE, leader_epoch=4, unclean_epoch=4), ["unclean-election"]),
        (msgspec.structs.replace(STATE, active=False), []),
    ],
)
def test_leaders_and_replicas_in_sync_that_change_are_events(
    after: PartitionState, kinds: list[str]
) -> None:
    look = Look()
    look.reader.states = {ZERO: VersionedState(after, 6)}
    assert look.kinds(ZERO) == kinds


def test_an_event_keeps_its_own_time() -> None:
    look = Look()
    look.reader.brokers = {}
    look.history.compare(look.reader, [BROKERS], 5.0)
    assert look.history.due == 5.0 + RECORD_AFTER
    assert [each.age_ms for each in look.history.take(6.25)] == [1_250, 1_250]
    session = MemoryZooKeeper().connect()
    execute(
        session, events.record([ClusterEvent("more", "x", age_ms=1_250), ClusterEvent("more", "y")])
    )
    first, second = execute(session, events.entries())
    assert second.at_ms - first.at_ms == 1_250


def test_of_very_many_changes_some_are_counted() -> None:
    look = Look()
    names = [f"t{number:04}" for number in range(2 * MOST_AT_ONCE)]
    look.reader.topics |= {name: TopicInfo(name, [[1]]) for name in names}
    assert look.kinds(*names) == ["topic-created"] * MOST_AT_ONCE + ["more"]


def test_what_the_controller_sees_is_kept_in_zookeeper_after_a_moment() -> None:
    scene = Scene()
    execute(scene.user, topics.create("t", 1, [1]))
    scene.settle()
    assert execute(scene.user, events.entries()) == []
    assert scene.controller.ask_again is not None
    scene.settle(RECORD_AFTER)
    _, event = execute(scene.user, events.entries())
    assert (event.kind, event.topic) == ("topic-created", "t")
    assert event.at_ms > 0


def test_the_oldest_events_are_removed() -> None:
    session = MemoryZooKeeper().connect()
    for number in range(events.ENTRIES + 3):
        execute(session, events.record([ClusterEvent("more", str(number))]))
    kept = [each.text for each in execute(session, events.entries())]
    assert kept == [str(number) for number in range(3, events.ENTRIES + 3)]


def test_what_zookeeper_refuses_to_keep_ends_no_controller() -> None:
    recipe = events.record([ClusterEvent("more", "x")])
    next(recipe)
    with pytest.raises(StopIteration):
        recipe.throw(ZooKeeperError("refused"))
