"""The controller step by step: what it reads in whichever order things happen."""

import pytest

from folkmoot.brokers.controller.controller import READ_BROKERS_EVERY, Controller
from folkmoot.brokers.controller.history import RECORD_AFTER
from folkmoot.coordination import brokers, partition_states, paths, topics
from folkmoot.coordination.brokers import Registration
from folkmoot.coordination.cluster import controllers, reassignments
from folkmoot.coordination.partition_states import PartitionState, StateWrite, TopicIdPartition
from folkmoot.coordination.topics import TopicInfo
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.operations import Delete, Exists, MultiFailed, Recipe
from tests.memory_zookeeper import MemoryZooKeeper


class Scene:
    """A controller that is elected, two brokers, and a user."""

    def __init__(self) -> None:
        self.ensemble = ensemble = MemoryZooKeeper()
        self.user, self.session = ensemble.connect(), ensemble.connect()
        for number in (1, 2):
            mine = Registration({}, "n", f"d{number}")
            execute(ensemble.connect(), brokers.register(number, mine))
        self.controller = Controller(1, "nonce", lambda: None)
        self.settle()
        assert self.controller.is_elected

    def run(self, recipes: list[Recipe[None]]) -> None:
        for recipe in recipes:
            execute(self.session, recipe)

    def settle(self, now: float = 0.0) -> None:
        for _ in range(50):
            recipes = self.controller.step(now)
            if not recipes:
                return
            self.run(recipes)
        raise AssertionError("the controller does not come to rest")

    def create(self) -> TopicInfo:
        return execute(self.user, topics.create("t", 2, [1]))

    def check(self, topic: TopicInfo) -> None:
        """This topic has states, and no other."""
        assert execute(self.user, partition_states.topic_ids()) == [topic.topic_id]
        assert execute(self.user, partition_states.partitions_of(topic.topic_id)) == [0, 1]


@pytest.mark.parametrize("first", [0, 1])
def test_a_topic_that_is_created_anew_while_its_end_is_read_is_a_new_topic(first: int) -> None:
    scene = Scene()
    scene.create()
    scene.settle()
    execute(scene.user, topics.delete("t"))
    recipes = scene.controller.step(0.0)
    assert len(recipes) == 3, "its node, the list of topics and that of deletions rang"
    scene.run([recipes.pop(first)])
    later = scene.create()
    scene.run(recipes)
    scene.settle()
    scene.check(later)


def test_a_topic_that_is_created_anew_between_two_looks_is_a_new_topic() -> None:
    scene = Scene()
    scene.create()
    scene.settle()
    execute(scene.user, topics.delete("t"))
    later = scene.create()
    scene.settle()
    scene.check(later)


def test_what_changes_while_it_is_read_is_read_again() -> None:
    scene = Scene()
    topic = scene.create()
    (recipe,) = scene.controller.step(0.0)
    operation = next(recipe)
    names = execute(scene.session, operation)
    execute(scene.user, topics.delete("t"))
    with pytest.raises(StopIteration):
        recipe.send(names)
    scene.settle()
    assert execute(scene.user, partition_states.topic_ids()) == []
    again = scene.create()
    assert again.topic_id != topic.topic_id
    scene.settle()
    scene.check(again)


@pytest.mark.parametrize("lost", ["/partitions", "state"])
def test_a_partition_whose_state_is_gone_gets_no_first_one_again(
    lost: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It would be led in its first epoch again, by anybody, who has others cut what was committed."""
    scene = Scene()
    topic = scene.create()
    scene.settle()
    state = paths.partition_state(topic.topic_id, 0)
    execute(scene.user, Delete(state))
    if lost == "/partitions":
        execute(scene.user, Delete(paths.partition_state(topic.topic_id, 1)))
        execute(scene.user, Delete(paths.partition_states(topic.topic_id)))
    scene.settle()
    assert execute(scene.user, Exists(state)) is None
    assert f"topic id {topic.topic_id}: states of its partitions are gone" in caplog.text
    execute(scene.user, topics.add_partitions("t", 3, [1]))
    scene.settle()
    assert execute(scene.user, Exists(state)) is None


def test_a_topic_that_is_gone_without_a_deletion_keeps_its_states() -> None:
    scene = Scene()
    topic = scene.create()
    scene.settle()
    execute(scene.user, Delete(paths.topic("t")))
    scene.settle()
    scene.check(topic)


def test_what_is_written_to_a_topic_while_a_reassignment_of_it_ends_stays() -> None:
    scene = Scene()
    scene.create()
    scene.settle()
    execute(scene.user, reassignments.start("t", {0: [1, 2]}))
    topic = execute(scene.user, topics.read("t"))
    me = execute(scene.user, controllers.current())
    assert topic is not None
    assert me is not None
    ending = topic.reassignments[0], StateWrite(PartitionState(1, 0, (1,), 1), 0)
    guard = controllers.is_in_epoch(me)
    recipe = reassignments.end("t", topic.topic_id, {0: ending}, guard)
    found = execute(scene.session, next(recipe))
    written = execute(scene.user, topics.configure("t", {"retention": "60"}))
    transaction = recipe.send(found)
    with pytest.raises(MultiFailed) as refusal:
        execute(scene.session, transaction)
    with pytest.raises(StopIteration):
        recipe.throw(refusal.value)
    assert execute(scene.user, topics.read("t")) == written
    assert written.reassignments == topic.reassignments


def test_a_broker_is_noticed_although_its_watch_was_lost() -> None:
    scene = Scene()
    assert scene.ensemble.drop_watches(scene.session), "and none of them rings"
    execute(scene.ensemble.connect(), brokers.register(3, Registration({}, "n", "d3")))
    scene.settle(RECORD_AFTER)
    assert set(scene.controller._reader.brokers) == {1, 2}
    due = scene.controller.ask_again
    assert due is not None
    assert due <= READ_BROKERS_EVERY
    scene.settle(due)
    assert set(scene.controller._reader.brokers) == {1, 2, 3}
    assert scene.controller.ask_again == due + RECORD_AFTER


def test_states_that_keep_changing_hold_up_no_election() -> None:
    scene = Scene()
    other = execute(scene.user, topics.create("busy", 1, [2]))
    topic = execute(scene.user, topics.create("t", 1, [1, 2], replicas=2))
    scene.settle()
    key, changing = (TopicIdPartition(each.topic_id, 0) for each in (topic, other))
    led = execute(scene.user, partition_states.read(key))
    assert led is not None
    dead = led.state.leader
    both = led.state.with_isr((1, 2))
    execute(scene.user, partition_states.write({key: StateWrite(both, led.partition_epoch)}))
    scene.settle()
    scene.user.submit(Delete(paths.broker(dead)), lambda _: None)
    for _ in range(20):
        scene.run(scene.controller.step(0.0))
        found = execute(scene.user, partition_states.read(changing))
        assert found is not None
        write = {changing: StateWrite(found.state, found.partition_epoch)}
        execute(scene.user, partition_states.write(write))
        now = execute(scene.user, partition_states.read(key))
        assert now is not None
        if now.state.leader != dead:
            return
    raise AssertionError(f"broker {dead} is still to lead")
