"""How often an iteration looks at the clock: seldom while records are quick, at each when they are not."""

from types import SimpleNamespace
from typing import Any

import pytest

from folkmoot.consumers import consumer as module
from folkmoot.consumers.consumer import CLOCK_EVERY, Consumer
from folkmoot.protocol.records import Record

RECORDS = [Record("t", 0, offset, 0, None, b"") for offset in range(500)]


class Clock:
    def __init__(self) -> None:
        self.now = 100.0
        self.looks = 0

    def __call__(self) -> float:
        self.looks += 1
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock))
    return clock


def iterating(due: float) -> Any:
    consumer: Any = Consumer(zookeeper="localhost:1")
    consumer._subscription = SimpleNamespace(commit_at=due)
    consumer._lent = RECORDS
    return consumer._one_by_one(RECORDS)


def test_slow_records_are_left_for_a_commit_that_is_due(clock: Clock) -> None:
    seen = 0
    for _ in iterating(due=105.0):
        clock.now += 1.0
        seen += 1
    assert seen == 5


def test_records_that_become_slow_are_left_soon(clock: Clock) -> None:
    seen = 0
    for record in iterating(due=105.0):
        clock.now += 0.0001 if record.offset < 100 else 1.0
        seen += 1
    assert 105 <= seen <= 105 + CLOCK_EVERY


def test_quick_records_hardly_cost_a_look_at_the_clock(clock: Clock) -> None:
    assert sum(1 for _ in iterating(due=105.0)) == 500
    assert clock.looks < 500 / CLOCK_EVERY + 3
