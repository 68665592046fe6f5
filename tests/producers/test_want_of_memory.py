"""Memory may be wanting at any step: what cannot be written fails, and nothing else."""

import itertools
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest

from folkmoot.producers.batch import Batch
from folkmoot.producers.producer import Producer
from folkmoot.producers.sender_state import SenderState
from folkmoot.protocol import batch_header, record_batch
from folkmoot.protocol.errors import ClosedError, FolkmootError, SerializationError
from tests.producers.fakes import FakeCluster
from tests.producers.parts import Bench
from tests.waiting import eventually


@pytest.mark.parametrize("together", [False, True])
def test_a_batch_for_which_memory_is_wanting_fails_alone(
    monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    def packed(batch: Batch) -> batch_header.UnsealedBatch:
        if batch.topic_partition.partition == 0:
            raise MemoryError
        return packed_as_before(batch)

    def compressed(batches: list[batch_header.UnsealedBatch], *how: Any) -> Any:
        if len(batches) > 1 and not together:
            raise MemoryError
        return compressed_as_before(batches, *how)

    packed_as_before, compressed_as_before = Batch.body, record_batch.compress
    monkeypatch.setattr(Batch, "body", packed)
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


# -- whatever it is that fails, nobody waits for ever ---------------------------------------------

STEPS = [
    "producers.accumulator.Accumulator.take",
    "producers.batch.Batch.body",
    "producers.batch.Batch.seal",
    "producers.partition_queue.PartitionQueue.send",
    "producers.sender.Sender._look_up",
    "producers.sender.Sender._receive",
    "producers.sender.Sender._run_once",
    "producers.sender.Sender._send",
    "producers.sender_state.SenderState._examine",
    "producers.sender_state.SenderState.add",
    "producers.sender_state.SenderState.answered",
    "producers.sender_state.SenderState.expire",
    "protocol.record_batch.compress",
    "protocol.batch_header.seal",
    "protocol.wire.encode_request",
]
TELLING = [
    "producers.accumulator.Accumulator.complete",
    "producers.accumulator.Accumulator.settle",
    "producers.batch.Batch.end",
    "producers.sender_state.SenderState.fail_all",
]
ALWAYS = 10**9


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


def test_callbacks_of_a_batch_are_called_though_memory_is_wanting_right_behind_its_end(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, ended = SenderState._end, list[Batch]()

    def end(state: SenderState, batch: Batch, base_offset: int, error: Any) -> None:
        if not ended:
            ended.append(batch)
            batch.end(base_offset, error)
            raise MemoryError
        real(state, batch, base_offset, error)

    monkeypatch.setattr(SenderState, "_end", end)
    producer = Producer(zookeeper=cluster.connect, linger=0.0, compression="none")
    producer.start()
    heard: list[object] = []
    delivery = producer.send("t", b"written", on_delivery=heard.append)
    assert delivery.result(timeout=10).offset == 0
    eventually(lambda: heard)
    assert "MemoryError" in str(error_of(lambda: producer.close(timeout=10)) or "no MemoryError")
    assert len(heard) == 1


def error_of(use: Callable[[], object]) -> FolkmootError | None:
    try:
        use()
    except FolkmootError as error:
        return error
    return None
