"""Memory may be wanting at any step: what cannot be written fails, and nothing else."""

from typing import Any, NoReturn

import pytest

from folkmoot.producers.batches import Piece
from folkmoot.producers.chunks import Chunk
from folkmoot.protocol import batch as batch_format
from folkmoot.protocol.columns import Columns
from folkmoot.protocol.errors import SerializationError
from tests.producers.parts import Bench


@pytest.mark.parametrize("together", [False, True])
def test_a_batch_for_which_memory_is_wanting_fails_alone(
    monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    def packed(columns: Columns) -> batch_format.Unsigned:
        if b"large" in columns.values:
            raise MemoryError
        return packed_as_before(columns)

    def compressed(batches: list[batch_format.Unsigned], codec: int) -> Any:
        if len(batches) > 1 and not together:
            raise MemoryError
        return compressed_as_before(batches, codec)

    packed_as_before, compressed_as_before = batch_format.packed, batch_format.compressed
    monkeypatch.setattr("folkmoot.protocol.batch.packed", packed)
    monkeypatch.setattr("folkmoot.protocol.batch.compressed", compressed)
    bench = Bench(partitions=3, linger=0.0)
    large, beside = bench.stage(b"large"), bench.stage(b"beside", partition=1)
    another = bench.stage(b"another", partition=2)
    bench.take()
    ((number, shipment),) = bench.ship()
    bench.answer(number, shipment)
    assert beside.result(0).offset == another.result(0).offset == 0
    error = large.exception(0)
    assert isinstance(error, SerializationError)
    assert "MemoryError" in str(error)


@pytest.mark.parametrize("step", ["divide", "cut"])
def test_a_chunk_that_cannot_be_divided_for_want_of_memory_fails_alone(
    monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def fail(*_: object) -> NoReturn:
        raise MemoryError

    bench = Bench(linger=0.0)
    owner, name = {"divide": (Chunk, "divide"), "cut": (Piece, "parts")}[step]
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fail)
        lost = bench.stage(b"lost")
        bench.take()
    good = bench.stage(b"good")
    bench.take()
    ((number, shipment),) = bench.ship()
    bench.answer(number, shipment)
    assert good.result(0).offset == 0
    assert "MemoryError" in str(lost.exception(0))
