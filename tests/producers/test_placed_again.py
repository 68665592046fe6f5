"""What becomes of records whose partition is gone: their topic was made anew with fewer."""

from collections import defaultdict
from itertools import product
from random import Random
from typing import Any

import pytest

from folkmoot.producers.appender import Delivery
from folkmoot.producers.columns import RecordColumns
from folkmoot.producers.futures import BatchDelivery
from folkmoot.producers.sender import run_callbacks
from folkmoot.producers.sender_state import Shipment
from folkmoot.protocol.errors import (
    DeliveryTimeout,
    FolkmootError,
    NotLeader,
    PartitionerFailed,
    RequestTimeout,
    StaleTopicId,
    UnknownTopicOrPartition,
)
from folkmoot.protocol.messages import ProduceResponse, ProduceResult
from folkmoot.protocol.murmur2 import partition_for
from folkmoot.protocol.records import Record
from tests.producers.fakes import FakeCluster
from tests.producers.parts import Bench, records
from tests.seeds import new_seed

KEYS = [b"key-%d" % number for number in range(20)]
GONE = next(key for key in KEYS if partition_for(key, 6) == 5)


def make_anew(bench: Bench, count: int, *, known: bool = True) -> None:
    """The topic has so many partitions now; `known`: as the appender knows by now."""
    bench.view.count, bench.view.made = count, " made anew"
    bench.view.leaders = dict.fromkeys(range(count), "one:1")
    if known:
        bench.know()


def deliver(bench: Bench, error: int = 0, *, hurry: bool = True) -> dict[int, list[Record]]:
    """Send all there is; the broker takes it, or answers with the error, once. → its logs."""
    logs: dict[int, list[Record]] = defaultdict(list)
    bench.sender.grant([8])
    while shipped := bench.ship(hurry=hurry):
        for number, shipment in shipped:
            results = []
            for batch in shipment.batches:
                topic, partition = batch.topic_partition
                results.append(ProduceResult(topic, partition, error, "", len(logs[partition]), 0))
                if not error:
                    found = [each for each in records(shipment) if each.partition == partition]
                    logs[partition] += found
            bench.sender.answered(number, ProduceResponse(results), bench.now)
        bench.settle()
        if error:
            break
    return logs


@pytest.mark.parametrize("was_refused", [False, True], ids=["open", "refused before"])
@pytest.mark.parametrize("count", [1, 4])
def test_records_go_by_their_keys_to_the_partitions_that_there_are(
    count: int, was_refused: bool
) -> None:
    bench, told = Bench(partitions=6, linger=60.0, compression="lz4"), list[Delivery]()
    more: dict[str, Any] = {"on_delivery": told.append, "headers": {"h": b"1"}}
    sent = {
        (key, turn): bench.stage(b"%d" % turn, key, None, **(more if turn == 1 else {}))
        for turn in range(3)
        for key in KEYS
    }
    named = [bench.stage(b"named", b"k", number) for number in range(6)]
    unkeyed = [bench.stage(b"unkeyed", None, None) for _ in range(5)]
    bench.take()
    if was_refused:
        deliver(bench, NotLeader.code)
    make_anew(bench, count)
    for key in KEYS:
        sent[key, 3] = bench.stage(b"3", key, None)
    target = bench.accumulator.request_flush()
    bench.take()
    bench.now += 10.0
    logs = deliver(bench)
    for (key, turn), delivery in sent.items():
        place, former = delivery.result(0), partition_for(key, 6)
        is_moved = former >= count or turn == 3
        assert place.partition == (partition_for(key, count) if is_moved else former)
        record = logs[place.partition][place.offset]
        assert (record.key, record.value) == (key, b"%d" % turn)
        assert record.headers == ((("h", b"1"),) if turn == 1 else ())
    for number, delivery in enumerate(named):
        if number < count:
            assert logs[number][delivery.result(0).offset].value == b"named"
        else:
            assert isinstance(delivery.exception(0), UnknownTopicOrPartition)
    for key in KEYS:
        if partition_for(key, 6) >= count:  # those have one partition from now on
            log = logs[partition_for(key, count)]
            assert [each.value for each in log if each.key == key] == [b"0", b"1", b"2", b"3"]
    for delivery in unkeyed:
        assert logs[delivery.result(0).partition][delivery.result(0).offset].value == b"unkeyed"
    for batch in bench.done:
        run_callbacks(batch)
    assert sorted(each.result(0) for each in told) == sorted(sent[key, 1].result(0) for key in KEYS)
    counters = bench.sender.counters
    assert (counters.records_delivered, counters.records_failed) == (85 + count, 6 - count)
    assert bench.accumulator.settled >= target
    assert bench.accumulator.appender.used == 0


def test_records_whose_partition_was_named_fail_at_once() -> None:
    bench = Bench(partitions=6, linger=60.0)
    deliveries = [bench.stage(b"x", b"k", number) for number in range(6)]
    bench.take()
    make_anew(bench, 1)
    assert [len(shipment.batches) for _, shipment in bench.ship()] == [1]
    bench.settle()
    assert not deliveries[0].done()
    for number, delivery in enumerate(deliveries[1:], 1):
        error = delivery.exception(0)
        assert isinstance(error, UnknownTopicOrPartition)
        assert f"t-{number} does not exist any more" in str(error)


def test_rows_of_columns_say_where_each_of_them_has_gone() -> None:
    bench = Bench(partitions=6, linger=60.0)
    bench.know()
    columns = RecordColumns(
        [b"%d" % row for row in range(60)], [KEYS[row % 20] for row in range(60)]
    )
    end, runs = bench.accumulator.appender.send_columns("t", columns, 0)
    named = RecordColumns([b"named"], partition=5)
    _, named_runs = bench.accumulator.appender.send_columns("t", named, 0)
    assert end == 60
    bench.take()
    make_anew(bench, 4)
    logs = deliver(bench)
    offsets = BatchDelivery(runs, bench.accumulator).result(0)
    found = {
        partition: [logs[partition][offset].value for some in ranges for offset in some]
        for partition, ranges in offsets.items()
    }
    assert {value for some in found.values() for value in some} == set(columns.values)
    assert sum(map(len, found.values())) == 60
    error = BatchDelivery(named_runs, bench.accumulator).exception(0)
    assert isinstance(error, UnknownTopicOrPartition)


def test_later_records_of_a_key_stay_behind_earlier_ones_taken_after_them() -> None:
    bench = Bench(partitions=6, linger=60.0)
    bench.stage(b"grows", None, 0)
    bench.take()
    make_anew(bench, 1, known=False)
    assert deliver(bench, hurry=False) == {}
    bench.stage(b"first", GONE, None)  # placed among six: the appender does not know yet
    bench.know()
    for value in (b"second", b"third"):
        bench.stage(value, GONE, None)
    bench.take()
    log = deliver(bench)[0]
    assert [each.value for each in log] == [b"grows", b"first", b"second", b"third"]


def test_a_topic_that_is_unknown_for_a_moment_is_waited_for() -> None:
    bench = Bench(partitions=6, linger=0.0)
    first = bench.stage(b"x", GONE, None)
    bench.take()
    ((number, _),) = bench.ship()
    second = bench.stage(b"y", GONE, None)
    make_anew(bench, 1, known=False)
    bench.ship()
    third = bench.stage(b"z", GONE, None)
    bench.take()  # its partition is gone
    bench.view.count, bench.view.leaders = 0, {}
    assert bench.ship() == []
    result = ProduceResult("t", 5, UnknownTopicOrPartition.code, "", -1, 0)
    bench.sender.answered(number, ProduceResponse([result]), bench.now)
    make_anew(bench, 2)
    deliver(bench)
    places = [each.result(0)[1:3] for each in (first, second, third)]
    assert places == [(partition_for(GONE, 2), offset) for offset in range(3)]


@pytest.mark.parametrize("is_answered", [False, True])
def test_what_is_under_way_to_a_partition_that_is_gone_is_waited_for(is_answered: bool) -> None:
    """Once it is refused it goes ahead of later records of its keys; in doubt it fails, and they go."""
    bench = Bench(partitions=6, linger=0.0, batch_bytes=100)
    first = bench.stage(b"x" * 100, GONE, None)
    bench.take()
    ((number, _),) = bench.ship()
    second = bench.stage(b"y", GONE, None)
    bench.take()
    make_anew(bench, 1)
    bench.stage(b"z", GONE, None)
    bench.take()
    assert deliver(bench) == {}
    assert not first.done()
    if is_answered:
        result = ProduceResult("t", 5, UnknownTopicOrPartition.code, "", -1, 0)
        bench.sender.answered(number, ProduceResponse([result]), bench.now)
    else:
        bench.sender.lost(number, RequestTimeout("late"), bench.now)
    log = deliver(bench)[0]
    assert [each.value for each in log[-2:]] == [b"y", b"z"]
    assert second.result(0)[1:3] == (0, len(log) - 2)
    if is_answered:
        assert first.result(0)[1:3] == (0, 0)
    else:
        assert isinstance(first.exception(0), StaleTopicId)


def test_a_partitioner_of_the_application_is_asked_again() -> None:
    asked: list[tuple[list[bytes | None], int]] = []

    def choose(topic: str, keys: Any, count: int) -> list[int]:
        asked.append((list(keys), count))
        if b"bad" in keys and count < 6:
            raise ValueError("no")
        return [count - 1] * len(keys)

    for key, failure in ((b"good", None), (b"bad", PartitionerFailed)):
        bench = Bench(partitions=6, linger=60.0, partitioner=choose)
        delivery, named = bench.stage(b"x", key, None), bench.stage(b"x", b"named", 5)
        bench.take()
        make_anew(bench, 2)
        deliver(bench)
        assert asked[-1] == ([key], 2)
        assert named.exception(0) is not None
        if failure is None:
            assert delivery.result(0).partition == 1
        else:
            assert isinstance(delivery.exception(0), failure)


def test_what_was_placed_again_is_given_up_in_its_time_wherever_it_is() -> None:
    bench = Bench(partitions=6, linger=60.0, delivery_timeout=100.0)
    early = bench.stage(b"early", GONE, None)
    bench.take()
    bench.now += 50.0
    late = bench.stage(b"late", None, 0)
    bench.take()
    bench.ship(hurry=True)  # it is signed, so what comes from elsewhere goes behind it
    make_anew(bench, 1)
    bench.ship()
    bench.now += 51.0
    bench.sender.expire(bench.now)
    bench.settle()
    assert isinstance(early.exception(0), DeliveryTimeout)
    assert not late.done()
    bench.now += 50.0
    bench.sender.expire(bench.now)
    bench.settle()
    assert isinstance(late.exception(0), DeliveryTimeout)


class Broker:
    """Answers what the bench has sent when the test says so."""

    def __init__(self, bench: Bench, random: Random) -> None:
        self.bench, self.random = bench, random
        self.cluster = FakeCluster(partitions=6)
        self.under_way: list[tuple[int, Shipment]] = []
        self.logs: list[list[Record]] = []  # of topics that are no more
        vars(bench.view)["topic_id"] = self.cluster._topic_id
        self.make_anew(6)

    def make_anew(self, count: int) -> None:
        self.logs += self.cluster.logs.values()
        self.cluster.replace()
        self.cluster.partitions = count
        make_anew(self.bench, count, known=self.random.random() < 0.5)

    def answer(self, *, loses: bool) -> None:
        number, shipment = self.under_way.pop(0)
        results = []
        for entry, payload in zip(shipment.request.entries, shipment.payloads, strict=True):
            base, code = -1, 0
            try:
                if self.random.random() < 0.2:
                    raise NotLeader("not now")
                base = self.cluster._append(entry, payload)
            except FolkmootError as error:
                code = error.code or 0
            results.append(ProduceResult(entry.topic, entry.partition, code, "", base, 0))
        if loses and self.random.random() < 0.1:
            self.bench.sender.lost(number, RequestTimeout("late"), self.bench.now)
        else:
            self.bench.sender.answered(number, ProduceResponse(results), self.bench.now)
        self.bench.settle()


@pytest.mark.parametrize("loses", [False, True], ids=["all answered", "answers lost"])
def test_order_and_completeness_hold_while_topics_are_made_anew(loses: bool) -> None:
    for _ in range(20):
        random = Random(new_seed())
        bench = Bench(partitions=6, linger=0.1, batch_bytes=200, delivery_timeout=1e6)
        broker, counts = Broker(bench, random), [3, 1]  # which leave no key in a former place
        keyed, named = list[Delivery](), list[Delivery]()
        for step in range(400):
            bench.sender.grant([1000 + step])
            value = b"%d" % step
            if random.random() < 0.8:
                keyed.append(bench.stage(value, random.choice(KEYS), None))
            else:
                if not bench.accumulator.counts:
                    bench.know()
                number = random.randrange(bench.accumulator.counts["t"])
                named.append(bench.stage(value, b"named %d" % number, number))
            if random.random() < 0.5:
                bench.take()
                broker.under_way += bench.ship()
            if broker.under_way and random.random() < 0.5:
                broker.answer(loses=loses)
            if counts and random.random() < 0.01:
                broker.make_anew(counts.pop(0))
            if random.random() < 0.1:
                bench.know()
                bench.now += random.choice([0.05, 2.0])
        bench.know()
        while bench.accumulator.unacknowledged():
            bench.sender.grant([2000])
            bench.take()
            broker.under_way += bench.ship(hurry=True)
            bench.now += 2.0
            while broker.under_way:
                broker.answer(loses=False)
        broker.make_anew(1)
        written = [each.value for log in broker.logs for each in log]
        assert len(written) == len(set(written)), "each once"
        for log, key in product(broker.logs, KEYS):
            steps = [int(each.value or b"") for each in log if each.key == key]
            assert steps == sorted(steps)
        errors = [each.exception(0) for each in keyed]
        assert loses or not any(errors)
        for error in (*errors, *(each.exception(0) for each in named)):
            assert error is None or isinstance(error, UnknownTopicOrPartition | StaleTopicId)
