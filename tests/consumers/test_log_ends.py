"""Offsets asked of leaders that the test plays."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from threading import Timer
from typing import Any

import pytest

from folkmoot.consumers.config import ConsumerConfig
from folkmoot.consumers.offsets.log_ends import Lookups
from folkmoot.consumers.offsets.offset_lookup import offsets_at
from folkmoot.protocol.errors import (
    BrokerUnreachable,
    FolkmootError,
    InvalidRequest,
    NotLeader,
    UnknownTopicOrPartition,
)
from folkmoot.protocol.messages import (
    EARLIEST,
    LATEST,
    MAX_ENTRIES,
    BrokerInfo,
    ListOffsetsResponse,
    ListOffsetsResult,
    MetadataResponse,
    PartitionMetadata,
    TopicMetadata,
)
from folkmoot.protocol.records import TopicPartition
from tests.network.stub import StubBroker
from tests.waiting import eventually

P0, P1 = TopicPartition("flights", 0), TopicPartition("flights", 1)
BOTH = {P0: "id", P1: "id"}
CONFIG = ConsumerConfig[bytes, bytes](zookeeper="nowhere:1")
LONG = 30.0
"""What waits for an answer waits no longer than for that."""


class Brokers:
    """Two brokers; broker n leads partition n, and says what the test has put into `offsets`."""

    def __init__(self, stack: ExitStack) -> None:
        self.offsets: dict[tuple[int, int], int] = {}
        self.refusals: dict[int, FolkmootError] = {}
        self.silent: set[int] = set()
        self.leaders = [0, 1]
        self.asked: list[int] = []
        self.missing = False
        self.stubs = [
            stack.enter_context(StubBroker(partial(self.answer, number))) for number in (0, 1)
        ]

    def discover(self) -> list[str]:
        return [stub.address for stub in self.stubs]

    def answer(self, number: int, _: Any, body: Any, __: Any) -> Any:
        if not hasattr(body, "entries"):
            if self.missing:
                return MetadataResponse(
                    [], [TopicMetadata("flights", UnknownTopicOrPartition.code, "", [])]
                )
            partitions = [
                PartitionMetadata(n, leader, 0, [leader]) for n, leader in enumerate(self.leaders)
            ]
            infos = [BrokerInfo(n, {"client": stub.address}) for n, stub in enumerate(self.stubs)]
            topics = [TopicMetadata("flights", 0, "id", partitions)] if body.topics else []
            return MetadataResponse(infos, topics)
        self.asked.append(number)
        if len(body.entries) > MAX_ENTRIES:
            raise InvalidRequest("too many entries")
        if number in self.silent:
            return None
        results = []
        for entry in body.entries:
            refusal = self.refusals.pop(number, None)
            code, said = (0, "") if refusal is None else (refusal.code or 1, str(refusal))
            offset = self.offsets.get((entry.partition, entry.timestamp), -1)
            results.append(ListOffsetsResult(entry.topic, entry.partition, code, said, offset))
        return ListOffsetsResponse(results)


@pytest.fixture
def brokers() -> Iterator[Brokers]:
    with ExitStack() as stack:
        yield Brokers(stack)


@pytest.fixture
def lookups(brokers: Brokers) -> Iterator[Lookups]:
    made = Lookups("test", "client", brokers.discover)
    yield made
    made.close()


def test_each_leader_is_asked_once_for_all_of_its_partitions(
    brokers: Brokers, lookups: Lookups
) -> None:
    brokers.offsets = {(0, LATEST): 10, (1, LATEST): 20, (0, EARLIEST): 3, (1, EARLIEST): 4}
    assert lookups.ends(BOTH, LONG) == {P0: 10, P1: 20}
    assert sorted(brokers.asked) == [0, 1]
    assert lookups.find(BOTH, EARLIEST, LONG) == {P0: 3, P1: 4}


def test_all_offsets_are_waited_for_and_no_leader_is_asked_twice(brokers: Brokers) -> None:
    brokers.offsets = {(0, LATEST): 10, (1, LATEST): 20}
    found = offsets_at(LATEST, CONFIG, brokers.discover, BOTH, timeout=LONG)
    assert found == ({P0: 10, P1: 20}, {})
    assert sorted(brokers.asked) == [0, 1]


def test_offsets_that_must_all_be_known_wait_for_a_leader(brokers: Brokers) -> None:
    brokers.offsets = {(0, LATEST): 10, (1, LATEST): 20}
    brokers.leaders = [0, -1]
    ask = partial(offsets_at, LATEST, CONFIG, brokers.discover, BOTH)
    assert ask(LONG, need_all=False) == ({P0: 10}, {P1: (-1,)})
    with pytest.raises(BrokerUnreachable, match="flights-1 has no leader"):
        ask(0.5)
    elected = Timer(0.2, brokers.leaders.__setitem__, (1, 1))
    elected.start()
    assert ask(LONG) == ({P0: 10, P1: 20}, {})
    elected.join()


def test_a_leader_of_more_partitions_than_a_request_may_name_is_asked_in_several(
    brokers: Brokers, lookups: Lookups
) -> None:
    count = 2 * MAX_ENTRIES + 1
    brokers.leaders = [0] * count
    brokers.offsets = {(number, LATEST): number for number in range(count)}
    wanted = {TopicPartition("flights", number): "id" for number in range(count)}
    assert lookups.ends(wanted, wait=30.0) == {each: each.partition for each in wanted}
    assert brokers.asked == [0] * 3


def test_a_wrong_leader_is_asked_no_more(brokers: Brokers, lookups: Lookups) -> None:
    brokers.offsets = {(0, LATEST): 10}
    assert lookups.ends({P0: "id"}, LONG) == {P0: 10}
    brokers.leaders = [1, 1]
    brokers.refusals = {0: NotLeader("led by broker 1")}
    brokers.offsets = {(0, LATEST): 11}
    eventually(lambda: lookups.ends({P0: "id"}) == {P0: 11})


def test_an_end_once_seen_stands_in_for_one_that_is_not_answered(
    brokers: Brokers, lookups: Lookups
) -> None:
    brokers.offsets = {(0, LATEST): 10, (1, LATEST): 20}
    assert lookups.ends(BOTH, LONG) == {P0: 10, P1: 20}
    brokers.silent = {1}
    brokers.offsets = {(0, LATEST): 15}
    eventually(lambda: lookups.ends(BOTH, wait=0.1) == {P0: 15, P1: 20})
    eventually(lambda: brokers.asked.count(1) == 2)
    assert lookups.ends(BOTH, wait=0.1) == {P0: 15, P1: 20}
    assert brokers.asked.count(1) == 2, "a broker that owes an answer is not asked again"


def test_an_end_never_stands_in_for_that_of_a_topic_created_anew(
    brokers: Brokers, lookups: Lookups
) -> None:
    brokers.offsets = {(0, LATEST): 10}
    assert lookups.ends({P0: "id"}, LONG) == {P0: 10}
    brokers.silent = {0}
    assert lookups.ends({P0: "another id"}, wait=0.05) == {}


def test_a_partition_without_a_leader_is_not_waited_for(brokers: Brokers, lookups: Lookups) -> None:
    brokers.offsets = {(0, LATEST): 10}
    brokers.leaders = [0, -1]
    lookups.partitions("flights", LONG)
    began = time.monotonic()
    assert lookups.ends(BOTH, wait=60.0) == {P0: 10}
    assert time.monotonic() - began < 30.0


def test_a_topic_that_does_not_exist_is_told_at_once(brokers: Brokers, lookups: Lookups) -> None:
    brokers.missing = True
    with pytest.raises(UnknownTopicOrPartition, match="topic flights does not exist"):
        lookups.partitions("flights", LONG)
    assert lookups.ends(BOTH, LONG) == {}


def test_partitions_and_id_of_a_topic_are_known_after_asking(
    brokers: Brokers, lookups: Lookups
) -> None:
    assert lookups.partitions("flights", LONG) == range(2)
    assert lookups.topic_id("flights") == "id"
    assert lookups.brokers() == frozenset(brokers.discover())


def test_without_brokers_nothing_is_known_and_the_reason_is_told() -> None:
    lookups = Lookups("test", "client", list)
    with pytest.raises(BrokerUnreachable, match="no broker is registered"):
        lookups.brokers()
    with pytest.raises(BrokerUnreachable, match="no broker is registered"):
        lookups.partitions("flights", 0.1)
    assert lookups.ends(BOTH, wait=0.05) == {}
    lookups.close()
