"""Where callers and the sender's thread meet."""

import threading
from random import Random

import pytest

from folkmoot.producers.accumulator import CHECK_EVERY
from folkmoot.protocol.errors import (
    BrokerUnreachable,
    BufferFull,
    ClosedError,
    RequestTimeout,
    UnknownTopicOrPartition,
)
from tests.producers.parts import Bench
from tests.waiting import eventually


def test_the_first_record_of_a_chunk_rings_and_the_others_do_not() -> None:
    bench = Bench()
    for _ in range(10):
        bench.stage(b"x")
    assert bench.rings == 1
    bench.take()
    bench.stage(b"x")
    assert bench.rings == 2


def test_a_chunk_that_is_large_enough_is_handed_in_before_its_linger() -> None:
    bench = Bench(batch_bytes=10_000, linger=50.0)
    for _ in range(10):
        bench.stage(bytes(10))
    bench.take(everything=False)
    assert bench.accumulator.records == 0
    for _ in range(2 * CHECK_EVERY):
        bench.stage(bytes(10))
    assert bench.rings == 2
    bench.take(everything=False)
    assert 10_000 / 42 <= bench.accumulator.records <= 10 + 2 * CHECK_EVERY


def test_the_sender_s_thread_is_rung_for_once_until_it_looks() -> None:
    bench = Bench(batch_bytes=1000, linger=50.0)
    for _ in range(1000):
        bench.stage(bytes(10))
    assert bench.rings == 1
    bench.take(everything=False)
    bench.stage(bytes(10))
    for _ in range(1000):
        bench.stage(bytes(10))
    assert bench.rings == 2


def test_a_full_buffer_lets_nothing_in_until_records_are_done() -> None:
    bench = Bench(buffer_bytes=1000, linger=0.0)
    bench.stage(bytes(2000))
    assert bench.accumulator.is_full
    with pytest.raises(BufferFull):
        bench.stage(b"x")
    bench.take(everything=False)
    ((number, shipment),) = bench.ship()
    with pytest.raises(BufferFull):
        bench.stage(b"x")
    bench.answer(number, shipment)
    assert bench.accumulator.buffered == 0
    bench.stage(b"x")


@pytest.mark.parametrize("keys", ["of one length", "of several", "none"])
def test_what_a_chunk_was_estimated_to_hold_is_put_right_when_it_is_divided(keys: str) -> None:
    random = Random(3)
    bench = Bench(partitions=3, linger=0.0)
    for number in range(700):
        key = {"of one length": b"%03d" % number, "of several": b"%d" % number, "none": None}[keys]
        bench.stage(random.randbytes(random.randrange(300)), key, partition=None)
    bench.take()
    queues = bench.sender._queues.values()
    assert bench.accumulator.buffered == sum(batch.size for q in queues for batch in q.batches)
    for number, shipment in bench.ship(hurry=True):
        bench.answer(number, shipment)
    assert bench.accumulator.buffered == 0


def test_a_caller_waits_for_room_and_gets_it() -> None:
    bench = Bench(buffer_bytes=1000, linger=0.0)
    bench.stage(bytes(2000))
    bench.take()
    ((number, shipment),) = bench.ship()
    admitted = []

    def wait() -> None:
        with bench.accumulator.lock:
            admitted.append(bench.accumulator.admit("t", 30.0))

    caller = threading.Thread(target=wait)
    caller.start()
    assert not admitted
    bench.answer(number, shipment)
    caller.join(10)
    assert len(admitted) == 1


def test_a_topic_is_waited_for_and_refused_for_those_who_wait_now() -> None:
    bench = Bench()
    errors: list[BaseException] = []

    def wait() -> None:
        with bench.accumulator.lock:
            try:
                bench.accumulator.admit("missing", 30.0)
            except UnknownTopicOrPartition as error:
                errors.append(error)

    callers = [threading.Thread(target=wait) for _ in range(2)]
    for caller in callers:
        caller.start()
    eventually(lambda: bench.accumulator.topics_wanted() == ["missing"])
    # Whoever did not begin to wait yet asks again and is refused again.
    while any(caller.is_alive() for caller in callers):
        bench.now += 1.0
        bench.accumulator.refuse("missing", UnknownTopicOrPartition("not there"))
        callers[0].join(0.01)
    assert len(errors) == 2
    bench.now += 1.0
    bench.accumulator.topic_known("missing", 3)
    with bench.accumulator.lock:
        assert bench.accumulator.admit("missing", 0.0).topic == "missing"


def test_the_wait_for_a_topic_ends_with_what_is_the_trouble() -> None:
    bench = Bench()
    with bench.accumulator.lock, pytest.raises(UnknownTopicOrPartition):
        bench.accumulator.admit("t", 0.0)
    bench.accumulator.trouble = BrokerUnreachable("no broker is registered")
    with bench.accumulator.lock, pytest.raises(BrokerUnreachable, match="no broker is registered"):
        bench.accumulator.admit("t", 0.0)


def test_closing_turns_callers_away_and_keeps_what_is_staged() -> None:
    bench = Bench()
    bench.stage(b"x")
    bench.accumulator.close(ClosedError("closed"))
    with pytest.raises(ClosedError):
        bench.stage(b"y")
    bench.take()
    assert bench.accumulator.records == 1


def test_a_flush_is_settled_when_all_that_was_staged_before_is_done() -> None:
    bench = Bench(partitions=2, linger=0.0)
    bench.stage(b"slow", partition=0)
    bench.take()
    ((slow, shipment),) = bench.ship()
    target = bench.accumulator.request_flush()
    bench.stage(b"later", partition=1)
    bench.take()
    ((later, other),) = bench.ship(hurry=True)
    bench.answer(later, other)
    assert bench.accumulator.settled < target
    bench.answer(slow, shipment)
    assert bench.accumulator.settled >= target


def test_a_flush_waits_for_what_is_staged_after_all_before_was_done() -> None:
    bench = Bench(linger=0.0)
    for _ in range(2):
        bench.stage(b"x")
        target = bench.accumulator.request_flush()
        bench.settle()
        assert bench.accumulator.settled < target
        bench.take()
        ((number, shipment),) = bench.ship()
        bench.answer(number, shipment)
        assert bench.accumulator.settled >= target


def test_a_flush_of_nothing_is_settled_at_once() -> None:
    bench = Bench()
    target = bench.accumulator.request_flush()
    bench.settle()
    assert bench.accumulator.settled >= target


def test_waiting_for_a_delivery_ends_with_its_timeout() -> None:
    bench = Bench()
    delivery = bench.stage(b"x")
    assert not delivery.done()
    with pytest.raises(RequestTimeout):
        delivery.result(timeout=0.01)
    bench.take()
    with pytest.raises(RequestTimeout):
        delivery.exception(timeout=0.01)


def test_a_kept_delivery_keeps_no_record() -> None:
    bench = Bench(linger=0.0)
    delivery = bench.stage(b"x" * 1000)
    bench.take()
    ((number, shipment),) = bench.ship()
    bench.answer(number, shipment)
    place = delivery._place()
    assert place is not None
    batch = place[0]
    assert (delivery._chunk.rows, delivery._chunk.pieces) == ([None], None)
    assert (batch.pieces, batch.payload) == ([], b"")
