"""The loop between the machine and its surroundings."""

import itertools
from contextlib import closing
from typing import Any

import pytest

from folkmoot.coordination.wakeup import Wakeup
from folkmoot.producers.accumulator import Accumulator
from folkmoot.producers.chunks import Delivery
from folkmoot.producers.config import ProducerConfig
from folkmoot.producers.loop import TICK, Loop
from folkmoot.producers.sender import Sender
from folkmoot.protocol.errors import ClosedError, FolkmootError
from tests.producers.parts import Bench


class Quiet:
    """A cluster that knows all topics, never answers, and knows how long it was told to wait."""

    trouble = None
    version = 0

    def __init__(self) -> None:
        self.waits: list[float] = []

    def send(self, *_: Any, **__: Any) -> int:
        return 1

    def poll(self, timeout: float, wake: Any) -> list[Any]:
        self.waits.append(timeout)
        return []


class Nowhere:
    """Finds no broker, and no producer id as long as `refusal` is set."""

    def __init__(self, refusal: FolkmootError | None = None) -> None:
        self.refusal = refusal
        self.asked = 0

    def __call__(self) -> list[str]:
        return []

    def producer_ids(self) -> range:
        self.asked += 1
        if self.refusal is not None:
            raise self.refusal
        return range(1)


def test_what_becomes_ready_while_a_round_runs_does_not_wait_for_the_next_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Time passes at every look at the clock: the batch lingers when shipments are decided, and has
    lingered long enough when the wait is computed."""
    bench = Bench(linger=0.005)
    bench.stage(b"value")
    bench.take()
    config: ProducerConfig = bench.config
    machine: Sender = bench.sender
    accumulator: Accumulator = bench.accumulator
    ticks = itertools.count()
    monkeypatch.setattr("time.monotonic", lambda: bench.now + 0.006 * next(ticks))
    with closing(Wakeup()) as wakeup:
        cluster: Any = Quiet()
        Loop(config, accumulator, wakeup, Nowhere())._round(cluster, machine)
    assert cluster.waits == [0.0]


@pytest.mark.parametrize(("age", "taken"), [(0.0035, False), (0.0045, True)])
def test_what_is_due_within_a_tick_does_not_wait_for_the_next_one(
    monkeypatch: pytest.MonkeyPatch, age: float, taken: bool
) -> None:
    """Sockets are waited for in whole milliseconds: linger is the longest wait, not the shortest."""
    bench = Bench(linger=0.005)
    bench.stage(b"value")
    bench.now += age
    monkeypatch.setattr("time.monotonic", lambda: bench.now)
    with closing(Wakeup()) as wakeup:
        cluster: Any = Quiet()
        Loop(bench.config, bench.accumulator, wakeup, Nowhere())._round(cluster, bench.sender)
    assert bench.sender.counters.batches_sent == taken
    if not taken:
        assert cluster.waits == [pytest.approx(0.005 - TICK - age)]


def test_a_short_linger_is_not_none() -> None:
    bench = Bench(linger=TICK)
    with closing(Wakeup()) as wakeup:
        assert Loop(bench.config, bench.accumulator, wakeup, Nowhere())._early == TICK / 2


def test_records_still_staged_when_the_thread_dies_are_told_as_failed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench()
    accumulator: Accumulator = bench.accumulator
    told: list[Delivery] = []
    heard = bench.stage(b"heard", topic="a")
    heard._chunk.callbacks[0] = lambda: told.append(heard)
    unheard = bench.stage(b"unheard", topic="b")
    with closing(Wakeup()) as wakeup:
        loop = Loop(bench.config, accumulator, wakeup, Nowhere())

        def broken(*_: Any) -> None:
            raise KeyError("broken")

        monkeypatch.setattr(loop, "_round", broken)
        loop.run()
    assert told == [heard]
    assert isinstance(heard.exception(0), ClosedError)
    (failed,) = accumulator.take_failed()  # what `flush` and `close` raise
    assert failed.error is heard.exception(0)
    assert unheard.done()
    assert accumulator.unacknowledged() == 0
    assert loop.counters.records_failed == 2
    assert "records failed" in caplog.text
