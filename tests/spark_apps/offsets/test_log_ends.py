"""Ends of logs that the Spark sources ask of leaders which the test plays."""

import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from folkmoot.network.ask_leaders import ENTRIES
from folkmoot.protocol.errors import BrokerUnreachable, NotLeader, UnknownTopicOrPartition
from folkmoot.protocol.messages import EARLIEST, LATEST
from folkmoot.protocol.records import TopicPartition
from folkmoot.spark_apps.offsets.log_watch import LogWatch
from folkmoot.spark_apps.options.config import StreamConfig
from tests.consumers.test_offset_lookup import BOTH, LONG, P0, P1, Brokers
from tests.waiting import eventually

WATCHED = StreamConfig(zookeeper="z", group="g", subscribe="flights")


@pytest.fixture
def brokers() -> Iterator[Brokers]:
    with ExitStack() as stack:
        yield Brokers(stack)


@pytest.fixture
def lookups(brokers: Brokers) -> Iterator[LogWatch]:
    made = LogWatch(WATCHED, brokers.discover)
    yield made
    made.close()


def test_each_leader_is_asked_once_for_all_of_its_partitions(
    brokers: Brokers, lookups: LogWatch
) -> None:
    brokers.offsets = {(0, LATEST): 10, (1, LATEST): 20, (0, EARLIEST): 3, (1, EARLIEST): 4}
    assert lookups.find(BOTH, LATEST, LONG) == {P0: 10, P1: 20}
    assert sorted(brokers.asked) == [0, 1]
    assert lookups.find(BOTH, EARLIEST, LONG) == {P0: 3, P1: 4}


def test_a_leader_of_more_partitions_than_a_request_may_name_is_asked_in_several(
    brokers: Brokers, lookups: LogWatch
) -> None:
    count = 2 * ENTRIES + 1
    brokers.leaders = [0] * count
    brokers.offsets = {(number, LATEST): number for number in range(count)}
    wanted = {TopicPartition("flights", number): "id" for number in range(count)}
    assert lookups.find(wanted, LATEST, wait=30.0) == {each: each.partition for each in wanted}
    assert brokers.asked == [0] * 3


def test_a_wrong_leader_is_asked_no_more(brokers: Brokers, lookups: LogWatch) -> None:
    brokers.offsets = {(0, LATEST): 10}
    assert lookups.find({P0: "id"}, LATEST, LONG) == {P0: 10}
    brokers.leaders = [1, 1]
    brokers.refusals = {0: NotLeader("led by broker 1")}
    brokers.offsets = {(0, LATEST): 11}
    eventually(lambda: lookups.find({P0: "id"}, LATEST) == {P0: 11})


def test_a_broker_that_owes_an_answer_is_not_asked_again(
    brokers: Brokers, lookups: LogWatch
) -> None:
    brokers.offsets = {(0, LATEST): 10, (1, LATEST): 20}
    assert lookups.find(BOTH, LATEST, LONG) == {P0: 10, P1: 20}
    brokers.silent = {1}
    eventually(lambda: lookups.find(BOTH, LATEST, wait=0.1) == {P0: 10})
    eventually(lambda: brokers.asked.count(1) == 2)
    assert lookups.find(BOTH, LATEST, wait=0.1) == {P0: 10}
    assert brokers.asked.count(1) == 2


def test_a_partition_without_a_leader_is_not_waited_for(
    brokers: Brokers, lookups: LogWatch
) -> None:
    brokers.offsets = {(0, LATEST): 10}
    brokers.leaders = [0, -1]
    lookups.partitions("flights", LONG)
    began = time.monotonic()
    assert lookups.find(BOTH, LATEST, wait=60.0) == {P0: 10}
    assert time.monotonic() - began < 30.0


def test_a_topic_that_does_not_exist_is_told_at_once(brokers: Brokers, lookups: LogWatch) -> None:
    brokers.missing = True
    with pytest.raises(UnknownTopicOrPartition, match="topic flights does not exist"):
        lookups.partitions("flights", LONG)
    assert lookups.find(BOTH, LATEST, LONG) == {}


def test_partitions_and_id_of_a_topic_are_known_after_asking(
    brokers: Brokers, lookups: LogWatch
) -> None:
    assert lookups.partitions("flights", LONG) == range(2)
    assert lookups.topic_id("flights") == "id"
    assert lookups.brokers() == frozenset(brokers.discover())


def test_without_brokers_nothing_is_known_and_the_reason_is_told() -> None:
    lookups = LogWatch(WATCHED, list)
    with pytest.raises(BrokerUnreachable, match="no broker is registered"):
        lookups.brokers()
    with pytest.raises(BrokerUnreachable, match="no broker is registered"):
        lookups.partitions("flights", 0.1)
    assert lookups.find(BOTH, LATEST, wait=0.05) == {}
    lookups.close()
