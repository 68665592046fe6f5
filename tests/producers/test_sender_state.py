"""The sender's decisions, with the time moved by hand."""

import random
from itertools import groupby
from math import inf
from typing import Any

import pytest

from folkmoot.producers import sender_state
from folkmoot.producers.batch import Batch, compress_together, describe
from folkmoot.producers.columns import RECORD_OVERHEAD_BYTES
from folkmoot.producers.partition_queue import GATHERING
from folkmoot.producers.sender import run_callbacks
from folkmoot.protocol.batch_header import UnsealedBatch
from folkmoot.protocol.errors import (
    BatchTooLarge,
    BrokerUnreachable,
    DeliveryTimeout,
    NotLeader,
    RequestTimeout,
    SerializationError,
    StorageError,
)
from folkmoot.protocol.messages import ProduceEntry
from folkmoot.protocol.murmur2 import partition_for
from folkmoot.protocol.records import RecordMetadata
from tests.producers.parts import Bench, records, values
from tests.seeds import new_seed


def test_a_record_waits_for_linger_and_not_longer() -> None:
    bench = Bench(linger=0.5)
    bench.stage(b"one")
    bench.take()
    assert bench.ship() == []
    assert bench.sender.next_event() == 100.5
    bench.now = 100.5
    ((_, shipment),) = bench.ship()
    assert values(shipment) == [b"one"]
    assert shipment.request.entries == [ProduceEntry("t", "id of t", 0, 3)]
    assert shipment.request.acks == -1


def test_a_full_batch_does_not_wait() -> None:
    bench = Bench(linger=100.0, batch_bytes=8 * (100 + RECORD_OVERHEAD_BYTES))
    for _ in range(8):
        bench.stage(bytes(100))
    bench.take()
    ((_, shipment),) = bench.ship()
    assert len(values(shipment)) == 8


def test_hurry_overrides_linger() -> None:
    bench = Bench(linger=100.0)
    bench.stage(b"one")
    bench.take()
    assert len(bench.ship(hurry=True)) == 1


def test_a_batch_grows_while_the_one_before_is_under_way() -> None:
    bench = Bench(linger=0.0)
    bench.stage(b"a")
    bench.take()
    ((first, shipment),) = bench.ship()
    for value in (b"b", b"c", b"d"):
        bench.stage(value)
        bench.take()
        assert bench.ship() == []
    bench.answer(first, shipment)
    ((_, shipment),) = bench.ship()
    assert values(shipment) == [b"b", b"c", b"d"]
    assert len(shipment.batches) == 1


def test_one_shipment_carries_all_partitions_of_a_broker() -> None:
    bench = Bench(partitions=4, linger=0.0)
    bench.view.leaders = {0: "one:1", 1: "two:1", 2: "one:1", 3: "two:1"}
    for number in range(4):
        bench.stage(b"%d" % number, partition=number)
    bench.take()
    sent = {shipment.address: shipment for _, shipment in bench.ship()}
    assert {address: sorted(values(shipment)) for address, shipment in sent.items()} == {
        "one:1": [b"0", b"2"],
        "two:1": [b"1", b"3"],
    }


def test_requests_under_way_to_a_broker_are_bounded() -> None:
    bench = Bench(partitions=4, linger=0.0, max_in_flight=2)
    sent = []
    for number in range(4):
        bench.stage(b"%d" % number, partition=number)
        bench.take()
        bench.now += GATHERING
        sent += bench.ship()
    assert len(sent) == 2
    bench.answer(*sent[0])
    ((_, shipment),) = bench.ship()
    assert sorted(values(shipment)) == [b"2", b"3"]


def test_a_retriable_error_sends_the_same_bytes_again_after_a_pause() -> None:
    bench = Bench(linger=0.0)
    delivery = bench.stage(b"one")
    bench.take()
    ((first, shipment),) = bench.ship()
    bench.answer(first, shipment, StorageError.code)
    bench.stage(b"two")
    bench.take()
    assert bench.ship() == []
    due = bench.sender.next_event()
    assert bench.now + 0.8 <= due <= bench.now + 1.2
    bench.now = due
    ((second, again),) = bench.ship()
    assert again.payloads == shipment.payloads
    bench.answer(second, again, base=41)
    assert delivery.result(0) == RecordMetadata("t", 0, 41, 100_000)
    ((_, last),) = bench.ship()
    assert values(last) == [b"two"]


@pytest.mark.parametrize("error", [RequestTimeout("late"), BrokerUnreachable("gone")])
def test_a_lost_request_is_sent_again_to_whoever_leads_then(error: Exception) -> None:
    bench = Bench(linger=0.0)
    bench.stage(b"one")
    bench.take()
    ((first, _),) = bench.ship()
    assert isinstance(error, RequestTimeout | BrokerUnreachable)
    bench.sender.lost(first, error, bench.now)
    bench.view.leaders = {}
    bench.now += 5.0
    assert bench.ship() == []
    bench.view.leaders = {0: "two:1"}
    ((_, shipment),) = bench.ship()
    assert shipment.address == "two:1"


def test_a_leader_that_is_known_by_now_is_tried_at_once() -> None:
    bench = Bench(linger=0.0)
    bench.stage(b"one")
    bench.take()
    ((first, shipment),) = bench.ship()
    bench.view.leaders = {0: "two:1"}
    bench.answer(first, shipment, NotLeader.code)
    ((_, again),) = bench.ship()
    assert again.address == "two:1"


def test_a_leader_of_a_newer_epoch_is_tried_as_soon_as_it_is_known() -> None:
    bench = Bench(linger=0.0, retry_backoff=5.0)
    bench.stage(b"one")
    bench.take()
    ((first, _),) = bench.ship()
    bench.sender.lost(first, BrokerUnreachable("it is gone"), bench.now)
    bench.view.leaders = {0: "two:1"}
    assert bench.ship() == [], "whoever names it may know no more than we do"
    bench.view.epoch += 1
    ((_, again),) = bench.ship()
    assert again.address == "two:1"


def test_what_waits_for_another_attempt_hears_of_a_new_leader_though_others_left() -> None:
    bench = Bench(linger=0.01, retry_backoff=5.0, partitions=2)
    bench.stage(b"one", partition=0)
    bench.now += 0.02
    bench.take()
    ((first, _),) = bench.ship()
    bench.sender.lost(first, BrokerUnreachable("it is gone"), bench.now)
    bench.stage(b"two", partition=1)
    bench.take()
    assert bench.ship() == []
    bench.now += 0.02
    ((_, shipment),) = bench.ship()
    assert [entry.partition for entry in shipment.request.entries] == [1]
    bench.view.leaders = {0: "two:1", 1: "two:1"}
    bench.view.epoch += 1
    ((_, again),) = bench.ship()
    assert (again.address, [each.partition for each in again.request.entries]) == ("two:1", [0])


def test_pauses_grow_to_a_second() -> None:
    bench = Bench(linger=0.0, retry_backoff=0.1, delivery_timeout=1000.0)
    bench.stage(b"one")
    bench.take()
    pauses = []
    for _ in range(8):
        ((number, shipment),) = bench.ship()
        bench.answer(number, shipment, StorageError.code)
        pauses.append(bench.sender.next_event() - bench.now)
        bench.now += pauses[-1]
    assert 0.08 <= pauses[0] <= 0.12
    assert all(0.8 <= pause <= 1.2 for pause in pauses[4:])


def test_an_error_that_stays_fails_the_batch_and_the_next_one_goes() -> None:
    bench = Bench(linger=0.0)
    failed = bench.stage(b"one")
    bench.take()
    ((first, shipment),) = bench.ship()
    bench.stage(b"two")
    bench.take()
    bench.answer(first, shipment, BatchTooLarge.code)
    assert isinstance(failed.exception(0), BatchTooLarge)
    with pytest.raises(BatchTooLarge):
        failed.result(0)
    ((_, last),) = bench.ship()
    assert values(last) == [b"two"]


def test_what_expires_of_a_batch_in_parts_says_how_much_that_is_and_whom_it_waits_for() -> None:
    bench = Bench()
    handles = [bench.stage(b"%d" % number) for number in range(5)]
    bench.take()
    for code in (BatchTooLarge.code, 0):
        bench.now += 2
        ((number, shipment),) = bench.ship(hurry=True)
        bench.answer(number, shipment, code)
    bench.ship(hurry=True)
    bench.now += bench.config.delivery_timeout
    bench.sender.expire(bench.now)
    bench.settle()
    assert handles[1].result(0).offset == 1
    said = r"3 records for t-0 not acknowledged within 120 s: broker one:1 has not answered; last"
    with pytest.raises(DeliveryTimeout, match=said):
        handles[2].result(0)


def test_of_a_batch_in_parts_only_the_records_that_failed_count_as_failed() -> None:
    bench = Bench(linger=0.0)
    handles = [bench.stage(b"%d" % number) for number in range(3)]
    bench.take()
    for code, base in ((BatchTooLarge.code, -1), (BatchTooLarge.code, -1), (0, 4)):
        bench.now += 2.0
        ((number, shipment),) = bench.ship()
        bench.answer(number, shipment, code, base=base)
    assert isinstance(handles[0].exception(0), BatchTooLarge)
    assert [each.result(0).offset for each in handles[1:]] == [4, 5]
    counters = bench.sender.counters
    assert (counters.records_failed, counters.records_delivered) == (1, 2)
    assert describe(bench.done) == "1 of t-0"


class Unwritable:
    """Has batches fail when their bytes are made, by their number."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, errors: dict[int, Exception]) -> None:
        packed = Batch.body

        def failing(batch: Batch) -> UnsealedBatch:
            error = errors.get(batch.number)
            if error is not None:
                raise error
            return packed(batch)

        monkeypatch.setattr(Batch, "body", failing)


def test_a_batch_that_cannot_be_written_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    Unwritable(monkeypatch, {1: BatchTooLarge("too large"), 3: ZeroDivisionError()})
    bench = Bench(partitions=3, linger=0.0, batch_bytes=100)
    told: list[object] = []
    large = bench.stage(bytes(2000), on_delivery=told.append)
    behind = bench.stage(b"behind")
    unwritable = bench.stage(b"unwritable", partition=1)
    beside = bench.stage(b"beside", partition=2)
    bench.take()
    ((number, shipment),) = bench.ship()
    assert values(shipment) == [b"behind", b"beside"]
    bench.answer(number, shipment)
    assert isinstance(large.exception(0), BatchTooLarge)
    assert isinstance(unwritable.exception(0), SerializationError)
    assert behind.result(0).offset == beside.result(0).offset == 0
    assert bench.accumulator.unacknowledged() == 0
    for batch in bench.done:
        run_callbacks(batch)
    assert told == [large]
    assert bench.sender.next_event() == inf


def test_a_shipment_of_nothing_but_unwritable_batches_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Unwritable(monkeypatch, {1: BatchTooLarge("too large")})
    bench = Bench(linger=0.0, max_in_flight=1)
    bench.stage(b"unwritable")
    bench.take()
    assert bench.ship() == []
    assert bench.sender.counters.requests_sent == 0
    bench.stage(b"next")
    bench.take()
    assert len(bench.ship()) == 1


def test_one_partition_s_error_is_not_its_neighbour_s() -> None:
    bench = Bench(partitions=2, linger=0.0)
    good, bad = bench.stage(b"good", partition=0), bench.stage(b"bad", partition=1)
    bench.take()
    ((number, shipment),) = bench.ship()
    bench.answer(number, shipment, 0, BatchTooLarge.code, base=7)
    assert good.result(0).offset == 7
    assert isinstance(bad.exception(0), BatchTooLarge)


def test_records_that_are_too_old_fail_with_the_last_error() -> None:
    bench = Bench(linger=0.0, delivery_timeout=10.0)
    delivery = bench.stage(b"one")
    bench.take()
    ((number, shipment),) = bench.ship()
    bench.answer(number, shipment, StorageError.code)
    bench.view.leaders = {}
    bench.now = 102.0
    assert bench.ship() == []
    assert bench.sender.next_event() == 110.0
    bench.now = 110.0
    bench.sender.expire(bench.now)
    bench.settle()
    error = delivery.exception(0)
    assert isinstance(error, DeliveryTimeout)
    assert str(error).startswith("1 record for ")
    assert str(error).endswith(f"; last error: {error.__cause__}")
    assert isinstance(error.__cause__, StorageError)
    assert bench.accumulator.appender.used == 0


def test_all_that_is_too_old_says_what_went_wrong_though_only_the_oldest_was_sent() -> None:
    bench = Bench(delivery_timeout=10.0, linger=0.0, batch_bytes=100)
    for _ in range(3):
        bench.stage(b"x" * 100)
    bench.take()
    ((number, shipment), *_) = bench.ship()
    bench.answer(number, shipment, StorageError.code)
    bench.now += 11.0
    bench.sender.expire(bench.now)
    bench.settle()
    assert len(bench.done) == 3
    assert {type(batch.error.__cause__) for batch in bench.done if batch.error} == {StorageError}


def test_what_is_too_old_for_a_topic_that_does_not_exist_says_so() -> None:
    bench = Bench(delivery_timeout=1.0, batch_bytes=100)
    bench.view.leaders.clear()
    bench.view.missing = True
    for _ in range(3):
        bench.stage(b"x" * 100)
    bench.take()
    bench.now += 2.0
    bench.sender.expire(bench.now)
    bench.settle()
    assert len(bench.done) == 3
    for batch in bench.done:
        assert isinstance(batch.error, DeliveryTimeout)
        assert "topic t does not exist" in str(batch.error)


def test_what_expired_under_way_holds_the_next_batch_back_until_its_answer() -> None:
    bench = Bench(linger=0.0, delivery_timeout=10.0)
    first = bench.stage(b"one")
    bench.take()
    ((number, shipment),) = bench.ship()
    bench.now = 105.0
    bench.stage(b"two")
    bench.take()
    bench.now = 111.0
    bench.sender.expire(bench.now)
    bench.settle()
    error = first.exception(0)
    assert isinstance(error, DeliveryTimeout)
    assert str(error).endswith(f"within 10 s: broker {shipment.address} has not answered")
    assert bench.ship() == []
    bench.answer(number, shipment)
    assert isinstance(first.exception(0), DeliveryTimeout)
    ((_, last),) = bench.ship()
    assert values(last) == [b"two"]


def test_without_acknowledgement_handing_over_is_all() -> None:
    bench = Bench(linger=0.0, acks=0)
    delivery = bench.stage(b"one")
    bench.take()
    ((number, shipment),) = bench.ship()
    assert shipment.request.acks == 0
    bench.sender.answered(number, None, bench.now)
    bench.settle()
    assert delivery.result(0).offset == -1


def test_keys_decide_partitions_as_kafka_s_do_and_offsets_follow_the_batches() -> None:
    bench = Bench(partitions=5, linger=0.0)
    keys = [b"key-%d" % number for number in range(200)]
    deliveries = [bench.stage(key.upper(), key, partition=None) for key in keys]
    bench.take()
    ((number, shipment),) = bench.ship()
    bench.answer(number, shipment, base=1000)
    found = {(record.partition, 1000 + record.offset): record.key for record in records(shipment)}
    for key, delivery in zip(keys, deliveries, strict=True):
        place = delivery.result(0)
        assert place.partition == partition_for(key, 5)
        assert found[place.partition, place.offset] == key


def test_records_without_key_stick_together_and_move_on() -> None:
    bench = Bench(partitions=6, linger=0.0, batch_bytes=10 * (1 + RECORD_OVERHEAD_BYTES))
    sent = [bench.stage(b"x", partition=None) for _ in range(300)]
    bench.take()
    while shipped := bench.ship():
        for number, shipment in shipped:
            bench.answer(number, shipment)
    used = [delivery.result(0).partition for delivery in sent]
    runs = [len(list(run)) for _, run in groupby(used)]
    assert runs == [10] * 30
    assert set(used) == set(range(6))


def test_what_is_compressed_together_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, counts = Bench(partitions=6, linger=0.0), list[int]()

    def counted(batches: Any, *how: Any) -> None:
        counts.append(len(batches))
        compress_together(batches, *how)

    monkeypatch.setattr(sender_state, "compress_together", counted)
    monkeypatch.setattr(sender_state, "TOGETHER_BYTES", 2 * (1000 + RECORD_OVERHEAD_BYTES))
    sent = [bench.stage(bytes(1000), partition=number) for number in range(6)]
    bench.take()
    while shipped := bench.ship():
        for number, shipment in shipped:
            bench.answer(number, shipment)
    assert all(delivery.result(0) for delivery in sent)
    assert counts == [2, 2, 2]


def test_records_without_key_avoid_partitions_without_leader() -> None:
    bench = Bench(partitions=6, linger=0.0)
    bench.view.leaders = {2: "one:1", 4: "one:1"}
    for _ in range(10):
        bench.stage(b"x", partition=None)
        bench.take()
        ((number, shipment),) = bench.ship()
        assert shipment.batches[0].topic_partition.partition in (2, 4)
        bench.answer(number, shipment)


def test_many_records_make_batches_that_tell_each_record_its_offset() -> None:
    bench = Bench(linger=0.0, batch_bytes=1000)
    deliveries = [bench.stage(b"%04d" % number + bytes(96)) for number in range(100)]
    bench.take()
    read, base = [], 0
    while sent := bench.ship():
        for number, shipment in sent:
            assert len(shipment.payloads[0]) < 3000
            read += [value[:4] for value in values(shipment)]
            bench.answer(number, shipment, base=base)
            base = len(read)
    assert read == [b"%04d" % number for number in range(100)]
    assert [delivery.result(0).offset for delivery in deliveries] == list(range(100))
    assert bench.accumulator.appender.used == 0
    assert bench.accumulator.unacknowledged() == 0


def test_order_and_completeness_hold_under_any_errors() -> None:
    """Whatever the answers, each partition's log holds all records, first copies in order; what is
    written twice then, an idempotent producer writes once (test_exactly_once.py)."""
    seed = new_seed()
    chance = random.Random(seed)
    bench = Bench(partitions=3, linger=0.1, batch_bytes=400, delivery_timeout=1e9, idempotent=False)
    logs: dict[int, list[bytes]] = {number: [] for number in range(3)}
    sent: list[tuple[int, bytes]] = []
    under_way = []
    for step in range(2000):
        bench.now += chance.choice([0.0, 0.01, 0.5])
        if step < 1000:
            for _ in range(chance.randrange(4)):
                partition = chance.randrange(3)
                sent.append((partition, b"%06d" % len(sent)))
                bench.stage(sent[-1][1], partition=partition)
        bench.take()
        bench.view.leaders = {number: chance.choice(["one:1", "two:1"]) for number in range(3)}
        under_way += bench.ship(hurry=step >= 1000)
        while under_way and chance.random() < 0.7:
            number, shipment = under_way.pop(chance.randrange(len(under_way)))
            fate = chance.choice(["written", "written", "lost", "not written", "refused"])
            if fate in ("written", "lost"):
                for record in records(shipment):
                    logs[record.partition].append(record.value or b"")
            if fate == "written":
                bench.answer(number, shipment)
            elif fate == "refused":
                bench.answer(number, shipment, *[NotLeader.code] * len(shipment.batches))
            else:
                bench.sender.lost(number, RequestTimeout("lost"), bench.now)
    assert bench.accumulator.unacknowledged() == 0
    for partition, log in logs.items():
        first_copies = list(dict.fromkeys(log))
        assert first_copies == [value for where, value in sent if where == partition]
