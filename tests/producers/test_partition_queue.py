"""Which batches of a partition leave, signed how, and what an answer means for those behind."""

import random
from typing import Any

import pytest

from folkmoot.brokers.storage.producer_state import ProducerState
from folkmoot.producers.idempotence import LONGEST_SILENCE, ClaimedSequences, Identity, Sequences
from folkmoot.producers.sender_state import SenderState, Shipment
from folkmoot.protocol import batch_header
from folkmoot.protocol.batch_header import MAX_PRODUCER_EPOCH, MAX_SEQUENCE
from folkmoot.protocol.compression import Codec
from folkmoot.protocol.errors import (
    BatchTooLarge,
    BrokerStopping,
    DeliveryTimeout,
    FolkmootError,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeader,
    OutOfOrderSequence,
    ProducerFenced,
    RequestTimeout,
    StaleTopicId,
    StorageError,
    UnknownProducer,
    ZooKeeperUnreachable,
)
from folkmoot.protocol.records import TopicPartition
from tests.producers.parts import Bench, values
from tests.producers.unreliable import Log


def identities(shipment: Shipment) -> list[Identity]:
    headers = [batch_header.check(payload) for payload in shipment.payloads]
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
    bench.sender = SenderState(bench.config, bench.view, random.Random(1))
    wants = [bench.sender.wants_ids]
    bench.stage(b"one")
    bench.take()
    assert bench.ship() == []
    bench.sender.grant([9])
    wants.append(bench.sender.wants_ids)
    assert wants == [True, False]
    ((_, shipment),) = bench.ship()
    assert identities(shipment) == [Identity(9, 0, 0)]


def test_a_producer_that_takes_over_goes_on_as_it_was_told_and_never_under_an_epoch_of_its_own() -> (
    None
):
    bench, sequences = Bench(partitions=2, linger=0.0), ClaimedSequences()
    bench.sender = SenderState(bench.config, bench.view, random.Random(1), sequences=sequences)
    assert not bench.sender.wants_ids
    places = {TopicPartition("t", 0): Identity(5, 3, 40), TopicPartition("t", 1): Identity(5, 3, 0)}
    sequences.resume_at(places)
    signed = []
    for _ in range(2):
        bench.stage(b"a")
        bench.stage(b"b", partition=1)
        bench.take()
        bench.now += LONGEST_SILENCE + 1
        ((sent, shipment),) = bench.ship()
        signed.append(identities(shipment))
        assert all(batch_header.check(payload).continues_sequences for payload in shipment.payloads)
        bench.answer(sent, shipment)
    assert signed == [
        [Identity(5, 3, 40), Identity(5, 3, 0)],
        [Identity(5, 3, 41), Identity(5, 3, 1)],
    ]
    sequences.resume_at({TopicPartition("t", 0): Identity(5, 4, 90)})
    lost = [bench.stage(b"c"), bench.stage(b"d")]
    bench.take()
    ((sent, shipment),) = bench.ship()
    assert identities(shipment) == [Identity(5, 4, 90)]
    bench.answer(sent, shipment, ProducerFenced.code or 0)
    bench.settle()
    assert [type(delivery.exception(0)) for delivery in lost] == [ProducerFenced] * 2
    assert bench.ship() == []


def test_without_idempotence_batches_are_not_signed_and_one_is_under_way() -> None:
    for options in ({"idempotent": False}, {"acks": 0}):
        bench = full_batches(3, **options)
        ((_, shipment),) = bench.ship()
        assert identities(shipment) == [Identity(-1, -1, -1)]
        assert not bench.sender.wants_ids


def test_a_tiny_batch_is_not_compressed_beside_others_that_are() -> None:
    bench = Bench(partitions=3, linger=0.0, compression="zstd")
    for partition, value in enumerate((b"tiny", b"large" * 100, b"tiny too")):
        bench.stage(value, partition=partition)
    bench.take()
    ((_, shipment),) = bench.ship()
    codecs = [batch_header.check(payload).codec for payload in shipment.payloads]
    assert codecs == [Codec.NONE, Codec.ZSTD, Codec.NONE]
    assert values(shipment) == [b"tiny", b"large" * 100, b"tiny too"]


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


def test_in_a_topic_made_anew_a_new_id_signs_what_is_left_once_nothing_is_under_way() -> None:
    """Whatever is answered meanwhile; and what is in doubt fails."""
    bench = full_batches(4)
    sent = bench.ship()
    bench.view.made = ", made anew"
    bench.sender.lost(sent[3][0], RequestTimeout("lost"), bench.now)
    assert bench.ship() == []
    bench.answer(*sent[1], StaleTopicId.code)
    bench.answer(*sent[0], OutOfOrderSequence.code)
    bench.now += 2.0
    assert bench.ship() == []
    bench.answer(*sent[2], StaleTopicId.code)
    (failed,) = bench.done
    assert isinstance(failed.error, StaleTopicId)
    assert "1 record for t-0 may be in the log or not" in str(failed.error)
    bench.now += 2.0
    assert bench.sender.wants_ids
    bench.sender.grant([8])
    again = bench.ship()
    assert [values(shipment)[0][:3] for _, shipment in again] == [b"000"]
    assert [identities(shipment) for _, shipment in again] == [[Identity(8, 0, 0)]]
    assert again[0][1].request.entries[0].topic_id == "id of t, made anew"


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


@pytest.mark.parametrize(
    ("error", "in_doubt"),
    [
        (NotEnoughReplicasAfterAppend, True),
        (BrokerStopping, True),
        (NotEnoughReplicas, False),
        (NotLeader, False),
        (ZooKeeperUnreachable, False),
    ],
)
def test_a_batch_is_in_doubt_that_a_leader_has_written_and_not_committed(
    error: type[FolkmootError], in_doubt: bool
) -> None:
    """A leader that resigns or stops says so of what waits for its followers: behind another one that
    lacks it may come one that has it."""
    bench = full_batches(1)
    ((number, shipment),) = bench.ship()
    bench.answer(number, shipment, error.code or 0)
    bench.now += 2.0
    ((number, again),) = bench.ship()
    assert again.payloads == shipment.payloads
    bench.answer(number, again, UnknownProducer.code)
    assert [type(batch.error) for batch in bench.done] == [UnknownProducer] * in_doubt


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
    queue = bench.sender._queues[TopicPartition("t", 0)]
    bench.sender._fail([queue.fail(queue.batches[0], DeliveryTimeout("late"))])
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
        sequences.advance(here, count, 0.0)
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


def test_after_a_long_silence_a_partition_begins_its_next_epoch() -> None:
    """If its broker has forgotten it, and the answer is lost just then, it can be sent again."""
    bench = Bench(linger=0.0)
    signed = []
    for pause in (0.0, LONGEST_SILENCE, LONGEST_SILENCE + 1.0, 0.0):
        bench.now += pause
        bench.stage(b"x")
        bench.take()
        ((number, shipment),) = bench.ship()
        signed += identities(shipment)
        bench.answer(number, shipment)
    assert signed == [Identity(7, 0, 0), Identity(7, 0, 1), Identity(7, 1, 0), Identity(7, 1, 1)]


def test_a_batch_is_delivered_whose_first_answer_was_lost_when_its_producer_was_forgotten() -> None:
    bench = Bench(linger=0.0)
    known = ProducerState(limit=10)
    offset = 0

    def append(shipment: Shipment) -> int:
        nonlocal offset
        header = batch_header.check(shipment.payloads[0])
        original = known.check(header, {})
        if original is not None:
            return original
        known.update(header, offset)
        offset += header.record_count
        return offset - header.record_count

    for pause in (0.0, 90_000.0):
        bench.now += pause
        if pause:
            known = ProducerState(limit=10)
        bench.stage(b"x")
        bench.take()
        ((number, shipment),) = bench.ship()
        append(shipment)
        bench.sender.lost(number, RequestTimeout("no answer"), bench.now)
        bench.now += 2.0
        ((number, shipment),) = bench.ship()
        bench.answer(number, shipment, base=append(shipment))
    assert [batch.base_offset for batch in bench.done] == [0, 1]
    assert [batch.error for batch in bench.done] == [None, None]
