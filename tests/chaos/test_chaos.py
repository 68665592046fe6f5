"""Real processes under all faults at once. `make chaos` does the same for as long as it is told."""

import random
from collections import Counter
from itertools import accumulate
from pathlib import Path

import pytest

from tests.chaos.dealing import deal
from tests.chaos.events import DEPARTURES, ENSEMBLE, ON_A_MEMBER, ON_ALL
from tests.chaos.run import run_cluster
from tests.chaos.settings import IN_A_HAND, once_each


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_one_event_of_each_kind_loses_nothing_and_lets_no_zombie_commit(tmp_path: Path) -> None:
    small = once_each()
    result = run_cluster(tmp_path, small, random.randrange(1_000_000), len(small.kinds), print)
    print(result.table())
    assert not result.breaches, "\n".join(result.breaches)
    assert result.kinds == small.kinds
    assert result.zombies["tried"] == result.zombies["refused"] == 2
    assert result.counts["records sent"] > 0


def test_each_kind_is_five_of_a_hundred_and_as_many_come_as_go() -> None:
    assert min(IN_A_HAND.values()) / sum(IN_A_HAND.values()) >= 0.05
    assert IN_A_HAND.keys() == ON_A_MEMBER.keys() | ON_ALL.keys()
    assert IN_A_HAND["join"] == sum(IN_A_HAND[kind] for kind in DEPARTURES)


def test_all_that_is_asked_for_is_dealt_and_servers_are_left_alone_at_first() -> None:
    for seed in range(100):
        calm, rest = deal(random.Random(seed), IN_A_HAND, 8, 20)
        assert (len(calm.members), calm.servers) == (8, ())
        assert set(rest.servers) == ENSEMBLE
        dealt = calm.members + rest.members + rest.servers
        assert Counter(dealt) == IN_A_HAND
        changes = [(kind == "join") - (kind in DEPARTURES) for kind in dealt]
        assert max(abs(change) for change in accumulate(changes)) <= 4
    assert [len(each.members) for each in deal(random.Random(1), {"join": 2}, 8, 20)] == [2]
