"""How long records wait for others to share their request."""

from math import inf

from folkmoot.producers.queues import GATHERING
from tests.producers.parts import Bench, values


def test_small_batches_gather_while_a_request_is_under_way_to_their_broker() -> None:
    bench = Bench(partitions=4, linger=0.0)
    bench.view.leaders[3] = "two:1"
    bench.stage(b"0", partition=0)
    bench.take()
    ((first, shipment),) = bench.ship()
    for number in (1, 2, 3):
        bench.stage(b"%d" % number, partition=number)
    bench.take()
    ((_, elsewhere),) = bench.ship()
    assert values(elsewhere) == [b"3"]
    assert bench.sender.next_event(bench.now) == bench.now + GATHERING
    bench.answer(first, shipment)
    ((_, gathered),) = bench.ship()
    assert values(gathered) == [b"1", b"2"]


def test_what_is_staged_gathers_in_its_chunk_while_all_leaders_are_busy() -> None:
    bench = Bench(partitions=2, linger=0.0)
    bench.view.leaders[1] = "two:1"
    bench.stage(b"0", partition=0)
    bench.take(everything=False)
    ((first, shipment),) = bench.ship()
    bench.stage(b"1", partition=1)
    bench.take(everything=False)  # the other leader is idle
    ((second, other),) = bench.ship()
    bench.stage(b"2", partition=0)
    bench.stage(b"3", partition=1)
    bench.take(everything=False)
    assert bench.accumulator.due(bench.sender.wait) == bench.now + GATHERING
    bench.answer(first, shipment)
    bench.take(everything=False)
    ((_, shipment),) = bench.ship()
    assert values(shipment) == [b"2"]
    bench.stage(b"4", partition=0)
    bench.now += GATHERING
    bench.take(everything=False)
    assert bench.accumulator.due(bench.sender.wait) == inf
    bench.answer(second, other)
    ((_, shipment),) = bench.ship()
    assert values(shipment) == [b"3"]


def test_linger_is_the_longest_wait_where_it_is_longer_than_gathering() -> None:
    bench = Bench(partitions=2, linger=2 * GATHERING)
    bench.stage(b"0", partition=0)
    bench.now += 2 * GATHERING
    bench.take(everything=False)
    assert len(bench.ship()) == 1
    bench.stage(b"1", partition=1)
    assert bench.accumulator.due(bench.sender.wait) == bench.now + 2 * GATHERING
    bench.now += 2 * GATHERING
    bench.take(everything=False)
    assert len(bench.ship()) == 1


def test_small_batches_gather_no_longer_than_a_moment_and_not_in_a_hurry() -> None:
    bench = Bench(partitions=3, linger=0.0)
    bench.stage(b"0", partition=0)
    bench.take()
    assert len(bench.ship()) == 1
    bench.stage(b"1", partition=1)
    bench.take()
    assert bench.ship() == []
    bench.now += GATHERING
    assert len(bench.ship()) == 1
    bench.stage(b"2", partition=2)
    bench.take()
    assert bench.ship() == []
    assert len(bench.ship(hurry=True)) == 1
