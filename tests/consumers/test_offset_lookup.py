"""Offsets asked of leaders that the test plays."""

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from threading import Timer
from typing import Any

import pytest

from folkmoot.consumers.config import ConsumerConfig
from folkmoot.consumers.offsets.offset_lookup import offsets_at
from folkmoot.network.ask_leaders import ENTRIES
from folkmoot.protocol.errors import (
    BrokerUnreachable,
    FolkmootError,
    InvalidRequest,
    StaleTopicId,
    UnknownTopicOrPartition,
)
from folkmoot.protocol.messages import (
    LATEST,
    BrokerInfo,
    ListOffsetsResponse,
    ListOffsetsResult,
    MetadataResponse,
    PartitionMetadata,
    TopicMetadata,
)
from folkmoot.protocol.records import TopicPartition
from tests.network.stub import StubBroker

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
        if len(body.entries) > ENTRIES:
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


def test_a_leader_that_does_not_know_the_new_topic_of_a_name_yet_is_asked_again(
    brokers: Brokers,
) -> None:
    brokers.offsets = {(0, LATEST): 10}
    brokers.refusals = {0: StaleTopicId("another topic has that name")}
    found = offsets_at(LATEST, CONFIG, brokers.discover, {P0: "id"}, timeout=LONG)
    assert found == ({P0: 10}, {})
    assert brokers.asked == [0, 0]


def test_what_a_leader_will_never_answer_is_raised(brokers: Brokers) -> None:
    brokers.refusals = {0: InvalidRequest("no such place")}
    with pytest.raises(InvalidRequest, match="no such place"):
        offsets_at(LATEST, CONFIG, brokers.discover, {P0: "id"}, timeout=LONG, need_all=False)
