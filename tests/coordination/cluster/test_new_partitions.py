"""Waiting for the leaders of new partitions."""

from concurrent.futures import ThreadPoolExecutor

from folkmoot.coordination import partition_states, topics
from folkmoot.coordination.cluster import controllers
from folkmoot.coordination.cluster.new_partitions import wait_until_led
from folkmoot.coordination.partition_states import (
    MISSING,
    PartitionState,
    StateWrite,
    TopicIdPartition,
)
from folkmoot.coordination.zookeeper.execute import execute
from folkmoot.coordination.zookeeper.session import Session


def test_the_wait_ends_with_the_last_partition_that_is_led(admin: Session) -> None:
    topic = execute(admin, topics.create("t", 150, [1]))
    execute(admin, controllers.elect(1, "nonce", lambda: None))
    keys = [TopicIdPartition(topic.topic_id, number) for number in range(150)]
    first = PartitionState(1, 0, (1,), 1)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait_until_led, admin, topic, 30.0)
        for some in (keys[:120], keys[120:]):
            execute(admin, partition_states.write(dict.fromkeys(some, StateWrite(first, MISSING))))
            assert not waiting.done()
            led = dict.fromkeys(some, StateWrite(first.activate(), 0))
            execute(admin, partition_states.write(led))
        assert waiting.result(30.0)
    assert wait_until_led(admin, topic, 0.5), "a partition that was led before is not waited for"


def test_the_wait_is_bounded_and_short_without_a_controller(admin: Session) -> None:
    topic = execute(admin, topics.create("t", 2, [1]))
    assert not wait_until_led(admin, topic, 3600.0)
    execute(admin, controllers.elect(1, "nonce", lambda: None))
    assert not wait_until_led(admin, topic, 0.05)
