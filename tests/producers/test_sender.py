"""The thread between the machine and its surroundings."""

import itertools
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from folkmoot.coordination.wakeup import Wakeup
from folkmoot.producers.appender import Delivery
from folkmoot.producers.partition_queue import GATHERING
from folkmoot.producers.sender import LONGEST_WAIT, TICK, Sender
from folkmoot.protocol.errors import ClosedError, FolkmootError
from folkmoot.protocol.process.thread_log import wait_until_written
from folkmoot.protocol.records import TopicPartition
from tests.producers.parts import Bench


class Quiet:
    """A cluster that knows all topics, never answers, and knows how long it was told to wait."""

    metadata_error = None

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.waits: list[float] = []
        self.sent = 0
        self.producer_id_error: FolkmootError | None = None

    @property
    def version(self) -> int:
        return self.bench.view.version

    def partitions(self, topic: str) -> range:
        return range(self.bench.view.count)

    answers = 0

    def topic_id(self, topic: str) -> str | None:
        return self.bench.view.topic_id(topic)

    def topics_missing_for(self, patience: float) -> list[str]:
        return []

    def leader_address(self, partition: TopicPartition) -> str | None:
        return self.bench.view.leader_address(partition)

    def producer_id(self) -> None:
        return None

    def send(self, *_: Any, **__: Any) -> int:
        self.sent += 1
        return self.sent

    def poll(self, timeout: float, wake: Any) -> list[Any]:
        self.waits.append(timeout)
        return []


def nowhere() -> list[str]:
    """Finds no broker."""
    return []


@pytest.fixture
def wakeup() -> Iterator[Wakeup]:
    with closing(Wakeup()) as wakeup:
        yield wakeup


class Driven:
    """A bench whose rounds are those of the real thread, with the clock moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, wakeup: Wakeup, **options: Any) -> None:
        self.bench = Bench(**options)
        self.cluster: Any = Quiet(self.bench)
        self.sender = Sender(self.bench.config, self.bench.accumulator, wakeup, nowhere)
        self.bench.sender.counters = self.sender.counters
        monkeypatch.setattr("time.monotonic", lambda: self.bench.now)

    def round(self) -> float:
        """How long the thread sleeps then."""
        self.sender._run_once(self.cluster, self.bench.sender)
        wait: float = self.cluster.waits[-1]
        return wait


def test_what_becomes_ready_while_a_round_runs_does_not_wait_for_the_next_event(
    monkeypatch: pytest.MonkeyPatch, wakeup: Wakeup
) -> None:
    """Time passes at every look at the clock: the batch lingers when shipments are decided, and has
    lingered long enough when the wait is computed."""
    driven = Driven(monkeypatch, wakeup, linger=0.005)
    driven.bench.stage(b"value")
    ticks = itertools.count()
    monkeypatch.setattr("time.monotonic", lambda: driven.bench.now + 0.006 * next(ticks))
    assert driven.round() == 0.0


@pytest.mark.parametrize(("age", "taken"), [(0.0035, False), (0.0045, True)])
def test_what_is_due_within_a_tick_does_not_wait_for_the_next_one(
    monkeypatch: pytest.MonkeyPatch, wakeup: Wakeup, age: float, taken: bool
) -> None:
    """Sockets are waited for in whole milliseconds: linger is the longest wait, not the shortest."""
    driven = Driven(monkeypatch, wakeup, linger=0.005)
    driven.bench.stage(b"value")
    driven.bench.now += age
    wait = driven.round()
    assert driven.sender.counters.batches_sent == taken
    if not taken:
        assert wait == pytest.approx(0.005 - TICK - age)


def test_a_short_linger_is_not_none(wakeup: Wakeup) -> None:
    bench = Bench(linger=TICK)
    assert Sender(bench.config, bench.accumulator, wakeup, nowhere)._early == TICK / 2


def test_while_records_come_nobody_wakes_the_thread(
    monkeypatch: pytest.MonkeyPatch, wakeup: Wakeup
) -> None:
    """After a round in which something was sent it sleeps for linger, and a batch opened meanwhile can
    wait until then; after one in which nothing was, it sleeps until somebody wakes it."""
    options = {"linger": 0.02, "max_in_flight": 60, "delivery_timeout": 1e9}
    driven = Driven(monkeypatch, wakeup, partitions=30, **options)
    bench = driven.bench
    bench.stage(b"first")
    for number in range(1, 30):
        wait = driven.round()
        assert wait <= 0.02
        bench.accumulator._asleep = True  # as it is while the thread sleeps
        bench.now += 0.001
        bench.stage(b"next", partition=number)
        bench.now += wait - 0.001
    assert bench.rings == 0
    assert driven.sender.counters.batches_sent > 10


def test_a_thread_that_has_nothing_to_do_sleeps_until_it_is_woken(
    monkeypatch: pytest.MonkeyPatch, wakeup: Wakeup
) -> None:
    driven = Driven(monkeypatch, wakeup, linger=0.02)
    driven.bench.know()
    assert driven.round() == LONGEST_WAIT
    driven.bench.accumulator._asleep = True
    driven.bench.stage(b"first")
    driven.bench.stage(b"second")
    assert driven.bench.rings == 1


def test_who_opens_a_batch_for_a_busy_broker_wakes_nobody(
    monkeypatch: pytest.MonkeyPatch, wakeup: Wakeup
) -> None:
    """It would do nothing but gather until the answer comes."""
    driven = Driven(monkeypatch, wakeup, linger=0.0)
    driven.bench.stage(b"first")
    assert driven.round() == pytest.approx(GATHERING)
    driven.bench.accumulator._asleep = True
    driven.bench.now += 0.001
    driven.bench.stage(b"second")
    assert driven.bench.rings == 0


def test_leaders_are_looked_up_once_while_the_metadata_stay_the_same(
    monkeypatch: pytest.MonkeyPatch, wakeup: Wakeup
) -> None:
    driven = Driven(monkeypatch, wakeup, linger=0.0, partitions=12)
    bench = driven.bench
    for number in range(3 * 12):
        bench.stage(b"value", partition=number % 12)
    driven.round()
    looked_up = bench.view.looked_up
    for number in range(100):
        bench.now += 1.0
        bench.stage(b"value", partition=number % 12)
        driven.round()
    assert bench.view.looked_up == looked_up
    bench.view.leaders[3] = "two:1"
    driven.round()
    assert bench.view.looked_up > looked_up


def test_records_still_open_when_the_thread_dies_are_told_as_failed(
    monkeypatch: pytest.MonkeyPatch, wakeup: Wakeup, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench()
    told: list[Delivery] = []
    heard = bench.stage(b"heard", topic="a", on_delivery=told.append)
    unheard = bench.stage(b"unheard", topic="b")
    sender = Sender(bench.config, bench.accumulator, wakeup, nowhere)

    def broken(*_: Any) -> None:
        raise KeyError("broken")

    monkeypatch.setattr(sender, "_run_once", broken)
    sender.run()
    assert told == [heard]
    assert isinstance(heard.exception(0), ClosedError)
    # What `flush` and `close` raise.
    assert bench.accumulator.take_failure() is unheard.exception(0)
    assert unheard.done()
    assert bench.accumulator.unacknowledged() == 0
    assert sender.counters.records_failed == 2
    wait_until_written()
    assert "records failed" in caplog.text
