"""What a change of a group cost, told from logs of deliveries."""

from pathlib import Path

import pytest

from benchmarks.clients.deliveries import DeliveryLog, DeliveryReader
from benchmarks.rebalances import MemberDelivery, judge


def stream(
    partition: int, member: int, start: int, end: int, offset: int = 0
) -> list[MemberDelivery]:
    """A record every 20 ms, from and until so many ms after the event at 10 s."""
    return [
        MemberDelivery(10 + at / 1000, member, partition, offset + number)
        for number, at in enumerate(range(start, end, 20))
    ]


def test_what_moved_counts_until_its_new_owner_delivers_and_what_stayed_by_its_longest_gap() -> (
    None
):
    seen = sorted(
        [
            *stream(0, 1, -1000, 3000),
            *stream(1, 1, -1000, 190),
            *stream(1, 1, 270, 3000, offset=60),
            *stream(2, 2, -1000, 50),  # 53 records
            *stream(2, 1, 310, 3000, offset=53),
            *stream(3, 2, -1000, 50),
            *stream(3, 3, 400, 3000, offset=50),  # three of them again
        ]
    )
    found = judge(seen, at=10.0, until=12.9)
    assert found.moved == 2
    assert found.served_again == pytest.approx(0.4)
    assert found.longest_pause == pytest.approx(0.09)
    assert found.pause_before == pytest.approx(0.02)
    assert found.twice == 3
    assert found.silent == 0


def test_a_partition_that_is_never_served_again_counts_as_long_as_was_waited() -> None:
    seen = sorted([*stream(0, 1, -1000, 3000), *stream(1, 2, -1000, 0)])
    found = judge(seen, at=10.0, until=12.5)
    assert (found.silent, found.moved) == (1, 0)
    assert found.served_again == pytest.approx(2.5)
    assert found.longest_pause == pytest.approx(0.02)


def test_a_partition_that_is_back_at_its_owner_has_moved_all_the_same() -> None:
    seen = sorted(
        [*stream(0, 1, -1000, 0), *stream(0, 2, 100, 200), *stream(0, 1, 300, 3000, offset=60)]
    )
    found = judge(seen, at=10.0, until=12.5)
    assert found.moved == 1
    assert found.served_again == pytest.approx(0.3)


def test_deliveries_are_followed_from_another_process(tmp_path: Path) -> None:
    path = tmp_path / "log"
    reader = DeliveryReader(path)
    assert list(reader.read_new()) == []
    log = DeliveryLog(str(path))
    log.add([])
    log.add([(3, 7), (4, 8)])
    first, second = reader.read_new()
    assert (first.partition, first.offset, second.partition, second.offset) == (3, 7, 4, 8)
    assert first.at == second.at > 0
    assert list(reader.read_new()) == []
    log.add([(3, 9)])
    assert [each.offset for each in reader.read_new()] == [9]
