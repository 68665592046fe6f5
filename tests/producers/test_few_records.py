"""Chunks of few records are divided as lists, larger ones as arrays: nobody can tell which it was."""

from random import Random

import pytest

from folkmoot.producers.chunks import FEW_ROWS
from folkmoot.protocol import batch_header
from folkmoot.protocol.compression import Codec
from folkmoot.protocol.records import Record
from tests.producers.parts import Bench, records, values

AS_ARRAYS = 0


def divided_at(
    few: int, monkeypatch: pytest.MonkeyPatch, seed: int, **options: int
) -> list[Record]:
    """What is read of random records, sent in chunks of random lengths, if fewer than `few` are few."""
    monkeypatch.setattr("folkmoot.producers.chunks.FEW_ROWS", few)
    random = Random(seed)
    bench = Bench(partitions=random.choice((1, 3, 12)), linger=0.0, **options)
    kinds = random.choice(((0,), (0, 1), (1,), (0, 1, 2, 3)))
    found: list[Record] = []
    for _ in range(random.randint(1, 4)):  # chunks that go into the same batches
        for number in range(random.choice((1, 2, 40, 300))):
            bench.now += 0.001 * random.choice((0, 1))
            key = None if 1 in kinds and random.random() < 0.3 else b"%d" % random.randint(0, 50)
            value = None if 2 in kinds and random.random() < 0.3 else b"%d" % number * 20
            partition = None if random.random() < 0.9 else 0
            delivery = bench.stage(value or b"", key, partition)
            if 3 in kinds and random.random() < 0.3:
                position = len(delivery._chunk) - 1
                delivery._chunk.headers[position] = (("name", b"%d" % number),)
        bench.take()
    while sent := bench.ship(hurry=True):
        for number, shipment in sent:
            found += records(shipment)
            bench.answer(number, shipment)
    assert bench.accumulator.buffered == 0
    return found


@pytest.mark.parametrize("seed", range(30))
def test_records_are_the_same_whichever_way_they_were_divided(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_arrays = divided_at(AS_ARRAYS, monkeypatch, seed)
    assert as_arrays == divided_at(FEW_ROWS, monkeypatch, seed)
    assert as_arrays == divided_at(100, monkeypatch, seed), "some chunks as lists, some as arrays"


@pytest.mark.parametrize("seed", range(30))
def test_batches_that_are_cut_have_the_same_records(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_arrays = divided_at(AS_ARRAYS, monkeypatch, seed, batch_bytes=500)
    assert as_arrays == divided_at(FEW_ROWS, monkeypatch, seed, batch_bytes=500)


def test_a_record_divided_as_one_of_few_says_where_it_went() -> None:
    bench = Bench(partitions=12, linger=0.0)
    deliveries = [bench.stage(b"%d" % n, b"key %d" % (n % 7), partition=None) for n in range(100)]
    bench.take()
    ((number, shipment),) = bench.ship()
    found = {record.value: (record.partition, record.offset) for record in records(shipment)}
    bench.answer(number, shipment)
    for n, delivery in enumerate(deliveries):
        told = delivery.result(0)
        assert (told.partition, told.offset) == found[b"%d" % n]


def test_a_tiny_batch_is_not_compressed_beside_others_that_are() -> None:
    bench = Bench(partitions=3, linger=0.0, compression="zstd")
    for partition, value in enumerate((b"tiny", b"large" * 100, b"tiny too")):
        bench.stage(value, partition=partition)
    bench.take()
    ((_, shipment),) = bench.ship()
    codecs = [batch_header.check(payload).codec for payload in shipment.payloads]
    assert codecs == [Codec.NONE, Codec.ZSTD, Codec.NONE]
    assert values(shipment) == [b"tiny", b"large" * 100, b"tiny too"]
