"""Where callers and the sender's thread meet."""

import threading
from typing import Any

import pytest

from folkmoot.producers.accumulator import MAX_FAILED_BATCHES, MAX_LOOKUPS
from folkmoot.producers.columns import RECORD_OVERHEAD_BYTES
from folkmoot.protocol.errors import (
    BrokerUnreachable,
    BufferFull,
    ClosedError,
    CorruptBatch,
    RequestTimeout,
    UnknownTopicOrPartition,
)
from tests.producers.appenders import needs_compiled
from tests.producers.parts import Bench
from tests.waiting import eventually


def asleep(bench: Bench, seconds: float = 1000.0) -> None:
    """Let the sender's thread take all and sleep."""
    bench.take()
    bench.accumulator.sleep(bench.now + seconds)


def test_the_first_record_of_a_batch_wakes_a_thread_that_sleeps_and_the_others_do_not() -> None:
    bench = Bench(partitions=2)
    asleep(bench)
    for _ in range(10):
        bench.stage(b"x")
    assert bench.rings == 1
    bench.take()
    bench.stage(b"x", partition=1)
    assert bench.rings == 1, "it is awake, and looks before it sleeps"
    assert bench.accumulator.sleep(1e9) <= bench.now + bench.config.linger


@needs_compiled  # the plain appender tells under the lock
@pytest.mark.parametrize("told", ["register_batch", "register_full_batch"])
def test_who_tells_of_a_batch_when_it_is_delivered_already_does_not_make_it_another(
    monkeypatch: pytest.MonkeyPatch, told: str
) -> None:
    bench = Bench(batch_bytes=100 if told == "register_full_batch" else 10_000)
    accumulator = bench.accumulator
    late: list[Any] = []

    def tell(builder: Any) -> None:
        if not late:  # the thread that appended stands here, while others go on
            late.append(builder)
            accumulator.appender.register_interrupted()
            bench.take()
            ((number, shipment),) = bench.ship(hurry=True)
            bench.answer(number, shipment)
            assert builder.done
        as_before(builder)

    as_before = getattr(accumulator, told)
    monkeypatch.setattr(accumulator, told, tell)
    assert bench.stage(bytes(100)).result(0).offset == 0
    bench.take()
    assert bench.ship(hurry=True) == []
    bench.settle()
    assert len(late) == bench.sender.counters.records_delivered == 1
    assert (accumulator.appender.used, accumulator.unacknowledged()) == (0, 0)


def test_a_batch_that_may_wait_until_the_thread_wakes_up_wakes_nobody() -> None:
    bench = Bench(linger=5.0, partitions=2)
    asleep(bench, seconds=5.0)
    bench.stage(b"x")
    assert bench.rings == 0
    asleep(bench, seconds=5.1)
    bench.stage(b"y", partition=1)
    assert bench.rings == 1


def test_a_batch_that_is_full_wakes_the_thread_before_its_linger() -> None:
    bench = Bench(batch_bytes=10 * (10 + RECORD_OVERHEAD_BYTES), linger=50.0)
    bench.know()
    asleep(bench, seconds=1.0)
    for number in range(10):
        assert bench.rings == 0, number
        bench.stage(bytes(10))
        bench.accumulator.appender.register_interrupted()
    assert bench.rings == 1
    bench.take()
    assert len(bench.ship()) == 1


def test_a_full_buffer_lets_nothing_in_until_records_are_done() -> None:
    bench = Bench(buffer_bytes=1000, linger=50.0)
    bench.stage(bytes(2000))
    with pytest.raises(BufferFull):
        bench.stage(b"x")
    assert bench.take(), "what there is is to be sent without lingering"
    ((number, shipment),) = bench.ship(hurry=True)
    with pytest.raises(BufferFull):
        bench.stage(b"x")
    bench.answer(number, shipment)
    assert bench.accumulator.appender.used == 0
    bench.stage(b"x")


def waiting(bench: Bench, topic: str) -> tuple[threading.Thread, list[Any]]:
    """A caller's thread that waits to be admitted, and what became of that."""
    outcome: list[Any] = []

    def wait() -> None:
        try:
            bench.accumulator.admit(topic)
            outcome.append(None)
        except Exception as error:
            outcome.append(error)

    caller = threading.Thread(target=wait)
    caller.start()
    return caller, outcome


def test_a_caller_waits_for_room_and_gets_it() -> None:
    bench = Bench(buffer_bytes=1000, linger=0.0, max_block=30.0)
    bench.stage(bytes(2000))
    bench.take()
    ((number, shipment),) = bench.ship()
    caller, outcome = waiting(bench, "t")
    assert not outcome
    bench.answer(number, shipment)
    caller.join(10)
    assert outcome == [None]


def test_a_topic_is_refused_for_those_who_wait_now_and_looked_up_for_those_who_come() -> None:
    bench = Bench(max_block=30.0)
    callers = [waiting(bench, "missing") for _ in range(2)]
    eventually(lambda: list(bench.accumulator.lookups) == ["missing"])
    # Whoever did not begin to wait yet asks again and is refused again.
    while any(caller.is_alive() for caller, _ in callers):
        bench.accumulator.refuse("missing", UnknownTopicOrPartition("not there"))
        callers[0][0].join(0.01)
    assert [str(error) for _, (error,) in callers] == ["not there"] * 2
    bench.know("missing")
    bench.accumulator.admit("missing")


def test_the_wait_for_a_topic_ends_with_what_is_the_trouble() -> None:
    bench = Bench()
    with pytest.raises(UnknownTopicOrPartition, match="was not found within 0 s"):
        bench.accumulator.admit("t")
    bench.accumulator.metadata_error = BrokerUnreachable("no broker is registered")
    with pytest.raises(BrokerUnreachable, match="no broker is registered"):
        bench.accumulator.admit("t")


def test_who_may_not_wait_starts_the_look_up_and_succeeds_later() -> None:
    bench = Bench(max_block=0.0)
    asleep(bench)
    with pytest.raises(UnknownTopicOrPartition):
        bench.accumulator.appender.send("t", b"x")
    assert (list(bench.accumulator.lookups), bench.rings) == (["t"], 1)
    bench.know()
    bench.accumulator.appender.send("t", b"x")
    assert not bench.accumulator.lookups


def test_topics_that_are_looked_up_are_bounded() -> None:
    bench = Bench(max_block=0.0)
    for number in range(MAX_LOOKUPS + 10):
        with pytest.raises(UnknownTopicOrPartition):
            bench.accumulator.admit(f"topic-{number}")
    assert len(bench.accumulator.lookups) == MAX_LOOKUPS


def test_closing_turns_callers_away_and_keeps_what_was_appended() -> None:
    bench = Bench()
    bench.stage(b"x")
    bench.accumulator.close(ClosedError("closed"))
    with pytest.raises(ClosedError):
        bench.stage(b"y")
    bench.take()
    assert bench.accumulator.unacknowledged() == 1
    assert len(bench.ship(hurry=True)) == 1


def test_a_flush_is_settled_when_all_that_was_sent_before_is_done() -> None:
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


def test_a_flush_waits_for_what_is_sent_after_all_before_was_done() -> None:
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


def test_a_failure_that_somebody_asked_about_silences_no_neighbour() -> None:
    bench = Bench(linger=0.0)
    asked, unasked = bench.stage(b"1"), bench.stage(b"2")
    bench.take()
    (sent,) = bench.ship()
    bench.answer(*sent, CorruptBatch.code)
    assert isinstance(asked.exception(0), CorruptBatch)
    assert isinstance(bench.accumulator.take_failure(), CorruptBatch)
    assert bench.accumulator.take_failure() is None
    assert isinstance(unasked.exception(0), CorruptBatch)


def test_of_batches_that_failed_a_bounded_number_is_kept_and_one_of_them_is_told() -> None:
    bench = Bench(linger=0.0)
    asked = []
    for number in range(3 * MAX_FAILED_BATCHES):
        delivery = bench.stage(b"x")
        if number < 2 * MAX_FAILED_BATCHES:
            asked.append(delivery)
        bench.take()
        (sent,) = bench.ship()
        bench.answer(*sent, CorruptBatch.code)
        if number < 2 * MAX_FAILED_BATCHES:
            delivery.exception(0)
    assert len(bench.accumulator._failed) == MAX_FAILED_BATCHES
    assert isinstance(bench.accumulator.take_failure(), CorruptBatch)
    assert bench.accumulator.take_failure() is None


def test_what_is_purged_fails_but_for_what_is_under_way() -> None:
    bench = Bench(partitions=2, linger=50.0)
    under_way = bench.stage(b"under way", partition=0)
    bench.take()
    ((number, shipment),) = bench.ship(hurry=True)
    waiting = [bench.stage(b"waiting", partition=partition) for partition in (0, 1)]
    is_purged = bench.accumulator.request_purge()
    taken = bench.accumulator.take()
    for batch in taken.opened:
        bench.sender.add(batch)
    assert (taken.purge, is_purged()) == (1, False)
    bench.sender.purge()
    bench.settle()
    bench.accumulator.purged(taken.purge)
    assert is_purged()
    assert [type(each.exception(0)).__name__ for each in waiting] == ["RecordsPurged"] * 2
    assert not under_way.done()
    assert bench.accumulator.take_failure() is None
    bench.answer(number, shipment)
    assert under_way.result(0).offset == 0
    assert bench.accumulator.appender.used == 0


def test_a_batch_whose_opening_was_interrupted_is_opened_once() -> None:
    bench = Bench()
    delivery = bench.stage(b"x")
    bench.accumulator.register_batch(delivery.builder)
    bench.take()
    bench.accumulator.register_batch(delivery.builder)
    bench.take()
    ((number, shipment),) = bench.ship(hurry=True)
    bench.answer(number, shipment)
    assert (len(bench.done), bench.accumulator.unacknowledged()) == (1, 0)
