"""The fetcher's decisions: where it starts, and what it does about all that can go wrong."""

import pytest

from folkmoot.consumers.fetch import fetcher as module
from folkmoot.consumers.fetch.fetcher import BAD_BATCHES, REPORT_EVERY, RETRY_PAUSE
from folkmoot.network.leaderless import REPORT_AFTER
from folkmoot.protocol.errors import (
    BrokerUnreachable,
    CorruptBatch,
    FolkmootError,
    LogTruncated,
    NoOffset,
    NotLeader,
    OffsetNotAvailable,
    OffsetOutOfRange,
    StaleTopicId,
    StorageError,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from folkmoot.protocol.messages import EARLIEST, LATEST, Api, BrokerInfo
from folkmoot.protocol.records import TopicPartition
from tests.consumers.fake_cluster import LEADER, a_batch, spoiled
from tests.consumers.fetching import ALL, ONE, TWO, ZERO, Bench, spoiled_body


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


def test_nothing_is_fetched_before_the_start_is_committed_unless_the_application_seeks() -> None:
    bench = Bench(auto_offset_reset="latest")
    bench.is_to_be_committed = True
    for each in (ZERO, ONE):
        bench.fetcher.add(each, None)
        bench.poll()
        bench.cluster.found(bench.cluster.next(), 12)
    for _ in range(3):
        bench.poll()
    assert bench.found == [(ZERO, 12, True), (ONE, 12, True)]
    assert (bench.fetcher.position(ZERO), bench.cluster.asked) == (None, [])
    bench.fetcher.committed(ZERO)
    bench.poll()
    assert [each.partition for each in bench.cluster.next().request.entries] == [0]
    bench.fetcher.seek(ONE, 7)
    bench.poll()
    assert [each.offset for each in bench.cluster.next().request.entries] == [7]


@pytest.mark.parametrize("policy", ["earliest", "latest"])
def test_whoever_has_fallen_behind_the_start_of_a_log_goes_on_there(policy: str) -> None:
    """All that is left of it is unread, whatever the policy says about a start without a past."""
    bench = Bench(auto_offset_reset=policy)
    bench.reading(offset=5)
    asked = bench.cluster.next()
    bench.cluster.answer(asked, error=OffsetOutOfRange.code or 0, log_start=60)
    bench.poll()
    bench.now += module.RETRY_PAUSE
    bench.poll()
    assert bench.cluster.next().request.entries[0].timestamp == EARLIEST


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
    bench.fetcher.seek(ZERO, EARLIEST, 50)
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


# -- a leader that is gone ------------------------------------------------------------------------


def test_why_nothing_comes_of_a_partition_is_told_until_something_comes(bench: Bench) -> None:
    bench.reading(offset=0)
    gone = BrokerUnreachable("broker b:1 is not reachable: nobody listens there")
    began = bench.now
    while bench.now - began <= 2 * REPORT_AFTER:
        assert not bench.fetcher.lasting_errors() or bench.now - began >= REPORT_AFTER
        bench.cluster.fail(bench.cluster.next(), gone)
        bench.poll()
        bench.now += RETRY_PAUSE
        bench.poll()
    assert bench.fetcher.lasting_errors() == {ZERO: gone}
    bench.cluster.answer(bench.cluster.next(), a_batch(0, b"a"))
    bench.poll()
    assert bench.fetcher.lasting_errors() == {}


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


def test_paused_partitions_that_fill_the_buffer_keep_no_other_from_being_read() -> None:
    batch = a_batch(0, b"a", b"b" * 1_000)
    bench = Bench(buffer_bytes=2 * len(batch))
    bench.reading(ZERO, ONE, TWO)
    bench.fetched(batch, batch, b"")
    for each in (ZERO, ONE):
        bench.fetcher.pause(each, True)
    assert bench.values() == []
    bench.poll()
    assert bench.cluster.next().partitions == [TWO]
    for each in (ZERO, ONE):
        bench.fetcher.pause(each, False)
    bench.poll()
    bench.fetched(batch, batch)
    assert [record.offset for record in bench.everything()] == [0, 1, 0, 1]


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


def test_a_bad_batch_of_a_replicated_partition_is_asked_for_again_for_a_while(bench: Bench) -> None:
    bench.cluster.replicated = True
    bench.reading()
    for _ in range(2):  # the second time it stays bad
        for _ in range(BAD_BATCHES):
            bench.fetched(spoiled(a_batch(bench.fetcher.position(ZERO) or 0, b"bad")))
            bench.fetcher.check()
            bench.now += RETRY_PAUSE
            bench.poll()
        if bench.fetcher.position(ZERO) == 0:
            bench.fetched(a_batch(0, b"repaired"))
            assert bench.values() == [b"repaired"]
            bench.poll()
    assert len(bench.cluster.reports) == 2 * -(-BAD_BATCHES // REPORT_EVERY)
    bench.fetched(spoiled(a_batch(1, b"bad")))
    with pytest.raises(CorruptBatch, match="t-0"):
        bench.fetcher.check()


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


def test_an_error_of_a_paused_partition_is_told_after_the_good_records_before_it(
    bench: Bench,
) -> None:
    bench.reading()
    bench.fetched(a_batch(0, b"good"))
    bench.poll()
    bench.fetched(spoiled(a_batch(1, b"bad")))
    bench.fetcher.pause(ZERO, True)
    bench.fetcher.check()  # a seek behind it would skip the good one
    assert bench.fetcher.rotation.stopped() is None, "there is nothing to hurry for"
    bench.fetcher.pause(ZERO, False)
    assert bench.values() == [b"good"]
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
    bench.fetcher.rotation.keep()
    bench.now += module.RETRY_PAUSE
    bench.poll()
    bench.cluster.answer(bench.cluster.next(), error=OffsetOutOfRange.code or 0)
    bench.poll()
    assert bool(bench.fetcher.rotation.errors) is (policy == "error")


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
    bench.now += module.MISSING_PATIENCE
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
    bench.now += module.MISSING_PATIENCE
    bench.poll()
    with pytest.raises(UnknownTopicOrPartition):
        bench.fetcher.check()
    assert bench.cluster.forgotten == ["t"]


def test_a_member_waits_for_the_topic_that_the_group_has_named(bench: Bench) -> None:
    bench.fetcher.add(ZERO, 0, "a newer id")
    for _ in range(3):
        bench.now += module.MISSING_PATIENCE
        bench.poll()
    bench.fetcher.check()
    assert not bench.cluster.asked
    assert bench.cluster.refreshed
    bench.cluster.ids["t"] = "a newer id"
    bench.poll()
    assert bench.cluster.next().request.entries[0].topic_id == "a newer id"


def test_nobody_is_asked_any_more_about_a_topic_of_which_nothing_is_read(bench: Bench) -> None:
    bench.reading(ZERO, ONE, TopicPartition("u", 0))
    bench.fetcher.forget(ZERO)
    bench.fetcher.forget(ZERO)
    assert bench.cluster.forgotten == []
    bench.fetcher.forget(ONE)
    assert bench.cluster.forgotten == ["t"]


def test_each_partition_that_a_fetch_brought_an_error_for_is_counted(bench: Bench) -> None:
    bench.reading()
    assert bench.fetcher.counters.fetches_refused == 0
    for count in (1, 2):
        bench.cluster.answer(bench.cluster.next(), error=StorageError.code or 0)
        bench.poll()
        assert bench.fetcher.counters.fetches_refused == count
        bench.now += module.RETRY_PAUSE
        bench.poll()
    bench.fetched(a_batch(0, b"a"))
    assert bench.fetcher.counters.fetches_refused == 2


def test_what_a_follower_cannot_serve_is_asked_of_the_leader_without_a_pause() -> None:
    bench = Bench(rack="b", auto_offset_reset="error")
    bench.cluster.nearest[ZERO] = "near:1"
    bench.reading(offset=7)
    for error in (OffsetOutOfRange, OffsetNotAvailable, CorruptBatch, LogTruncated):
        asked = bench.cluster.next()
        assert asked.address == "near:1"
        bench.cluster.answer(asked, error=error.code, parts=(-1, 0))
        bench.poll()
        bench.poll()
        asked = bench.cluster.next()
        assert (asked.address, asked.request.entries[0].offset) == (LEADER, 7)
        bench.now += module.FROM_LEADER_FOR
        bench.cluster.answer(asked)
        bench.poll()
        bench.poll()
        bench.fetcher.check()
    bench.cluster.answer(bench.cluster.next(), spoiled(a_batch(7, b"x")))
    bench.poll()
    bench.poll()
    assert bench.cluster.next().address == LEADER
    assert bench.cluster.reports == [("near:1", ZERO, "id of t", 7)]
    bench.fetcher.check()


def test_with_a_rack_too_brokers_that_name_each_other_are_not_asked_without_a_pause() -> None:
    bench = Bench(rack="b")
    bench.reading(offset=7)
    for where, pause in (
        ("two:1", 0.0),
        (LEADER, module.RETRY_PAUSE),
        ("two:1", module.RETRY_PAUSE),
    ):
        asked = bench.cluster.next()
        bench.cluster.leaders[ZERO] = where
        bench.cluster.answer(asked, error=NotLeader.code)
        bench.poll()
        bench.poll()
        assert bool(bench.cluster.asked) is (pause == 0.0), (
            "who was asked as the leader has refused"
        )
        bench.now += pause
        bench.poll()


def test_that_records_are_lost_is_not_believed_of_one_that_does_not_lead_any_more() -> None:
    bench = Bench(auto_offset_reset="error")
    bench.reading(offset=7)
    asked = bench.cluster.next()
    bench.cluster.leaders[ZERO] = "two:1"
    bench.cluster.answer(asked, error=LogTruncated.code, parts=(-1, 0))
    bench.poll()
    bench.fetcher.check()
    bench.now += module.RETRY_PAUSE
    bench.poll()
    asked = bench.cluster.next()
    assert (asked.address, asked.request.entries[0].offset) == ("two:1", 7)


def entry_of(bench: Bench) -> tuple[int, int]:
    """What the oldest fetch asks for: offset, and epoch of the record before it."""
    entry = bench.cluster.asked[0].request.entries[0]
    return entry.offset, entry.last_epoch


def test_a_fetch_names_the_leader_epoch_of_the_last_record_before_its_offset(bench: Bench) -> None:
    bench.reading(offset=5)
    assert entry_of(bench) == (5, -1)
    old, new = a_batch(4, b"4", b"5", b"6", epoch=2), a_batch(7, b"7", b"8", epoch=4)
    bench.fetched(old + new)
    bench.poll()
    assert entry_of(bench) == (9, 4)
    assert bench.values() == [b"5", b"6"]
    bench.fetcher.rotation.keep()
    assert bench.values() == [b"7", b"8"]
    bench.fetcher.rotation.take_all_back()
    bench.poll()
    assert entry_of(bench) == (9, 4)
    assert bench.values() == [b"7", b"8"], "it comes again without being fetched"
    bench.fetcher.seek(ZERO, 8)
    bench.poll()
    bench.cluster.next()
    assert entry_of(bench) == (8, -1), "of what the application names nothing is"


@pytest.mark.parametrize(
    ("parts", "place", "following"),
    [
        ((4, 8), 8, (8, 4)),  # the same epoch, which ended earlier here
        ((3, 9), 7, (7, 2)),  # another epoch, whose records may be others
        ((2, 6), 6, (6, 2)),
        ((-1, 5), 5, (5, -1)),
        ((-1, -7), 0, (0, -1)),  # nonsense does no harm
    ],
)
def test_reading_goes_on_where_the_logs_part(
    parts: tuple[int, int], place: int, following: tuple[int, int]
) -> None:
    for policy in ("earliest", "error"):
        bench = Bench(auto_offset_reset=policy)
        bench.reading(offset=5)
        bench.fetched(a_batch(5, b"5", b"6", epoch=2) + a_batch(7, b"7", b"8", epoch=4))
        assert len(bench.everything()) == 4
        for in_hand in (False, True):
            bench.poll()
            bench.cluster.answer(bench.cluster.next(), error=LogTruncated.code, parts=parts)
            bench.poll()
            bench.now += module.RETRY_PAUSE
            assert bench.cut == ([(ZERO, place, place)] if in_hand else [])
            bench.fetcher.rotation.keep()
        bench.poll()
        if policy == "earliest":
            assert entry_of(bench) == following
            assert bench.fetcher.counters.offset_resets == 1
            continue
        with pytest.raises(LogTruncated) as told:
            bench.fetcher.check()
        assert (told.value.topic, told.value.partition) == ZERO
        assert (told.value.offset, told.value.diverging_offset) == (9, place)
        assert not bench.cluster.asked


def test_lost_records_that_the_application_has_not_seen_are_thrown_away() -> None:
    bench = Bench(auto_offset_reset="error")
    bench.reading(offset=5)
    bench.fetched(a_batch(5, b"5", b"6", epoch=2) + a_batch(7, b"7", b"8", epoch=4))
    assert bench.values() == [b"5", b"6"]
    bench.poll()
    bench.cluster.answer(bench.cluster.next(), error=LogTruncated.code, parts=(2, 7))
    bench.poll()
    bench.now += module.RETRY_PAUSE
    bench.fetcher.check()
    bench.poll()
    assert entry_of(bench) == (7, 2)
    bench.fetched(a_batch(7, b"other", epoch=5))
    assert bench.values() == [b"other"]


@pytest.mark.parametrize(("limit", "row", "place"), [(ALL, 1, 7), (1, 0, 6)])
def test_what_is_put_back_comes_again_though_records_behind_it_are_lost(
    limit: int, row: int, place: int
) -> None:
    bench = Bench()
    bench.reading(offset=5)
    bench.fetched(a_batch(5, b"5", b"6", epoch=2) + a_batch(7, b"7", b"8", epoch=4))
    in_hand = bench.fetcher.take_view(limit)
    assert in_hand is not None
    bench.poll()
    bench.cluster.answer(bench.cluster.next(), error=LogTruncated.code, parts=(2, 7))
    bench.poll()
    bench.fetcher.rotation.take_back(ZERO, in_hand.offsets[row])
    assert [record.offset for record in bench.everything()] == [5 + row]
    bench.now += module.RETRY_PAUSE
    bench.poll()
    assert entry_of(bench) == (place, 2)


def seeking(policy: str) -> Bench:
    """The time 2,000 was sought, and found at offset 5."""
    bench = Bench(auto_offset_reset=policy)
    bench.reading()
    bench.cluster.next()
    bench.fetcher.seek(ZERO, EARLIEST, since=2_000)
    bench.poll()
    bench.cluster.found(bench.cluster.next(), 5)
    bench.poll()
    bench.poll()
    return bench


@pytest.mark.parametrize(("parts_at", "goes_on_at"), [(7, 5), (3, 3)])
def test_a_time_that_was_sought_is_kept_when_what_was_fetched_of_it_is_lost(
    parts_at: int, goes_on_at: int
) -> None:
    bench = seeking("error")
    early_and_late = a_batch(5, b"early", b"late", times=[1_000, 2_000], epoch=2)
    bench.fetched(early_and_late + a_batch(7, b"lost", times=2_000, epoch=4))
    bench.poll()
    bench.cluster.answer(bench.cluster.next(), error=LogTruncated.code, parts=(2, parts_at))
    bench.poll()
    bench.now += module.RETRY_PAUSE
    bench.fetcher.check()
    bench.poll()
    bench.fetched(a_batch(goes_on_at, b"early", b"late", times=[1_000, 2_000], epoch=2))
    assert bench.values() == [b"late"]


@pytest.mark.parametrize("policy", ["earliest", "error"])
def test_a_time_that_was_sought_is_looked_up_again_when_its_offset_has_gone(policy: str) -> None:
    bench = seeking(policy)
    bench.cluster.answer(bench.cluster.next(), error=OffsetOutOfRange.code)
    bench.poll()
    bench.now += module.RETRY_PAUSE
    bench.fetcher.check()
    bench.poll()
    assert [each.timestamp for each in bench.cluster.next().request.entries] == [2_000]


@pytest.mark.parametrize(
    "then", [(3, 4, 5), (9, 10), (2,)], ids=["lies before", "overlaps", "is old"]
)
def test_a_batch_that_does_not_follow_the_one_before_it_is_asked_for_and_not_passed_over(
    then: tuple[int, ...],
) -> None:
    """Its records would be taken for read: what was handed out lies behind them."""
    bench = Bench()
    bench.reading(offset=3)
    first, second = (
        a_batch(each[0], *[b"%d" % offset for offset in each]) for each in ((8, 9), then)
    )
    bench.fetched(first + second)
    assert bench.values() == [b"8", b"9"]
    assert bench.values() == []
    bench.poll()
    assert entry_of(bench)[0] == 10
    bench.fetched(a_batch(10, b"10"))
    assert bench.values() == [b"10"]


def test_an_answer_that_ends_before_the_offset_asked_for_hands_nothing_out_twice(
    bench: Bench,
) -> None:
    bench.reading(offset=3)
    bench.fetched(a_batch(0, b"0", b"1"))
    assert bench.values() == []
    assert bench.fetcher.position(ZERO) == 3
    bench.poll()
    bench.fetched(a_batch(2, b"2", b"3"))
    assert bench.values() == [b"3"]


def test_an_error_behind_good_records_that_are_let_go_is_found_again_behind_them() -> None:
    """A full buffer of paused partitions lets go of them; a seek behind the error would pass over them."""
    batch = a_batch(0, b"a", b"b" * 1_000)
    bench = Bench(buffer_bytes=2 * len(batch), partition_fetch_bytes=100_000)
    bench.reading(ZERO, ONE, TWO)
    bench.fetched(batch, batch, b"")
    state = bench.fetcher._states[ZERO]
    bench.fetcher.rotation.stop(state, CorruptBatch("bad at 2"))
    for each in (ZERO, ONE):
        bench.fetcher.pause(each, True)
    assert bench.values() == []
    bench.poll()
    bench.fetcher.check()
    bench.fetcher.pause(ZERO, False)
    bench.poll()
    assert (ZERO, 0) in [
        (TopicPartition(entry.topic, entry.partition), entry.offset)
        for asked in bench.cluster.asked
        for entry in asked.request.entries
    ]


def test_what_was_taken_of_a_partition_before_it_was_added_again_holds_no_reset_up() -> None:
    bench = Bench()
    bench.reading(offset=50)
    bench.fetched(a_batch(50, b"a"))
    bench.cluster.asked.clear()
    assert bench.fetcher.take_view(1) is not None
    bench.fetcher.remove(ZERO)
    bench.fetcher.add(ZERO, 3)
    bench.poll()
    bench.cluster.answer(bench.cluster.next(), error=OffsetOutOfRange.code or 0)
    bench.poll()
    bench.now += module.RETRY_PAUSE
    bench.poll()
    assert bench.cluster.next().api is Api.LIST_OFFSETS


def test_a_time_that_was_sought_counts_until_what_was_taken_is_kept() -> None:
    bench = seeking("earliest")
    early_and_late = a_batch(5, b"early", b"late", times=[1_000, 2_000], epoch=2)
    bench.fetched(early_and_late + a_batch(7, b"lost", times=2_000, epoch=4))
    assert bench.values() == [b"late"]
    bench.fetcher.rotation.take_all_back()
    bench.poll()
    bench.cluster.answer(bench.cluster.next(), error=LogTruncated.code, parts=(1, 5))
    bench.fetcher.rotation.keep()
    bench.poll()
    bench.now += module.RETRY_PAUSE
    bench.poll()
    bench.fetched(a_batch(5, b"early", b"late", times=[1_000, 2_000], epoch=5))
    assert bench.values() == [b"late"]
    assert not bench.cut
