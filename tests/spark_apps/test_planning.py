"""Tasks of a batch, and how a limit is divided."""

import pickle
import random

from folkmoot.protocol.records import TopicPartition
from folkmoot.spark_apps.offsets import Ends, Range
from folkmoot.spark_apps.planning import Slice, slices, split
from tests.seeds import new_seed


class Led:
    """Partition 1 has no leader."""

    def leader_address(self, partition: TopicPartition) -> str | None:
        return None if partition.partition == 1 else f"broker:{partition.partition}"


def flights(number: int) -> TopicPartition:
    return TopicPartition("flights", number)


def test_a_task_is_told_all_that_it_needs_and_empty_ranges_have_none() -> None:
    ends = Ends(
        "g",
        {flights(0): Range(3, 9), flights(1): Range(0, 2), flights(2): Range(4, 4)},
        {"flights": "id"},
    )
    planned = slices(ends, Led(), ["b:2", "a:1"])
    addresses = ("a:1", "b:2", "broker:0", "broker:2")
    assert planned == [
        Slice("flights", 0, "id", 3, 9, "broker:0", addresses),
        Slice("flights", 1, "id", 0, 2, None, addresses),
    ]
    assert pickle.loads(pickle.dumps(planned)) == planned


def test_without_a_limit_or_below_it_everything_is_read() -> None:
    lags = {flights(0): 10, flights(1): 0, flights(2): -3, flights(3): 5}
    assert split(None, lags) == {flights(0): 10, flights(3): 5}
    assert split(15, lags) == {flights(0): 10, flights(3): 5}


def test_a_limit_is_used_up_in_proportion_to_lag() -> None:
    shares = split(1000, {flights(0): 9_000, flights(1): 1_000})
    assert sum(shares.values()) == 1000
    assert 750 < shares[flights(0)] < 900


def test_a_partition_with_little_to_read_does_not_wait_for_those_far_behind() -> None:
    shares = split(1000, {flights(0): 10_000_000, flights(1): 20})
    assert shares == {flights(0): 980, flights(1): 20}


def test_a_limit_below_the_number_of_partitions_goes_to_the_ones_furthest_behind() -> None:
    lags = {flights(number): 10 + number for number in range(5)}
    assert split(2, lags) == {flights(4): 1, flights(3): 1}


def test_whatever_the_lags_shares_stay_within_lag_and_limit() -> None:
    seed = new_seed()
    dice = random.Random(seed)
    for _ in range(500):
        lags = {flights(n): dice.choice((0, 1, 7, 1_000, 10**9)) for n in range(dice.randint(1, 9))}
        limit = dice.randint(1, 5_000)
        shares = split(limit, lags)
        assert sum(shares.values()) == min(limit, sum(lags.values()))
        assert all(0 < share <= lags[partition] for partition, share in shares.items())
