"""Whose turn it is to be asked for, and that the others are not looked at."""

from folkmoot.consumers.fetch import fetcher as module
from folkmoot.consumers.fetch.fetch_queue import Waiting, by_leader, portions
from folkmoot.consumers.fetch.partition_state import Asked, Reading
from folkmoot.consumers.offsets.positions import Positions
from folkmoot.protocol.records import TopicPartition
from tests.consumers.fake_cluster import a_batch
from tests.consumers.fetching import ONE, ZERO, Bench


def a_reading(number: int, offset: int | None = 0) -> Reading:
    reading = Reading(TopicPartition("t", number))
    reading.offset = offset
    return reading


def test_readings_wait_in_the_order_in_which_they_began_to() -> None:
    waiting = Waiting(share_bytes=10)
    first, second = a_reading(1), a_reading(0)
    for each in (first, second, first):
        waiting.offer(each)
    assert list(waiting.hungry()) == [first, second]
    assert list(waiting.seeking()) == []


def test_what_wants_nothing_any_more_is_dropped_until_it_is_offered_again() -> None:
    waiting = Waiting(share_bytes=10)
    hungry, seeking = a_reading(0), a_reading(1, offset=None)
    for each in (hungry, seeking):
        waiting.offer(each)
        each.asked = Asked("one:1", (), {}, 1)
    assert [*waiting.hungry(), *waiting.seeking()] == []
    hungry.asked = seeking.asked = None
    assert [*waiting.hungry(), *waiting.seeking()] == [], "nobody looked through all of them"
    for each in (hungry, seeking):
        waiting.offer(each)
    assert [*waiting.hungry(), *waiting.seeking()] == [hungry, seeking]


def test_neither_what_is_paused_nor_what_is_stuck_nor_what_has_its_share_is_hungry() -> None:
    waiting = Waiting(share_bytes=10)
    paused, stuck, full = (a_reading(number) for number in range(3))
    paused.paused = stuck.stuck = True
    full.buffered_bytes = 10
    for each in (paused, stuck, full):
        waiting.offer(each)
    assert list(waiting.hungry()) == []


def test_a_broker_is_asked_in_portions() -> None:
    leaders = {0: "a", 1: "b", 2: "a", 3: None, 4: "a"}
    readings = [a_reading(number) for number in leaders]
    asked = [
        (address, [each.partition.partition for each in some])
        for address, some in portions(by_leader(readings, lambda each: leaders[each.partition]), 2)
    ]
    assert asked == [("a", [0, 2]), ("a", [4]), ("b", [1])]


def test_of_thousands_of_partitions_each_is_waited_for_at_once() -> None:
    bench = Bench()
    for number in range(5 * module.ENTRIES + 1):
        bench.fetcher.add(TopicPartition("t", number), 0)
    bench.poll()
    assert [len(each.partitions) for each in bench.cluster.asked] == [module.ENTRIES] * 5 + [1]


def test_what_a_removed_partition_had_buffered_makes_room_for_others() -> None:
    batch = a_batch(0, b"x" * 1_000)
    bench = Bench(buffer_bytes=len(batch))
    bench.reading()
    bench.fetched(batch)
    bench.fetcher.remove(ZERO)
    bench.fetcher.add(ZERO, 7)
    bench.poll()
    assert bench.cluster.next().request.entries[0].offset == 7


def test_what_is_handed_out_after_a_commit_within_a_turn_is_processed_at_its_end() -> None:
    positions = Positions()
    progress = positions.of(ZERO)
    progress.handed_out = 1
    positions.process_all()
    progress.handed_out = 2
    positions.end_turn()
    assert positions.processed(ZERO) == 2


def test_the_end_of_a_turn_looks_only_at_what_was_in_hand() -> None:
    positions = Positions()
    before = positions.of(ZERO)
    positions.end_turn()
    before.handed_out = 5
    positions.end_turn()
    assert positions.processed(ZERO) is None, "nobody was to write to it any more"


def test_a_partition_of_which_an_answer_tells_nothing_is_at_its_end_and_asked_for_again() -> None:
    bench = Bench()
    bench.reading(ZERO, ONE, offset=3)
    asked = bench.cluster.next()
    bench.cluster.answer_some(asked, {ONE: a_batch(3, b"x")})
    bench.poll()
    assert (bench.fetcher.end(ZERO), bench.fetcher.end(ONE)) == (3, 1_000)
    assert bench.values() == [b"x"]
    bench.poll()
    entries = bench.cluster.next().request.entries
    assert [(each.partition, each.offset) for each in entries] == [(0, 3), (1, 4)]
