"""The application's store: every record counts once, whoever brings it how often."""

import random
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from folkmoot.console.demo import store as store_module
from folkmoot.console.demo.store import Departure, Result, ResultStore, Work, result
from folkmoot.protocol.errors import ClosedError, OffsetOutOfRange
from folkmoot.protocol.records import TopicPartition
from tests.seeds import new_seed

P0, P1 = TopicPartition("flights", 0), TopicPartition("flights", 1)


def some(first: int, last: int, carrier: str = "UA") -> list[Result]:
    return [Result(offset, carrier, 2, False) for offset in range(first, last)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results.db"


def test_sums_and_positions_change_together(path: Path) -> None:
    with ResultStore(path, "m") as store:
        batch = {P0: [Result(0, "UA", 5, False), Result(1, "AA", None, True)], P1: some(0, 3)}
        assert store.apply(batch) == Work(5, 0)
        assert store.carriers() == {"AA": (1, 0, 0, 1), "UA": (4, 4, 11, 0)}
        assert store.positions() == {P0: 2, P1: 3}
        assert store.members() == {"m": Work(5, 0)}


def test_what_comes_twice_counts_once_and_is_told(path: Path) -> None:
    with ResultStore(path, "dead") as store:
        store.apply({P0: some(0, 10)})
    with ResultStore(path, "heir") as store:
        assert store.apply({P0: some(6, 12)}) == Work(2, 4)
        assert store.apply({P0: some(6, 12)}) == Work(0, 6)
        assert store.carriers() == {"UA": (12, 12, 24, 0)}
        assert store.positions() == {P0: 12}
        assert store.members() == {"dead": Work(10, 0), "heir": Work(2, 10)}


def test_a_gap_is_an_error_and_nothing_of_the_batch_is_applied(path: Path) -> None:
    with ResultStore(path, "m") as store:
        store.apply({P0: some(0, 3)})
        with pytest.raises(OffsetOutOfRange, match="flights-0: offset 4 came where 3 was due"):
            store.apply({P1: some(0, 5), P0: some(4, 6)})
        assert store.positions() == {P0: 3}
        assert store.carriers() == {"UA": (3, 3, 6, 0)}
        assert store.apply({P0: some(3, 4)}) == Work(1, 0)


def test_what_fails_midway_leaves_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ResultStore(path, "m") as store:
        monkeypatch.setattr(store_module, "_ADD_MEMBER", "INSERT INTO nowhere VALUES (?, ?, ?)")
        with pytest.raises(sqlite3.OperationalError):
            store.apply({P0: some(0, 3)})
        assert store.positions() == {}
        assert store.carriers() == {}


def test_an_empty_batch_is_no_work(path: Path) -> None:
    with ResultStore(path, "m") as store:
        assert store.apply({}) == Work(0, 0)


def test_a_store_that_is_not_open_says_so(path: Path) -> None:
    with pytest.raises(ClosedError):
        ResultStore(path).positions()


def test_a_flight_without_departure_time_is_cancelled() -> None:
    assert result(7, Departure("UA", None, None)) == (
        7,
        "UA",
        None,
        True,
    )


WRITER = """
import sys
from pathlib import Path
from folkmoot.console.demo.store import Result, ResultStore
from folkmoot.protocol.records import TopicPartition
path, mine, seed = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
partition = TopicPartition("flights", 0)
with ResultStore(path, mine) as store:
    while True:
        position = store.positions().get(partition, 0)
        if position >= 2000:
            break
        first = max(0, position - seed)
        offsets = range(first, min(2000, position + 20))
        batch = [Result(each, "UA", each % 7, each % 3 == 0) for each in offsets]
        store.apply({partition: batch})
"""


def test_processes_that_fight_for_a_partition_and_die_count_every_record_once(path: Path) -> None:
    seed = new_seed()
    chance = random.Random(seed)
    with ResultStore(path):
        pass
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(path), f"m{number}", str(number * 5)])
        for number in range(4)
    ]
    try:
        with ResultStore(path) as store:
            target = chance.randrange(100, 1000)
            while store.positions().get(P0, 0) < target:
                assert any(writer.poll() is None for writer in writers)
            writers[0].kill()
            assert [writer.wait(60) for writer in writers[1:]] == [0, 0, 0]
            assert store.positions() == {P0: 2000}
            delays = sum(offset % 7 for offset in range(2000))
            assert store.carriers() == {"UA": (2000, 2000, delays, 667)}
            assert sum(work.applied for work in store.members().values()) == 2000
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
