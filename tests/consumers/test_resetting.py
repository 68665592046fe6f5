"""Targets of a reset, as offsets."""

from datetime import UTC, datetime, timedelta

import pytest

from folkmoot.consumers.resetting import Planned, Shift, Target, planned
from folkmoot.protocol.errors import ConfigError, NoOffset, OffsetOutOfRange
from folkmoot.protocol.records import TopicPartition

P0 = TopicPartition("t", 0)
NOW = datetime.now(UTC)


def new(to: Target, committed: int | None = 50, by_time: int = 70) -> int:
    plan = planned(to, {P0: committed}, {P0: 10}, {P0: 100}, {P0: by_time})
    offset = plan[0].new
    assert plan == [Planned(partition=P0, committed=committed, new=offset, beginning=10, end=100)]
    return offset


@pytest.mark.parametrize(
    ("to", "offset"),
    [
        ("earliest", 10),
        ("latest", 100),
        (10, 10),
        (100, 100),
        (Shift(7), 57),
        (Shift(-7), 43),
        (Shift(-1000), 10),
        (Shift(1000), 100),
        (NOW, 70),
        (timedelta(hours=1), 70),
    ],
)
def test_each_target_is_an_offset_that_exists(to: Target, offset: int) -> None:
    assert new(to) == offset


def test_a_time_before_the_first_record_is_the_first_record() -> None:
    assert new(NOW, by_time=3) == 10


@pytest.mark.parametrize("offset", [9, 101])
def test_an_offset_that_does_not_exist_is_refused_with_the_range(offset: int) -> None:
    with pytest.raises(OffsetOutOfRange, match="t-0 has offsets 10 to 100"):
        new(offset)
    with pytest.raises(OffsetOutOfRange, match="t-0 has offsets 10 to 100"):
        planned({P0: offset}, {P0: None}, {P0: 10}, {P0: 100}, {})


def test_a_shift_needs_something_to_start_from() -> None:
    with pytest.raises(NoOffset, match="t-0"):
        new(Shift(1), committed=None)
    assert new("latest", committed=None) == 100


def test_what_is_no_target_is_refused() -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        new("first")  # type: ignore[arg-type]
