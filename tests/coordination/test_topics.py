"""Topics: where their partitions go, and recipes that end well whatever replies are lost."""

import random

import pytest

from folkmoot.coordination import deletions, paths, topics
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.operations import ConnectionLost, Multi, Operation, Recipe
from folkmoot.coordination.zookeeper.recipes import Malformed
from folkmoot.protocol.errors import (
    BrokerUnreachable,
    ConfigError,
    InvalidName,
    InvalidReplicationFactor,
    TopicExists,
    UnknownTopicOrPartition,
)
from tests.coordination.losses import LaggingZooKeeper, every_loss, write
from tests.coordination.steps import going_on, step
from tests.memory_zookeeper import MemoryZooKeeper
from tests.seeds import new_seed


def test_a_topic_is_read_as_it_was_created() -> None:
    session = MemoryZooKeeper().connect()
    created = execute(session, topics.create("flights", 3, [1, 2, 3], {"retention": "7"}))
    assert execute(session, topics.read("flights")) == created
    assert execute(session, topics.names()) == ["flights"]
    assert created.config == {"retention": "7"}


def test_a_replicated_topic_has_its_durability_and_its_minimum_for_good() -> None:
    session = MemoryZooKeeper().connect()
    for replicas, config in (
        (1, {}),
        (2, {"durability": "fsync", "min_in_sync": "1"}),
        (3, {"durability": "fsync", "min_in_sync": "2"}),
        (5, {"durability": "fsync", "min_in_sync": "2"}),
    ):
        creation = topics.create(f"t{replicas}", 2, [1, 2, 3, 4, 5], replicas=replicas)
        created = execute(session, creation)
        assert (created.config, created.replicas) == (config, replicas)
        assert created.min_in_sync == int(config.get("min_in_sync", 1))
    given = {"durability": "page-cache", "min_in_sync": "3"}
    created = execute(session, topics.create("given", 1, [1, 2, 3], given, replicas=3))
    assert created.config == given


def test_a_minimum_above_the_replicas_is_refused_at_creation_and_later() -> None:
    session = MemoryZooKeeper().connect()
    with pytest.raises(ConfigError, match="min_in_sync=3 is above the 2 replicas of topic t"):
        execute(session, topics.create("t", 1, [1, 2, 3], {"min_in_sync": "3"}, replicas=2))
    with pytest.raises(ConfigError, match="min_in_sync=2 is above the 1 replica"):
        execute(session, topics.create("t", 1, [1, 2, 3], {"min_in_sync": "2"}))
    assert execute(session, topics.names()) == []
    execute(session, topics.create("t", 1, [1, 2, 3], replicas=2))
    with pytest.raises(ConfigError, match="min_in_sync=3"):
        execute(session, topics.configure("t", {"min_in_sync": "3"}))
    changed = execute(session, topics.configure("t", {"min_in_sync": "2"}))
    assert changed.min_in_sync == 2


def test_a_topic_keeps_that_its_records_counted_in_the_page_cache() -> None:
    session = MemoryZooKeeper().connect()
    execute(session, topics.create("t", 1, [1, 2, 3], replicas=2))
    had = [
        execute(session, topics.configure("t", {"durability": durability})).had_page_cache
        for durability in ("fsync", "page-cache", "fsync", None)
    ]
    assert had == [False, False, True, True]


def test_added_partitions_have_as_many_replicas_as_the_others() -> None:
    session = MemoryZooKeeper().connect()
    before = execute(session, topics.create("t", 2, [1, 2, 3], replicas=2))
    after = execute(session, topics.add_partitions("t", 4, [1, 2, 3]))
    assert after.partitions[:2] == before.partitions
    assert [len(set(each)) for each in after.partitions] == [2, 2, 2, 2]
    with pytest.raises(InvalidReplicationFactor):
        execute(session, topics.add_partitions("t", 5, [1]))


def test_a_name_can_be_taken_once() -> None:
    session = MemoryZooKeeper().connect()
    execute(session, topics.create("t", 1, [1]))
    with pytest.raises(TopicExists, match="topic t exists"):
        execute(session, topics.create("t", 1, [1]))


@pytest.mark.parametrize(
    ("name", "partitions", "brokers", "error"),
    [
        ("t", 0, [1], ConfigError),
        ("t", topics.MAX_PARTITIONS + 1, [1], ConfigError),
        ("t", 1, [], BrokerUnreachable),
        ("t", 1, {}, BrokerUnreachable),
        ("../t", 1, [1], InvalidName),
    ],
)
def test_what_cannot_be_a_topic_is_refused_and_nothing_is_written(
    name: str, partitions: int, brokers: list[int] | dict[int, str], error: type[Exception]
) -> None:
    session = MemoryZooKeeper().connect()
    with pytest.raises(error):
        execute(session, topics.create(name, partitions, brokers))
    assert execute(session, topics.names()) == []


def test_deleting_removes_the_topic_and_a_second_time_there_is_none() -> None:
    session = MemoryZooKeeper().connect()
    execute(session, topics.create("t", 1, [1]))
    execute(session, topics.delete("t"))
    assert execute(session, topics.read("t")) is None
    with pytest.raises(UnknownTopicOrPartition):
        execute(session, topics.delete("t"))


def test_options_are_set_and_taken_back_whichever_reply_is_lost() -> None:
    for _, session in every_loss(most=12):
        created = execute(session, topics.create("t", 2, [1, 2], {"a": "1", "b": "2"}))
        changed = execute(
            session, topics.configure("t", {"b": "3", "c": "4", "a": None, "x": None})
        )
        assert changed == execute(session, topics.read("t"))
        assert changed.config == {"b": "3", "c": "4"}
        assert (changed.topic_id, changed.partitions) == (created.topic_id, created.partitions)
    with pytest.raises(UnknownTopicOrPartition):
        execute(session, topics.configure("no", {}))


def test_partitions_are_added_once_whichever_reply_is_lost() -> None:
    for _, session in every_loss(most=12):
        created = execute(session, topics.create("t", 2, [1, 2]))
        grown = execute(session, topics.add_partitions("t", 4, [1, 2]))
        assert grown == execute(session, topics.read("t"))
        assert (len(grown.partitions), grown.partitions[:2]) == (4, created.partitions)


def test_creating_and_deleting_end_well_whichever_reply_is_lost() -> None:
    lost = 0
    for ensemble, session in every_loss(most=8):
        created = execute(session, topics.create("t", 2, [1, 2]))
        assert execute(session, topics.read("t")) == created
        execute(session, topics.delete("t"))
        assert execute(session, topics.names()) == []
        lost = max(lost, ensemble.requests)
    assert lost > 5


def test_a_topic_of_the_same_name_is_not_mistaken_for_the_deleted_one() -> None:
    session = MemoryZooKeeper().connect()
    execute(session, topics.create("t", 1, [1]))
    recipe = topics.delete("t")
    operation: Operation | None = None
    while not isinstance(operation, Multi):
        operation = next(recipe) if operation is None else step(session, recipe, operation)
    # Its delete took effect, the reply is lost, and somebody is quick to create the topic anew.
    execute(session, topics.delete("t"))
    second = execute(session, topics.create("t", 1, [1]))
    question = recipe.throw(ConnectionLost("lost"))
    with pytest.raises(StopIteration):
        step(session, recipe, question)
    assert execute(session, topics.read("t")) == second


def test_a_topic_that_was_created_and_deleted_while_the_reply_was_lost_gets_another_id() -> None:
    session = MemoryZooKeeper().connect()
    recipe = topics.create("t", 1, [1])
    operation = next(recipe)
    while not isinstance(operation, Multi):
        operation = step(session, recipe, operation)
    execute(session, operation)
    first = execute(session, topics.read("t"))
    assert first is not None
    execute(session, topics.delete("t"))
    second = execute(session, going_on(recipe, recipe.throw(ConnectionLost("lost"))))
    assert second.topic_id != first.topic_id
    assert execute(session, topics.read("t")) == second


def test_a_topic_that_goes_while_another_is_created_under_its_name_is_in_the_way_no_more() -> None:
    session = MemoryZooKeeper().connect()
    execute(session, topics.create("t", 1, [1]))
    recipe = topics.create("t", 2, [1])
    operation = next(recipe)
    while not isinstance(operation, Multi):
        operation = step(session, recipe, operation)
    operation = step(session, recipe, operation)
    execute(session, topics.delete("t"))
    created = execute(session, going_on(recipe, operation))
    assert execute(session, topics.read("t")) == created


@pytest.mark.parametrize("change", [topics.configure("t", {"retention": "9"}), topics.delete("t")])
def test_a_server_that_lags_has_no_change_of_a_former_topic_written_over_the_present_one(
    change: Recipe[object],
) -> None:
    ensemble = LaggingZooKeeper()
    session, other = ensemble.connect(), ensemble.connect()
    execute(session, topics.create("t", 1, [1]))
    view = ensemble.snapshot()
    execute(session, topics.delete("t"))
    now = execute(session, topics.create("t", 1, [1]))
    ensemble.lag(view)
    execute(other, change)
    found = execute(session, topics.read("t"))
    assert found is None or found.topic_id == now.topic_id
    assert found is not None or now.topic_id in execute(session, deletions.topic_ids())


def test_watches_fire_for_new_topics_changed_ones_and_those_that_go() -> None:
    session = MemoryZooKeeper().connect()
    rings: list[str] = []
    execute(session, topics.names(lambda: rings.append("names")))
    execute(session, topics.create("t", 1, [1]))
    assert rings == ["names"]
    execute(session, topics.names(lambda: rings.append("names again")))
    execute(session, topics.read("t", lambda: rings.append("t")))
    execute(session, topics.delete("t"))
    assert sorted(rings) == ["names", "names again", "t"]


def test_what_somebody_else_wrote_is_malformed_and_not_a_topic() -> None:
    seed = new_seed()
    session = MemoryZooKeeper().connect()
    execute(session, topics.create("t", 1, [1]))
    for data in (b"", b"{}", b'{"id": 7}', b"\xff\xfe", random.Random(seed).randbytes(40)):
        write(session, paths.topic("bad"), data)
        with pytest.raises(Malformed, match="/topics/bad"):
            execute(session, topics.read("bad"))


def test_partitions_are_added_behind_those_that_are_there() -> None:
    session = MemoryZooKeeper().connect()
    before = execute(session, topics.create("t", 2, [1, 2]))
    after = execute(session, topics.add_partitions("t", 5, [1, 2, 3]))
    assert after.topic_id == before.topic_id
    assert after.partitions[:2] == before.partitions
    assert len(after.partitions) == 5
    assert execute(session, topics.read("t")) == after
    for wrong in (5, 4, 0, topics.MAX_PARTITIONS + 1):
        with pytest.raises(ConfigError, match="5 partitions"):
            execute(session, topics.add_partitions("t", wrong, [1]))
    with pytest.raises(BrokerUnreachable):
        execute(session, topics.add_partitions("t", 6, []))
    with pytest.raises(UnknownTopicOrPartition):
        execute(session, topics.add_partitions("u", 6, [1]))
