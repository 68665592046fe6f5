"""Whose turn it is to be asked for, and that the others are not looked at."""

from folkmoot.consumers.fetch import fetcher as module
from folkmoot.consumers.fetch.buffer_budget import BufferBudget
from folkmoot.consumers.fetch.fetch_queue import FetchQueue
from folkmoot.consumers.fetch.partition_buffer import PartitionBuffer
from folkmoot.consumers.fetch.partition_state import InFlightFetch, PartitionFetchState
from folkmoot.consumers.offsets.progress import Positions
from folkmoot.protocol.records import TopicPartition
from tests.consumers.fake_cluster import a_batch
from tests.consumers.fetching import ONE, ZERO, Bench


def a_state(number: int, offset: int | None = 0) -> PartitionFetchState:
    partition = TopicPartition("t", number)
    state = PartitionFetchState(PartitionBuffer(partition, BufferBudget()))
    state.offset = offset
    return state


def test_partitions_wait_in_the_order_in_which_they_began_to() -> None:
    queue = FetchQueue(partition_bytes=10)
    first, second = a_state(1), a_state(0)
    for each in (first, second, first):
        queue.offer(each)
    assert queue.wanting() == ([], [first, second])


def test_what_wants_nothing_any_more_is_dropped_until_it_is_offered_again() -> None:
    queue = FetchQueue(partition_bytes=10)
    fetchable, unplaced = a_state(0), a_state(1, offset=None)
    for each in (fetchable, unplaced):
        queue.offer(each)
        each.in_flight = InFlightFetch("one:1", (), 1)
    assert queue.wanting() == ([], [])
    fetchable.in_flight = unplaced.in_flight = None
    assert queue.wanting() == ([], []), "nobody looked through all of them"
    for each in (fetchable, unplaced):
        queue.offer(each)
    assert queue.wanting() == ([unplaced], [fetchable])


def test_neither_what_is_paused_nor_what_is_stuck_nor_what_has_its_share_is_hungry() -> None:
    queue = FetchQueue(partition_bytes=10)
    paused, failed, full = (a_state(number) for number in range(3))
    paused.paused = failed.stopped = True
    full.buffer.size = 10
    for each in (paused, failed, full):
        queue.offer(each)
    assert queue.wanting() == ([], [])


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
    positions.end_poll()
    assert positions.uncommitted({ZERO}) == {ZERO: 2}


def test_the_end_of_a_turn_looks_only_at_what_was_in_hand() -> None:
    positions = Positions()
    before = positions.of(ZERO)
    positions.end_poll()
    before.handed_out = 5
    positions.end_poll()
    assert not positions.uncommitted({ZERO}), "nobody was to write to it any more"


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
