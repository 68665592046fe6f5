"""Memory may be wanting at any step: what cannot be written fails, and nothing else."""

import itertools
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, NoReturn

import pytest

from folkmoot.producers.batches import Few
from folkmoot.producers.chunks import Chunk
from folkmoot.producers.producer import Producer
from folkmoot.protocol import batch_header, record_batch
from folkmoot.protocol.columns import Columns
from folkmoot.protocol.errors import ClosedError, FolkmootError, SerializationError
from tests.producers.fakes import FakeCluster
from tests.producers.parts import Bench
from tests.waiting import eventually


@pytest.mark.parametrize("together", [False, True])
def test_a_batch_for_which_memory_is_wanting_fails_alone(
    monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    def packed(columns: Columns) -> batch_header.UnsealedBatch:
        if b"large" in columns.values:
            raise MemoryError
        return packed_as_before(columns)

    def compressed(batches: list[batch_header.UnsealedBatch], codec: int) -> Any:
        if len(batches) > 1 and not together:
            raise MemoryError
        return compressed_as_before(batches, codec)

    packed_as_before, compressed_as_before = record_batch.pack, record_batch.compress
    monkeypatch.setattr("folkmoot.protocol.record_batch.pack", packed)
    monkeypatch.setattr("folkmoot.protocol.record_batch.compress", compressed)
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
    owner, name = {"divide": (Chunk, "divide"), "cut": (Few, "parts")}[step]
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


# -- whatever it is that fails, nobody waits for ever ---------------------------------------------

STEPS = [
    "producers.accumulator.Accumulator.divide",
    "producers.accumulator.Accumulator.take",
    "producers.batches.Batch.deliver",
    "producers.batches.Batch.extend",
    "producers.batches.Batch.seal",
    "producers.batches.Few.parts",
    "producers.chunks.Chunk.divide",
    "producers.chunks.Chunk.measure",
    "producers.chunks.Chunk.place",
    "producers.chunks.columns_of",
    "producers.loop.Loop._receive",
    "producers.loop.Loop._round",
    "producers.loop.Loop._ship",
    "producers.queues.Queue.send",
    "producers.sender.Sender.answered",
    "producers.sender.Sender.expire",
    "protocol.record_batch.compress",
    "protocol.record_batch.pack",
    "protocol.batch_header.seal",
    "protocol.wire.encode_request",
]
TELLING = ["producers.accumulator.Accumulator.complete", "producers.sender.Sender.refuse"]
ALWAYS = 10**9


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster() as cluster:
        yield cluster


def fail_at(patch: pytest.MonkeyPatch, step: str, first: int, times: int) -> None:
    """Have this raise MemoryError from its `first` call on, so many times."""
    where, _, name = f"folkmoot.{step}".rpartition(".")
    owner: Any
    try:
        owner = import_module(where)
    except ModuleNotFoundError:
        module, _, kind = where.rpartition(".")
        owner = getattr(import_module(module), kind)
    real, calls = getattr(owner, name), itertools.count()

    def wanting(*arguments: Any, **named: Any) -> Any:
        if first <= next(calls) < first + times:
            raise MemoryError
        return real(*arguments, **named)

    patch.setattr(owner, name, wanting)


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize(
    ("step", "times"),
    # What tells of the end has to have memory in the end.
    [(step, 1) for step in (*STEPS, *TELLING)] + [(step, ALWAYS) for step in STEPS],
)
def test_want_of_memory_at_any_step_is_told_and_never_a_silence(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, step: str, first: int, times: int
) -> None:
    producer = Producer(zookeeper=cluster.connect, linger=0.0, compression="none")
    producer.start()
    heard: list[object] = []
    deliveries = [producer.send("t", b"before", b"k")]
    deliveries[0].result(timeout=10)
    with monkeypatch.context() as patch:
        fail_at(patch, step, first, times)
        try:
            for number in range(600):
                deliveries.append(producer.send("t", b"%d" % number, b"k%d" % (number % 7)))
            deliveries.append(producer.send("t", b"heard", on_delivery=heard.append))
            batch = producer.send_batch("t", [b"a", b"b"], [b"k", b"l"])
            batch.exception(timeout=10)
        except (ClosedError, MemoryError):
            pass  # told to the one who sends, before the record was taken
        errors = [each.exception(timeout=10) for each in deliveries]
        failed = [error for error in errors if error is not None]
        assert all(isinstance(error, FolkmootError) for error in failed)
        assert all("MemoryError" in str(error) for error in failed)
        eventually(lambda: len(heard) == (len(deliveries) == 602))
    for use in (
        lambda: producer.send("t", b"after").result(timeout=10),
        lambda: producer.flush(timeout=10),
        lambda: producer.close(timeout=10),
    ):
        assert "MemoryError" in str(error_of(use) or "no MemoryError")
    assert producer.unacknowledged() <= 0


def error_of(use: Callable[[], object]) -> FolkmootError | None:
    try:
        use()
    except FolkmootError as error:
        return error
    return None
