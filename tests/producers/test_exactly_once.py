"""Each record once, in order: the sender against brokers' real rules, with all between them failing."""

import random
from collections import Counter
from typing import Any

import pytest

from folkmoot.producers.chunks import Delivery
from folkmoot.producers.sender import Sender, Shipment
from folkmoot.producers.sequences import Identity, Sequences
from folkmoot.protocol import batch as batch_format
from folkmoot.protocol.batch import MAX_PRODUCER_EPOCH, MAX_SEQUENCE
from folkmoot.protocol.errors import (
    BatchTooLarge,
    DeliveryTimeout,
    FolkmootError,
    NotLeader,
    OutOfOrderSequence,
    ProducerFenced,
    RequestTimeout,
    StorageError,
    UnknownProducer,
)
from folkmoot.protocol.records import TopicPartition
from tests.producers.parts import Bench, values
from tests.producers.unreliable import BROKERS, TOO_LARGE, Cluster, Log

PARTITIONS = 2
AFTER = 10_000
"""So many steps without faults are enough for everything to end."""


def identities(shipment: Shipment) -> list[Identity]:
    headers = [batch_format.check(payload) for payload in shipment.payloads]
    return [Identity(h.producer_id, h.producer_epoch, h.base_sequence) for h in headers]


# -- what is sent, and when -----------------------------------------------------------------------------


def test_batches_are_signed_in_order_and_partition_by_partition() -> None:
    bench = Bench(partitions=2, linger=0.0)
    signed = []
    for number in range(3):
        for value in (b"a", b"b")[: 1 + number % 2]:
            bench.stage(value)
        bench.stage(b"c", partition=1)
        bench.take()
        ((sent, shipment),) = bench.ship()
        signed.append(identities(shipment))
        bench.answer(sent, shipment)
    assert signed == [
        [Identity(7, 0, 0), Identity(7, 0, 0)],
        [Identity(7, 0, 1), Identity(7, 0, 1)],
        [Identity(7, 0, 3), Identity(7, 0, 2)],
    ]


def full_batches(count: int, **options: Any) -> Bench:
    """A bench with `count` full batches of one record, ready to be sent."""
    bench = Bench(linger=0.0, batch_bytes=100, **options)
    for number in range(count):
        bench.stage(b"%03d" % number + bytes(100))
        bench.take()
    return bench


def test_five_full_batches_of_a_partition_are_under_way_and_no_more() -> None:
    bench = full_batches(8)
    sent = bench.ship()
    assert [[value[:3] for value in values(shipment)] for _, shipment in sent] == [
        *([b"000"], [b"001"], [b"002"], [b"003"], [b"004"])
    ]
    bench.answer(*sent[1])
    assert bench.ship() == [], "the window begins at the oldest that is not answered"
    bench.answer(*sent[0])
    assert len(bench.ship()) == 2


def test_behind_batches_under_way_one_that_is_not_full_grows() -> None:
    bench = full_batches(1)
    ((first, shipment),) = bench.ship()
    bench.stage(b"small")
    bench.take()
    assert bench.ship() == bench.ship(hurry=True) == []
    bench.answer(first, shipment)
    assert len(bench.ship()) == 1


def test_nothing_leaves_before_there_is_an_id() -> None:
    bench = Bench(linger=0.0)
    bench.sender = Sender(bench.config, bench.view, random.Random(1))
    wants = [bench.sender.wants_ids]
    bench.stage(b"one")
    bench.take()
    assert bench.ship() == []
    bench.sender.grant([9])
    wants.append(bench.sender.wants_ids)
    assert wants == [True, False]
    ((_, shipment),) = bench.ship()
    assert identities(shipment) == [Identity(9, 0, 0)]


def test_without_idempotence_batches_are_not_signed_and_one_is_under_way() -> None:
    for options in ({"idempotent": False}, {"acks": 0}):
        bench = full_batches(3, **options)
        ((_, shipment),) = bench.ship()
        assert identities(shipment) == [Identity(-1, -1, -1)]
        assert not bench.sender.wants_ids


# -- what an answer means -------------------------------------------------------------------------------


def test_what_was_refused_behind_a_failed_batch_goes_again_in_order_one_at_a_time() -> None:
    bench = full_batches(4)
    sent = bench.ship()
    bench.answer(*sent[0], StorageError.code)
    for each in sent[1:]:
        bench.answer(*each, OutOfOrderSequence.code)
    assert bench.ship() == [], "not before the pause"
    bench.now += 2.0
    again = []
    while batch := bench.ship():
        ((number, shipment),) = batch
        again.append(shipment.payloads)
        bench.answer(number, shipment)
    assert again == [shipment.payloads for _, shipment in sent], "the same bytes"
    assert bench.sender.counters.epochs_begun == 0
    assert [batch.error for batch in bench.done] == [None] * 4


@pytest.mark.parametrize("refusal", [OutOfOrderSequence, UnknownProducer])
def test_the_oldest_batch_refused_for_its_sequence_begins_the_next_epoch(
    refusal: type[FolkmootError],
) -> None:
    bench = full_batches(3)
    sent = bench.ship()
    bench.answer(*sent[0], refusal.code or 0)
    assert bench.ship() == [], "others are under way"
    bench.answer(*sent[2], OutOfOrderSequence.code)
    bench.answer(*sent[1], OutOfOrderSequence.code)
    signed = []
    while again := bench.ship():
        ((number, shipment),) = again
        signed += identities(shipment)
        bench.answer(number, shipment)
    assert signed == [Identity(7, 1, 0), Identity(7, 1, 1), Identity(7, 1, 2)]
    assert [batch.error for batch in bench.done] == [None] * 3
    assert bench.sender.counters.epochs_begun == 1


def test_a_batch_in_doubt_is_not_signed_anew_but_fails_and_says_so() -> None:
    bench = full_batches(3)
    sent = bench.ship()
    bench.sender.lost(sent[0][0], RequestTimeout("lost"), bench.now)
    for each in sent[1:]:
        bench.answer(*each, OutOfOrderSequence.code)
    bench.now += 2.0
    ((number, shipment),) = bench.ship()
    bench.answer(number, shipment, UnknownProducer.code)
    (failed,) = bench.done
    assert isinstance(failed.error, UnknownProducer)
    assert "may be in the log or not" in str(failed.error)
    ((_, shipment),) = bench.ship()
    assert identities(shipment) == [Identity(7, 1, 0)]
    assert values(shipment)[0][:3] == b"001"


def test_a_batch_that_never_left_is_not_in_doubt() -> None:
    bench = full_batches(1)
    ((number, _),) = bench.ship()
    bench.sender.lost(number, RequestTimeout("lost"), bench.now, sent=False)
    bench.now += 2.0
    ((number, shipment),) = bench.ship()
    bench.sender.undeliverable(bench.sender._shipments.pop(number), StorageError("no"), bench.now)
    bench.now += 2.0
    ((number, shipment),) = bench.ship()
    bench.answer(number, shipment, OutOfOrderSequence.code)
    bench.now += 2.0
    ((number, shipment),) = bench.ship()
    assert identities(shipment) == [Identity(7, 1, 0)]


def test_an_id_that_is_another_s_as_well_is_given_up() -> None:
    bench = full_batches(1)
    ((number, shipment),) = bench.ship()
    bench.answer(number, shipment, ProducerFenced.code)
    assert bench.sender.wants_ids
    assert bench.ship() == []
    bench.sender.grant([8])
    ((_, shipment),) = bench.ship()
    assert identities(shipment) == [Identity(8, 0, 0)]


def test_behind_a_batch_that_failed_for_good_the_next_epoch_begins() -> None:
    bench = full_batches(2)
    sent = bench.ship()
    bench.answer(*sent[0], BatchTooLarge.code)
    bench.answer(*sent[1], OutOfOrderSequence.code)
    ((number, shipment),) = bench.ship()
    assert shipment.payloads == sent[1][1].payloads
    bench.answer(number, shipment, OutOfOrderSequence.code)
    bench.now += 2.0
    ((number, shipment),) = bench.ship()
    assert identities(shipment) == [Identity(7, 1, 0)]
    bench.answer(number, shipment)
    assert [type(batch.error) for batch in bench.done] == [BatchTooLarge, type(None)]


def test_an_answer_that_comes_late_to_a_batch_that_is_the_oldest_by_now_breaks_nothing() -> None:
    """It was refused when something was before it, which has got there since."""
    bench = full_batches(2)
    sent = bench.ship()
    bench.answer(*sent[0], NotLeader.code)
    bench.now += 2.0
    ((number, shipment),) = bench.ship()
    bench.answer(number, shipment)
    bench.answer(*sent[1], OutOfOrderSequence.code)
    ((number, shipment),) = bench.ship()
    assert shipment.payloads == sent[1][1].payloads
    bench.answer(number, shipment)
    assert bench.sender.counters.epochs_begun == 0


def test_a_request_that_is_carried_out_late_writes_nothing_twice_after_a_new_epoch() -> None:
    """Two batches hang in the buffers of a connection that broke. The first one expires; the second
    is refused, since the first is not there. Were it signed anew now, it could be written under the
    new epoch and, just before that, out of the buffer, behind the first."""
    bench = full_batches(2, delivery_timeout=10.0)
    log = Log()
    buffered = bench.ship()
    for number, _ in buffered:
        bench.sender.lost(number, RequestTimeout("lost"), bench.now)
    bench.now += 11.0
    bench.stage(b"behind")
    bench.sender._queues[TopicPartition("t", 0)].end_oldest(DeliveryTimeout("late"))
    ((number, shipment),) = bench.ship()
    with pytest.raises(UnknownProducer):
        log.append(shipment.payloads[0])
    bench.answer(number, shipment, UnknownProducer.code)
    for _, late in buffered:
        log.append(late.payloads[0])
    bench.take()
    while sent := bench.ship():
        for number, shipment in sent:
            log.append(shipment.payloads[0])
            bench.answer(number, shipment)
    assert [value[:3] for value in log.values] == [b"000", b"001", b"beh"]
    assert [type(batch.error) for batch in bench.done] == [
        *(DeliveryTimeout, UnknownProducer, type(None))
    ]


# -- identities -------------------------------------------------------------------------------------------


def test_sequences_wrap_and_epochs_end_with_a_new_id() -> None:
    sequences, here, there = Sequences(), TopicPartition("t", 0), TopicPartition("t", 1)
    assert sequences.next(here) is None
    sequences.grant([1, 2])
    assert sequences.next(here) == sequences.next(there) == Identity(1, 0, 0)
    for count in (MAX_SEQUENCE, 3):
        sequences.advance(here, count)
    assert sequences.next(here) == Identity(1, 0, 2)
    for _ in range(MAX_PRODUCER_EPOCH):
        sequences.restart(here)
    assert sequences.next(here) == Identity(1, MAX_PRODUCER_EPOCH, 0)
    sequences.restart(here)
    assert sequences.next(here) == Identity(2, 0, 0)
    assert sequences.next(there) == Identity(1, 0, 0)
    sequences.restart(there, new_id=True)
    assert sequences.next(there) == Identity(2, 0, 0)
    wants = [sequences.wants_ids]
    sequences.restart(there, new_id=True)
    assert sequences.next(there) is None
    wants.append(sequences.wants_ids)
    assert wants == [False, True]
    assert sequences.next(here) == Identity(2, 0, 0)


# -- everything at once -----------------------------------------------------------------------------------


class History:
    """Records sent at random through an unreliable cluster, and what must be true at the end."""

    def __init__(self, seed: int, **options: Any) -> None:
        self.chance = random.Random(seed)
        settings: dict[str, Any] = {
            "linger": 0.05,
            "batch_bytes": 200,
            "delivery_timeout": 1e9,
            **options,
        }
        self.bench = Bench(partitions=PARTITIONS, **settings)
        self.bench.sender.grant(range(100, 200))
        self.cluster = Cluster(self.bench, self.chance)
        self.sent: dict[int, list[tuple[bytes, Delivery]]] = {n: [] for n in range(PARTITIONS)}

    def send(self, *, too_large: float = 0.0) -> None:
        burst = self.chance.random() < 0.05
        for _ in range(self.chance.randrange(20 if burst else 3)):
            partition = self.chance.randrange(PARTITIONS)
            value = b"%05d" % len(self.sent[partition]) + bytes(self.chance.randrange(200))
            if self.chance.random() < too_large:
                value = TOO_LARGE
            self.sent[partition].append((value, self.bench.stage(value, partition=partition)))

    def run(self, steps: int = 400, *, too_large: float = 0.0) -> None:
        for _ in range(steps):
            self.bench.now += self.chance.choice([0.0, 0.0, 0.01, 0.3])
            self.send(too_large=too_large)
            if self.chance.random() < 0.02:
                partition = self.chance.randrange(PARTITIONS)
                self.bench.view.leaders[partition] = self.chance.choice(BROKERS)
            if self.chance.random() < 0.03:
                self.cluster.logs[self.chance.randrange(PARTITIONS)].restart(self.chance)
            self.turn()

    def turn(self, *, hurry: bool = False) -> None:
        self.bench.take(everything=hurry or self.chance.random() < 0.5)
        self.bench.sender.expire(self.bench.now)
        self.cluster.ship(hurry=hurry)
        for _ in range(self.chance.randrange(4)):
            self.cluster.step()
        self.bench.settle()

    def end(self) -> None:
        """Let all that is under way come to its end, without further faults."""
        self.cluster.calm = True
        for _ in range(AFTER):
            self.bench.now += 0.3
            self.turn(hurry=True)
            if not self.bench.accumulator.records and not self.cluster.busy:
                return
        raise AssertionError(f"{self.bench.accumulator.records} records never end")

    def check(self, *, lossy: bool = False) -> list[FolkmootError]:
        """Nothing is twice in a log or changes places; what was acknowledged is where it is said to be.

        `lossy`: acknowledged records may be gone. → the errors of those that failed.
        """
        errors = []
        for partition, sent in self.sent.items():
            log = self.cluster.logs[partition].values
            counts = Counter(log)
            assert max(counts.values(), default=1) == 1, f"written twice: {counts.most_common(3)}"
            present = set(log)
            assert log == [value for value, _ in sent if value in present], "out of order"
            for value, delivery in sent:
                error = delivery.exception(0)
                if error is not None:
                    errors.append(error)
                    assert value not in present or not isinstance(error, BatchTooLarge)
                elif not lossy:
                    assert log[delivery.result(0).offset] == value
        return errors


def seeds(count: int) -> list[int]:
    first = random.randrange(2**32)
    return [(first + number) % 2**32 for number in range(count)]


def test_every_record_is_written_once_and_in_order_whatever_is_lost() -> None:
    """Lost answers, requests carried out long after they were given up, brokers restarted at any
    moment, leaders that move, disks that fail: all is delivered, exactly once."""
    for seed in seeds(12):
        print(f"seed {seed}")
        history = History(seed)
        history.run()
        history.end()
        assert history.check() == []
        assert history.bench.sender.counters.epochs_begun == 0


def test_what_expires_or_is_refused_leaves_the_rest_once_and_in_order() -> None:
    """Batches fail while they are in doubt, and for good, so that sequences break: only what failed
    may be missing, and nothing is written twice."""
    epochs = failed = 0
    for seed in seeds(16):
        print(f"seed {seed}")
        history = History(seed, delivery_timeout=2.0)
        history.run(too_large=0.01)
        history.end()
        errors = history.check()
        kinds = (DeliveryTimeout, BatchTooLarge, OutOfOrderSequence, UnknownProducer)
        assert {type(error) for error in errors} <= set(kinds)
        epochs += history.bench.sender.counters.epochs_begun
        failed += len(errors)
    assert epochs > 5
    assert failed > 5


def test_brokers_that_forget_idle_producers_cost_nothing() -> None:
    epochs = 0
    for seed in seeds(6):
        print(f"seed {seed}")
        history = History(seed)
        for _ in range(4):
            history.cluster.calm = False
            history.run(100)
            history.end()
            for log in history.cluster.logs.values():
                log.forget()
            history.run(20)
        history.end()
        assert history.check() == []
        epochs += history.bench.sender.counters.epochs_begun
    assert epochs > 5


def test_logs_that_lose_their_end_are_continued_once_and_in_order() -> None:
    """A power cut takes acknowledged records; what is written afterwards is not affected, and what
    is in doubt is told, not written twice."""
    for seed in seeds(12):
        print(f"seed {seed}")
        history = History(seed)
        for _ in range(4):
            history.run(80)
            for log in history.cluster.logs.values():
                log.lose_end(history.chance)
        history.end()
        errors = history.check(lossy=True)
        assert {type(error) for error in errors} <= {OutOfOrderSequence, UnknownProducer}
