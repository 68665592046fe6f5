"""What a session reads of topics and states, and how often."""

from collections import Counter
from collections.abc import Mapping

from folkmoot.brokers.controller.cluster_reader import TOPICS, ClusterReader
from folkmoot.coordination import partition_states, paths, topics
from folkmoot.coordination.partition_states import (
    MISSING,
    PartitionState,
    StateWrite,
    TopicIdPartition,
)
from folkmoot.coordination.topics import TopicInfo
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.operations import Delete, Operation, Recipe
from tests.memory_zookeeper import MemoryZooKeeper

COUNT = 300
STATE = PartitionState(1, 0, (1,), 1)


class Scene:
    """A reader of a cluster, and a user who changes it."""

    def __init__(self) -> None:
        self.ensemble = MemoryZooKeeper()
        self.user, self.session = self.ensemble.connect(), self.ensemble.connect()
        self.asked: Counter[str] = Counter()
        self.reader = ClusterReader(lambda: None)
        self.reader.note(TOPICS)
        self.settle()

    def settle(self) -> None:
        """Read until nothing rings."""
        while self.reader.listen():
            for recipe in self.reader.reads():
                execute(self.session, self._counted(recipe))

    def _counted(self, recipe: Recipe[None]) -> Recipe[None]:
        step, answer = recipe.send, None
        while True:
            try:
                operation: Operation = step(answer)
            except StopIteration:
                return
            self.asked[type(operation).__name__] += 1
            try:
                answer = yield operation
            except Exception as error:
                step, answer = recipe.throw, error
            else:
                step = recipe.send

    def create(self, partitions: int = COUNT) -> TopicInfo:
        return execute(self.user, topics.create("t", partitions, [1]))

    def write(self, topic: TopicInfo, numbers: range) -> None:
        writes: Mapping[TopicIdPartition, StateWrite] = {
            TopicIdPartition(topic.topic_id, each): StateWrite(STATE, MISSING) for each in numbers
        }
        execute(self.user, partition_states.write(writes))

    def known(self, topic: TopicInfo) -> list[int]:
        return sorted(each.partition for each in self.reader.states if each[0] == topic.topic_id)


def test_a_topic_is_known_before_its_states_are_written_whatever_its_size() -> None:
    scene = Scene()
    scene.asked.clear()
    topic = scene.create()
    scene.settle()
    assert scene.reader.topics == {"t": topic}
    assert set(scene.reader.changed) >= {TopicIdPartition(topic.topic_id, n) for n in range(COUNT)}
    assert scene.asked.total() < 10


def test_each_state_is_read_once_when_it_is_written() -> None:
    scene = Scene()
    topic = scene.create()
    scene.settle()
    scene.asked.clear()
    scene.write(topic, range(COUNT))
    scene.settle()
    assert scene.known(topic) == list(range(COUNT))
    assert scene.asked.total() < COUNT + 10


def test_states_that_come_bit_by_bit_are_found() -> None:
    scene = Scene()
    topic = scene.create(6)
    for number in (3, 0, 5, 1):
        scene.write(topic, range(number, number + 1))
        scene.settle()
    assert scene.known(topic) == [0, 1, 3, 5]
    execute(scene.user, topics.add_partitions("t", 8, [1]))
    scene.settle()
    scene.write(topic, range(7, 8))
    scene.settle()
    assert scene.known(topic) == [0, 1, 3, 5, 7]


def test_a_state_that_is_lost_is_noticed_and_found_again_when_it_is_put_back() -> None:
    scene = Scene()
    topic = scene.create(3)
    scene.write(topic, range(3))
    scene.settle()
    execute(scene.user, Delete(paths.partition_state(topic.topic_id, 1)))
    scene.settle()
    assert scene.known(topic) == [0, 2]
    scene.write(topic, range(1, 2))
    scene.settle()
    assert scene.known(topic) == [0, 1, 2]


def test_all_states_that_are_lost_with_their_parent_are_found_again() -> None:
    scene = Scene()
    topic = scene.create(2)
    scene.write(topic, range(2))
    scene.settle()
    for each in (0, 1):
        execute(scene.user, Delete(paths.partition_state(topic.topic_id, each)))
    execute(scene.user, Delete(paths.partition_states(topic.topic_id)))
    scene.settle()
    assert scene.known(topic) == []
    scene.write(topic, range(2))
    scene.settle()
    assert scene.known(topic) == [0, 1]


def test_a_topic_that_is_deleted_is_read_no_more() -> None:
    scene = Scene()
    topic = scene.create(2)
    scene.write(topic, range(2))
    scene.settle()
    execute(scene.user, topics.delete("t"))
    scene.settle()
    assert not scene.reader.topics
    assert not scene.known(topic)
    scene.asked.clear()
    execute(scene.user, Delete(paths.partition_state(topic.topic_id, 0)))
    scene.settle()
    assert not scene.asked.total()
