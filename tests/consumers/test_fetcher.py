"""The fetcher's decisions: a cluster that answers what the test says, and a clock moved by hand."""

import random
from typing import Any, cast

import pytest
from crc32c import crc32c

from folkmoot.consumers import fetcher as module
from folkmoot.consumers.config import ConsumerConfig
from folkmoot.consumers.fetcher import Fetcher
from folkmoot.network.cluster import Cluster
from folkmoot.protocol.batch import HEADER_BYTES, LEADER_BYTES
from folkmoot.protocol.errors import (
    BrokerUnreachable,
    CorruptBatch,
    FolkmootError,
    NoOffset,
    NotAssigned,
    NotLeader,
    OffsetOutOfRange,
    StaleTopicId,
    StorageError,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from folkmoot.protocol.records import Record, TopicPartition
from folkmoot.protocol.requests import EARLIEST, LATEST, Api, BrokerInfo
from tests.consumers.fake_cluster import LEADER, FakeCluster, a_batch, spoiled

ZERO, ONE, TWO = (TopicPartition("t", number) for number in range(3))
ALL = 1_000_000


class Bench:
    """A fetcher, its cluster, its clock."""

    def __init__(self, **options: Any) -> None:
        self.now = 100.0
        self.cluster = FakeCluster()
        config = ConsumerConfig(zookeeper="nowhere:1", **options)
        self.fetcher = Fetcher(config, cast(Cluster, self.cluster), lambda: self.now)

    def poll(self) -> None:
        """Ask for what is missing, take the replies that are there."""
        self.fetcher.poll(1.0)

    def reading(self, *partitions: TopicPartition, offset: int = 0) -> None:
        for partition in partitions or (ZERO,):
            self.fetcher.add(partition, offset)
        self.poll()

    def fetched(self, *chunks: bytes, end: int = 1_000) -> None:
        """The oldest fetch is answered with these chunks."""
        self.cluster.answer(self.cluster.next(), *chunks, end=end)
        self.poll()

    def values(self, limit: int = ALL) -> list[bytes | None]:
        return [record.value for record in self.fetcher.take(limit)]

    def everything(self) -> list[Record]:
        taken = []
        while some := self.fetcher.take(ALL):
            taken += some
        return taken


@pytest.fixture
def bench() -> Bench:
    return Bench()


# -- the way of a record --------------------------------------------------------------------------


def test_records_come_in_order_and_move_the_position(bench: Bench) -> None:
    bench.reading(offset=5)
    assert bench.fetcher.position(ZERO) == 5
    bench.fetched(a_batch(5, b"a", b"b") + a_batch(7, b"c"))
    assert bench.values() == [b"a", b"b"]
    assert bench.fetcher.position(ZERO) == 7
    assert bench.values() == [b"c"]
    assert bench.fetcher.position(ZERO) == 8
    assert bench.values() == []
    assert bench.fetcher.end(ZERO) == 1_000


def test_a_batch_that_begins_before_the_offset_is_handed_out_from_the_offset_on(
    bench: Bench,
) -> None:
    bench.reading(offset=6)
    bench.fetched(a_batch(4, b"a", b"b", b"c", b"d"))
    assert [(r.offset, r.value) for r in bench.everything()] == [(6, b"c"), (7, b"d")]


def test_a_batch_wholly_before_the_offset_is_passed_over(bench: Bench) -> None:
    bench.reading(offset=6)
    bench.fetched(a_batch(4, b"a", b"b") + a_batch(6, b"c"))
    assert bench.values() == [b"c"]


def test_a_limit_splits_a_batch_and_loses_nothing(bench: Bench) -> None:
    bench.reading()
    bench.fetched(a_batch(0, b"a", b"b", b"c"))
    assert (bench.values(2), bench.fetcher.position(ZERO)) == ([b"a", b"b"], 2)
    assert (bench.values(2), bench.fetcher.position(ZERO)) == ([b"c"], 3)


def test_what_is_put_back_comes_again(bench: Bench) -> None:
    bench.reading()
    bench.fetched(a_batch(0, b"a", b"b", b"c"))
    records = bench.fetcher.take(ALL)
    bench.fetcher.put_back(ZERO, records[1:])
    assert bench.fetcher.position(ZERO) == 1
    assert bench.everything() == records[1:]


def test_what_is_put_back_after_a_seek_does_not_come_again(bench: Bench) -> None:
    bench.reading()
    bench.fetched(a_batch(0, b"a", b"b", b"c"))
    records = bench.fetcher.take(ALL)
    bench.fetcher.seek(ZERO, 50)
    bench.fetcher.put_back(ZERO, records[1:])
    assert bench.fetcher.position(ZERO) == 50
    assert bench.everything() == []


def test_partitions_take_turns(bench: Bench) -> None:
    bench.reading(ZERO, ONE, TWO)
    chunk = b"".join(a_batch(number, b"%d" % number) for number in range(4))
    bench.fetched(chunk, chunk, chunk)
    partitions = [record.partition for record in bench.everything()]
    assert partitions == [0, 1, 2] * 4


def test_a_large_batch_does_not_keep_the_others_waiting(bench: Bench) -> None:
    bench.reading(ZERO, ONE)
    bench.fetched(a_batch(0, *[b"x"] * 1_000), a_batch(0, b"y"))
    assert [bench.fetcher.take(100)[0].partition for _ in range(2)] == [0, 1]


def test_random_takes_and_returns_hand_out_every_record_once_and_in_order() -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)
    bench = Bench()
    bench.reading(ZERO, ONE)
    seen: dict[int, list[int]] = {0: [], 1: []}
    next_offset = [0, 0]
    for _ in range(300):
        for asked in list(bench.cluster.asked):
            bench.cluster.asked.remove(asked)
            chunks = []
            for entry in asked.request.entries:
                assert entry.offset == next_offset[entry.partition]
                size = chance.randrange(4)
                chunks.append(a_batch(entry.offset, *[b"x"] * size) if size else b"")
                next_offset[entry.partition] += size
            bench.cluster.answer(asked, *chunks)
        bench.poll()
        if chance.random() < 0.3:
            view = bench.fetcher.take_view(chance.choice((1, 2, ALL)))
            if view is not None:
                seen[view.partition].extend(view.offsets)
            continue
        records = bench.fetcher.take(chance.randrange(1, 4))
        kept = chance.randrange(len(records) + 1)
        if records:
            bench.fetcher.put_back(records[0].topic_partition, records[kept:])
        for record in records[:kept]:
            seen[record.partition].append(record.offset)
    for record in bench.everything():
        seen[record.partition].append(record.offset)
    assert seen == {number: list(range(next_offset[number])) for number in (0, 1)}


# -- asking ---------------------------------------------------------------------------------------


def test_all_hungry_partitions_of_a_broker_are_asked_for_in_one_request(bench: Bench) -> None:
    bench.cluster.leaders[TWO] = "two:1"
    bench.reading(ZERO, ONE, TWO)
    asked = {each.address: each.partitions for each in bench.cluster.asked}
    assert asked == {LEADER: [ZERO, ONE], "two:1": [TWO]}


def test_the_next_fetch_is_under_way_before_the_last_is_handed_out(bench: Bench) -> None:
    bench.reading()
    bench.fetched(a_batch(0, b"a"))
    bench.poll()
    assert bench.cluster.next().request.entries[0].offset == 1
    assert bench.values() == [b"a"]


def test_a_partition_fetches_no_more_than_its_share_ahead() -> None:
    batch = a_batch(0, b"x" * 1_000)
    bench = Bench(partition_fetch_bytes=len(batch))
    bench.reading()
    bench.fetched(batch)
    bench.poll()
    assert not bench.cluster.asked
    assert bench.values()
    bench.poll()
    assert len(bench.cluster.asked) == 1


def test_all_partitions_together_fetch_no_more_than_the_buffer() -> None:
    batch = a_batch(0, b"x" * 1_000)
    bench = Bench(buffer_bytes=2 * len(batch))
    bench.reading(ZERO, ONE)
    bench.fetched(batch, batch)
    bench.poll()
    assert not bench.cluster.asked
    assert bench.values()
    bench.poll()
    assert bench.cluster.next().partitions == [ZERO, ONE]


def test_a_broker_has_only_so_many_fetches_under_way(bench: Bench) -> None:
    for number in range(10):
        bench.fetcher.add(TopicPartition("t", number), 0)
        bench.poll()
    assert len(bench.cluster.asked) == module.FETCHES_IN_FLIGHT
    bench.fetched()
    bench.poll()
    assert len(bench.cluster.asked[-1].partitions) == 10 - module.FETCHES_IN_FLIGHT + 1


def test_seeking_to_and_fro_does_not_pile_up_requests(bench: Bench) -> None:
    bench.reading()
    for offset in range(100):
        bench.fetcher.seek(ZERO, offset)
        bench.poll()
    assert len(bench.cluster.asked) == module.FETCHES_IN_FLIGHT


def test_an_overloaded_connection_is_tried_again_later(bench: Bench) -> None:
    bench.cluster.overloaded = True
    bench.reading()
    bench.cluster.overloaded = False
    bench.poll()
    assert not bench.cluster.asked
    bench.now += module.RETRY_PAUSE
    bench.poll()
    assert len(bench.cluster.asked) == 1


def test_without_a_leader_nothing_is_asked(bench: Bench) -> None:
    cast(dict[TopicPartition, Any], bench.cluster.leaders)[ZERO] = None
    bench.reading()
    assert not bench.cluster.asked


# -- stale answers --------------------------------------------------------------------------------


def test_an_answer_from_before_a_seek_does_not_count(bench: Bench) -> None:
    bench.reading()
    bench.fetcher.seek(ZERO, 50)
    bench.poll()
    bench.fetched(a_batch(0, b"old"))
    assert bench.values() == []
    bench.fetched(a_batch(50, b"new"))
    assert bench.values() == [b"new"]


def test_an_answer_for_a_partition_that_was_removed_does_not_count(bench: Bench) -> None:
    bench.reading(ZERO, ONE)
    bench.fetcher.remove(ZERO)
    bench.fetched(a_batch(0, b"removed"), a_batch(0, b"kept"))
    assert bench.values() == [b"kept"]
    with pytest.raises(NotAssigned):
        bench.fetcher.position(ZERO)


def test_an_answer_for_an_earlier_time_of_a_partition_does_not_count(bench: Bench) -> None:
    bench.reading()
    bench.fetcher.remove(ZERO)
    bench.reading(offset=7)
    bench.fetched(a_batch(0, b"old"))
    assert bench.values() == []
    assert bench.fetcher.position(ZERO) == 7


def test_an_offset_looked_up_before_a_seek_does_not_count(bench: Bench) -> None:
    bench.fetcher.add(ZERO, None)
    bench.poll()
    bench.fetcher.seek(ZERO, 9)
    bench.cluster.found(bench.cluster.next(), 3)
    bench.poll()
    assert bench.fetcher.position(ZERO) == 9


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
    assert sorted(bench.fetcher.take(1)[0].partition for _ in range(2)) == [0, 1]


# -- what goes wrong ------------------------------------------------------------------------------


def test_a_corrupt_batch_is_never_skipped(bench: Bench) -> None:
    bench.reading()
    bench.fetched(a_batch(0, b"good") + spoiled(a_batch(1, b"bad")) + a_batch(2, b"later"))
    assert bench.values() == [b"good"]
    bench.fetcher.check()
    bench.poll()
    bench.fetched(spoiled(a_batch(1, b"bad")) + a_batch(2, b"later"))
    assert bench.values() == []
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


def spoiled_body(data: bytes) -> bytes:
    """A batch whose checksums are right and whose body is not."""
    body = bytes([0xC1]) * (len(data) - HEADER_BYTES)
    fields = data[LEADER_BYTES + 4 : HEADER_BYTES]
    crc = crc32c(fields + body).to_bytes(4, "big")
    return data[:LEADER_BYTES] + crc + fields + body
