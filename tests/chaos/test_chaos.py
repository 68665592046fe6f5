"""Real processes under all faults at once. `make chaos` does the same for as long as it is told."""

import random
from pathlib import Path

import pytest

from tests.chaos.events import DEPARTURES, ON_A_MEMBER, ON_ALL
from tests.chaos.run import run_cluster
from tests.chaos.settings import IN_A_HUNDRED, Settings


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_one_event_of_each_kind_loses_nothing_and_lets_no_zombie_commit(tmp_path: Path) -> None:
    once = dict.fromkeys(IN_A_HUNDRED, 1)
    small = Settings(
        members=8, partitions=24, topics=2, session_timeout=4.0, at_once=(5, 6), kinds=once
    )
    result = run_cluster(tmp_path, small, random.randrange(1_000_000), len(once), print)
    print(result.table())
    assert not result.breaches
    assert result.kinds == once
    assert result.zombies["tried"] == result.zombies["refused"] == 2
    assert result.counts["records sent"] > 0


def test_each_kind_is_five_of_a_hundred_and_as_many_come_as_go() -> None:
    assert sum(IN_A_HUNDRED.values()) == 100
    assert min(IN_A_HUNDRED.values()) >= 5
    assert IN_A_HUNDRED.keys() == ON_A_MEMBER.keys() | ON_ALL.keys()
    assert IN_A_HUNDRED["join"] == sum(IN_A_HUNDRED[kind] for kind in DEPARTURES)
