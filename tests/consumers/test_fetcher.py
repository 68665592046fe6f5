"""The fetcher's decisions: what it asks for, what it hands out, which answers no longer count."""

import random
from typing import Any, cast

import pytest

from folkmoot.consumers.client.consumer import Consumer
from folkmoot.consumers.client.life import Stage
from folkmoot.consumers.fetch import fetcher as module
from folkmoot.protocol import batch_header, record_batch
from folkmoot.protocol.columns import Columns
from folkmoot.protocol.errors import NotAssigned
from folkmoot.protocol.records import TopicPartition
from tests.consumers.fake_cluster import LEADER, Asked, a_batch
from tests.consumers.fetching import ALL, ONE, TWO, ZERO, Bench
from tests.seeds import new_seed


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
    for limit in (ALL, 2):
        view = bench.fetcher.take_view(limit)
        assert view is not None
        for _ in range(2):  # whoever was interrupted does it again
            bench.fetcher.rotation.take_back(ZERO, view.offsets[1])
        assert bench.fetcher.position(ZERO) == 1
        assert [record.offset for record in bench.everything()] == [1, 2]
        bench.fetcher.seek(ZERO, 0)
        bench.poll()
        bench.fetched(a_batch(0, b"a", b"b", b"c"))


def test_what_is_put_back_after_a_seek_does_not_come_again(bench: Bench) -> None:
    bench.reading()
    bench.fetched(a_batch(0, b"a", b"b", b"c"))
    view = bench.fetcher.take_view(ALL)
    assert view is not None
    bench.fetcher.seek(ZERO, 50)
    bench.fetcher.rotation.take_back(ZERO, view.offsets[1])
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
    assert [bench.take(100)[0].partition for _ in range(2)] == [0, 1]


def test_random_takes_and_returns_hand_out_every_record_once_and_in_order() -> None:
    chance = random.Random(new_seed())
    bench = Bench()
    bench.reading(ZERO, ONE)
    seen: dict[int, list[int]] = {0: [], 1: []}
    kept = {0: 0, 1: 0}
    next_offset = [0, 0]
    for _ in range(300):
        for asked in list(bench.cluster.asked):
            bench.cluster.asked.remove(asked)
            chunks = []
            for entry in asked.request.entries:
                assert entry.offset <= next_offset[entry.partition]
                size = chance.randrange(4)
                chunks.append(a_batch(entry.offset, *[b"x"] * size) if size else b"")
                next_offset[entry.partition] = entry.offset + size
            bench.cluster.answer(asked, *chunks)
        bench.poll()
        view = bench.fetcher.take_view(chance.choice((1, 2, 3, ALL)))
        if view is not None:
            seen[view.partition].extend(view.offsets)
        what = chance.random()
        if what < 0.4:
            bench.fetcher.rotation.keep()
            kept = {number: len(offsets) for number, offsets in seen.items()}
        elif what < 0.5:
            bench.fetcher.rotation.take_all_back()
            for number, offsets in seen.items():
                del offsets[kept[number] :]
        elif what < 0.8 and view is not None:
            row = chance.randrange(len(view))
            bench.fetcher.rotation.take_back(view.topic_partition, view.offsets[row])
            del seen[view.partition][-(len(view) - row) :]
        elif what < 0.85:
            bench.fetcher._states[chance.choice((ZERO, ONE))].fetch_again()
    for record in bench.everything():
        seen[record.partition].append(record.offset)
    for number, partition in enumerate((ZERO, ONE)):
        assert seen[number] == [*range(bench.fetcher._states[partition].offset or 0)]


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


def at_their_ends(bench: Bench, *numbers: int) -> list[Asked]:
    """One fetch for each of these partitions, which waits at the broker for new records."""
    waiting = []
    for number in numbers:
        bench.fetcher.add(TopicPartition("t", number), 0)
        bench.poll()
        bench.fetched(a_batch(0, b"x"), end=1)
        bench.poll()
        assert bench.cluster.asked[-1].request.entries[0].offset == 1
        waiting.append(bench.cluster.asked.pop())
    return waiting


def test_partitions_at_their_ends_do_not_keep_others_from_being_read(bench: Bench) -> None:
    at_their_ends(bench, *range(8))
    bench.reading(TopicPartition("t", 8))
    for offset in range(3):
        bench.fetched(a_batch(offset, b"y"), end=3)
        bench.poll()
    assert bench.cluster.asked[-1].request.entries[0].offset == 3


def test_only_so_many_fetches_wait_at_a_broker_and_the_rest_goes_with_one_answered(
    bench: Bench,
) -> None:
    waiting = at_their_ends(bench, *range(module.FETCHES_WAITING))
    late = TopicPartition("t", 50)
    bench.reading(late)
    bench.fetched(a_batch(0, b"y"), end=1)
    bench.poll()
    assert not bench.cluster.asked
    bench.cluster.answer_some(waiting[0], {}, has_session=True)
    bench.poll()
    bench.poll()
    assert bench.cluster.next().partitions == [late]


def test_fetches_that_bring_records_have_their_own_bound_beside_those_that_wait(
    bench: Bench,
) -> None:
    at_their_ends(bench, *range(8))
    for number in range(20, 30):
        bench.fetcher.add(TopicPartition("t", number), 0)
        bench.poll()
    assert len(bench.cluster.asked) == module.FETCHES_IN_FLIGHT


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


def test_of_more_idle_partitions_than_fit_into_requests_each_has_its_turn(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ENTRIES", 2)
    several = [TopicPartition("t", number) for number in range(11)]
    for partition in several:
        bench.fetcher.add(partition, 0)
    seen = set()
    for _ in range(12):
        bench.poll()
        asked = bench.cluster.next()
        seen |= {*asked.partitions}
        bench.cluster.answer(asked)
    assert seen == {*several}


def test_what_compaction_has_left_is_handed_out_and_gaps_are_passed_over(bench: Bench) -> None:
    bench.reading(offset=3)
    columns = Columns(2, [b"k", b"l"], [b"b", b"c"], 1_000, None, [2, 4])
    data = record_batch.encode(columns, codec=0, last_offset_delta=9)
    thinned = batch_header.leader_part(5, len(data), 3, -1) + data[batch_header.LEADER_BYTES :]
    bench.fetched(thinned + a_batch(20, b"d"))
    assert [(r.offset, r.value) for r in bench.everything()] == [(7, b"b"), (9, b"c"), (20, b"d")]
    assert bench.fetcher.position(ZERO) == 21
    bench.fetcher.seek(ZERO, 8)
    bench.poll()
    bench.fetched(thinned)
    assert [record.offset for record in bench.everything()] == [9]
    assert bench.fetcher.position(ZERO) == 15


def test_what_follows_is_asked_for_before_what_has_come_is_handed_out(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = Consumer(zookeeper="nowhere:1")
    consumer._core.life.enter(Stage.OPEN)
    monkeypatch.setattr(consumer._core, "fetcher", bench.fetcher)
    monkeypatch.setattr(consumer._core.hand_out, "_fetcher", bench.fetcher)
    bench.reading(ZERO, ONE)
    (asked,) = bench.cluster.asked
    bench.cluster.asked.clear()
    bench.cluster.answer(asked, a_batch(0, b"a"), a_batch(0, b"b"))
    assert next(iter(consumer)).value == b"a"
    (following,) = bench.cluster.asked
    assert [entry.offset for entry in following.request.entries] == [1, 1]
