"""Duplicates, gaps, fences: what a partition says to the batches of its producers."""

import random
from collections import deque
from collections.abc import Iterable

import msgspec
import pytest

from folkmoot.brokers.storage.producer_state import RETAINED_BATCHES, ProducerState
from folkmoot.protocol.batch_header import MAX_SEQUENCE, BatchHeader, following_sequence
from folkmoot.protocol.errors import (
    FolkmootError,
    InvalidRequest,
    OutOfOrderSequence,
    ProducerFenced,
    UnknownProducer,
)
from tests.seeds import new_seed

TEN = 10
OFFSET = 1000


def header(
    first: int, count: int = TEN, *, producer: int = 1, epoch: int = 0, continues: bool = False
) -> BatchHeader:
    """Of a batch of `count` records from sequence `first` on."""
    return BatchHeader(
        *(0, 100, 0, 0, 0, 1 << 5 if continues else 0, count - 1, count, 0, 0),
        *(producer, epoch, first, 0),
    )


class Bench:
    """Producers that are told of every batch that they let in, at offsets that count records."""

    def __init__(self, limit: int = 100) -> None:
        self.producers = ProducerState(limit)
        self.end = OFFSET
        self.log: list[BatchHeader] = []

    def write(self, *headers: BatchHeader) -> list[int]:
        """As a log does with the batches of one call; → the base offset of each."""
        before: dict[int, BatchHeader] = {}
        offsets = [self.producers.check(each, before) for each in headers]
        for number, each in enumerate(headers):
            if offsets[number] is None:
                offsets[number] = self.end
                self.log.append(msgspec.structs.replace(each, base_offset=self.end))
                self.producers.update(each, self.end)
                self.end += each.last_offset_delta + 1
        return [offset for offset in offsets if offset is not None]

    def refused(self, *headers: BatchHeader) -> type[FolkmootError]:
        before = self.producers.entries
        with pytest.raises(FolkmootError) as raised:
            self.write(*headers)
        assert self.producers.entries == before
        return raised.type

    def rebuilt(self) -> ProducerState:
        again = ProducerState(self.producers.limit)
        for each in self.log:
            again.update(each, each.base_offset)
        return again


def test_batches_that_follow_each_other_are_let_in() -> None:
    bench = Bench()
    assert [bench.write(header(first)) for first in (0, 10, 20)] == [[1000], [1010], [1020]]
    assert bench.write(header(30), header(40, 1), header(41)) == [1030, 1040, 1041]


def test_each_of_the_last_five_batches_is_known_by_its_offset_and_no_older_one() -> None:
    bench = Bench()
    for number in range(8):
        bench.write(header(TEN * number))
    for number in range(8):
        again = header(TEN * number)
        if number < 8 - RETAINED_BATCHES:
            assert bench.refused(again) is OutOfOrderSequence
        else:
            assert bench.write(again) == [OFFSET + TEN * number]
    assert len(bench.log) == 8
    assert bench.write(header(80)) == [1080]


def test_a_batch_that_overlaps_one_that_is_there_is_no_duplicate() -> None:
    bench = Bench()
    bench.write(header(0))
    for other in (header(0, 9), header(0, 11), header(1, 9), header(5)):
        assert bench.refused(other) is OutOfOrderSequence


def test_a_gap_is_refused_and_closes_with_the_batch_that_was_missing() -> None:
    bench = Bench()
    bench.write(header(0))
    assert bench.refused(header(20)) is OutOfOrderSequence
    assert bench.write(header(10), header(20)) == [1010, 1020]


def test_a_batch_behind_one_of_the_same_call_that_was_refused_is_refused_too() -> None:
    producers, before = ProducerState(10), dict[int, BatchHeader]()
    producers.update(header(0), 0)
    with pytest.raises(OutOfOrderSequence):
        producers.check(header(20), before)
    assert producers.check(header(10), before) is None
    with pytest.raises(OutOfOrderSequence):
        producers.check(header(30), before)
    assert producers.check(header(20), before) is None


def test_sequences_wrap() -> None:
    bench = Bench()
    bench.producers.update(header(MAX_SEQUENCE - 9), OFFSET - TEN)
    assert bench.refused(header(1)) is OutOfOrderSequence
    assert bench.write(header(0)) == [OFFSET]
    bench = Bench()
    bench.producers.update(header(MAX_SEQUENCE - 19), OFFSET - TEN)
    assert bench.write(header(MAX_SEQUENCE - 9, 15)) == [1000]
    assert bench.write(header(5)) == [1015]
    assert bench.write(header(MAX_SEQUENCE - 9, 15)) == [1000]


def test_an_older_epoch_is_fenced_and_a_newer_one_begins_at_0() -> None:
    bench = Bench()
    bench.write(header(0, epoch=3), header(10, epoch=3))
    assert bench.refused(header(20, epoch=2)) is ProducerFenced
    assert bench.refused(header(0, epoch=2)) is ProducerFenced
    assert bench.refused(header(20, epoch=4)) is OutOfOrderSequence
    assert bench.write(header(0, epoch=5)) == [1020]
    assert bench.refused(header(20, epoch=3)) is ProducerFenced
    assert bench.refused(header(0, epoch=3)) is ProducerFenced, "no duplicate of a fenced epoch"
    assert bench.write(header(0, epoch=5)) == [1020]
    assert bench.write(header(10, epoch=5), header(0, epoch=6), header(10, epoch=6)) == [
        *(1030, 1040, 1050)
    ]


def test_where_sequences_go_on_over_epochs_a_newer_epoch_begins_behind_the_last_one() -> None:
    bench = Bench()
    assert bench.producers.next_of(1) == (-1, 0)
    assert bench.refused(header(10, continues=True)) is UnknownProducer
    bench.write(header(0, continues=True))
    assert bench.producers.next_of(1) == (0, 10)
    # Whoever takes it over has asked before that batch was written, or not at all.
    assert bench.refused(header(0, epoch=1, continues=True)) is OutOfOrderSequence
    assert bench.write(header(10, epoch=1, continues=True)) == [1010]
    assert bench.producers.next_of(1) == (1, 20)
    assert bench.refused(header(10, continues=True)) is ProducerFenced
    assert bench.refused(header(20, continues=True)) is ProducerFenced
    assert bench.rebuilt().entries == bench.producers.entries
    bench.producers.update(header(MAX_SEQUENCE - 9, epoch=2, continues=True), 2000)
    assert bench.producers.next_of(1) == (2, 0)


def test_a_producer_that_is_not_known_begins_at_0_in_any_epoch() -> None:
    bench = Bench()
    assert bench.refused(header(10)) is UnknownProducer
    assert bench.write(header(0, producer=2, epoch=9)) == [1000]
    assert bench.write(header(0, producer=3), header(10, producer=3)) == [1010, 1020]


def test_producers_do_not_touch_each_other_and_batches_without_one_are_not_looked_at() -> None:
    bench = Bench()
    plain = header(-1, producer=-1, epoch=-1)
    assert bench.write(header(0), plain, header(0, producer=2), header(10), plain) == [
        *(1000, 1010, 1020, 1030, 1040)
    ]
    assert [state.producer_id for state in bench.producers.entries] == [2, 1]


@pytest.mark.parametrize(
    "wrong", [header(0, producer=-2), header(0, epoch=-1), header(-1), header(-(2**31))]
)
def test_what_no_producer_sends_is_refused(wrong: BatchHeader) -> None:
    assert Bench().refused(wrong) is InvalidRequest


# -- forgetting ---------------------------------------------------------------------------------------


def test_an_idle_producer_is_forgotten_after_the_expiry_and_not_before() -> None:
    bench = Bench()
    bench.producers.expire(0.0, 100.0)
    bench.write(header(0), header(0, producer=2))
    for now in (50.0, 149.0):
        bench.producers.expire(now, 100.0)
        assert len(bench.producers) == 2
    bench.write(header(10, producer=2))
    bench.producers.expire(150.0, 100.0)
    assert [state.producer_id for state in bench.producers.entries] == [2]
    assert bench.refused(header(10)) is UnknownProducer
    assert bench.write(header(0, epoch=1)) == [1030]
    assert bench.write(header(20, producer=2)) == [1040]


def test_of_more_producers_than_the_limit_the_one_that_wrote_longest_ago_gives_way() -> None:
    """Else whoever invents ids would keep all new producers of the partition out."""
    bench = Bench(limit=3)
    bench.write(*(header(0, producer=number) for number in range(3)))
    bench.write(header(10, producer=0))
    assert bench.write(header(0, producer=3)) == [1040]
    assert [entry.producer_id for entry in bench.producers.entries] == [2, 0, 3]
    assert bench.write(header(20, producer=0)) == [1050], "who is known goes on"
    assert bench.refused(header(10, producer=1)) is UnknownProducer, "not written twice in silence"
    assert bench.write(header(0, epoch=1, producer=1)) == [1060]


def test_one_call_may_bring_more_new_producers_than_are_remembered() -> None:
    bench = Bench(limit=2)
    assert bench.write(*(header(0, producer=number) for number in range(5))) == [
        *range(1000, 1050, 10)
    ]
    assert [entry.producer_id for entry in bench.producers.entries] == [3, 4]


def test_a_replay_keeps_those_that_wrote_last() -> None:
    bench = Bench(limit=3)
    for number in range(10):
        bench.log.append(header(0, producer=number))
    assert [state.producer_id for state in bench.rebuilt().entries] == [7, 8, 9]


# -- against a model ----------------------------------------------------------------------------------


class Model:
    """A producer's whole history in a partition, as plain lists."""

    def __init__(self) -> None:
        self.epoch = -1
        self.written: deque[tuple[int, int, int]] = deque(maxlen=RETAINED_BATCHES)
        self.next = 0

    def expects(self, each: BatchHeader) -> object:
        if self.epoch < 0:
            return None if each.base_sequence == 0 else UnknownProducer
        if each.producer_epoch < self.epoch:
            return ProducerFenced
        if each.producer_epoch > self.epoch and not each.continues_sequences:
            return None if each.base_sequence == 0 else OutOfOrderSequence
        if each.producer_epoch > self.epoch:
            return None if each.base_sequence == self.next else OutOfOrderSequence
        for first, count, offset in self.written:
            if (first, count) == (each.base_sequence, each.record_count):
                return offset
        return None if each.base_sequence == self.next else OutOfOrderSequence

    def take(self, each: BatchHeader, offset: int) -> None:
        if each.producer_epoch > self.epoch:
            self.written.clear()
        self.epoch = each.producer_epoch
        self.written.append((each.base_sequence, each.record_count, offset))
        self.next = following_sequence(each.base_sequence, each.record_count)


def test_any_batches_are_answered_as_by_the_model_and_a_replay_gives_the_same_state() -> None:
    seed = new_seed()
    chance = random.Random(seed)
    for _ in range(30):
        bench, models = Bench(), [Model() for _ in range(4)]
        for _ in range(200):
            producer = chance.randrange(4)
            model = models[producer]
            epoch = max(0, model.epoch + chance.choice([0] * 12 + [-1, 1, 2]))
            again = chance.choice([written[:2] for written in model.written] or [(0, 1)])
            first, count = chance.choice(
                [(model.next, chance.randrange(1, 4))] * 6 + [(0, 1), again, (model.next + 1, 1)]
            )
            continues = producer == 3 or chance.random() < 0.1
            each = header(first, count, producer=producer, epoch=epoch, continues=continues)
            expected = model.expects(each)
            if isinstance(expected, type):
                assert bench.refused(each) is expected
                continue
            (offset,) = bench.write(each)
            if expected is None:
                assert offset == bench.end - count
                model.take(each, offset)
            else:
                assert offset == expected
        assert states(bench.rebuilt().entries) == states(bench.producers.entries)


def states(all_of_them: Iterable[object]) -> list[object]:
    return [msgspec.structs.astuple(each) for each in all_of_them]  # type: ignore[arg-type]
