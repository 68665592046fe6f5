"""Tasks of a batch, and how a limit is divided."""

import pickle
import random

from folkmoot.consumers.fetch.range_reader import OffsetRange
from folkmoot.protocol.records import TopicPartition
from folkmoot.spark_apps.offsets.checkpoint import Range
from folkmoot.spark_apps.options.config import StreamConfig
from folkmoot.spark_apps.tasks.planning import (
    LARGE_TASK,
    LARGE_TASK_BYTES,
    SMALL_TASK,
    split,
    task_records,
    tasks,
)
from tests.seeds import new_seed

IDS = {"flights": "id"}


class Led:
    """Partition 1 has no leader; records take 10 bytes, or as many as are given."""

    def __init__(self, size: float = 10.0) -> None:
        self.size = size

    def leader_address(self, partition: TopicPartition) -> str | None:
        return None if partition.partition == 1 else f"broker:{partition.partition}"

    def record_bytes(self, topic: str) -> float:
        return self.size


def flights(number: int) -> TopicPartition:
    return TopicPartition("flights", number)


def config(**options: int) -> StreamConfig:
    return StreamConfig(zookeeper="z", group="g", subscribe="flights", **options)  # type: ignore[arg-type]


def test_a_task_is_told_all_that_it_needs() -> None:
    ranges = {flights(0): Range(3, 9), flights(1): Range(0, 2)}
    planned = tasks(ranges, IDS, 6, Led(), ["b:2", "a:1"])
    addresses = ("a:1", "b:2", "broker:0")
    assert planned == [
        (OffsetRange("flights", 0, "id", 3, 9, "broker:0", addresses, 10.0),),
        (OffsetRange("flights", 1, "id", 0, 2, None, addresses, 10.0),),
    ]
    assert pickle.loads(pickle.dumps(planned)) == planned


def test_small_slices_share_a_task_and_large_ranges_are_split() -> None:
    ranges = {flights(n): Range(0, 10) for n in range(4)} | {flights(9): Range(5, 105)}
    planned = tasks(ranges, IDS, 40, Led(), ())
    bounds = [[(part.partition, part.first, part.end) for part in task] for task in planned]
    assert bounds == [
        [(0, 0, 10), (1, 0, 10), (2, 0, 10), (3, 0, 10)],
        [(9, 5, 38)],
        [(9, 38, 71)],
        [(9, 71, 105)],
    ]


def test_whatever_the_ranges_tasks_hold_each_record_once_and_none_too_many() -> None:
    seed = new_seed()
    dice = random.Random(seed)
    for _ in range(300):
        ranges = {
            flights(n): Range(start := dice.randint(0, 50), start + dice.choice((1, 9, 400)))
            for n in range(dice.randint(1, 9))
        }
        most = dice.randint(1, 500)
        planned = tasks(ranges, IDS, most, Led(), ())
        read = [(s.partition, o) for task in planned for s in task for o in range(s.first, s.end)]
        assert read == [(p.partition, o) for p in sorted(ranges) for o in range(*ranges[p][:2])]
        assert all(0 < sum(s.end - s.first for s in task) <= most for task in planned)


def test_a_batch_is_divided_into_some_tasks_neither_tiny_nor_huge() -> None:
    assert task_records({flights(0): 900, flights(1): 100}, config(), Led()) == SMALL_TASK
    assert task_records({flights(0): 1_000_000}, config(), Led()) == 125_000
    assert task_records({flights(0): 90_000_000}, config(), Led()) == LARGE_TASK
    large = task_records({flights(0): 10_000}, config(), Led(size=100_000.0))
    assert large == LARGE_TASK_BYTES // 100_000


def test_options_divide_a_batch_further() -> None:
    sizes = {flights(n): 100 for n in range(3)}
    most = task_records(sizes, config(minPartitions=10), Led())
    assert len(tasks({each: Range(0, 100) for each in sizes}, IDS, most, Led(), ())) >= 10
    assert task_records(sizes, config(maxRecordsPerPartition=7), Led()) == 7


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
