"""Reassignments: started, ended and cancelled, whoever dies on the way, on both ZooKeepers."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from folkmoot.coordination import brokers, partition_states, topics
from folkmoot.coordination.brokers import Registration
from folkmoot.coordination.cluster import controllers, reassignments
from folkmoot.coordination.partition_states import (
    MISSING,
    PartitionState,
    StateWrite,
    TopicIdPartition,
)
from folkmoot.coordination.topics import Reassignment, TopicInfo
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.operations import ConnectionLost, Operation, Recipe, Set
from folkmoot.coordination.zookeeper.recipes import GuardRefused
from folkmoot.protocol.errors import (
    ConfigError,
    FolkmootError,
    InvalidReplicaAssignment,
    NoReassignmentInProgress,
    ReassignmentInProgress,
    UnknownTopicOrPartition,
)
from tests.contracts.backends import Backend
from tests.coordination.steps import ENOUGH, Steps, going_on

MOVED = Reassignment([1, 2], [3, 2])


class Scene:
    """Four live brokers, a controller, and topics of two partitions on brokers 1 and 2."""

    def __init__(self, backend: Backend) -> None:
        self.session = backend.open()
        for number in (1, 2, 3, 4):
            mine = Registration({}, f"n{number}", f"d{number}")
            execute(backend.open(), brokers.register(number, mine))
        elected = controllers.elect(controllers.ALONE, "c", lambda: None)
        self.controller = execute(backend.open(), elected)
        self.create("t")

    def create(self, name: str) -> None:
        topic = execute(self.session, topics.create(name, 2, [1, 2], replicas=2))
        partitions = [[1, 2], [1, 2]]
        execute(self.session, topics.update(name, lambda it: replace(it, partitions=partitions)))
        for number in (0, 1):
            state = PartitionState(1, 4, (1, 2), 1, active=True)
            each = TopicIdPartition(topic.topic_id, number)
            execute(self.session, partition_states.write({each: StateWrite(state, MISSING)}))

    def topic(self, name: str = "t") -> TopicInfo:
        found = execute(self.session, topics.read(name))
        assert found is not None
        return found

    def state(self, name: str = "t") -> PartitionState:
        found = execute(
            self.session, partition_states.read(TopicIdPartition(self.topic(name).topic_id, 0))
        )
        assert found is not None
        return found.state

    def end(
        self, name: str = "t", ending: tuple[Reassignment, StateWrite] | None = None
    ) -> Recipe[None]:
        """As the controller ends it, with broker 3 as the leader."""
        topic = self.topic(name)
        ending = ending or (MOVED, StateWrite(PartitionState(3, 4, (3, 2), 1), 0))
        return reassignments.end(
            name, topic.topic_id, {0: ending}, controllers.is_in_epoch(self.controller)
        )


def started(scene: Scene, name: str = "t") -> None:
    execute(scene.session, reassignments.start(name, {0: [3, 2]}))


def nothing(scene: Scene, name: str = "t") -> None:
    pass


@pytest.fixture
def scene(backend: Backend) -> Scene:
    return Scene(backend)


def test_a_partition_has_the_replicas_of_both_lists_until_it_has_ended(scene: Scene) -> None:
    execute(scene.session, reassignments.start("t", {0: [3, 2]}, 1000))
    topic = scene.topic()
    assert topic.partitions == [[1, 2, 3], [1, 2]]
    assert topic.reassignments == {0: replace(MOVED, throttle=1000)}
    assert topic.replicas == topic.replica_count(0) == 2
    execute(scene.session, scene.end())
    assert scene.topic() == replace(
        topic,
        partitions=[[3, 2], [1, 2]],
        reassignments={},
        reassigned=1,
        revision=topic.revision + 1,
    )
    assert scene.state() == PartitionState(3, 4, (3, 2), 1, reassigned=1)


def test_partitions_can_be_added_and_options_be_set_while_one_is_moved(scene: Scene) -> None:
    started(scene)
    execute(scene.session, topics.add_partitions("t", 3, [1, 2, 3, 4]))
    execute(scene.session, topics.configure("t", {"retention": "60"}))
    execute(scene.session, scene.end())
    topic = scene.topic()
    assert (topic.partitions[:2], len(topic.partitions[2])) == ([[3, 2], [1, 2]], 2)
    assert topic.config["retention"] == "60"


def test_a_reassignment_that_was_cancelled_meanwhile_is_not_ended(scene: Scene) -> None:
    started(scene)
    ending = scene.end()
    execute(scene.session, reassignments.cancel("t", [0]))
    execute(scene.session, ending)
    going_back = scene.topic().reassignments[0]
    assert going_back == Reassignment([1, 2], [1, 2])
    assert (going_back.is_cancelled, MOVED.is_cancelled) == (True, False)
    assert scene.topic().partitions[0] == [1, 2, 3]
    assert scene.state().isr == (1, 2)


def test_a_state_that_was_written_meanwhile_keeps_it_from_ending(scene: Scene) -> None:
    started(scene)
    each = TopicIdPartition(scene.topic().topic_id, 0)
    shrunk = StateWrite(PartitionState(1, 4, (1,), 1, active=True), 0)
    execute(scene.session, partition_states.write({each: shrunk}))
    execute(scene.session, scene.end())
    assert scene.topic().reassignments == {0: MOVED}
    assert scene.state() == shrunk.state


def test_a_topic_that_was_made_anew_is_left_alone(scene: Scene) -> None:
    started(scene)
    ending = scene.end()
    execute(scene.session, topics.delete("t"))
    execute(scene.session, topics.create("t", 1, [1, 2], replicas=2))
    topic = scene.topic()
    execute(scene.session, ending)
    assert scene.topic() == topic


def test_a_controller_that_was_replaced_ends_nothing(scene: Scene) -> None:
    started(scene)
    scene.controller = replace(scene.controller, epoch=scene.controller.epoch - 1)
    with pytest.raises(GuardRefused):
        execute(scene.session, scene.end())
    assert scene.topic().reassignments == {0: MOVED}


def up_to_its_write(scene: Scene, recipe: Recipe[Any]) -> Operation:
    operation = next(recipe)
    while not isinstance(operation, Set):
        operation = recipe.send(execute(scene.session, operation))
    return operation


def test_what_has_gone_back_by_the_time_that_a_lost_reply_is_asked_about_was_cancelled(
    scene: Scene,
) -> None:
    started(scene)
    cancelling = reassignments.cancel("t")
    execute(scene.session, up_to_its_write(scene, cancelling))
    state, back = PartitionState(1, 4, (1, 2), 1), Reassignment([1, 2], [1, 2])
    execute(scene.session, scene.end(ending=(back, StateWrite(state, 0))))
    assert scene.topic().reassignments == {}
    asked = cancelling.throw(ConnectionLost("lost on the way back"))
    assert execute(scene.session, going_on(cancelling, asked)) == [0]


def test_what_has_ended_before_it_could_be_cancelled_is_not_said_to_have_been(
    scene: Scene,
) -> None:
    started(scene)
    cancelling = reassignments.cancel("t")
    up_to_its_write(scene, cancelling)
    execute(scene.session, scene.end())
    asked = cancelling.throw(ConnectionLost("lost on the way there"))
    with pytest.raises(NoReassignmentInProgress, match="no partition of topic t is being moved"):
        execute(scene.session, going_on(cancelling, asked))


def test_the_rate_is_changed_while_it_runs(scene: Scene) -> None:
    started(scene)
    assert execute(scene.session, reassignments.set_throttle("t", 7)) == [0]
    assert scene.topic().reassignments[0].throttle == 7


@pytest.mark.parametrize(
    ("targets", "error", "why"),
    [
        ({0: [9, 1]}, InvalidReplicaAssignment, "t-0: broker 9 is not registered: start it"),
        (
            {0: [3, 3]},
            InvalidReplicaAssignment,
            r"t-0: the list of brokers \[3, 3\] names a broker",
        ),
        ({0: []}, InvalidReplicaAssignment, r"t-0: the list of brokers \[\] is empty"),
        ({0: [4, 1]}, InvalidReplicaAssignment, "t-0: broker 4 is drained: name another"),
        ({2: [3, 2]}, UnknownTopicOrPartition, "topic t has no partition 2, only 0 to 1"),
        ({1: [3, 4]}, ReassignmentInProgress, r"t-1 is being moved from \[1, 2\] to \[2, 3\]"),
        ({0: [3]}, ConfigError, "min_in_sync=2 is above the 1 replica of topic t"),
    ],
)
def test_what_cannot_be_moved_is_refused_and_nothing_is_done(
    scene: Scene, targets: dict[int, list[int]], error: type[FolkmootError], why: str
) -> None:
    execute(scene.session, topics.configure("t", {"min_in_sync": "2"}))
    execute(scene.session, reassignments.start("t", {1: [2, 3]}))
    if targets.get(0) == [4, 1]:
        execute(scene.session, brokers.set_drained(4, True))
    if 1 in targets:
        targets = {0: [2, 1], **targets}
    before = scene.topic()
    with pytest.raises(error, match=why):
        execute(scene.session, reassignments.start("t", targets))
    assert scene.topic() == before


def test_what_is_not_there_or_not_moved_is_said(scene: Scene) -> None:
    for recipe in (reassignments.start("u", {0: [1]}), reassignments.cancel("u")):
        with pytest.raises(UnknownTopicOrPartition, match="topic u does not exist"):
            execute(scene.session, recipe)
    for recipe in (reassignments.cancel("t"), reassignments.set_throttle("t", 1)):
        with pytest.raises(
            NoReassignmentInProgress, match="no partition of topic t is being moved"
        ):
            execute(scene.session, recipe)
    started(scene)
    with pytest.raises(NoReassignmentInProgress, match="t-1 is not being moved"):
        execute(scene.session, reassignments.cancel("t", [1]))


def test_a_drained_broker_is_not_usable_until_it_is_told_otherwise(scene: Scene) -> None:
    for _ in range(2):
        execute(scene.session, brokers.set_drained(3, True))
        assert set(execute(scene.session, brokers.usable())) == {1, 2, 4}
    for _ in range(2):
        execute(scene.session, brokers.set_drained(3, False))
        assert set(execute(scene.session, brokers.usable())) == {1, 2, 3, 4}


MAKE: dict[str, tuple[Callable[..., None], Callable[[Scene, str], Recipe[Any]]]] = {
    "start": (nothing, lambda scene, name: reassignments.start(name, {0: [3, 2]})),
    "end": (started, lambda scene, name: scene.end(name)),
    "cancel": (started, lambda scene, name: reassignments.cancel(name)),
}


def check_done(scene: Scene, what: str, name: str) -> None:
    partitions, moves = {
        "start": ([1, 2, 3], {0: MOVED}),
        "end": ([3, 2], {}),
        "cancel": ([1, 2, 3], {0: Reassignment([1, 2], [1, 2])}),
    }[what]
    topic = scene.topic(name)
    assert (topic.partitions[0], topic.reassignments) == (partitions, moves)
    assert scene.state(name).isr == ((3, 2) if what == "end" else (1, 2))


@pytest.mark.parametrize("executed", [False, True], ids=["unsent", "unanswered"])
@pytest.mark.parametrize("what", MAKE)
def test_each_step_ends_well_whichever_reply_is_lost(
    scene: Scene, what: str, executed: bool
) -> None:
    prepare, make = MAKE[what]
    for lost in range(ENOUGH):
        name, steps = f"t{lost}", Steps(scene.session)
        scene.create(name)
        prepare(scene, name)
        steps.run(make(scene, name), lost, executed=executed)
        check_done(scene, what, name)
        if steps.taken <= lost:
            return
    pytest.fail("it does not end")


@pytest.mark.parametrize("what", MAKE)
def test_whoever_comes_next_does_what_a_process_that_died_has_not_done(
    scene: Scene, what: str
) -> None:
    prepare, make = MAKE[what]
    for step in range(ENOUGH):
        name = f"t{step}"
        scene.create(name)
        prepare(scene, name)
        before = scene.topic(name), scene.state(name)
        died = Steps(scene.session).run_until(make(scene, name), step)
        if (scene.topic(name), scene.state(name)) != before:
            check_done(scene, what, name)
        execute(scene.session, make(scene, name))
        check_done(scene, what, name)
        if not died:
            return
    pytest.fail("it does not end")


def test_more_than_a_node_can_hold_is_not_begun(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reassignments, "MOST_BYTES", 263)
    before = scene.topic()
    with pytest.raises(InvalidReplicaAssignment, match="2 partitions of t at once"):
        execute(scene.session, reassignments.start("t", {0: [3, 2], 1: [3, 2]}, 10**6))
    assert scene.topic() == before
    execute(scene.session, reassignments.start("t", {0: [3, 2]}, 10**6))
    assert scene.topic().reassignments.keys() == {0}
