"""How long records wait for others to share their request."""

from folkmoot.producers.partition_queue import GATHERING
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
    assert bench.sender.next_event() == bench.now + GATHERING
    bench.answer(first, shipment)
    ((_, gathered),) = bench.ship()
    assert values(gathered) == [b"1", b"2"]


def test_a_batch_opened_now_may_wait_for_an_answer_while_all_leaders_are_busy() -> None:
    bench = Bench(partitions=2, linger=0.0)
    bench.view.leaders[1] = "two:1"
    patience = [bench.sender.patience(2)]
    sent = []
    for partition in (0, 1):
        bench.stage(b"value", partition=partition)
        bench.take()
        sent += bench.ship()
        patience.append(bench.sender.patience(2))
    assert patience == [0.0, 0.0, GATHERING]
    bench.answer(*sent[0])
    assert bench.sender.patience(2) == 0.0


def test_linger_is_the_longest_wait_where_it_is_longer_than_gathering() -> None:
    bench = Bench(partitions=2, linger=2 * GATHERING)
    for partition in (0, 1):
        bench.stage(b"value", partition=partition)
        bench.take()
        assert bench.ship() == []
        assert bench.sender.next_event() == bench.now + 2 * GATHERING
        assert bench.sender.patience(1) == 2 * GATHERING
        bench.now += 2 * GATHERING
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
