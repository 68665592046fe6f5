"""Which partition records go to."""

from itertools import pairwise
from random import Random

import pytest

from folkmoot.producers.partitioners import Partitioner
from folkmoot.protocol.murmur2 import partition_for

ALL = range(7)


def choose(
    keys: list[bytes | None],
    explicit: dict[int, int] | None = None,
    *,
    count: int = 7,
    record_bytes: int = 100,
    seed: int = 1,
) -> list[int]:
    chosen = Partitioner(Random(seed), 1000).choose(
        keys,
        explicit or {},
        keyless=None in keys,
        record_bytes=record_bytes,
        count=count,
        available=range(count),
    )
    return [int(number) for number in chosen]


def test_a_key_decides() -> None:
    keys: list[bytes | None] = [b"%d" % number * (number % 5) for number in range(100)]
    assert choose(keys) == [partition_for(key or b"", 7) for key in keys]


def test_an_explicit_partition_wins() -> None:
    assert choose([b"a", b"b", None], {0: 5, 2: 6}) == [5, partition_for(b"b", 7), 6]


def test_keys_and_none_do_not_disturb_each_other() -> None:
    keys = [b"a", None, b"b", None, b"c"]
    chosen = choose(keys)
    assert [chosen[0], chosen[2], chosen[4]] == [
        partition_for(key, 7) for key in (b"a", b"b", b"c")
    ]
    assert chosen[1] == chosen[3]


def test_records_without_key_change_partition_about_every_batch() -> None:
    chosen = choose([None] * 100)
    runs = [chosen[start : start + 10] for start in range(0, 100, 10)]
    assert all(len(set(run)) == 1 for run in runs)
    assert all(one[0] != other[0] for one, other in pairwise(runs))


@pytest.mark.parametrize("keys", [[None] * 3, [b"a", b"b", b"c"]])
def test_a_single_partition_gets_all(keys: list[bytes | None]) -> None:
    assert choose(keys, count=1) == [0, 0, 0]


def test_records_without_key_are_spread_evenly_in_the_long_run() -> None:
    chosen = choose([None] * 70_000)
    assert all(7_000 < chosen.count(number) < 13_000 for number in ALL)
