"""The metadata cache, with the time moved by hand."""

import math

import pytest

from folkmoot.network.metadata import LONGEST_PAUSE, MAX_AGE, STALE_FOR, Metadata
from folkmoot.protocol.errors import UnknownTopicOrPartition
from folkmoot.protocol.messages import (
    MAX_ENTRIES,
    BrokerInfo,
    FetchEntry,
    FetchRequest,
    MetadataRequest,
    MetadataResponse,
    PartitionMetadata,
    TopicMetadata,
)
from folkmoot.protocol.records import TopicPartition

T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)
BROKERS = [BrokerInfo(number, {"client": f"b{number}:1", "inner": "x:1"}) for number in (1, 2)]


def topic(*leaders: tuple[int, int], topic_id: str = "id") -> TopicMetadata:
    partitions = [
        PartitionMetadata(number, leader, epoch, [leader])
        for number, (leader, epoch) in enumerate(leaders)
    ]
    return TopicMetadata("t", 0, topic_id, partitions)


MISSING = TopicMetadata("t", UnknownTopicOrPartition.code, "", [])


def filled(*leaders: tuple[int, int], now: float = 0.0) -> Metadata:
    metadata = Metadata()
    metadata.want("t")
    metadata.ask(now)
    metadata.update(MetadataResponse(BROKERS, [topic(*leaders)]), now)
    return metadata


def test_what_is_wanted_is_asked_for_and_then_known() -> None:
    metadata = Metadata()
    assert metadata.leader_address(T0) is None
    assert metadata.partitions("t") == range(0)
    assert metadata.pace.due() <= 0.0
    assert metadata.ask(0.0) == MetadataRequest(["t"])
    assert metadata.pace.due() == math.inf
    metadata.update(MetadataResponse(BROKERS, [topic((1, 0), (2, 5))]), 0.1)
    assert metadata.leader_address(T0) == "b1:1"
    assert metadata.leader_address(T1) == "b2:1"
    assert metadata.leader_epoch(T1) == 5
    assert metadata.topic_id("t") == "id"
    assert metadata.partitions("t") == range(2)
    assert sorted(metadata.addresses()) == ["b1:1", "b2:1"]


def test_it_is_due_again_when_it_is_old_and_when_it_was_wrong() -> None:
    metadata = filled((1, 0), now=10.0)
    assert metadata.pace.due() == 10.0 + MAX_AGE
    metadata.expire()
    assert metadata.pace.due() < 11.0


def test_a_missing_topic_is_asked_for_with_growing_pauses() -> None:
    metadata = Metadata()
    metadata.want("t")
    now, pauses = 0.0, []
    for _ in range(10):
        metadata.ask(now)
        metadata.update(MetadataResponse(BROKERS, [MISSING]), now)
        assert metadata.is_missing("t")
        pauses.append(metadata.pace.due() - now)
        now = metadata.pace.due()
    assert pauses == pytest.approx(sorted(pauses))
    assert 0 < pauses[0] < 0.2
    assert pauses[-1] == pytest.approx(LONGEST_PAUSE)
    metadata.want("another")
    assert metadata.pace.due() <= now


def test_a_topic_is_gone_when_answers_have_said_so_for_long_enough_and_not_by_silence() -> None:
    metadata = filled((1, 0))
    for now in (1.0, 3.0):
        metadata.ask(now)
        metadata.update(MetadataResponse(BROKERS, [MISSING]), now)
    assert metadata.topics_missing_for(3.0) == []
    metadata.ask(9.0)
    metadata.fail(9.0)
    assert metadata.topics_missing_for(3.0) == []
    metadata.ask(10.0)
    metadata.update(MetadataResponse(BROKERS, [MISSING]), 10.0)
    assert metadata.topics_missing_for(3.0) == ["t"]
    metadata.ask(11.0)
    metadata.update(MetadataResponse(BROKERS, [topic((1, 0))]), 11.0)
    assert metadata.topics_missing_for(0.0) == []


def test_a_partition_without_leader_keeps_it_due() -> None:
    metadata = filled((1, 0), (-1, 3))
    assert metadata.leader_address(T1) is None
    assert metadata.pace.due() < 1.0
    metadata.ask(1.0)
    metadata.update(MetadataResponse(BROKERS, [topic((1, 0), (2, 4))]), 1.0)
    assert metadata.pace.due() > 100.0


def test_who_waits_for_a_leader_asks_again_within_a_fifth_of_the_time_it_has_waited() -> None:
    metadata = filled((1, 0), (-1, 3))
    now = 0.0
    while now < 4.0:
        metadata.ask(now)
        metadata.update(MetadataResponse(BROKERS, [topic((1, 0), (-1, 3))]), now)
        assert 0.01 <= metadata.pace.due() - now <= 0.1 + now / 5
        now = metadata.pace.due()


def test_a_leader_that_has_said_it_is_none_does_not_become_one_by_being_named_again() -> None:
    metadata = filled((1, 3), (2, 0))
    metadata.refused(T0, "b1:1", None, 10.0)
    now = 10.0
    for _ in range(3):
        metadata.ask(now)
        metadata.update(MetadataResponse(BROKERS, [topic((1, 3), (2, 0))]), now)
        assert metadata.pace.due() - now < 0.1, "the broker that was asked knows no better yet"
        now = metadata.pace.due()
    metadata.ask(now)
    metadata.update(MetadataResponse(BROKERS, [topic((2, 4), (2, 0))]), now)
    assert metadata.pace.due() > 100.0
    metadata.refused(T0, "b1:1", None, now)
    metadata.ask(now)
    metadata.update(MetadataResponse(BROKERS, [topic((2, 4), (2, 0))]), now)
    assert metadata.pace.due() > 100.0, "who said it is known not to lead"


def test_a_leader_that_nobody_replaces_is_believed_in_again_after_a_while() -> None:
    metadata = filled((1, 3))
    metadata.refused(T0, "b1:1", None, 10.0)
    metadata.ask(10.0 + STALE_FOR)
    metadata.update(MetadataResponse(BROKERS, [topic((1, 3))]), 10.0 + STALE_FOR)
    assert metadata.pace.due() > 100.0


def test_failed_requests_are_repeated_with_growing_pauses() -> None:
    metadata = Metadata()
    metadata.want("t")
    now = 0.0
    for _ in range(10):
        metadata.ask(now)
        metadata.fail(now)
        assert now < metadata.pace.due() <= now + LONGEST_PAUSE
        now = metadata.pace.due()


def test_an_older_epoch_never_replaces_a_newer_one() -> None:
    metadata = filled((2, 7))
    metadata.ask(1.0)
    metadata.update(MetadataResponse(BROKERS, [topic((1, 6))]), 1.0)
    assert metadata.leader_address(T0) == "b2:1"
    metadata.update(MetadataResponse(BROKERS, [topic((1, 8))]), 2.0)
    assert metadata.leader_address(T0) == "b1:1"


def test_the_version_grows_with_what_is_known_and_with_nothing_else() -> None:
    metadata = filled((1, 0), (2, 5))
    version = metadata.version
    metadata.update(MetadataResponse(BROKERS, [topic((1, 0), (2, 5))]), 1.0)
    metadata.update(MetadataResponse([], [topic((1, 0), (2, 4))]), 1.0)
    assert metadata.version == version
    metadata.update(MetadataResponse(BROKERS, [topic((1, 0), (1, 6))]), 1.0)
    assert metadata.version == version + 1
    metadata.update(MetadataResponse(BROKERS[:1], [topic((1, 0), (1, 6))]), 1.0)
    assert metadata.version == version + 2
    metadata.refused(T0, "b1:1", BROKERS[1], 1.0)
    assert metadata.version == version + 3
    metadata.update(MetadataResponse([], [MISSING]), 1.0)
    metadata.update(MetadataResponse([], [MISSING]), 1.0)
    assert metadata.version == version + 4


def test_a_topic_made_again_is_another_topic() -> None:
    metadata = filled((2, 7), (2, 7))
    metadata.ask(1.0)
    metadata.update(MetadataResponse(BROKERS, [topic((1, 0), topic_id="new")]), 1.0)
    assert metadata.topic_id("t") == "new"
    assert metadata.leader_address(T0) == "b1:1"
    assert metadata.partitions("t") == range(1)


def test_a_hint_counts_until_the_next_answer() -> None:
    metadata = filled((1, 0))
    metadata.refused(T0, "b1:1", BrokerInfo(3, {"client": "b3:1"}), 1.0)
    assert metadata.leader_address(T0) == "b3:1"
    metadata.refused(T0, "b3:1", BrokerInfo(4, {"inner": "b4:1"}), 1.0)
    metadata.refused(TopicPartition("t", 9), "b3:1", BrokerInfo(5, {"client": "b5:1"}), 1.0)
    metadata.refused(TopicPartition("unknown", 0), "b3:1", BrokerInfo(5, {"client": "b5:1"}), 1.0)
    assert metadata.leader_address(T0) == "b3:1"
    metadata.ask(1.0)
    metadata.update(MetadataResponse(BROKERS, [topic((2, 1))]), 1.0)
    assert metadata.leader_address(T0) == "b2:1"


def test_the_listener_decides_the_address() -> None:
    metadata = Metadata("inner")
    metadata.want("t")
    metadata.ask(0.0)
    brokers = [BROKERS[0], BrokerInfo(2, {"client": "b2:1"})]
    metadata.update(MetadataResponse(brokers, [topic((1, 0), (2, 0))]), 0.0)
    assert metadata.leader_address(T0) == "x:1"
    assert metadata.leader_address(T1) is None


def test_an_answer_without_brokers_does_not_forget_them() -> None:
    metadata = filled((1, 0))
    metadata.ask(1.0)
    metadata.update(MetadataResponse([], []), 1.0)
    assert metadata.leader_address(T0) == "b1:1"


def test_partitions_that_do_not_count_from_zero_are_not_believed() -> None:
    metadata = Metadata()
    metadata.want("t")
    metadata.ask(0.0)
    odd = TopicMetadata("t", 0, "id", [PartitionMetadata(2**31 - 1, 1, 0, [1])])
    metadata.update(MetadataResponse(BROKERS, [odd]), 0.0)
    assert metadata.partitions("t") == range(0)


def test_a_forgotten_topic_is_asked_for_no_more() -> None:
    metadata = filled((-1, 0))
    metadata.forget("t")
    assert metadata.ask(5.0) == MetadataRequest([])


def test_a_partition_that_is_asked_for_and_not_known_may_have_been_added() -> None:
    metadata = filled((1, 0), now=10.0)
    assert metadata.leader_address(T1) is None
    assert metadata.pace.due() < 11.0
    metadata.ask(11.0)
    metadata.update(MetadataResponse(BROKERS, [topic((1, 0), (2, 0))]), 11.0)
    assert metadata.leader_address(T1) == "b2:1"
    assert metadata.pace.due() == 311.0


def told_of(*names: str) -> MetadataResponse:
    topics = [TopicMetadata(each, 0, "id", [PartitionMetadata(0, 1, 0, [1])]) for each in names]
    return MetadataResponse(BROKERS, topics)


def names(count: int) -> list[str]:
    return [f"t-{number:05d}" for number in range(count)]


def test_more_topics_than_a_request_may_name_are_asked_for_in_several() -> None:
    metadata = Metadata()
    for name in names(MAX_ENTRIES + 3):
        metadata.want(name)
    first = metadata.ask(0.0).topics
    metadata.want("zuletzt")
    assert first == names(MAX_ENTRIES)
    metadata.update(told_of(*first), 1.0)
    assert metadata.pace.due() == 1.0
    second = metadata.ask(1.0).topics
    assert second == [*names(MAX_ENTRIES + 3)[MAX_ENTRIES:], "zuletzt"]
    metadata.update(told_of(*second), 2.0)
    assert metadata.pace.due() == 302.0


def test_after_an_answer_too_large_half_as_many_topics_are_asked_for_at_a_time() -> None:
    metadata = Metadata()
    for name in names(5):
        metadata.want(name)
    metadata.ask(0.0)
    assert metadata.ask_for_less(1.0)
    assert metadata.pace.due() == 1.0
    asked = []
    for now in (1.0, 2.0, 3.0):
        asked.append(metadata.ask(now).topics or [])
        metadata.update(told_of(*asked[-1]), now)
    assert asked == [["t-00000", "t-00001"], ["t-00002", "t-00003"], ["t-00004"]]
    assert metadata.pace.due() == 303.0
    metadata.ask(303.0)
    assert metadata.ask_for_less(303.0)
    metadata.ask(303.0)
    assert not metadata.ask_for_less(303.0)
    assert metadata.ask(304.0).topics == ["t-00000"]


def test_topics_whose_answer_was_lost_are_asked_for_again() -> None:
    metadata = Metadata()
    for name in names(MAX_ENTRIES + 1):
        metadata.want(name)
    metadata.ask(0.0)
    metadata.fail(0.0)
    assert metadata.ask(1.0).topics == names(MAX_ENTRIES)


def test_what_is_old_is_asked_for_anew_as_a_whole_also_in_several_requests() -> None:
    metadata = Metadata()
    names = [f"t{number}" for number in range(3)]
    for name in names:
        metadata.want(name)

    def answer(now: float) -> list[str]:
        asked = metadata.ask(now).topics or []
        topics = [TopicMetadata(each, 0, "id", [PartitionMetadata(0, 1, 0, [1])]) for each in asked]
        metadata.update(MetadataResponse(BROKERS, topics), now)
        return asked

    assert metadata.ask(0.0) == MetadataRequest(names)
    assert metadata.ask_for_less(0.0)
    for each in names:
        assert metadata.pace.due() <= 1.0
        assert answer(1.0) == [each]
    assert metadata.pace.due() == 301.0
    for each in names:
        assert metadata.pace.due() <= 301.0
        assert answer(301.0) == [each]
    assert metadata.pace.due() == 601.0


def replicated(*isr: int, leader: int = 1, epoch: int = 0) -> Metadata:
    """Brokers 1 to 3 in racks a, b, b; of `t-0` these are in sync."""
    metadata = Metadata()
    metadata.want("t")
    brokers = [
        BrokerInfo(number, {"client": f"b{number}:1"}, rack)
        for number, rack in ((1, "a"), (2, "b"), (3, "b"))
    ]
    partitions = [
        PartitionMetadata(number, leader, epoch, [1, 2, 3], [*isr]) for number in range(2)
    ]
    metadata.ask(0.0)
    metadata.update(MetadataResponse(brokers, [TopicMetadata("t", 0, "id", partitions)]), 0.0)
    return metadata


def test_the_nearest_replica_is_one_of_the_rack_that_is_in_sync_else_the_leader() -> None:
    metadata = replicated(1, 2, 3)
    assert metadata.nearest_address(T0, "a") == "b1:1"
    both = {metadata.nearest_address(each, "b") for each in (T0, T1)}
    assert both == {"b2:1", "b3:1"}, "partitions spread over those of one rack"
    assert metadata.nearest_address(T0, "elsewhere") == "b1:1"
    assert replicated(1, 3).nearest_address(T0, "b") == "b3:1"
    assert replicated(1).nearest_address(T0, "b") == "b1:1"
    assert replicated(1, 2, leader=2).nearest_address(T1, "b") == "b2:1", "the leader is preferred"
    assert replicated(1, 2, leader=-1).nearest_address(T0, "b") is None, "its epoch is over"


def test_a_partition_is_replicated_whatever_was_in_sync_when_metadata_came() -> None:
    """A consumer that knows of one in sync asks again for damage which another replica has by now."""
    assert replicated(1).is_replicated(T0)
    assert not Metadata().is_replicated(T0)


def test_what_a_request_is_about_has_moved_when_another_broker_leads_it_in_a_newer_epoch() -> None:
    metadata = replicated(1, 2, 3, leader=2, epoch=5)

    def has_moved(address: str, epoch: int) -> bool:
        entries = [FetchEntry("t", "id", number, epoch, 0, 1) for number in (7, 0)]
        return metadata.has_moved(address, FetchRequest(0.0, 1, 1, entries))

    assert has_moved("b1:1", 4)
    assert not has_moved("b1:1", 5), "it was asked as a follower"
    assert not has_moved("b2:1", 4), "it leads again"
    assert not metadata.has_moved("b1:1", MetadataRequest(None))


def test_a_hint_of_a_broker_that_is_not_taken_for_the_leader_any_more_is_passed_over() -> None:
    metadata = filled((2, 1))
    metadata.refused(T0, "b1:1", BrokerInfo(3, {"client": "b3:1"}), 1.0)  # it led in epoch 0
    assert metadata.leader_address(T0) == "b2:1"
    metadata.refused(T0, "b2:1", BROKERS[1], 1.0)
    assert metadata.leader_address(T0) == "b2:1", "to name oneself says nothing"


def test_as_long_as_a_replica_in_sync_is_not_registered_it_is_asked_for() -> None:
    metadata = replicated(1, 2, 3)
    assert metadata.pace.due() > 100.0
    assert replicated(1, 4).pace.due() < 1.0
