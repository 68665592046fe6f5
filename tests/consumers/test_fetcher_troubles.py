"""The fetcher's decisions: where it starts, and what it does about all that can go wrong."""

import pytest

from folkmoot.consumers.fetch import fetcher as module
from folkmoot.protocol.errors import (
    BrokerUnreachable,
    CorruptBatch,
    FolkmootError,
    NoOffset,
    NotLeader,
    OffsetOutOfRange,
    StaleTopicId,
    StorageError,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from folkmoot.protocol.messages import EARLIEST, LATEST, Api, BrokerInfo
from tests.consumers.fake_cluster import LEADER, a_batch, spoiled
from tests.consumers.fetching import ONE, ZERO, Bench, spoiled_body


@pytest.fixture
def bench() -> Bench:
    return Bench()


# -- where to start -------------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "place"), [("earliest", EARLIEST), ("latest", LATEST)])
def test_without_an_offset_the_policy_says_where_to_start(policy: str, place: int) -> None:
    bench = Bench(auto_offset_reset=policy)
    bench.fetcher.add(ZERO, None)
    assert bench.fetcher.position(ZERO) is None
    bench.poll()
    asked = bench.cluster.next()
    assert (asked.api, asked.request.entries[0].timestamp) == (Api.LIST_OFFSETS, place)
    bench.cluster.found(asked, 12)
    bench.poll()
    assert bench.fetcher.position(ZERO) == 12
    bench.poll()
    assert bench.cluster.next().request.entries[0].offset == 12


def test_without_an_offset_and_a_policy_nothing_is_read_and_it_is_told_once() -> None:
    bench = Bench(auto_offset_reset="error")
    bench.fetcher.add(ZERO, None)
    bench.fetcher.add(ONE, None)
    for _ in range(2):
        with pytest.raises(NoOffset, match="seek"):
            bench.fetcher.check()
    bench.fetcher.check()
    bench.poll()
    assert not bench.cluster.asked


def test_a_seek_before_the_first_poll_answers_the_question_where_to_start() -> None:
    bench = Bench(auto_offset_reset="error")
    bench.fetcher.add(ZERO, None)
    bench.fetcher.seek(ZERO, 4)
    bench.fetcher.check()
    bench.poll()
    assert bench.cluster.next().request.entries[0].offset == 4


def test_an_offset_out_of_range_goes_on_by_the_policy(bench: Bench) -> None:
    bench.reading(offset=500)
    bench.cluster.answer(bench.cluster.next(), error=OffsetOutOfRange.code or 0)
    bench.poll()
    bench.now += module.RETRY_PAUSE
    bench.poll()
    asked = bench.cluster.next()
    assert (asked.api, asked.request.entries[0].timestamp) == (Api.LIST_OFFSETS, EARLIEST)
    bench.fetcher.check()


def test_an_offset_out_of_range_is_an_error_where_the_policy_is_so() -> None:
    bench = Bench(auto_offset_reset="error")
    bench.reading(offset=500)
    bench.cluster.answer(bench.cluster.next(), error=OffsetOutOfRange.code or 0)
    bench.poll()
    with pytest.raises(OffsetOutOfRange, match="t-0"):
        bench.fetcher.check()
    assert bench.fetcher.position(ZERO) == 500


def test_columns_begin_at_the_time_that_was_sought(bench: Bench) -> None:
    bench.fetcher.add(ZERO, 0)
    bench.fetcher.seek_time(ZERO, 50)
    bench.poll()
    bench.cluster.found(bench.cluster.next(), 0)
    bench.poll()
    bench.poll()
    early = a_batch(0, b"a", times=10)
    here = a_batch(1, b"b", b"c", b"d", times=[20, 60, 30])
    bench.fetched(early + here + a_batch(4, b"e", times=40))
    view = bench.fetcher.take_view(1)
    assert view is not None
    assert list(view.offsets) == [2]
    assert bench.fetcher.position(ZERO) == 3
    assert [record.offset for record in bench.everything()] == [3, 4]


# -- pausing --------------------------------------------------------------------------------------


def test_a_paused_partition_hands_nothing_out_and_fetches_no_more(bench: Bench) -> None:
    bench.reading()
    bench.fetched(a_batch(0, b"a"))
    bench.fetcher.pause(ZERO, True)
    assert bench.values() == []
    bench.poll()
    assert not bench.cluster.asked
    bench.fetcher.pause(ZERO, False)
    assert bench.values() == [b"a"]


def test_a_paused_partition_stays_so_after_a_seek_and_a_look_up(bench: Bench) -> None:
    bench.reading()
    bench.cluster.next()
    bench.fetcher.pause(ZERO, True)
    bench.fetcher.seek(ZERO, LATEST)
    bench.poll()
    bench.cluster.found(bench.cluster.next(), 7)
    bench.poll()
    bench.poll()
    assert bench.fetcher.position(ZERO) == 7
    assert not bench.cluster.asked


def test_pausing_often_does_not_give_a_partition_more_turns(bench: Bench) -> None:
    bench.reading(ZERO, ONE)
    chunk = b"".join(a_batch(number, b"x") for number in range(3))
    bench.fetched(chunk, chunk)
    for _ in range(10):
        bench.fetcher.pause(ZERO, True)
        bench.fetcher.pause(ZERO, False)
    assert sorted(bench.take(1)[0].partition for _ in range(2)) == [0, 1]


# -- what goes wrong ------------------------------------------------------------------------------


def test_a_corrupt_batch_is_never_skipped(bench: Bench) -> None:
    bench.reading()
    bench.fetched(a_batch(0, b"good") + spoiled(a_batch(1, b"bad")) + a_batch(2, b"later"))
    assert bench.values() == [b"good"]
    bench.fetcher.check()
    bench.poll()
    assert bench.cluster.reports == []
    bench.fetched(spoiled(a_batch(1, b"bad")) + a_batch(2, b"later"))
    assert bench.values() == []
    assert bench.cluster.reports == [(LEADER, ZERO, "id of t", 1)]
    with pytest.raises(CorruptBatch, match="t-0"):
        bench.fetcher.check()
    bench.now += 60.0
    bench.poll()
    assert not bench.cluster.asked
    assert bench.fetcher.position(ZERO) == 1


def test_a_batch_that_cannot_be_opened_is_never_skipped(bench: Bench) -> None:
    illegible = spoiled_body(a_batch(1, b"bad"))
    bench.reading()
    bench.fetched(a_batch(0, b"good") + illegible + a_batch(2, b"later"))
    assert [record.offset for record in bench.everything()] == [0]
    with pytest.raises(CorruptBatch, match="t-0, batch at 1"):
        bench.fetcher.check()
    bench.fetcher.check()
    assert bench.fetcher.position(ZERO) == 1
    bench.fetcher.seek(ZERO, 2)
    bench.poll()
    bench.fetched(a_batch(2, b"later"))
    assert bench.values() == [b"later"]


def test_an_error_is_told_only_after_the_good_records_before_it(bench: Bench) -> None:
    bench.reading()
    bench.fetched(a_batch(0, b"good", b"too"))
    bench.poll()
    bench.fetched(spoiled(a_batch(2, b"bad")))
    for value in (b"good", b"too"):
        bench.fetcher.check()
        assert bench.values(1) == [value]
    with pytest.raises(CorruptBatch):
        bench.fetcher.check()


def test_an_error_of_a_paused_partition_is_told_at_once(bench: Bench) -> None:
    bench.reading()
    bench.fetched(a_batch(0, b"good"))
    bench.poll()
    bench.fetched(spoiled(a_batch(1, b"bad")))
    bench.fetcher.pause(ZERO, True)
    with pytest.raises(CorruptBatch):
        bench.fetcher.check()


@pytest.mark.parametrize("policy", ["error", "earliest"])
def test_out_of_range_behind_good_records_does_not_throw_them_away(policy: str) -> None:
    bench = Bench(auto_offset_reset=policy)
    bench.reading()
    bench.fetched(a_batch(0, b"good"))
    bench.poll()
    bench.cluster.answer(bench.cluster.next(), error=OffsetOutOfRange.code or 0)
    bench.poll()
    bench.fetcher.check()
    assert bench.values() == [b"good"]
    bench.now += module.RETRY_PAUSE
    bench.poll()
    bench.cluster.answer(bench.cluster.next(), error=OffsetOutOfRange.code or 0)
    bench.poll()
    assert bool(bench.fetcher._errors) is (policy == "error")


def test_one_corrupt_partition_does_not_stop_the_others(bench: Bench) -> None:
    bench.reading(ZERO, ONE)
    bench.fetched(spoiled(a_batch(0, b"bad")), a_batch(0, b"good"))
    assert bench.values() == [b"good"]
    with pytest.raises(CorruptBatch):
        bench.fetcher.check()
    bench.poll()
    assert bench.cluster.next().partitions == [ONE]


@pytest.mark.parametrize("error", [BrokerUnreachable("gone"), StorageError("disk")])
def test_what_may_go_away_is_tried_again_after_a_pause(bench: Bench, error: FolkmootError) -> None:
    bench.reading()
    bench.cluster.fail(bench.cluster.next(), error)
    bench.poll()
    bench.poll()
    assert not bench.cluster.asked
    assert bench.cluster.timeouts[-1] == pytest.approx(module.RETRY_PAUSE)
    bench.now += module.RETRY_PAUSE
    bench.poll()
    assert len(bench.cluster.asked) == 1
    bench.fetcher.check()


def test_what_will_not_go_away_is_told(bench: Bench) -> None:
    bench.reading()
    bench.cluster.fail(bench.cluster.next(), UnsupportedVersion("too old"))
    bench.poll()
    with pytest.raises(UnsupportedVersion, match="too old"):
        bench.fetcher.check()


def test_brokers_that_name_each_other_as_the_leader_are_not_asked_without_a_pause(
    bench: Bench,
) -> None:
    bench.reading()
    other = BrokerInfo(2, {"client": "two:1"})
    for _ in range(2):
        asked = bench.cluster.next()
        bench.cluster.answer(asked, error=NotLeader.code or 0, leader=other)
        bench.poll()
        bench.poll()
    assert not bench.cluster.asked


def test_a_topic_created_anew_is_an_error_for_who_assigned_the_old_one(bench: Bench) -> None:
    bench.reading(offset=70)
    bench.fetched()
    bench.cluster.ids["t"] = "another id"
    bench.poll()
    bench.fetcher.check()  # brokers may know different things for a moment
    bench.now += module.GONE_PATIENCE
    bench.poll()
    with pytest.raises(StaleTopicId, match="created again"):
        bench.fetcher.check()
    assert not bench.cluster.asked
    bench.fetcher.seek(ZERO, EARLIEST)
    bench.poll()
    assert bench.cluster.next().request.entries[0].topic_id == "another id"


def test_a_topic_that_is_gone_is_an_error_for_who_assigned_it(bench: Bench) -> None:
    bench.reading()
    bench.fetched()
    bench.cluster.ids["t"] = None
    bench.poll()
    bench.cluster.missing.add("t")
    bench.poll()
    bench.now += module.GONE_PATIENCE
    bench.poll()
    with pytest.raises(UnknownTopicOrPartition):
        bench.fetcher.check()


def test_a_member_waits_for_the_topic_that_the_group_has_named(bench: Bench) -> None:
    bench.fetcher.add(ZERO, 0, "a newer id")
    for _ in range(3):
        bench.now += module.GONE_PATIENCE
        bench.poll()
    bench.fetcher.check()
    assert not bench.cluster.asked
    assert bench.cluster.refreshed
    bench.cluster.ids["t"] = "a newer id"
    bench.poll()
    assert bench.cluster.next().request.entries[0].topic_id == "a newer id"
