"""`send` stages records without a lock: what may happen between any two of its steps."""

import sys
import threading
import time
from collections.abc import Iterator

import pytest

from folkmoot.producers.chunks import Chunk, Delivery
from folkmoot.producers.producer import Producer
from folkmoot.protocol.errors import ClosedError
from folkmoot.protocol.records import TopicPartition
from tests.producers.fakes import FakeCluster
from tests.producers.parts import Bench, values


class Sending:
    """One `send`, step by step, as `Producer.send` does it."""

    def __init__(self, bench: Bench, value: bytes) -> None:
        self.bench = bench
        self.value = value
        self.stamp = bench.now + 0.0  # an object of its own
        self.chunk: Chunk = bench.accumulator.chunks["t"]

    def look(self) -> "Sending":
        self.rows = self.chunk.rows
        return self

    def append(self) -> "Sending":
        self.rows += (b"key", self.value, self.stamp)
        return self

    def end(self) -> Delivery:
        return self.bench.accumulator.staged(self.chunk, self.rows, self.stamp, 0.0)


@pytest.fixture
def bench() -> Bench:
    bench = Bench(linger=0.0)
    bench.accumulator.topic_known("t", 1)
    return bench


def deliver_all(bench: Bench) -> list[bytes]:
    """Take and send until nothing is left; the values in the order of the log."""
    log: list[bytes] = []
    while bench.accumulator.unacknowledged():
        bench.take()
        for number, shipment in bench.ship(hurry=True):
            bench.answer(number, shipment, base=len(log))
            log += values(shipment)
    return log


def check(log: list[bytes], *sent: tuple[Sending, Delivery]) -> None:
    for sending, delivery in sent:
        assert log[delivery.result(0).offset] == sending.value


def test_a_chunk_taken_after_the_row_was_staged_has_it(bench: Bench) -> None:
    sending = Sending(bench, b"early").look().append()
    bench.take()
    delivery = sending.end()
    log = deliver_all(bench)
    assert log == [b"early"]
    check(log, (sending, delivery))


def test_a_row_is_known_for_staged_also_when_its_chunk_was_divided_and_sent(bench: Bench) -> None:
    sending = Sending(bench, b"early").look().append()
    log = deliver_all(bench)
    check(log, (sending, sending.end()))
    assert deliver_all(bench) == []


def test_a_row_that_came_too_late_is_staged_again(bench: Bench) -> None:
    bench.stage(b"first")
    late = Sending(bench, b"late").look()
    bench.take()
    delivery = late.append().end()
    log = deliver_all(bench)
    assert log == [b"first", b"late"]
    check(log, (late, delivery))


def test_a_row_staged_where_the_rows_are_gone_is_not_taken_for_one_that_was_there(
    bench: Bench,
) -> None:
    for _ in range(3):
        bench.stage(b"first")
    late, later = Sending(bench, b"late"), Sending(bench, b"later")
    log = deliver_all(bench)
    deliveries = [sending.look().append().end() for sending in (late, later)]
    assert log == [b"first"] * 3
    log += deliver_all(bench)
    assert log[3:] == [b"late", b"later"]
    assert [delivery.result(0).offset for delivery in deliveries] == [0, 1]


def test_threads_that_get_between_each_other_find_their_own_rows(bench: Bench) -> None:
    sent = [Sending(bench, b"%d" % number).look().append() for number in range(5)]
    deliveries = [sending.end() for sending in reversed(sent)][::-1]
    log = deliver_all(bench)
    assert log == [b"0", b"1", b"2", b"3", b"4"]
    check(log, *zip(sent, deliveries, strict=True))


def test_whoever_sends_while_it_is_closed_is_told_or_has_sent(bench: Bench) -> None:
    staged, late = Sending(bench, b"staged").look().append(), Sending(bench, b"late").look()
    bench.accumulator.close(ClosedError("closed"))
    with pytest.raises(ClosedError):
        late.append().end()
    delivery = staged.end()
    log = deliver_all(bench)
    assert log == [b"staged"]
    check(log, (staged, delivery))


def test_a_flush_includes_what_another_thread_has_staged_and_not_told(bench: Bench) -> None:
    untold = Sending(bench, b"untold").look().append()
    other = Sending(bench, b"told").look().append()
    delivery = other.end()
    target = bench.accumulator.request_flush()
    bench.settle()
    assert bench.accumulator.settled < target
    log = deliver_all(bench)
    assert bench.accumulator.settled >= target
    check(log, (other, delivery), (untold, untold.end()))


def test_what_is_settled_stays_so_when_a_row_is_taken_that_nobody_has_told_of(bench: Bench) -> None:
    bench.stage(b"first")
    target = bench.accumulator.request_flush()
    log = deliver_all(bench)
    untold = Sending(bench, b"untold").look().append()
    bench.take()
    bench.settle()
    assert bench.accumulator.settled >= target
    untold.end()
    assert bench.accumulator.request_flush() > bench.accumulator.settled
    assert log + deliver_all(bench) == [b"first", b"untold"]


def test_unusual_records_keep_what_is_theirs_beside_rows_of_other_threads(bench: Bench) -> None:
    chunk = bench.accumulator.chunks["t"]
    stamp = bench.now + 0.0
    Sending(bench, b"other").look().append()
    delivery = chunk.stage(b"k", b"mine", stamp, 0, (("h", b"1"),), None)
    assert (chunk.explicit, list(chunk.headers)) == ({1: 0}, [1])
    assert delivery._stamp is stamp


@pytest.fixture
def hasty_switches() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("hasty_switches")
def test_nothing_is_lost_doubled_or_reordered_when_threads_switch_all_the_time() -> None:
    sent: dict[int, list[tuple[bytes, Delivery]]] = {number: [] for number in range(4)}

    def work(producer: Producer, number: int) -> None:
        mine, until = sent[number], time.monotonic() + 1.0
        while time.monotonic() < until and len(mine) < 20_000:
            value = b"%d %d" % (number, len(mine))
            mine.append((value, producer.send("t", value, b"key %d" % (len(mine) % 7))))

    with (
        FakeCluster() as cluster,
        Producer(zookeeper=cluster.connect, linger=0.0, batch_bytes=3000) as producer,
    ):
        threads = [threading.Thread(target=work, args=(producer, number)) for number in sent]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        producer.flush(60)
        assert producer.unacknowledged() == 0
        assert producer.metrics()["buffered_bytes"] == 0
    assert len(cluster.values()) == sum(map(len, sent.values()))
    for mine in sent.values():
        last: dict[TopicPartition, int] = {}
        for value, delivery in mine:
            place = delivery.result(0)
            partition = TopicPartition(place.topic, place.partition)
            assert cluster.logs[partition][place.offset].value == value
            assert place.offset > last.get(partition, -1)
            last[partition] = place.offset
