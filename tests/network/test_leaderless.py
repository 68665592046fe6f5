"""Partitions that nobody leads: what is said of them, and that it is said once."""

import pytest

from folkmoot.network.leaderless import REPORT_AFTER, Leaderless, Waiting, describe_waiting
from folkmoot.network.metadata import Metadata
from folkmoot.protocol.messages import (
    BrokerInfo,
    MetadataResponse,
    PartitionMetadata,
    TopicMetadata,
)
from folkmoot.protocol.records import TopicPartition

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))


def test_metadata_tells_what_nobody_leads_and_who_has_to_come_back() -> None:
    """Of a replicated partition those that were in sync, else those that hold it."""
    metadata = Metadata()
    metadata.want("t")
    metadata.ask(0.0)
    assert metadata.leaderless() == {}
    partitions = [
        PartitionMetadata(0, 1, 0, [1, 2], [1]),
        PartitionMetadata(1, -1, 5, [1, 2, 3], [2, 3]),
        PartitionMetadata(2, 2, 0, [2]),  # named as its leader by a broker that does not know it
    ]
    one = BrokerInfo(1, {"client": "b1:1"})
    metadata.update(MetadataResponse([one], [TopicMetadata("t", 0, "id", partitions)]), 0.1)
    assert metadata.leaderless() == {T1: (2, 3), T2: (2,)}
    metadata.forget("t")
    assert metadata.leaderless() == {}


@pytest.mark.parametrize(
    ("waiting", "said"),
    [
        ({T1: (2,)}, "t-1 has no leader: it waits for broker 2"),
        (
            {T0: (2, 3), T1: (2, 3)},
            "t-0 and t-1 have no leader: they wait for broker 2 or 3",
        ),
        (
            {T0: (4,), T1: (2,), T2: (4,)},
            "t-1 has no leader: it waits for broker 2; "
            "t-0 and t-2 have no leader: they wait for broker 4",
        ),
        (
            {TopicPartition("t", number): (1,) for number in range(9)},
            "t-0, t-1, t-2, t-3, t-4 and 4 more have no leader: they wait for broker 1",
        ),
    ],
)
def test_one_line_says_it(waiting: Waiting, said: str) -> None:
    assert describe_waiting(waiting) == said


def test_it_is_logged_when_it_begins_and_when_it_ends_and_not_in_between(
    caplog: pytest.LogCaptureFixture,
) -> None:
    leaderless = Leaderless()
    for now in (0.0, REPORT_AFTER / 2):
        leaderless.update({T1: (2,)}, now)
        assert leaderless.waiting == {T1: (2,)}
    assert not caplog.messages  # it may be an election
    for now in range(10, 100):
        leaderless.update({T1: (2,)}, now)
    assert caplog.messages == ["t-1 has no leader: it waits for broker 2"]
    leaderless.update({}, 100.0)
    leaderless.update({}, 101.0)
    assert caplog.messages[1:] == ["t-1 has a leader again"]


def test_an_election_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    leaderless = Leaderless()
    for now in range(0, 100, 2):
        leaderless.update({T1: (2,)}, now)
        leaderless.update({}, now + REPORT_AFTER / 2)
    assert not caplog.messages
